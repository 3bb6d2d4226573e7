"""The shared memory of a site's workers and its daemon, as a worker sees it.

The controller makes it and hands it to the daemon (`wire.arena.ArenaLayout`); behind the regions of that layout lies
one more, for the piece of the state that is digested after a round.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Sequence

import numpy as np
import torch

from chaos.frameworks.base import Bytes
from chaos.pinning import pin
from chaos.sync.notes import Numbers
from chaos.worker_group.chain.held import HeldPart
from chaos.worker_group.chain.vectors import Vectors
from chaos_protocols.rounds.state_check import piece_bytes
from chaos_protocols.wire.arena import arena_layout
from chaos_protocols.worker_group.messages import CommitStep
from chaos_protocols.worker_group.said import NotesSpec


class RunMemory:
    """Mapped when the first plan is taken: by then the controller knows how large it is."""

    def __init__(self, vectors: Vectors, descriptor: int) -> None:
        self._vectors = vectors
        layout = arena_layout(vectors.contribution.size_bytes, vectors.state.size_bytes)
        check_bytes = piece_bytes(vectors.state.size_bytes)
        self._map = mmap.mmap(descriptor, layout.size_bytes + check_bytes)
        whole: Bytes = np.frombuffer(self._map, dtype=np.uint8)
        weakref.finalize(self, pin(whole[: layout.state_offset])).atexit = False
        size = vectors.contribution.size_bytes
        self._contribution = whole[layout.contribution_offset : layout.contribution_offset + size][vectors.left_out :]
        self._noted = whole[layout.result_offset : layout.result_offset + size]
        self._result = self._noted[vectors.left_out :]
        self._state = whole[layout.state_offset : layout.state_offset + vectors.state.size_bytes]
        self._check = whole[layout.size_bytes : layout.size_bytes + check_bytes]

    def give(self, layer: HeldPart, mean: torch.Tensor | None) -> None:
        """This layer's part of what the site gives to the next round."""
        self._vectors.give(self._contribution, layer, mean)

    def notes(self, spec: NotesSpec) -> Numbers:
        """Of the result of a round."""
        return self._noted[: 8 * spec.count].view(np.float64)

    def squares(self, layer: HeldPart) -> float:
        """Of this layer's part of the result, as a whole: a norm has the same bits at every site."""
        return layer.whole_squares(self._vectors.whole_gradient(self._result, layer.index))

    def update(self, layers: Sequence[HeldPart], commit: CommitStep, round: int) -> None:
        """Apply the result of `round` to the layers kept here."""
        for layer in layers:
            if layer.held and commit.void:
                layer.void(round)
            elif layer.held and layer.keeps:
                self._vectors.update(self._result, layer, commit.factor, round)

    def write(self, layer: HeldPart) -> None:
        """This layer's state, for a joiner."""
        self._vectors.write(self._state, layer)

    def load(self, layers: Sequence[HeldPart], round: int) -> None:
        """Take the state of the end of `round` over, of the layers kept here."""
        for layer in layers:
            if layer.held and layer.keeps:
                self._vectors.load(self._state, layer)
                layer.loaded()
                layer.begins_anew(round)

    def copy(self, layers: Sequence[HeldPart], start: int, stop: int) -> None:
        """What these layers have of bytes [start, stop) of the state, to be digested."""
        for layer in layers:
            self._vectors.copy(self._check, start, stop, layer)
