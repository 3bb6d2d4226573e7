"""Which steps count: the one under way, and the one that was committed last."""

from __future__ import annotations

from chaos_protocols.worker_group.commit import StepCollector
from chaos_protocols.worker_group.messages import CommitStep, GroupHello
from chaos_protocols.worker_group.tags import Step


class CountedSteps:
    """Owned by the machine. `last`: the commit that was told last. `collector`: of the present generation."""

    def __init__(self) -> None:
        self.committed = -1
        self.last: CommitStep | None = None
        self.collector: StepCollector | None = None

    @property
    def step(self) -> Step:
        """How many updates the state has that everybody goes on from."""
        return self.committed + 1

    def begin(self, hello: GroupHello, workers: frozenset[int]) -> StepCollector:
        """Of a generation."""
        self.collector = StepCollector(
            step=self.step,
            workers=workers,
            layers=len(hello.layers),
            micro_batches=hello.micro_batches,
            clip_norm=hello.clip_norm,
        )
        return self.collector

    def count(self, commit: CommitStep) -> None:
        """From now on this step counts."""
        self.committed, self.last = commit.step, commit
        if self.collector is not None:
            self.collector.go_to(self.step)

    def go_on_from(self, step: Step) -> None:
        """The state is that of this step, from elsewhere."""
        self.committed, self.last = step - 1, None
        if self.collector is not None:
            self.collector.go_to(step)
