"""Whether this machine has the memory that a worker's encoding needs in its daemon, before any of it is taken."""

from __future__ import annotations

from collections.abc import Callable

import psutil

from chaos_protocols.wire.worker import ContributionSpec
from chaosd.bulk.reduce.coded import owed_bytes


def available_bytes() -> int:
    """What the machine has left."""
    return int(psutil.virtual_memory().available)


def memory_problem(
    spec: ContributionSpec, present: ContributionSpec | None, available: Callable[[], int] | None = None
) -> str:
    """Why this vector cannot be averaged here, with figures and what to do; empty: it can. `present`: what is averaged
    already, whose memory is taken."""
    wanted = owed_bytes(spec)
    if not wanted or spec == present:
        return ""
    free = (available or available_bytes)() + (owed_bytes(present) if present is not None else 0)
    if free >= wanted:
        return ""
    return (
        f"encoding={spec.encoding!r} takes {wanted:,} bytes in the daemon beside the script's own (two copies of what "
        f"is averaged, for what rounding loses), but only {max(free, 0):,} are free on this machine; free some, or "
        "leave out encoding= at all sites"
    )
