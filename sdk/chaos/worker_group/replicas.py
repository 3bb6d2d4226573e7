"""The workers of a site as replicas of one model, whose script computes the gradients itself.

The script takes a micro-batch, computes, and gives its gradients back; which micro-batches a worker gets, and when a
step counts, is the plan's affair as with layers. A micro-batch of a step that was stopped is dropped, and dealt anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch

from chaos.conversation import Conversation
from chaos.frameworks.base import Bytes, StateItem
from chaos.phase import Phase
from chaos.sync.base import Due, Part
from chaos.sync.every_step import EveryStepSession
from chaos.sync.notes import Agreed
from chaos.worker_group.channels import GroupFailed
from chaos.worker_group.devices import HOST, Device
from chaos.worker_group.groups import Groups
from chaos.worker_group.life import InGroup
from chaos.worker_group.line import GenerationEnded, GroupEnded
from chaos.worker_group.passes import Passes
from chaos.worker_group.session import Training, update
from chaos.worker_group.spans import SpanLog
from chaos.worker_group.summing import StepSums
from chaos.worker_group.vectors import Vectors
from chaos.worker_group.whole import WholeModel
from chaos_protocols.streams import ForwardPass, Sum
from chaos_protocols.wire.worker import ContributionSpec
from chaos_protocols.worker_group.commit import NotFinite, StepCollector
from chaos_protocols.worker_group.messages import PlanOrder, Reduced
from chaos_protocols.worker_group.suspicion import Work
from chaos_protocols.worker_group.tags import StepPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTraining(Training):
    """A whole model on every worker."""

    whole: WholeModel

    @property
    def parts(self) -> Sequence[WholeModel]:
        return (self.whole,)


class ReplicaRun:
    """One step of a replica: `due` are the micro-batches that it has still to compute, in order."""

    def __init__(
        self,
        whole: WholeModel,
        micro_batches: int,
        due: Sequence[int],
        device: Device = HOST,
        spans: SpanLog | None = None,
    ) -> None:
        self.sums = StepSums([whole], micro_batches)
        self.losses: dict[int, float] = {}
        self.computing = Passes(device, spans)
        self.summing_s = 0.0
        self.due = deque(due)
        self._whole = whole

    @property
    def seconds(self) -> dict[str, float]:
        """By kind of work, of what is over."""
        passes = {work.name.lower(): took_s for work, took_s in self.computing.seconds.items()}
        return {**passes, "waiting": 0.0, "summing": self.summing_s}

    def squares(self, layers: Sequence[int]) -> tuple[tuple[int, float], ...]:
        return tuple((layer, float(self._whole.squared(self.sums.total(layer)))) for layer in layers)

    def take(self, loss: float) -> None:
        """The script has computed the first one that is due."""
        micro_batch = self.due.popleft()
        self.losses[micro_batch] = loss
        self.sums.leaf(0, micro_batch, self._whole.take())


class ReplicaWorker(Protocol):
    """One worker that computes what it is dealt."""

    @property
    def generation(self) -> int: ...

    @property
    def speaks(self) -> bool: ...

    @property
    def updates(self) -> int:
        """How many the state has."""
        ...

    def next(self) -> tuple[int, int] | None:
        """(step, micro-batch) to be computed now; None: the training is complete. Raises `GroupEnded`."""
        ...

    def give(self, loss: float) -> None:
        """It was computed: with the last one of the step, its update follows. Raises `GroupEnded`."""
        ...

    def doing(self, work: Work) -> None:
        """What the script is at."""
        ...

    def failed(self, error: BaseException) -> None: ...

    def ended(self) -> None: ...

    def close(self) -> None: ...


class ReplicaAlone:
    """The only one."""

    generation = 0
    speaks = True

    def __init__(self, training: WholeTraining) -> None:
        self._training = training
        self._run = self._begin()
        self._collector = StepCollector(
            step=0,
            workers=frozenset({0}),
            layers=1,
            micro_batches=training.loader.micro_batches,
            clip_norm=None,
        )

    @property
    def updates(self) -> int:
        return self._collector.step

    def next(self) -> tuple[int, int] | None:
        if self.updates >= self._training.loader.steps:
            return None
        return self.updates, self._run.due[0]

    def give(self, loss: float) -> None:
        """Raises ValueError for a gradient that is not finite."""
        run = self._run
        run.take(loss)
        if not run.due:
            self._complete(run)
            self._run = self._begin()

    def _begin(self) -> ReplicaRun:
        count = self._training.loader.micro_batches
        return ReplicaRun(self._training.whole, count, range(count))

    def _complete(self, run: ReplicaRun) -> None:
        reduced = Reduced(
            generation=0, step=self.updates, squares=run.squares([0]), losses=tuple(sorted(run.losses.items()))
        )
        self._collector.take_reduced(0, reduced)
        try:
            commit = self._collector.complete()
        except NotFinite as error:
            raise ValueError(str(error)) from None
        update(self._training.parts, run, commit)
        every = self._training.every
        if every and self.updates % every == 0:
            self._training.whole.end_alone(self.updates // every)

    def doing(self, work: Work) -> None:
        """Nobody looks."""

    def failed(self, error: BaseException) -> None:
        """Nobody else has to know."""

    def ended(self) -> None:
        """Nobody else has to know."""

    def close(self) -> None:
        """Nobody else has to know."""


class SummedSession:
    """A `chaos.sync.SyncSession`: an ordinary one, whose gradients are the sums of a step."""

    agreed: Agreed | None = None
    notice = ""

    def __init__(self, session: EveryStepSession, whole: WholeModel) -> None:
        self._session, self._whole = session, whole
        self.items: Sequence[StateItem] = session.items
        self.contribution: ContributionSpec = session.contribution
        self.given: tuple[torch.Tensor, float] | None = None
        """Mean gradient of a step, and the samples behind it."""
        self.average, self.name_at = session.average, session.name_at

    def check(self, part: Part) -> None:
        self._session.check(part)

    def stepped(self, part: Part) -> Due:
        self.check(part)
        return Due.ROUND

    def contribute(self, vector: Bytes, round: int) -> float:
        if self.given is None:
            return 0.0
        mean, samples = self.given
        self._whole.lay_out(mean, vector)
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


class ReplicaWithOthers(ReplicaAlone):
    """The only one of its site, beside a daemon: each step is a round of a run of institutions."""

    def __init__(self, training: WholeTraining, conversation: Conversation, session: SummedSession) -> None:
        super().__init__(training)
        self._conversation, self._session = conversation, session
        self._step = conversation.round

    @property
    def updates(self) -> int:
        return self._conversation.round

    def next(self) -> tuple[int, int] | None:
        if self._conversation.phase is Phase.LEFT:
            raise GroupEnded("")
        if self._step != self.updates:
            self._step, self._run = self.updates, self._begin()
        return super().next()

    def _complete(self, run: ReplicaRun) -> None:
        loader = self._training.loader
        samples = float(loader.micro_batches * loader.micro_batch_size)
        self._session.given = (run.sums.total(0) / loader.micro_batches, samples)
        if not self._conversation.contribute():
            raise GroupEnded("")


class ReplicaTogether(InGroup):
    """One of several."""

    def __init__(self, training: WholeTraining, environment: Mapping[str, str], vectors: Vectors | None = None) -> None:
        super().__init__(training, environment, vectors)
        self._whole = training.whole
        self._built: tuple[PlanOrder, Groups] | None = None
        self._computing: ReplicaRun | None = None
        self._handed: Any = None
        self._turned: Any = None
        """Marks of the device: the script was dealt its micro-batch; the forward pass was over, None: none was seen."""

    @property
    def updates(self) -> int:
        return self._rounds.updates(self._tag.step)

    def next(self) -> tuple[int, int] | None:
        self.line.enter()
        try:
            while True:
                try:
                    return self._dealt()
                except (GenerationEnded, GroupFailed) as error:
                    self._interrupted(error)
        finally:
            self.line.leave()

    def give(self, loss: float) -> None:
        self.line.enter()
        try:
            try:
                self._take(loss)
            except (GenerationEnded, GroupFailed) as error:
                self._interrupted(error)
            self._end_phase()
        finally:
            self.line.leave()

    def _take(self, loss: float) -> None:
        run = self._computing
        if run is None or self.line.stopping:
            raise GenerationEnded
        micro_batch = run.due[0]
        run.take(loss)
        if self._turned is None:  # all is told as backward
            self._turned = self._handed
        else:
            run.computing.between(Work.FORWARD, micro_batch, self._handed, self._turned)
        run.computing.add(Work.BACKWARD, micro_batch, self._turned)
        if not run.due:
            self._close_step(run)

    def _end_phase(self) -> None:
        """After the last local step of a phase: until the result of its round is applied, or another state is here,
        whoever dies meanwhile. The script goes on with what all sites have in common."""
        while not self._rounds.computes(self._tag.step):
            try:
                self._stand_by()
            except (GenerationEnded, GroupFailed) as error:
                self._interrupted(error)

    def _stand_by(self) -> bool:
        """Until there is something to compute; false: nothing more is."""
        while True:
            if not self._installed or self.line.halted():
                self._install()
            if self._held() is not None or self._tag.step >= self._rounds.after(self._training.loader.steps):
                return False
            self.line.check()
            if self._rounds.computes(self._tag.step):
                return True
            self._reduced(None, 0)

    def doing(self, work: Work) -> None:
        if work is Work.BACKWARD:
            self._turned = self._training.device.mark()
        self.line.doing(work)

    def _dealt(self) -> tuple[int, int] | None:
        while self._stand_by():
            run = self._computing = self._computing or self._begin()
            if run.due:
                self._handed, self._turned = run.computing.mark(), None
                return self.updates, run.due[0]
            self._close_step(run)  # nothing of this step was for this worker
        return None

    def _begin(self) -> ReplicaRun:
        assert self._built is not None
        due = [each.micro_batch for each in self._built[0].share.stream if isinstance(each, ForwardPass)]
        return ReplicaRun(self._whole, self._training.loader.micro_batches, due, self._training.device, self.line.spans)

    def _close_step(self, run: ReplicaRun) -> None:
        assert self._built is not None
        order, groups = self._built
        self._run, self._computing = run, None
        waits: Callable[[int], None] = lambda peer: self._doing(Work.WAITING, peer)  # noqa: E731
        run.computing.wait()
        began_s = perf_counter()
        for each in order.share.stream:
            if isinstance(each, Sum):
                self._doing(Work.SUMMING)
                run.sums.close(each, self.line.worker, groups, waits)
        ended_s = perf_counter()
        run.summing_s += ended_s - began_s
        self.line.spans.add(Work.SUMMING, began_s, ended_s)
        self._reduced(run, 0)

    def _interrupted(self, error: Exception) -> None:
        if self._tag.phase is not StepPhase.REDUCED:
            self._whole.forget()
        self._computing = None
        self._halt(error)

    def _planned(self, order: PlanOrder, groups: Groups) -> None:
        self._built, self._computing = (order, groups), None
