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

from chaos.conversation import Conversation
from chaos.phase import Phase
from chaos.worker_group.chain.vectors import Vectors
from chaos.worker_group.compute.passes import Passes
from chaos.worker_group.exchange.channels import GroupFailed
from chaos.worker_group.exchange.devices import HOST, Device
from chaos.worker_group.exchange.groups import Groups
from chaos.worker_group.exchange.line import GenerationEnded, GroupEnded
from chaos.worker_group.exchange.spans import SpanLog
from chaos.worker_group.exchange.summing import StepSums
from chaos.worker_group.life import InGroup
from chaos.worker_group.session import OwnRounds, Training, reduced, update
from chaos.worker_group.summed import SummedSession
from chaos.worker_group.whole import WholeModel
from chaos_protocols.streams import ForwardPass, Sum
from chaos_protocols.worker_group.commit import NotFinite, StepCollector
from chaos_protocols.worker_group.messages import PlanOrder, Reduced
from chaos_protocols.worker_group.said import Said, together
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
        self.said: dict[int, Said] = {}
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

    def take(self, loss: float, said: Said) -> None:
        """The script has computed the first one that is due, and said this with it."""
        micro_batch = self.due.popleft()
        self.losses[micro_batch], self.said[micro_batch] = loss, said
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
        self._training, self._rounds = training, OwnRounds(training)
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
        run.take(loss, self._training.notes.given())
        if not run.due:
            self._complete(run)
            self._run = self._begin()

    def _begin(self) -> ReplicaRun:
        count = self._training.loader.micro_batches
        self._training.notes.again()
        return ReplicaRun(self._training.whole, count, range(count))

    def _complete(self, run: ReplicaRun) -> None:
        notes = self._training.notes
        told = reduced(Reduced(generation=0, step=self.updates), run, run.squares([0]))
        self._collector.take_reduced(0, told)
        try:
            commit = self._collector.complete()
        except NotFinite as error:
            raise ValueError(str(error)) from None
        self._rounds.learn(commit)
        update(self._training.parts, run, commit)
        notes.committed(self.updates, commit.said)
        self._rounds.counted(commit)

    def doing(self, work: Work) -> None:
        """Nobody looks."""

    def failed(self, error: BaseException) -> None:
        """Nobody else has to know."""

    def ended(self) -> None:
        """Nobody else has to know."""

    def close(self) -> None:
        """Nobody else has to know."""


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
        said, notes = together(run.said), self._training.notes
        self._session.given, step = (run.sums.total(0) / loader.micro_batches, samples, said), self.updates
        if not self._conversation.contribute():
            raise GroupEnded("")
        loader.tries_others(self.updates == step)
        notes.agreed = self._session.agreed
        notes.committed(self.updates, said)


class ReplicaTogether(InGroup):
    """One of several."""

    def __init__(self, training: WholeTraining, environment: Mapping[str, str], vectors: Vectors | None = None) -> None:
        super().__init__(training, environment, vectors)
        self._whole = training.whole
        self._built: tuple[PlanOrder, Groups] | None = None
        self._computing: ReplicaRun | None = None
        self._handed: Any = None
        self._over = False
        """All have ended with the last step, as this worker was told when it had stopped."""
        self._undealt = False
        """Nothing of the last step was for this worker: its script hears nothing of it."""
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
                self._settle()
            self._end_phase()
        finally:
            self.line.leave()

    def _settle(self) -> None:
        """Until it is known whether a step counts that was given when a worker was lost, under the next plan too: the
        script is to hear of it, and that all end, after the same step as at other workers."""
        given, step = self._tag.phase is StepPhase.REDUCED, self._tag.step
        while given and self._tag.step == step and (self._holds or not self._installed):
            try:
                applied = self._held() if self._installed else self._install()
                self._over = applied is not None and self._all_end
            except (GenerationEnded, GroupFailed) as error:
                self._interrupted(error)

    def _take(self, loss: float) -> None:
        run, said = self._computing, self._training.notes.given()
        if run is None or self.line.stopping:
            raise GenerationEnded
        micro_batch = run.due[0]
        run.take(loss, said)
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
            if self._over:
                return False
            if (not self._installed or self.line.halted()) and self._install() is not None:
                self._over = self._all_end
                continue
            held = self._held()
            if self._tag.step >= self._rounds.after(self._training.loader.steps):
                return False
            if held is not None and self._all_end:
                self._over = True
                continue
            self.line.check()
            if self._rounds.computes(self._tag.step):
                return True
            self._reduced(None, 0)
            self._over = self._undealt and self._all_end

    def doing(self, work: Work) -> None:
        if work is Work.BACKWARD:
            self._turned = self._training.device.mark()
        self.line.doing(work)

    def _dealt(self) -> tuple[int, int] | None:
        while self._stand_by():
            run = self._computing = self._computing or self._begin()
            if run.due:
                self._handed, self._turned, self._undealt = run.computing.mark(), None, False
                return self.updates, run.due[0]
            self._undealt = True
            self._close_step(run)
            if self._all_end:
                return None
        return None

    def _begin(self) -> ReplicaRun:
        assert self._built is not None
        self._training.notes.again()
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
