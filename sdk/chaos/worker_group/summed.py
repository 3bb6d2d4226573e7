"""A training of replicas as what is averaged with other institutions, where one process has all micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chaos.frameworks.base import Bytes, StateItem
from chaos.sync.base import Due, Part
from chaos.sync.every_step import EveryStepSession
from chaos.sync.notes import Agreed
from chaos.worker_group.whole import WholeModel
from chaos_protocols.wire.worker import ContributionSpec
from chaos_protocols.worker_group.said import Said


class SummedSession:
    """A `chaos.sync.SyncSession`: an ordinary one, whose gradients are the sums of a step."""

    notice = ""

    def __init__(self, session: EveryStepSession, whole: WholeModel, notes_bytes: int) -> None:
        """`notes_bytes`: in front of the gradients of a round."""
        self._session, self._whole, self._notes_bytes = session, whole, notes_bytes
        self.items: Sequence[StateItem] = session.items
        self.contribution: ContributionSpec = session.contribution
        self.given: tuple[torch.Tensor, float, Said] | None = None
        """Mean gradient of a step, the samples behind it, and what was said with it."""
        self.average, self.name_at = session.average, session.name_at

    @property
    def agreed(self) -> Agreed | None:
        return self._session.agreed

    def check(self, part: Part) -> None:
        self._session.check(part)

    def stepped(self, part: Part) -> Due:
        self.check(part)
        return Due.ROUND

    def contribute(self, vector: Bytes, round: int) -> float:
        if self.given is None:
            return 0.0
        mean, samples, said = self.given
        if self._notes_bytes:
            self._session.stepped(Part(samples=samples, wants_to_end=bool(said.ends), metrics=said.reported))
            self._session.contribute(vector, round)
        self._whole.lay_out(mean, vector[self._notes_bytes :])
        return samples

    def apply(self, vector: Bytes, round: int) -> None:
        self._session.apply(vector, round)
        self.given = None

    def skip(self, round: int) -> None:
        self._session.skip(round)
        self.given = None

    def averaged_over(self, weight: float) -> None:
        self._session.averaged_over(weight)

    def withheld(self) -> None:
        self._session.withheld()

    def apply_alone(self, round: int) -> str:
        raise AssertionError("alone, the steps of a replicated model are its own (ReplicaAlone)")

    def reset(self, round: int) -> None:
        self._session.reset(round)
        self.given = None
