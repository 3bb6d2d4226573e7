"""The shared memory of the workers, their controller and the site's daemon.

Made empty before the workers start, so that they inherit it, and given its size when the first of them has said what is
trained; sealed then, as the daemon demands. Behind the arena's regions (`wire.arena.arena_layout`) lies the piece of
the state that is digested after a round.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Sequence

from chaos_protocols.rounds.state_check import digests_of, piece_bytes
from chaos_protocols.wire.arena import ArenaLayout, arena_layout
from chaos_protocols.wire.worker import StateDigests, StateSpec
from chaos_protocols.worker_group.messages import RunSpecs
from chaosd.os_errors import explain
from chaosd.worker.memory import available_bytes

F_ADD_SEALS = getattr(fcntl, "F_ADD_SEALS", 1033)
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1, 2, 4


class TooLittleMemory(Exception):
    """The machine cannot give as much; the text says how much is needed."""


class SharedMemory:
    """`descriptor`: what the workers inherit."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("chaos-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.layout: ArenaLayout | None = None
        self._map: mmap.mmap | None = None
        self._state: StateSpec | None = None

    def lay_out(self, specs: RunSpecs) -> ArenaLayout:
        """Take the memory, once; the layout. Raises `TooLittleMemory`."""
        if self.layout is not None:
            return self.layout
        layout = arena_layout(specs.contribution.size_bytes, specs.state.size_bytes)
        size = layout.size_bytes + piece_bytes(specs.state.size_bytes)
        available = available_bytes()
        if available < size:
            raise TooLittleMemory(
                f"the shared memory for this model needs {size:,} bytes (twice its gradients, and the training state), "
                f"but only {available:,} bytes are free; free some, raise the container's limit, or train a smaller "
                "model"
            )
        try:
            os.ftruncate(self.descriptor, size)
            os.posix_fallocate(self.descriptor, 0, size)
            fcntl.fcntl(self.descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
            self._map = mmap.mmap(self.descriptor, size)
        except OSError as error:
            raise TooLittleMemory(f"shared memory of {size:,} bytes: {explain(error)}") from error
        self.layout, self._state = layout, specs.state
        return layout

    def note(self, numbers: Sequence[float]) -> None:
        """Write these in front of what the workers give to a round."""
        if numbers and self._map is not None and self.layout is not None:
            struct.pack_into(f"={len(numbers)}d", self._map, self.layout.contribution_offset, *numbers)

    def digests(self, start: int, stop: int) -> StateDigests | None:
        """Of the piece that the workers have copied; None for one that is larger than there is room for."""
        if self._map is None or self.layout is None or self._state is None:
            return None
        if not 0 <= start < stop <= self._state.size_bytes or stop - start > piece_bytes(self._state.size_bytes):
            return None
        with memoryview(self._map) as whole:
            at = self.layout.size_bytes
            return digests_of(self._state, (start, stop), whole[at : at + stop - start])

    def close(self) -> None:
        """Give it back; others may still have it."""
        if self._map is not None:
            self._map.close()
        os.close(self.descriptor)
