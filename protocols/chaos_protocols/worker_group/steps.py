"""Which steps count: the one under way, and the one that was committed last."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from chaos_protocols.worker_group.commit import NotFinite, StepCollector
from chaos_protocols.worker_group.messages import CommitStep, GroupHello
from chaos_protocols.worker_group.round_steps import RoundSteps
from chaos_protocols.worker_group.said import PhaseSaid
from chaos_protocols.worker_group.settings import SKIPPED_MAX
from chaos_protocols.worker_group.tags import Step


class CountedSteps:
    """Owned by the machine. `last`: the commit that was told last. `collector`: of the present generation. `rounds`:
    which steps make one. `skips`: a step whose gradient is not finite counts, and changes nothing."""

    def __init__(self, *, skips: bool = False) -> None:
        self._skips, self._in_a_row = skips, 0
        self.rounds, self._phase = RoundSteps(), PhaseSaid()
        self.skipped = ""
        """Why the last one that was left out was."""
        self.committed = -1
        self.step: Step = 0
        """How many updates the state has that everybody goes on from."""
        self.last: CommitStep | None = None
        self.collector: StepCollector | None = None

    @property
    def shared(self) -> bool:
        """Whether what was committed last lies in shared memory."""
        return self.last is not None and self.last.shared

    def begin(self, hello: GroupHello, workers: frozenset[int]) -> StepCollector:
        """Of a generation."""
        self.rounds = replace(self.rounds, every=hello.every)
        self.collector = StepCollector(
            step=self.step,
            workers=workers,
            layers=len(hello.layers),
            micro_batches=hello.micro_batches,
            clip_norm=hello.clip_norm,
            rounds=self.rounds,
            phase=self._phase,
        )
        return self.collector

    def summed(self, *, vain: bool = False) -> CommitStep:
        """The commit of the step under way, whose sums are there. `vain`: its round is still to come. Raises
        `NotFinite` where it ends the training."""
        assert self.collector is not None
        try:
            commit = self.collector.summed()
            if self.rounds.computes(commit.step):
                self._in_a_row = 0
        except NotFinite as error:
            self._in_a_row, self.skipped = self._in_a_row + 1, str(error)
            if not self._skips:
                raise NotFinite(f"{error}; chaosd run --skip-not-finite leaves such a step out") from error
            if self._in_a_row > SKIPPED_MAX:
                text = (
                    f"{error}; so were the {SKIPPED_MAX} steps before it: the parameters may not be finite themselves"
                )
                raise NotFinite(text) from error
            commit = self.collector.void()
        return msgspec.structs.replace(commit, vain=vain)

    def count(self, commit: CommitStep) -> None:
        """From now on this step counts."""
        self.committed, self.step, self.last = commit.step, commit.after, commit
        if commit.shared or not self.rounds.computes(commit.step):
            self._phase.begin()
        else:
            self._phase.add(commit.said, commit.loss, commit.norm, counts=not commit.void)
        if commit.shared and self.rounds.computes(commit.step):
            self._in_a_row = 0
        if commit.vain:
            self.rounds = replace(self.rounds, vain=self.rounds.vain + 1)
        if self.collector is not None:
            self.collector.go_to(self.step, self.rounds)

    def begin_anew(self) -> None:
        """Nobody has a state any more."""
        self.go_on_from(self.rounds.begin(0))

    def go_on_from(self, step: Step) -> None:
        """The state is that of this step, from elsewhere."""
        self._phase.begin()
        self.committed, self.step, self.last = step - 1, step, None
        if self.collector is not None:
            self.collector.go_to(step, self.rounds)
