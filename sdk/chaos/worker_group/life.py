"""A worker's life in a worker group: takes orders, builds groups, gives its sums, commits, stops and goes on.

How the sums of a step come about is another's affair: `together` executes a stream, `replicas` leaves it to the script.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import perf_counter

import torch

from chaos.worker_group.chain.vectors import Vectors
from chaos.worker_group.device_loss import end_if_beyond_mending
from chaos.worker_group.exchange.channels import GroupFailed
from chaos.worker_group.exchange.groups import Groups
from chaos.worker_group.exchange.lacks import told
from chaos.worker_group.exchange.lane_lines import line_of
from chaos.worker_group.exchange.lanes import Lanes
from chaos.worker_group.exchange.line import ControlLine, GenerationEnded, GroupEnded
from chaos.worker_group.exchange.moving import move, pair, refresh
from chaos.worker_group.memory import RunMemory
from chaos.worker_group.session import Applied, Computed, Training, reduced, update
from chaos_protocols.wire.worker import FiguresLogged
from chaos_protocols.worker_group.messages import (
    CommitStep,
    Compute,
    Go,
    MeasureResult,
    PeerLost,
    PlanOrder,
    PlanReady,
    Reduced,
    ResultMeasured,
    ScriptFailed,
    StateTaken,
    StateWritten,
    Stepped,
    TakeState,
    WriteState,
)
from chaos_protocols.worker_group.round_steps import RoundSteps
from chaos_protocols.worker_group.suspicion import Work
from chaos_protocols.worker_group.tags import StepPhase, StepTag

ORDERS: tuple[type[PlanOrder | CommitStep], ...] = (PlanOrder, CommitStep)


PASSES = frozenset({Work.FORWARD, Work.BACKWARD})
"""In which the processes of a device group exchange parts of tensors."""

AT_A_GATE: tuple[type[CommitStep | Compute | WriteState | TakeState | MeasureResult], ...] = (
    CommitStep,
    Compute,
    WriteState,
    TakeState,
    MeasureResult,
)
"""What a worker takes that has the sums of a step, or holds."""


class InGroup(ABC):
    """One of several workers, however it computes a step. `vectors`: of a run of institutions; None: the workers train
    by themselves. `lanes`: the device group that is this worker; None: this process alone."""

    def __init__(
        self,
        training: Training,
        environment: Mapping[str, str],
        vectors: Vectors | None = None,
        lanes: Lanes | None = None,
    ) -> None:
        self._training, self._rounds = training, RoundSteps(training.every)
        self._vectors, self._descriptor = vectors, int(environment.get("CHAOS_WORKER_MEMORY", "-1"))
        self._memory: RunMemory | None = None
        self._holds = self._part = False
        self._stale: Exception | None = None
        """What the parameters of layers that others keep could not be brought up to date by."""
        self._tag = StepTag(generation=0, step=0, phase=StepPhase.COMPUTE)
        tag: Callable[[], StepTag] = lambda: self._tag  # noqa: E731
        self.line = ControlLine(environment, tag) if lanes is None else line_of(lanes, environment, tag)
        self._order: PlanOrder | None = None
        self._groups: Groups | None = None
        self._installed = False
        """A plan is executed here."""
        self._run: Computed | None = None
        self._unheard: Applied | None = None
        """A step that was applied while this worker held: its script has still to hear of it."""

    @property
    def generation(self) -> int:
        """Number of the plan in force."""
        return self.line.generation

    @property
    def speaks(self) -> bool:
        """The holder of layer 0 that is lowest."""
        return self._order is not None and 0 in self._order.lowest and self.line.lane == 0

    def log(self, figures: dict[str, float | None]) -> None:
        """Figures of the script, for its operator, with the last round that this worker knows to be over."""
        round = self._rounds.round_of(self._tag.step)
        self.line.log(FiguresLogged(round=round, figures=figures))

    def failed(self, error: BaseException) -> None:
        """The script raised, or ended with a code: the others must know, since the same code would fail there too. If
        it was the device that failed, or this process can reach nobody, it ends, and the others go on. After the last
        step that is its own affair: no further one is wanted here, and its exit code tells the rest."""
        loader = self._training.loader
        if loader.ended or self._tag.step >= self._rounds.after(loader.steps):
            self.close()
            return
        end_if_beyond_mending(self.line, error, begun=loader.step > 0)
        self.line.raised()
        self.line.send(ScriptFailed(text=told(error)))
        self.line.ended()

    def ended(self) -> None:
        """The worker group is over."""
        self._drop_groups()
        self.line.ended()

    def close(self) -> None:
        """No further step is wanted here. A site in a run of institutions is asked for its state once more before it is
        let go; this returns when the group is over."""
        if not self.line.close(self._tag.step) or self._memory is None:
            return
        try:
            while True:
                self._obey(self.line.take(WriteState))
                self.line.doing(Work.ENDED)
        except (GroupEnded, GenerationEnded, GroupFailed):
            pass  # nobody wants it any more

    @property
    def _all_end(self) -> bool:
        """All sites have ended with the round that has led to this state."""
        return self._training.notes.ends and self._rounds.position(self._tag.step) == 0

    # ---- a step

    def _pass_over(self, vain: int) -> None:
        """So often the steps of a round have led to none: samples are read as if it had been one."""
        self._rounds = replace(self._rounds, vain=vain)
        self._training.loader.passed_over = self._rounds.passed_over

    def _reduced(self, run: Computed | None, repeated: int) -> Applied | None:
        """The sums of the step are there, or a phase of local steps is over (no `run`): say so, and wait for the
        commit. None: the state that this step began with was replaced."""
        line, step, order, loader = self.line, self._tag.step, self._order, self._training.loader
        assert order is not None
        behind = 0.0
        if self._memory is not None and self._rounds.gives(step):
            for layer in (self._training.parts[index] for index in order.lowest):
                summed = run is not None and layer.parameters
                self._memory.give(layer, run.sums.total(layer.index) / loader.micro_batches if run and summed else None)
                behind = max(behind, layer.behind)
        told = Reduced(generation=line.generation, step=step, behind=behind)
        if run is not None:
            told = reduced(told, run, run.squares(order.lowest))
        self._stand(StepPhase.REDUCED)
        line.doing(Work.WAITING)
        line.send(told)
        while self._tag.phase is StepPhase.REDUCED:
            commit = self._obey(line.take(*AT_A_GATE))
            if commit is not None:
                return Applied(step=commit.after, loss=commit.loss, norm=commit.norm, repeated=repeated)
        return None

    def _held(self) -> Applied | None:
        """While nothing is to be computed: results are applied, a state is written or taken, until `Compute`, or until
        the training is complete by what others have done. The last step that was applied here, and to which this site
        gave something, is given back."""
        while self._holds:
            if self._tag.step >= self._rounds.after(self._training.loader.steps) and not self._part:
                return Applied(step=self._tag.step, loss=math.nan, norm=math.nan)
            self.line.doing(Work.WAITING)
            commit = self._obey(self.line.take(*AT_A_GATE))
            if commit is not None and not math.isnan(commit.loss):  # else nothing of this site is in it
                self._unheard = Applied(step=commit.after, loss=commit.loss, norm=commit.norm)
        applied, self._unheard = self._unheard, None
        return applied

    def _obey(self, order: CommitStep | Compute | WriteState | TakeState | MeasureResult) -> CommitStep | None:
        """Do what is ordered of a worker that stands still; a commit that was carried out is returned."""
        line, memory, step = self.line, self._memory, self._tag.step
        if order.step != step and not isinstance(order, TakeState):
            return None  # of before a stop
        if isinstance(order, CommitStep):
            self._apply(order)
            self._refresh()
            return order
        assert memory is not None and self._order is not None
        lowest = [self._training.parts[index] for index in self._order.lowest]
        line.doing(Work.UPDATE)
        match order:
            case Compute():
                self._holds = False
            case WriteState():
                for layer in lowest:
                    memory.write(layer)
                line.send(StateWritten(generation=line.generation, step=step))
            case TakeState():
                memory.load(self._training.parts, self._rounds.round_of(order.step))
                self._run, self._unheard, self._holds, self._part = None, None, True, False
                self._training.notes.forget()  # who came later has heard nothing either
                self._tag = StepTag(generation=line.generation, step=order.step, phase=StepPhase.COMPUTE)
                line.send(StateTaken(generation=line.generation, step=order.step))
                self._refresh()
            case MeasureResult():
                squares = tuple((layer.index, memory.squares(layer)) for layer in lowest)
                line.send(ResultMeasured(generation=line.generation, step=step, squares=squares))
        line.doing(Work.WAITING)
        return None

    def _apply(self, commit: CommitStep) -> None:
        """The update of a committed step; from its beginning to its end it cannot be stopped."""
        run, order, layers = self._run, self._order, self._training.parts
        assert order is not None
        self._stand(StepPhase.UPDATE)
        self.line.doing(Work.UPDATE)
        began_s = perf_counter()
        self._learn(commit)
        if commit.vain:
            self._pass_over(self._rounds.vain + 1)
        if commit.shared:
            assert self._memory is not None
            self._memory.update(layers, commit, self._rounds.round_of(commit.after))
        elif not self._rounds.computes(commit.step):
            for layer in layers:
                if layer.held:
                    ends = layer.void if commit.vain else layer.end_alone
                    ends(self._rounds.round_of(commit.after))
        else:
            update(layers, run, commit)
        ended_s = perf_counter()
        seconds = {} if run is None else {**run.seconds, "update": ended_s - began_s}
        self.line.spans.waited(began_s)
        self.line.spans.add(Work.UPDATE, began_s, ended_s)
        self._run, self._holds = None, commit.hold
        self._tag = StepTag(generation=self.line.generation, step=commit.after, phase=StepPhase.COMPUTE)
        self._training.notes.committed(self._rounds.updates(commit.after), commit.said)
        held = [layer for layer in layers if layer.held and layer.keeps] if order.audit else []
        digests = tuple((layer.index, layer.digest()) for layer in held)
        if commit.digest is not None and self._memory is not None:
            self._memory.copy([layers[index] for index in order.lowest], *commit.digest)
        self.line.send(
            Stepped(
                generation=self.line.generation,
                step=commit.after,
                digests=digests,
                seconds=seconds,
                spans=self.line.spans.taken(),
            )
        )

    def _learn(self, commit: CommitStep) -> None:
        """What all sites, or all workers of the only one, have said with this step, if it is that of a round."""
        notes = self._training.notes
        if notes.spec is None or commit.void or commit.vain:
            return
        if not commit.shared and not self._rounds.gives(commit.step):
            return
        if not commit.shared:
            notes.learn_alone(commit.said, commit.step)
        elif self._memory is not None:
            notes.learn(self._memory.notes(notes.spec))

    def _doing(self, work: Work, peer: int = -1) -> None:
        self.line.agree() if work in PASSES else self.line.check()
        self.line.doing(work, peer)

    def _stand(self, phase: StepPhase) -> None:
        self._tag = StepTag(generation=self.line.generation, step=self._tag.step, phase=phase)

    # ---- generations

    def _install(self) -> Applied | None:
        """Take orders until one has layers for this worker and everybody is ready, or until a commit was told again:
        that step is given back, since its script is to hear of it before the next one. Raises `GenerationEnded`,
        `GroupFailed` and `GroupEnded`."""
        while True:
            self.line.doing(Work.WAITING)
            message = self.line.take(*ORDERS)
            if isinstance(message, CommitStep):
                has_sums = self._run is not None or not self._rounds.computes(message.step)
                able = message.shared or (has_sums and self._tag.phase is StepPhase.REDUCED)
                if able and self._order is not None and self._tag.step == message.step:
                    self._apply(message)
                    return Applied(step=message.after, loss=message.loss, norm=message.norm)
                continue
            self._build(message)
            if message.share.last_layer > message.share.first_layer:
                return None

    def _build(self, order: PlanOrder) -> None:
        line, me = self.line, self.line.worker
        self._run = None
        self._drop_groups()
        self._pass_over(order.vain)
        line.doing(Work.BUILDING)
        line.spans.begin(wanted=order.timed)
        began_s = perf_counter()
        groups = self._groups = Groups(line, order.generation, self._training.device)
        moving = {pair(each.source, each.target) for each in order.moves}
        groups.build([*order.share.groups(me), *moving])
        line.forget_store()
        waits: Callable[[int], None] = lambda peer: self._doing(Work.WAITING, peer)  # noqa: E731
        came = move(order.moves, me, self._training.parts, groups, waits)
        line.doing(Work.WAITING)
        line.spans.add(Work.BUILDING, began_s, perf_counter())
        line.send(PlanReady(generation=order.generation))
        go = line.take(Go)
        line.doing(Work.BUILDING)
        if self._vectors is not None and self._memory is None:
            self._memory = RunMemory(self._vectors, self._descriptor)
        self._hold(order, came)
        for layer in self._training.parts:
            if layer.held:
                layer.goes_on(self._rounds.round_of(order.step), self._rounds.position(order.step))
        self._order = order
        self._holds, self._part = go.hold, order.part
        self._tag = StepTag(generation=order.generation, step=order.step, phase=StepPhase.COMPUTE)
        self._planned(order, groups)
        self._installed = True
        self._refresh()

    def _refresh(self) -> None:
        """Parameters of layers that are held here and kept elsewhere become those of the present step. Each `Go`, each
        commit and each `TakeState` is followed by this, so all workers of a plan come here equally often; what fails
        is raised by `_check_fresh`.

        In the last step of all nobody may be left to ask again: then the layer is not held any more."""
        order, groups, last = self._order, self._groups, self._tag.step >= self._training.loader.steps
        self._stale = None
        if order is None or groups is None or not order.refreshes:
            return
        waits: Callable[[int], None] = lambda peer: self._doing(Work.WAITING, peer)  # noqa: E731
        try:
            refresh(order.refreshes, self.line.worker, self._training.parts, groups, waits, last=last)
        except (GenerationEnded, GroupFailed) as error:
            if not last:
                self._stale = error
                return
            for layer in self._training.parts:
                if layer.held and not layer.keeps:
                    layer.drop()

    def _check_fresh(self) -> None:
        """Raises what the last refresh failed with: neither this worker nor the script may use those parameters."""
        if self._stale is not None:
            raise self._stale

    @abstractmethod
    def _planned(self, order: PlanOrder, groups: Groups) -> None:
        """This plan is executed from now on, with these groups."""

    def _hold(self, order: PlanOrder, came: Mapping[int, torch.Tensor]) -> None:
        """From now on this worker holds the layers of its share, and no others."""
        for layer in self._training.parts:
            if not order.share.first_layer <= layer.index < order.share.last_layer:
                layer.drop()
                layer.keep(True)
                continue
            layer.keep(order.keeps is None or layer.index in order.keeps)
            layer.revive()
            if layer.index in came:
                layer.load(came[layer.index])

    def _halt(self, error: Exception) -> None:
        """The generation is over for this worker: its groups go, and the controller is told where it stands."""
        if isinstance(error, GroupFailed) and not self.line.stopping:
            self.line.send(PeerLost(generation=self.line.generation, text=str(error)[:4000]))
        self.line.doing(Work.WAITING)
        self.line.halt()
        self._drop_groups()
        if self._tag.phase is not StepPhase.REDUCED:
            self._run = None

    def _drop_groups(self) -> None:
        self.line.on_stop(_nothing)
        self._installed = False
        if self._groups is not None:
            self._groups.close()
        self._groups = None


def _nothing() -> None:
    """No groups are there to be severed."""
