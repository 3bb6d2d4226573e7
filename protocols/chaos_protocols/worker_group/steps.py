"""Which steps count: the one under way, and the one that was committed last."""

from __future__ import annotations

from chaos_protocols.worker_group.commit import StepCollector
from chaos_protocols.worker_group.messages import CommitStep, GroupHello
from chaos_protocols.worker_group.round_steps import RoundSteps
from chaos_protocols.worker_group.tags import Step


class CountedSteps:
    """Owned by the machine. `last`: the commit that was told last. `collector`: of the present generation."""

    def __init__(self) -> None:
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
        self.collector = StepCollector(
            step=self.step,
            workers=workers,
            layers=len(hello.layers),
            micro_batches=hello.micro_batches,
            clip_norm=hello.clip_norm,
            rounds=RoundSteps(hello.every),
        )
        return self.collector

    def count(self, commit: CommitStep) -> None:
        """From now on this step counts."""
        self.committed, self.step, self.last = commit.step, commit.after, commit
        if self.collector is not None:
            self.collector.go_to(self.step)

    def go_on_from(self, step: Step) -> None:
        """The state is that of this step, from elsewhere."""
        self.committed, self.step, self.last = step - 1, step, None
        if self.collector is not None:
            self.collector.go_to(step)
