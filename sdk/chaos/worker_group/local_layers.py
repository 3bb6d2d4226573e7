"""Layers of a training with local steps: what of a layer is common to all sites, and what is this site's own.

Each layer has the mode's session of its own, as an ordinary script has one for its whole model: the anchor and what the
outer optimizer keeps, beside live parameters and the inner optimizer. A holder that gets a layer from a peer gets all
of it, so a phase goes on where it stood; what comes from other sites is the common part, with which a phase begins
anew. The vector of a round holds the differences where an ordinary script has them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chaos.frameworks.base import Bytes, StateItem, in_vector_order
from chaos.frameworks.torch import TorchFramework
from chaos.sync.base import Part
from chaos.sync.local_session import LocalStepsSession
from chaos.sync.local_steps import DiLoCo
from chaos_protocols.worker_group.round_steps import RoundSteps


class LocalPhase:
    """Of one layer that is trained here. `mode`: plain local steps, without fragments, delay and pace by time."""

    def __init__(self, mode: DiLoCo, framework: TorchFramework) -> None:
        self._session: LocalStepsSession = mode.start(framework)
        self._rounds = RoundSteps(mode.plan.every)
        self.room: Bytes = np.zeros(self._session.contribution.size_bytes, dtype=np.uint8)
        """What it gives to a round, or the result of one; `places`: where each tensor of the layer lies there."""
        slots = in_vector_order(framework.slots)
        self.places: dict[str, slice] = {}
        at = self.room.size - sum(slot.size_bytes for slot in slots)
        for slot in slots:
            self.places[slot.name] = slice(at, at + slot.size_bytes)
            at += slot.size_bytes

    @property
    def common(self) -> Sequence[StateItem]:
        """What all sites have alike at the end of a round."""
        return self._session.items

    def step(self) -> None:
        """A step of the inner optimizer, on the gradients as they stand."""
        self._session.stepped(Part())

    def goes_on(self, step: int) -> None:
        """The state, wherever it came from, is that of this step."""
        self._session.go_on(self._rounds.round_of(step), self._rounds.position(step))

    def begins_anew(self, round: int) -> None:
        """The common part of the end of `round` came from other sites."""
        self._session.reset(round)

    def end_alone(self, round: int) -> None:
        """The result of a round is what this layer alone gives."""
        self._session.apply_alone(round)

    def void(self) -> None:
        """A round has no result: the phase begins anew."""
        self._session.skip(0)  # it goes back to the anchor, whichever round that is of

    def give(self) -> Bytes:
        """What the layer gives to a round, with the notes before it."""
        self._session.contribute(self.room, 1)
        return self.room

    def apply(self, round: int) -> None:
        """The result of a round lies in `room`, laid out as what was given."""
        self._session.apply(self.room, round)
