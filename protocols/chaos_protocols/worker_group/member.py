"""A worker group as the one worker of its site in a run of institutions.

For the site's daemon the controller is a worker like any other (`wire.worker`): it has the state of the end of a round,
gives one contribution to the next, applies results. Here stands what that means for several processes. Which step gives
to a round, `round_steps` says; the others are local, and count as they do without a run. The result of a round is the
commit of the step that led to it, and nobody changes the common state before. Whatever the daemon wants of the state is
done when all workers stand still: they hold (compute nothing), or all have the sums of a step. What was begun when a
worker died is done again under the next plan, from shared memory, which outlives them.
"""

from __future__ import annotations

from collections import deque

from chaos_protocols.changes import next_state
from chaos_protocols.wire import worker as wire
from chaos_protocols.worker_group.commit import StepCollector
from chaos_protocols.worker_group.events import (
    GreetRun,
    GroupTimer,
    JoinRun,
    RunEvent,
    RunFound,
    RunLost,
    RunSaid,
    SetGroupTimer,
    TellDigests,
    TellRun,
)
from chaos_protocols.worker_group.member_phases import (
    MEMBER_TABLE,
    STILL,
    Kept,
    Lasting,
    MemberChange,
    MemberPhase,
    Served,
    Standing,
)
from chaos_protocols.worker_group.messages import (
    CommitStep,
    Compute,
    ControllerMessage,
    GroupHello,
    MeasureResult,
    ResultMeasured,
    StateTaken,
    StateWritten,
    TakeState,
    WriteState,
)
from chaos_protocols.worker_group.port import Group
from chaos_protocols.worker_group.round_part import RoundPart
from chaos_protocols.worker_group.round_steps import RoundSteps
from chaos_protocols.worker_group.run_words import RunWords
from chaos_protocols.worker_group.settings import COMPLETE_MAX_S, LEAVE_MAX_S
from chaos_protocols.worker_group.snapshot_orders import SnapshotOrders


class RunMember:
    """See the module. Owned by the worker group's machine, which tells it what its workers do."""

    def __init__(self, group: Group, hello: GroupHello) -> None:
        assert hello.run is not None
        self._group = group
        self._clipped, self._all_layers = hello.clip_norm is not None and not hello.every, len(hello.layers)
        self.phase = MemberPhase.OUTSIDE
        self.standing = Standing.DOWN
        self._joined = self._found = False
        self._sites = 1  # that have the state of the present step, as far as this site was told
        self.kept = Kept.ALL
        """Less, where layers were lost with all of their holders: a state from elsewhere makes this site whole."""
        self.settles = False  # no plan is in force since: whoever holds a part holds it still
        self._orders: deque[Served] = deque()
        self._serving: Lasting | None = None
        self._back_to = Standing.HOLDING
        self._snapshots = SnapshotOrders()
        self._workers: frozenset[int] = frozenset()
        self._answered: set[int] = set()
        self._collector: StepCollector | None = None
        self._part, self._words = RoundPart(hello.run), RunWords(group)
        self.leaves = ""  # why the run is to let this site go

    @property
    def _rounds(self) -> RoundSteps:
        return self._group.rounds

    @property
    def _round(self) -> int:
        """The round whose end is the common state."""
        return self._rounds.round_of(self._group.step)

    @property
    def awaits_state(self) -> bool:
        """What the workers hold is not the state: one is taken over (or was when a worker died), or must be."""
        return self.kept is not Kept.ALL or isinstance(self._serving, wire.LoadState)

    @property
    def elsewhere(self) -> bool:
        """Other sites have the common state, or will be asked for it: nothing is lost with a worker."""
        told = self._sites > 1 and self.phase is not MemberPhase.OUTSIDE and not self._words.paused
        return told or self.kept is not Kept.ALL

    # ---- what the machine tells of its workers

    def may_compute(self) -> bool:
        """Whether a generation that begins now begins with a step."""
        return self.phase is MemberPhase.TRAINING and self._serving is None and self.kept is Kept.ALL

    def begins(self, workers: frozenset[int], collector: StepCollector, *, computing: bool) -> None:
        """A plan is executed from now on; its workers were told whether they compute."""
        self._workers, self._collector, self.settles = workers, collector, False
        self._part.begins(self._group.step)
        self.standing = Standing.COMPUTING if computing else Standing.HOLDING
        if not self._joined:
            self._joined = True
            self._group.do(JoinRun())
        serving, self._serving = self._serving, None
        if isinstance(serving, wire.ApplyResult) and serving.round <= self._round:
            self._has_applied(serving.round, None)
        elif serving is not None:
            self._orders.appendleft(serving)
        self._turn()

    def interrupted(self) -> None:
        """The generation ends."""
        self.standing = Standing.DOWN
        self._answered.clear()

    def reduced(self) -> None:
        """All workers have the sums of the step, and this site's part lies in the shared memory."""
        assert self._collector is not None
        self.standing = Standing.REDUCED
        if self._rounds.gives(self._group.step):
            self._part.summed(self._collector)
        self._turn()

    def stepped(self, commit: CommitStep) -> None:
        """All workers have applied the result, or a local step."""
        serving, self._serving = self._serving, None
        self.standing = Standing.HOLDING if commit.hold else Standing.COMPUTING
        if isinstance(serving, wire.ApplyResult):
            self._has_applied(serving.round, commit.digest)
        self._turn()

    def said(self, worker: int, message: StateWritten | StateTaken | ResultMeasured) -> None:
        """A worker has done what it was told."""
        expected = {
            Standing.WRITING: StateWritten,
            Standing.TAKING: StateTaken,
            Standing.MEASURING: ResultMeasured,
        }.get(self.standing)
        if expected is None or not isinstance(message, expected) or worker not in self._workers:
            return
        self._answered.add(worker)
        if isinstance(message, ResultMeasured):
            self._part.measured(message.squares)
        if self._answered == self._workers:
            self._all_have()
            self._turn()

    def _all_have(self) -> None:
        serving = self._serving
        match serving:
            case wire.TakeSnapshot(round=round):
                self._serving, self.standing = None, self._back_to
                self._snapshots.taken(round)
                self._tell(wire.SnapshotTaken(round=round))
            case wire.LoadState(round=round):
                self._serving, self.standing, self.kept = None, Standing.HOLDING, Kept.ALL
                self._part.take()
                self._sites = 2  # it lies where it came from
                self._group.took_state(self._rounds.begin(round))
                self._change(MemberChange.LOADED)
                self._group.note("state-loaded", f"the whole state is that of round {round}", step=round)
                self._tell(wire.StateLoaded(round=round))
            case wire.ApplyResult():
                self._commit(serving, self._part.norm(self._all_layers))

    def state_lost(self, kept: Kept) -> None:
        """No worker holds some of the layers any more. The daemon hears at once of a part that can be brought forward,
        so that it keeps results for it."""
        self.kept, self.settles, self._serving, self._found = kept, kept is Kept.PART, None, False
        self._forget()
        self._change(MemberChange.LOST)
        self._group.note("state-lost", f"some layers have no holder any more; {kept.value}", step=self._group.step)
        self._group.do(JoinRun())

    def complete(self) -> bool:
        """The training is over. Whether the group ends, and its workers with it, only when the run has let it go."""
        if self.phase in (MemberPhase.OUTSIDE, MemberPhase.LEAVING):
            return self.phase is MemberPhase.LEAVING
        self.standing = Standing.OVER
        self._ask_to_leave("its training is complete", COMPLETE_MAX_S)
        return True

    def leave(self, reason: str) -> bool:
        """Ask the run to let this site go, with what it still decides; False where there is nothing to wait for."""
        if self.leaves or self.phase is MemberPhase.OUTSIDE or self.standing is Standing.DOWN:
            return False
        self._ask_to_leave(reason, LEAVE_MAX_S)
        return True

    def _ask_to_leave(self, reason: str, within_s: float) -> None:
        self.leaves = reason
        self._change(MemberChange.LEAVES)
        self._tell(wire.WorkerLeaveRequest(reason=reason[:4096], contributes=False))
        self._group.do(SetGroupTimer(timer=GroupTimer.LEAVE, after_s=within_s))
        self._group.note("leaving", reason, step=self._group.step)

    # ---- what the daemon says

    def heard(self, event: RunEvent) -> None:
        """An event of the connection to it."""
        match event:
            case RunFound():
                self._found = True
            case RunLost(reason=reason, final=final):
                self._lost(reason, final=final)
            case RunSaid(message=message):
                self._hear(message)
        self._turn()

    def _hear(self, message: wire.DaemonMessage) -> None:
        match message:
            case wire.TakeSnapshot() if self.standing is Standing.OVER:
                self._snapshot(message)
            case wire.TakeSnapshot() | wire.LoadState() | wire.ApplyResult() | wire.TrainFrom() | wire.FallenBehind():
                self._orders.append(message)
            case wire.WorkerRefused(reason=reason):
                self._end(f"the daemon refused these workers: {reason}")
            case wire.LeaveOrdered(reason=reason):
                if self.standing is Standing.DOWN or not self.leave(reason):
                    self.leaves = self.leaves or reason
            case wire.Dismissed(last_round=last_round, graceful=graceful, reason=reason):
                self._group.note("run-left", reason, step=last_round)
                self._end("" if self.leaves or graceful else f"out of the run after round {last_round}: {reason}")
            case _:
                self._words.take(message)

    def _lost(self, reason: str, *, final: bool) -> None:
        self._found = False
        self._forget()
        if self.phase is not MemberPhase.OUTSIDE:
            self._change(MemberChange.LOST)
        if self.leaves or final:
            self._end("" if self.leaves else reason)
        else:
            self._group.note("run-lost", reason, step=self._group.step)
            self._group.do(JoinRun())

    def _forget(self) -> None:
        """What a connection that has ended wanted. What is being done is finished: memory has it."""
        self._orders.clear()
        self._snapshots.forget()

    # ---- one thing after the other

    def _turn(self) -> None:
        while self._orders and self.standing in STILL:
            order = self._orders.popleft()
            match order:
                case wire.TakeSnapshot():
                    self._snapshot(order)
                case wire.TrainFrom(round=round):
                    self._train_from(round)
                case wire.LoadState(round=round):
                    self._begin(order, Standing.TAKING, TakeState(step=self._rounds.begin(round)))
                case wire.ApplyResult():
                    self._apply(order)
                case wire.FallenBehind(round=round):
                    self._fallen_behind(round)
        able = self.settles or self.standing in (*STILL, Standing.COMPUTING)
        if self._found and self.phase is MemberPhase.OUTSIDE and able:
            self._found = False
            self._change(MemberChange.GREETED)
            self._group.do(GreetRun(reached=self._round, kept=self.kept))
        if self.standing in STILL and self._snapshots.is_due(self._round):
            self._snapshot(wire.TakeSnapshot(round=self._round))
        if self.standing is Standing.REDUCED and self.phase is MemberPhase.TRAINING:
            self._give() if self._rounds.gives(self._group.step) else self._step_alone()
        elif self.standing is Standing.HOLDING and self.phase is MemberPhase.TRAINING:
            self.standing = Standing.COMPUTING
            self._group.tell_all(Compute(step=self._group.step))

    def _begin(
        self, order: wire.LoadState | wire.TakeSnapshot | wire.ApplyResult, standing: Standing, what: ControllerMessage
    ) -> None:
        self._serving, self._back_to, self.standing = order, self.standing, standing
        self._answered.clear()
        self._group.tell_all(what)

    def _snapshot(self, order: wire.TakeSnapshot) -> None:
        match self._snapshots.asked(order, now=self._round):
            case str() as refused:
                self._end(refused)
            case wire.SnapshotMissed() as missed:
                self._tell(missed)
            case None if order.round == self._round:
                self._begin(order, Standing.WRITING, WriteState(step=self._group.step))

    def _train_from(self, round: int) -> None:
        now, given = self._round, self._part.given
        if self.phase is MemberPhase.LEAVING:
            return
        if self.kept is not Kept.ALL:
            self._end(
                "layers were lost with all of their holders, and no other site has the state; start again from a "
                "checkpoint (chaosd recover), with more pipelines (--dp) to survive this"
            )
        elif round != now + 1:
            self._end(f"the daemon wants round {round}, but the state is that of round {now}")
        else:
            self._change(MemberChange.MAY_TRAIN)
            if given is None or given.round != round:
                return
            if isinstance(given, wire.RoundContributed):
                self._change(MemberChange.GAVE)
                self._tell(given)
            elif self.standing is Standing.REDUCED:
                self._pass_over(given)

    def _pass_over(self, skipped: wire.RoundSkipped) -> None:
        """Nobody has given anything to the round; this site tries other samples."""
        self._group.note("round-empty", f"{skipped.reason}; it is tried with other samples", round=skipped.round)
        self._part.pass_over()
        self.standing = Standing.UPDATING
        self._group.commit_own(vain=True)

    def _fallen_behind(self, round: int) -> None:
        if self.phase in (MemberPhase.TRAINING, MemberPhase.GIVEN):
            self._change(MemberChange.BEHIND)
            self._group.note("run-behind", f"the others went on without this site from round {round}")
        self._tell(wire.WorkerResumed())

    def _step_alone(self) -> None:
        """A local step counts as soon as all have its sums."""
        self.standing = Standing.UPDATING
        self._group.commit_own()

    def _give(self) -> None:
        assert self._collector is not None
        weight = self._rounds.weight(self._part.weight, self._collector.behind)
        given = self._part.give(self._round + 1, weight)
        self._change(MemberChange.GAVE)
        self._tell(given, self._part.numbers)

    def _apply(self, order: wire.ApplyResult) -> None:
        now = self._round
        if order.round == now:  # the same one again is answered again, and never applied twice
            self._tell(wire.ResultApplied(round=now))
        elif order.round != now + 1:
            self._end(f"the daemon brings the result of round {order.round}, but the state is that of {now}")
        else:
            self._tell(wire.UpdateStarted(round=order.round))
            self._part.measure()
            if self._clipped and not order.void:
                self._begin(order, Standing.MEASURING, MeasureResult(step=self._group.step))
            else:
                self._commit(order, None)

    def _commit(self, order: wire.ApplyResult, norm: float | None) -> None:
        """The result of a round is the commit. `norm`: of the result, where it matters."""
        assert self._collector is not None
        commit = self._part.commit_of(
            order,
            self._group.step,
            self._rounds.begin(order.round),
            factor=1.0 if norm is None else self._collector.factor(norm),
            norm=norm,
            hold=self.phase not in (MemberPhase.TRAINING, MemberPhase.GIVEN),
        )
        self._serving, self.standing = order, Standing.UPDATING
        self._sites = order.sites
        self._group.note("round", f"{order.sites} sites", round=order.round, sites=order.sites, weight=order.weight)
        self._group.commit(commit)

    def _has_applied(self, round: int, digest: tuple[int, int] | None) -> None:
        self._change(MemberChange.APPLIED)
        if self.phase is MemberPhase.OUTSIDE:
            return
        if digest is None:
            self._tell(wire.ResultApplied(round=round))
        else:
            self._group.do(TellDigests(round=round, start=digest[0], stop=digest[1]))

    def _end(self, failed: str) -> None:
        """Nothing more is asked of the workers."""
        self._forget()
        self.standing = Standing.DOWN
        self._group.end(failed)

    def _tell(self, message: wire.WorkerMessage, notes: tuple[float, ...] = ()) -> None:
        if self.phase is not MemberPhase.OUTSIDE:
            self._group.do(TellRun(message=message, notes=notes))

    def _change(self, change: MemberChange) -> None:
        self.phase = next_state(MEMBER_TABLE, self.phase, change, "the worker of a site")
