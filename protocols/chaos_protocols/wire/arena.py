"""Where things lie in the arena: the shared memory that a worker makes and its daemon maps (docs/architecture.md).

contribution   what this site gives to the running round; stays untouched until the result of that round was applied
result         the averaged vector of a round, written by the daemon, read by the worker
state          a snapshot of the whole state (source side), or the state that a joiner is to load
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from chaos_protocols.names import STATE_BYTES_MAX

Offset = Annotated[int, msgspec.Meta(ge=0, le=STATE_BYTES_MAX)]
REGION_ALIGNMENT_BYTES = 4096


class ArenaLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Byte offsets of the three regions; equal on both sides because both compute it from the same specs."""

    contribution_offset: Offset
    result_offset: Offset
    state_offset: Offset
    size_bytes: Offset


def arena_layout(contribution_bytes: int, state_bytes: int) -> ArenaLayout:
    """Lay the regions out one behind the other, each on a page boundary."""

    def align(size: int) -> int:
        return -(-size // REGION_ALIGNMENT_BYTES) * REGION_ALIGNMENT_BYTES

    region = align(contribution_bytes)
    return ArenaLayout(
        contribution_offset=0, result_offset=region, state_offset=2 * region, size_bytes=2 * region + align(state_bytes)
    )
