"""One of several workers that executes its share of a plan's stream, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from chaos.worker_group.chain.vectors import Vectors
from chaos.worker_group.compute.interpreter import StepRun, Task
from chaos.worker_group.exchange.channels import GroupFailed
from chaos.worker_group.exchange.groups import Groups
from chaos.worker_group.exchange.lanes import Lanes
from chaos.worker_group.exchange.line import GenerationEnded
from chaos.worker_group.life import InGroup
from chaos.worker_group.session import Applied, ChainTraining, pair_of
from chaos_protocols.worker_group.messages import PlanOrder
from chaos_protocols.worker_group.tags import StepPhase


class TrainsTogether(InGroup):
    """See `InGroup`."""

    def __init__(
        self,
        training: ChainTraining,
        environment: Mapping[str, str],
        vectors: Vectors | None = None,
        lanes: Lanes | None = None,
    ) -> None:
        super().__init__(training, environment, vectors, lanes)
        self._chain = training
        self._task: Task | None = None

    def step(self) -> Applied:
        """Until one more step is applied. Raises `GroupEnded`."""
        self.line.enter()
        repeated, interrupted = 0, False
        applied: Applied | None = None
        try:
            while True:
                try:
                    if not self._installed or self.line.halted():
                        again = self._install()
                        if again is not None and self._all_end:
                            return self._last_of_all(again)
                        if again is not None:  # its script hears of it under the next plan, before the next step
                            applied, interrupted = again, True
                            continue
                    applied = applied or self._held() or self._one_step(repeated)
                    if applied is not None:
                        self._end_phase(repeated, interrupted=interrupted)
                        self._check_fresh()
                        return replace(applied, step=self._rounds.updates(self._tag.step))
                except (GenerationEnded, GroupFailed) as error:
                    repeated += self._tag.phase is not StepPhase.UPDATE and self._run is not None
                    interrupted = applied is not None
                    self._halt(error)
        finally:
            self.line.leave()

    def _last_of_all(self, applied: Applied) -> Applied:
        """All have ended with this step: nobody builds anything with this worker any more, or refreshes what it does
        not keep."""
        for layer in self._training.parts:
            if layer.held and not layer.keeps:
                layer.drop()
        return replace(applied, step=self._rounds.updates(applied.step))

    def _end_phase(self, repeated: int, *, interrupted: bool) -> None:
        """After the last local step of a phase: the round, until its result or another state is here. `interrupted`:
        under another plan, which may have begun without a whole state."""
        if interrupted:
            self._held()
        while not self._rounds.computes(self._tag.step):
            self._held()
            if not self._rounds.computes(self._tag.step):
                self._one_step(repeated)

    def _one_step(self, repeated: int) -> Applied | None:
        """None: the state that this step began with was replaced."""
        task = self._task
        assert task is not None
        self.line.check()
        self._check_fresh()
        if not self._rounds.computes(self._tag.step):
            return self._reduced(None, repeated)
        step, loader = self._rounds.updates(self._tag.step), self._training.loader
        run = StepRun(task, loader.batch_of(step), lambda g: pair_of(loader.micro_batch(step, g)), self._doing)
        self._run = run
        self._training.notes.again()
        self._training.notes.dealt()
        run.run()
        run.said[loader.micro_batches + self.line.worker] = self._training.notes.given()
        return self._reduced(run, repeated)

    def _planned(self, order: PlanOrder, groups: Groups) -> None:
        chain, loader = self._chain, self._training.loader
        self._task = Task(
            share=order.share,
            layers=chain.layers,
            loss=chain.loss,
            boundaries=chain.boundaries,
            me=self.line.worker,
            groups=groups,
            seed=loader.seed,
            micro_batches=loader.micro_batches,
            part=loader.part,
            parts=loader.parts,
            device=chain.device,
            spans=self.line.spans,
            notes=chain.notes,
        )
