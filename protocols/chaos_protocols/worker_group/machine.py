"""The worker group of a site: which workers execute which plan, when a step counts, and what a death means.

Pure: driven by the controller (`chaosd.worker_group.controller`), which carries the effects out in order. Source:
FlashRecovery (controller, step tags, recovery of one step), Chameleon (the plan is decided anew at a loss); the
two-phase step and generations are this project's (docs/site.md).
"""

from __future__ import annotations

from chaos_protocols.changes import next_state
from chaos_protocols.worker_group.commit import NotFinite, ReplicasDiffer, StepCollector
from chaos_protocols.worker_group.crew import Crew
from chaos_protocols.worker_group.events import (
    AskPlanner,
    Begin,
    BeginStore,
    Effect,
    EndGroup,
    EndWanted,
    Event,
    GroupTimer,
    GroupTimerFired,
    KillWorker,
    NoPlanMade,
    NoteEvent,
    PlanMade,
    PutPlanInForce,
    SetGroupTimer,
    StartWorker,
    TellWorker,
    WorkerGone,
    WorkerSaid,
    WorkerSuspected,
)
from chaos_protocols.worker_group.messages import (
    CommitStep,
    ControllerMessage,
    Done,
    Finish,
    Go,
    GroupHello,
    PeerLost,
    PlanReady,
    Reduced,
    ScriptFailed,
    Stepped,
    Stop,
    Stopped,
)
from chaos_protocols.worker_group.phases import TABLE, GroupChange, GroupPhase
from chaos_protocols.worker_group.plan import Plan
from chaos_protocols.worker_group.settings import BROKEN_MAX, GroupSettings
from chaos_protocols.worker_group.stopping import Stopping
from chaos_protocols.worker_group.tags import StepTag, TornStep


class WorkerGroupMachine:
    """`handle(event, now_s)` is the only way in; it returns what is to be done, in order."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self.phase = GroupPhase.FORMING
        self.generation = 0
        self._effects: list[Effect] = []
        self._now_s = 0.0
        self._crew = Crew(settings.token, settings.restarts)
        self._in_force: frozenset[int] | None = None
        """Workers with layers under the plan that was last put in force: they hold the state. None: all hold it."""
        self._lost: set[int] = set()
        """Of those, the ones that are gone."""
        self._asked = 0
        self._committed = -1
        self._last_commit: CommitStep | None = None
        self._plan: Plan | None = None
        self._ordered: frozenset[int] = frozenset()
        self._ready: set[int] = set()
        self._stopping: Stopping | None = None
        self._collector: StepCollector | None = None
        self._plan_wanted = ""
        self._broken = 0
        self._waits_for = ""

    @property
    def hello(self) -> GroupHello | None:
        """The first worker's: what is trained."""
        return self._crew.hello

    @property
    def step(self) -> int:
        """How many updates the state has that everybody goes on from."""
        return self._committed + 1

    @property
    def present(self) -> frozenset[int]:
        """Workers that have said hello and are not gone."""
        return frozenset(self._crew.present)

    @property
    def training(self) -> frozenset[int]:
        """Workers with layers under the plan that was ordered last."""
        return self._plan.workers if self._plan else frozenset()

    def handle(self, event: Event, *, now_s: float) -> list[Effect]:
        """Take one event."""
        self._now_s = now_s
        if self.phase is not GroupPhase.ENDED:
            match event:
                case Begin():
                    for _ in range(self._settings.workers + self._settings.spares):
                        self._do(StartWorker(worker=self._crew.start()))
                case WorkerSaid(worker=worker, message=message):
                    self._said(worker, message)
                case WorkerGone(worker=worker, reason=reason):
                    self._gone(worker, reason)
                case WorkerSuspected(worker=worker, reason=reason):
                    self._kill(worker, reason)
                case PlanMade(asked=asked, plan=plan):
                    if asked == self._asked and self.phase is GroupPhase.DECIDING:
                        self._order(plan)
                case NoPlanMade(asked=asked, reason=reason, hopeless=hopeless):
                    if asked == self._asked and self.phase is GroupPhase.DECIDING:
                        self._no_plan(reason, hopeless=hopeless)
                case GroupTimerFired(timer=timer):
                    self._fired(timer)
                case EndWanted(reason=reason):
                    self._end(reason)
        effects, self._effects = self._effects, []
        return effects

    # ---- workers come and go

    def _said(self, worker: int, message: object) -> None:
        if isinstance(message, GroupHello):
            self._hello(worker, message)
            return
        if worker not in self._crew.present:
            return
        match message:
            case PlanReady(generation=generation) if generation == self.generation:
                self._is_ready(worker)
            case Reduced(generation=generation) if generation == self.generation:
                self._has_reduced(worker, message)
            case Stepped(generation=generation) if generation == self.generation:
                self._has_stepped(worker, message)
            case Stopped(generation=generation, tag=tag) if generation == self.generation:
                self._has_stopped(worker, tag)
            case PeerLost(generation=generation, text=text) if generation == self.generation:
                self._peer_lost(worker, text)
            case Done():
                self._crew.done.add(worker)
                self._end_if_done()
            case ScriptFailed(text=text):
                self._end(f"worker {worker}: {text}")

    def _hello(self, worker: int, hello: GroupHello) -> None:
        refused = self._crew.refusal(worker, hello)
        if refused:
            self._end(f"worker {worker} cannot take part: {refused}")
            return
        self._crew.let_in(worker, hello)
        self._record("worker-came", "it said hello", worker=worker)
        self._change(GroupChange.CAME)
        if self.phase is GroupPhase.FORMING:
            if not self._crew.starting:
                self._change(GroupChange.ALL_HERE)
                self._ask()
        elif self.phase is GroupPhase.DECIDING:
            self._ask()
        elif self.phase is GroupPhase.TRAINING:
            self._want_more()

    def _gone(self, worker: int, reason: str) -> None:
        if not self._crew.went(worker):
            self._end_if_done()
            return
        self._record("worker-lost", reason, worker=worker, step=self.step)
        if self._in_force is not None and worker in self._in_force:
            self._lost.add(worker)
        if self.phase is GroupPhase.FORMING:
            self._end(f"worker {worker} ended before the training began: {reason}")
            return
        if self._crew.done:  # the last update was told to everybody: the others finish it by themselves
            self._end_if_done()
            return
        if self._crew.may_restart(self._now_s):
            self._do(StartWorker(worker=self._crew.start()))
        if self.phase in (GroupPhase.BUILDING, GroupPhase.TRAINING):
            if worker in (self.training if self.phase is GroupPhase.TRAINING else self._ordered):
                self._change(GroupChange.LOST)
                self._stop_all(f"worker {worker} is lost: {reason}")
            return
        self._change(GroupChange.LOST)
        if self._stopping is not None:
            self._stopping.went(worker)
            self._check_stopped()
        elif self.phase is GroupPhase.DECIDING:
            self._ask()
        else:
            self._end_if_nobody_comes()

    def _kill(self, worker: int, reason: str) -> None:
        if worker in self._crew.present:
            self._record("worker-suspected", reason, worker=worker)
            self._do(KillWorker(worker=worker, reason=reason))

    # ---- plans

    def _ask(self) -> None:
        self._asked += 1
        held = self._crew.present if self._in_force is None else self._in_force
        idle = frozenset(self._crew.present - held)
        self._do(AskPlanner(asked=self._asked, lost=frozenset(self._lost), idle=idle))

    def _no_plan(self, reason: str, *, hopeless: bool) -> None:
        self._change(GroupChange.NO_PLAN)
        self._record("no-plan", reason)
        self._waits_for = reason
        if hopeless:
            self._end(reason)
        else:
            self._end_if_nobody_comes()

    def _end_if_nobody_comes(self) -> None:
        if self.phase is GroupPhase.WAITING and not self._crew.starting:
            self._end(f"{self._waits_for}. No further worker is on its way")

    def _order(self, plan: Plan) -> None:
        self.generation += 1
        self._plan = plan
        self._plan_wanted = ""
        self._ordered = frozenset(plan.shares)
        self._ready.clear()
        self._change(GroupChange.PLAN)
        self._record("plan", plan.reason, generation=self.generation, step=self.step, **plan.facts())
        self._do(BeginStore(generation=self.generation))
        for worker, order in plan.orders(self.generation, self.step, audit=self._settings.audit).items():
            self._tell(worker, order)

    def _is_ready(self, worker: int) -> None:
        if self.phase is not GroupPhase.BUILDING or worker not in self._ordered:
            return
        self._ready.add(worker)
        if self._ready != self._ordered:
            return
        self._change(GroupChange.READY)
        self._do(SetGroupTimer(timer=GroupTimer.BROKEN, after_s=None))
        self._in_force = self.training
        self._lost.clear()
        assert self._crew.hello is not None
        self._collector = StepCollector(
            step=self.step,
            workers=self.training,
            layers=len(self._crew.hello.layers),
            micro_batches=self._crew.hello.micro_batches,
            clip_norm=self._crew.hello.clip_norm,
        )
        self._do(PutPlanInForce(asked=self._asked))
        for each in sorted(self._ordered):
            self._tell(each, Go(generation=self.generation))
        self._record("training", "everybody is ready", generation=self.generation, step=self.step)
        self._want_more()

    def _want_more(self) -> None:
        """Another plan from the next step boundary on, if a worker is here that this one could do with."""
        waiting = self._crew.present - self.training
        if waiting and len(self.training) < self._settings.workers:
            self._plan_wanted = f"worker {min(waiting)} is here"

    # ---- steps

    def _has_reduced(self, worker: int, message: Reduced) -> None:
        if self.phase is not GroupPhase.TRAINING or self._collector is None:
            return
        if not self._collector.take_reduced(worker, message):
            return
        self._change(GroupChange.REDUCED)
        try:
            commit = self._collector.complete()
        except NotFinite as error:
            self._end(str(error))
            return
        self._committed, self._last_commit = commit.step, commit
        for each in sorted(self.training):
            self._tell(each, commit)

    def _has_stepped(self, worker: int, message: Stepped) -> None:
        if self._stopping is not None:
            self._stopping.committed_again(worker)
            self._check_stopped()
            return
        if self.phase is not GroupPhase.TRAINING or self._collector is None:
            return
        try:
            digests = self._collector.take_stepped(worker, message)
        except ReplicasDiffer as error:
            self._end(str(error))
            return
        if digests is None:
            return
        self._broken = 0
        commit = self._last_commit
        assert commit is not None
        self._record(
            "step",
            "everybody has updated",
            step=message.step,
            loss=commit.loss,
            norm=commit.norm,
            generation=self.generation,
            digests=digests,
        )
        if self._plan_wanted:
            reason, self._plan_wanted = self._plan_wanted, ""
            self._change(GroupChange.WANTED)
            self._stop_all(reason)

    def _end_if_done(self) -> None:
        if self._crew.done and not (self.training & self._crew.present) - self._crew.done:
            self._end("")

    # ---- stopping

    def _stop_all(self, reason: str) -> None:
        asked = self._ordered & self._crew.present
        self._stopping = Stopping(self.generation, asked)
        self._record("stop", reason, generation=self.generation, step=self.step)
        self._do(SetGroupTimer(timer=GroupTimer.STOP, after_s=self._settings.stop_timeout_s))
        for worker in sorted(asked):
            self._tell(worker, Stop(generation=self.generation))
        self._check_stopped()

    def _has_stopped(self, worker: int, tag: StepTag) -> None:
        if self._stopping is not None:
            self._stopping.answered(worker, tag)
            self._check_stopped()

    def _check_stopped(self) -> None:
        """With the last answer: let those commit again who have to, then ask the planner."""
        assert self._stopping is not None
        try:
            found = self._stopping.outcome(self._in_force, self._committed)
        except TornStep as error:
            self._end(str(error))
            return
        if found is None:
            return
        if found.again:
            assert self._last_commit is not None
            for worker in sorted(found.again):
                self._tell(worker, self._last_commit)
            return
        self._stopping = None
        self._change(GroupChange.STOPPED)
        self._do(SetGroupTimer(timer=GroupTimer.STOP, after_s=None))
        self._do(SetGroupTimer(timer=GroupTimer.BROKEN, after_s=None))
        self._record("stopped", f"going on with step {found.step + 1}", generation=self.generation, step=found.step)
        self._ask()

    def _peer_lost(self, worker: int, text: str) -> None:
        """A hint: if nobody is found dead soon, the generation is broken all the same."""
        if self.phase in (GroupPhase.BUILDING, GroupPhase.TRAINING):
            self._record("peer-lost", text, worker=worker)
            self._do(SetGroupTimer(timer=GroupTimer.BROKEN, after_s=self._settings.failure_timeout_s))

    def _fired(self, timer: GroupTimer) -> None:
        if timer is GroupTimer.STOP and self._stopping is not None:
            self._change(GroupChange.OVERDUE)
            for worker in sorted(self._stopping.missing):
                self._kill(worker, f"it has not stopped within {self._settings.stop_timeout_s:g} s")
        elif timer is GroupTimer.BROKEN and self.phase in (GroupPhase.BUILDING, GroupPhase.TRAINING):
            self._broken += 1
            if self._broken > BROKEN_MAX:
                self._end(f"groups between live workers failed {self._broken} times in a row without a step done")
                return
            self._change(GroupChange.BROKEN)
            self._stop_all("a group failed and nobody has died")

    # ---- the end

    def _end(self, failed: str) -> None:
        self._change(GroupChange.ENDED)
        for worker in sorted(self._crew.present - self._crew.done):
            self._tell(worker, Finish(failed=failed[:4096]))
        self._record("ended", failed or "the training is complete", step=self.step)
        self._do(EndGroup(failed=failed))

    def _change(self, change: GroupChange) -> None:
        self.phase = next_state(TABLE, self.phase, change, "a worker group")

    def _tell(self, worker: int, message: ControllerMessage) -> None:
        self._do(TellWorker(worker=worker, message=message))

    def _record(self, kind: str, reason: str, **fields: object) -> None:
        self._do(NoteEvent(kind=kind, reason=reason, fields=fields))

    def _do(self, effect: Effect) -> None:
        self._effects.append(effect)
