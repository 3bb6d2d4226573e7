"""The worker group of a site: which workers execute which plan, when a step counts, and what a death means.

Pure: driven by the controller (`chaosd.worker_group.controller`), which carries the effects out in order. Source:
FlashRecovery (controller, step tags, recovery of one step), Chameleon (the plan is decided anew at a loss); the
two-phase step and generations are this project's (docs/site.md).
"""

from __future__ import annotations

from chaos_protocols.changes import next_state
from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group import messages as msg
from chaos_protocols.worker_group.broken import BrokenGenerations
from chaos_protocols.worker_group.commit import NotFinite, ReplicasDiffer
from chaos_protocols.worker_group.crew import Crew
from chaos_protocols.worker_group.ending import Ending
from chaos_protocols.worker_group.holders import StateHolders
from chaos_protocols.worker_group.member import RunMember
from chaos_protocols.worker_group.member_phases import Kept
from chaos_protocols.worker_group.phases import TABLE, GroupChange, GroupPhase
from chaos_protocols.worker_group.places import Places
from chaos_protocols.worker_group.plan import Plan
from chaos_protocols.worker_group.round_steps import RoundSteps
from chaos_protocols.worker_group.settings import GroupSettings
from chaos_protocols.worker_group.starts import LateStarts
from chaos_protocols.worker_group.steps import CountedSteps
from chaos_protocols.worker_group.stopping import Stopping
from chaos_protocols.worker_group.suspects import Suspects
from chaos_protocols.worker_group.tags import Step, StepTag, TornStep
from chaos_protocols.worker_group.told import ToBeDone


class WorkerGroupMachine(ToBeDone):
    """`handle(event, now_s)` is the only way in; it returns what is to be done, in order."""

    def __init__(self, settings: GroupSettings) -> None:
        super().__init__()
        self._settings = settings
        self._now_s = 0.0
        self.phase = GroupPhase.FORMING
        self._crew = Crew(settings.token, settings.workers + settings.spares, settings.restarts)
        self.places = Places(self, self._crew, settings.workers)
        self._suspects = Suspects(self)
        self._starts = LateStarts(self, self._crew, self._suspects, settings.failure_timeout_s)
        self._steps = CountedSteps(skips=settings.skip_not_finite)
        self._holders = StateHolders()
        self._ending = Ending(self, self._crew, self._steps)
        self.generation = 0  # of the plan that was ordered last
        self.plan: Plan | None = None  # that one; None: none was yet
        self._ordered: frozenset[int] = frozenset()  # its workers, those without layers too
        self._ready: set[int] = set()  # those that have built their groups, and have their layers
        self._asked = 0  # questions to the planner; it answers with their number
        self._stopping: Stopping | None = None  # the end of a generation, while it is under way
        self._broken = BrokenGenerations(self, settings.failure_timeout_s)
        self.member: RunMember | None = None  # of a run of institutions, if the script wants that

    @property
    def hello(self) -> msg.GroupHello | None:
        """The first worker's: what is trained."""
        return self._crew.hello

    @property
    def step(self) -> int:
        """How many updates the state has that everybody goes on from."""
        return self._steps.step

    @property
    def rounds(self) -> RoundSteps:
        """Which steps make a round of the run."""
        return self._steps.rounds

    @property
    def present(self) -> frozenset[int]:
        """Workers that have said hello and are not gone."""
        return frozenset(self._crew.present)

    @property
    def training(self) -> frozenset[int]:
        """Workers with layers under the plan that was ordered last."""
        return self.plan.workers if self.plan else frozenset()

    def handle(self, event: ev.Event, *, now_s: float) -> list[ev.Effect]:
        """Take one event."""
        self._now_s = now_s
        if self.phase is not GroupPhase.ENDED:
            match event:
                case ev.Begin():
                    for _ in range(self._settings.workers + self._settings.spares):
                        self.do(ev.StartWorker(worker=self._crew.start()))
                case ev.WorkerSaid(worker=worker, message=message):
                    self._said(worker, message)
                case ev.WorkerGone(worker=worker, reason=reason, killed=killed):
                    self._gone(worker, reason, killed=killed or worker in self._crew.present)
                case ev.WorkerSuspected(worker=worker, in_vain=True):
                    self._ending.waited_for(worker)
                case ev.WorkerSuspected(worker=worker, reason=reason, over_s=over_s):
                    self._stands_still(worker, reason, over_s)
                case ev.PlanMade() | ev.NoPlanMade():
                    self._planner_said(event)
                case _ if isinstance(event, ev.PlacesEvent):
                    self.places.handle(event, now_s)
                case ev.StartsSeen(processor_s=used_s):
                    self._starts.look(used_s, now_s)
                case ev.GroupTimerFired(timer=timer):
                    self._fired(timer)
                case ev.EndWanted(reason=reason):
                    if self.member is None or not self.member.leave(reason):
                        self.end(reason)
                case ev.RunFound() | ev.RunSaid() | ev.RunLost():
                    if self.member is not None:
                        self.member.heard(event)
        elif isinstance(event, ev.WorkerSaid) and isinstance(event.message, msg.GroupHello):
            self._ending.tell_late(event.worker)
        return self.taken()

    # ---- workers come and go

    def _said(self, worker: int, message: object) -> None:
        if isinstance(message, msg.GroupHello):
            self._hello(worker, message)
            return
        if worker not in self._crew.present:
            return
        self._suspects.spoke(worker)
        match message:
            case msg.PlanReady(generation=generation) if generation == self.generation:
                self._is_ready(worker)
            case msg.Reduced(generation=generation) if generation == self.generation:
                self._has_reduced(worker, message)
            case msg.Stepped(generation=generation) if generation == self.generation:
                self._has_stepped(worker, message)
            case msg.StateWritten() | msg.StateTaken() | msg.ResultMeasured() if message.generation == self.generation:
                if self.member is not None and self.phase is GroupPhase.TRAINING:
                    self.member.said(worker, message)
            case msg.Stopped(generation=generation, tag=tag) if generation == self.generation:
                self._has_stopped(worker, tag)
            case msg.PeerLost(generation=generation, text=text) if generation == self.generation:
                self._broken.heard(worker, text)
            case msg.Done(step=step):
                self._ending.through(worker, step)
            case msg.ScriptFailed(text=text):
                self.end(f"worker {worker}: {text}")

    def _hello(self, worker: int, hello: msg.GroupHello) -> None:
        if refused := self._crew.refusal(worker, hello):
            self._ending.refuse(worker, refused)
            return
        came = self._crew.let_in(worker, hello)
        if self.member is None and hello.run is not None:
            self.member = RunMember(self, hello)
        self.note("worker-came", came, worker=worker)
        self._change(GroupChange.CAME)
        if self.phase is GroupPhase.FORMING:
            if not self._crew.starting:
                self._change(GroupChange.ALL_HERE)
                self._ask()
        elif self.phase is GroupPhase.DECIDING:
            self._ask()
        else:
            self.places.look()

    def _gone(self, worker: int, reason: str, *, killed: bool) -> None:
        self._suspects.went(worker)
        if not self._crew.went(worker):
            self._ending.look()
            return
        self.note("worker-lost", reason, worker=worker, step=self.step)
        self._holders.went(worker)
        if self._crew.done:  # the last update was told to everybody: the others finish it by themselves
            self._ending.look()
            return
        forming = self.phase is GroupPhase.FORMING
        again = (killed or not forming) and self.places.went(worker) and self._crew.may_restart(self._now_s)
        if again:
            self.do(ev.StartWorker(worker=self._crew.start()))
        if forming:
            if not again:
                self.end(f"worker {worker} ended before the training began: {reason}")
            return
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

    def _stands_still(self, worker: int, reason: str, over_s: float) -> None:
        if worker in self._crew.present | self._crew.starting:
            elsewhere = self.member is not None and self.member.elsewhere
            holding = None if elsewhere else self._holders.plan
            self._suspects.judge(worker, reason, over_s, holding, self._crew.present | self._crew.done)

    # ---- plans

    def _ask(self) -> None:
        self._asked += 1
        part, afresh = self._holders.look(self.present, self.member, self._steps)
        holding = self._holders.workers
        idle, out = self.places.ask(self.present if holding is None else holding, whole=not part)
        lost, more = frozenset(self._holders.lost), bool(self._crew.starting)
        self.do(
            ev.AskPlanner(asked=self._asked, lost=lost, idle=idle, drained=out, afresh=afresh, part=part, more=more)
        )

    def _planner_said(self, said: ev.PlanMade | ev.NoPlanMade) -> None:
        if said.asked != self._asked or self.phase is not GroupPhase.DECIDING:
            return  # of an older question
        if isinstance(said, ev.PlanMade):
            self._order(said.plan)
        elif self.places.give_back(said.reason):
            self._ask()
        else:
            self._no_plan(said.reason, hopeless=said.hopeless)

    def _no_plan(self, reason: str, *, hopeless: bool) -> None:
        self._change(GroupChange.NO_PLAN)
        self.note("no-plan", reason)
        if hopeless:
            self.end(reason)
        elif not self._crew.starting:
            self.end(f"{reason}. No further worker is on its way: start again, with more --restarts or --spares")

    def _order(self, plan: Plan) -> None:
        self.generation += 1
        self.plan = plan
        self._ordered = frozenset(plan.shares)
        self._ready.clear()
        self._change(GroupChange.PLAN)
        self.note("plan", plan.reason, generation=self.generation, step=self.step, **plan.facts())
        self.do(ev.BeginStore(generation=self.generation))
        for worker, order in plan.orders(self.generation, self.step, self.rounds, self._settings).items():
            self._tell(worker, order)

    def _is_ready(self, worker: int) -> None:
        if self.phase is GroupPhase.BUILDING and worker in self._ordered:
            self._ready.add(worker)
        missing = len(self._ready) < len(self._ordered)  # asked with every answer: no longer with more workers
        if self.phase is not GroupPhase.BUILDING or missing or self._ready & self._suspects.killed:
            return
        self._change(GroupChange.READY)
        self.do(ev.SetGroupTimer(timer=ev.GroupTimer.BROKEN, after_s=None))
        self._holders.begins(self.plan)
        self._crew.begins()
        assert self._crew.hello is not None
        collector = self._steps.begin(self._crew.hello, self.training)
        self.do(ev.PutPlanInForce(asked=self._asked))
        member = self.member
        computing = member is None or member.may_compute()
        self.tell_all(msg.Go(generation=self.generation, hold=not computing), self._ordered)
        self.note("training", "everybody is ready", generation=self.generation, step=self.step)
        self.places.begins(self._now_s)
        if member is not None:
            member.begins(self.training, collector, computing=computing)

    # ---- steps

    def _has_reduced(self, worker: int, message: msg.Reduced) -> None:
        collector = self._steps.collector
        if self.phase is not GroupPhase.TRAINING or collector is None or not collector.take_reduced(worker, message):
            self._ending.look()
            return
        self._change(GroupChange.REDUCED)
        own = self.commit_own if self.member is None else self.member.reduced
        own()

    def commit_own(self, *, vain: bool = False) -> None:
        """The step under way counts by what this site's own gradients come to; or the training ends with it. `vain`:
        and its round is still to come."""
        try:
            commit = self._steps.summed(vain=vain)
        except NotFinite as error:
            self.end(str(error))
            return
        if commit.void and self.rounds.computes(commit.step):
            self.note("step-skipped", self._steps.skipped, step=commit.after)
        self.commit(commit)

    def commit(self, commit: msg.CommitStep) -> None:
        """From now on this step counts."""
        self._steps.count(commit)
        self.tell_all(commit)

    def took_state(self, step: Step) -> None:
        """All workers have the state of this step."""
        self._steps.go_on_from(step)

    def _has_stepped(self, worker: int, message: msg.Stepped) -> None:
        if self._stopping is not None:
            self._stopping.committed_again(worker)
            self._check_stopped()
            return
        if self.phase is not GroupPhase.TRAINING or self._steps.collector is None:
            return
        try:
            whole = self.member is None or self.member.kept is Kept.ALL
            digests = self._steps.collector.take_stepped(worker, message, whole=whole)
        except ReplicasDiffer as error:
            self.end(str(error))
            return
        if digests is None:
            return
        self._broken.stepped()
        commit = self._steps.last
        assert commit is not None
        self.note(
            "step" if whole else "level",
            "everybody has updated",
            step=message.step,
            loss=commit.loss,
            norm=commit.norm,
            generation=self.generation,
            digests=digests,
        )
        if self.member is not None:
            self.member.stepped(commit)
        if (wanted := self.places.wanted) and whole:
            self._change(GroupChange.WANTED)
            self._stop_all(wanted)

    # ---- stopping

    def _stop_all(self, reason: str) -> None:
        asked = self._ordered & self._crew.present
        self._stopping = Stopping(self.generation, asked, due_s=self._now_s + self._settings.stop_s)
        if self.member is not None:
            self.member.interrupted()
        self.note("stop", reason, generation=self.generation, step=self.step)
        self.do(ev.SetGroupTimer(timer=ev.GroupTimer.STOP, after_s=self._settings.stop_s))
        self.tell_all(msg.Stop(generation=self.generation), asked)
        self._check_stopped()

    def _has_stopped(self, worker: int, tag: StepTag) -> None:
        if self._stopping is not None and self._stopping.answered(worker, tag):
            self._check_stopped()

    def _check_stopped(self) -> None:
        """With the last answer: let those commit again who have to, then ask the planner."""
        assert self._stopping is not None
        member, holders = self.member, self._holders.workers
        torn = member is not None and (member.awaits_state or not (holders is None or holders & self.present))
        try:
            found = self._stopping.outcome(holders, self._steps, torn=torn)
        except TornStep as error:
            self.end(str(error))
            return
        if found is None:
            return
        if found.again:
            assert self._steps.last is not None
            self.tell_all(self._steps.last, found.again)
            return
        self._stopping = None
        self._change(GroupChange.STOPPED)
        self.do(ev.SetGroupTimer(timer=ev.GroupTimer.STOP, after_s=None))
        self.do(ev.SetGroupTimer(timer=ev.GroupTimer.BROKEN, after_s=None))
        self.note("stopped", f"going on with step {found.step + 1}", generation=self.generation, step=found.step)
        self._ask()

    def _fired(self, timer: ev.GroupTimer) -> None:
        if timer is ev.GroupTimer.STOP and self._stopping is not None:
            self._change(GroupChange.OVERDUE)
            within_s = self._settings.stop_s
            for worker in sorted(self._stopping.missing):
                reason, over_s = f"it has not stopped within {within_s:g} s", self._now_s - self._stopping.due_s
                self._stands_still(worker, reason, over_s)
            self.do(ev.SetGroupTimer(timer=timer, after_s=within_s))
        elif timer is ev.GroupTimer.LEAVE:
            self.end("")
        elif timer is ev.GroupTimer.BROKEN and self.phase in (GroupPhase.BUILDING, GroupPhase.TRAINING):
            if self._ending.apart(self.training):
                return
            if failed := self._broken.once_more():
                self.end(failed)
                return
            self._change(GroupChange.BROKEN)
            self._stop_all("a group failed and nobody has died")

    # ---- the end

    def end(self, failed: str) -> None:
        self._change(GroupChange.ENDED)
        self._ending.tell(failed)
        left = "" if self.member is None else self.member.leaves
        lacks = "" if failed or self.member is not None else self._holders.lacks()
        complete = f"the training is complete, but {lacks}" if lacks else "the training is complete"
        self.note("ended", failed or left or complete, step=self.step)
        self.do(ev.EndGroup(failed=failed, lacks=lacks))

    def _change(self, change: GroupChange) -> None:
        self.phase = next_state(TABLE, self.phase, change, "a worker group")

    def tell_all(self, message: msg.ControllerMessage, workers: frozenset[int] | None = None) -> None:
        """To these, or all with layers."""
        for worker in sorted(self.training if workers is None else workers):
            self._tell(worker, message)
