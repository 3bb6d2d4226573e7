"""Layers of a training with local steps: the vector of a round holds their differences where an ordinary script has
them."""

from __future__ import annotations

import numpy as np

from chaos.frameworks.base import Bytes, StateItem, in_vector_order
from chaos.frameworks.torch import TorchFramework
from chaos.sync.local_steps import DiLoCo
from chaos.worker_group.chain.local_phase import LocalPhase


class LayerPhase(LocalPhase):
    """Of one layer that is trained here."""

    def __init__(self, mode: DiLoCo, framework: TorchFramework, heard: StateItem | None = None) -> None:
        super().__init__(mode, framework, heard)
        self.room: Bytes = np.zeros(self.session.contribution.size_bytes, dtype=np.uint8)
        """What it gives to a round, or the result of one; `places`: where each tensor of the layer lies there."""
        slots = in_vector_order(framework.slots)
        self.places: dict[str, slice] = {}
        at = self.room.size - sum(slot.size_bytes for slot in slots)
        for slot in slots:
            self.places[slot.name] = slice(at, at + slot.size_bytes)
            at += slot.size_bytes

    def give(self) -> Bytes:
        """What the layer gives to a round, with the notes before it."""
        self._contribute(self.room)
        return self.room

    def apply(self, round: int) -> None:
        """The result of a round lies in `room`, laid out as what was given."""
        self.session.apply(self.room, round)
