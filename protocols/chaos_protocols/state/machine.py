"""The state of this site's worker: from where it gets it, where it lies besides, to whom it is given.

It works by comparing the committed roster with what this site has: a transfer for us that we have not begun, a snapshot
that others expect of us, a state that the run was agreed to go on from. The worker's region belongs to one thing at a
time, and this is where that is seen to: a transfer to this site, a snapshot for others, a copy for the checkpoint, a
state that is put back.

Driven by `Participation`. Sources: spec 12, 14; Chaos IV-B.
"""

from __future__ import annotations

from enum import Enum

from chaos_protocols import events
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.links.desired import DesiredLinks
from chaos_protocols.membership.own import Membership
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.rounds.reached import ReachedRound
from chaos_protocols.state.fetch import Loaded, StateFetch
from chaos_protocols.state.last_checkpoint import LastCheckpoint, LastCheckpointStep
from chaos_protocols.state.local_checkpoint import CheckpointFiles, MemoryCheckpoint
from chaos_protocols.state.restore import StateRestore
from chaos_protocols.state.snapshot_source import SnapshotSource
from chaos_protocols.state.worker_session import WorkerSession, is_unsure
from chaos_protocols.wire.control import StateRequest
from chaos_protocols.wire.plans import CheckpointFacts, ReplicationPlan
from chaos_protocols.wire.user_words import RunWarned


class StateComes(Enum):
    """Where a worker without the state will get it from; what the owner has to do for that."""

    BY_TRANSFER = "a transfer to this site has begun"
    FROM_HERE = "it is restored from what lies in this site, or it is there"
    ON_REQUEST = "the scheduler has to be asked for it"


class WorkerState:
    """See the module."""

    def __init__(
        self,
        outbox: Outbox,
        membership: Membership,
        rounds: RoundMachine,
        links: DesiredLinks,
        session: WorkerSession,
        reached: ReachedRound,
    ) -> None:
        self.session = session
        self.fetch = StateFetch(outbox, links, session)
        self.source = SnapshotSource(outbox, session)
        self.memory = MemoryCheckpoint(outbox, rounds, session)
        self.files = CheckpointFiles(outbox)
        self.restore = StateRestore(outbox, rounds, session, self.memory, self.files)
        self.last = LastCheckpoint(
            outbox, rounds, session, reached, self.source, self.fetch, self.restore, self.memory, self.files
        )
        self._outbox = outbox
        self._membership = membership
        self._rounds = rounds
        self._reached = reached
        self._restore_epoch = membership.roster.restore_epoch
        """Of the newest agreement on a state that the run goes on from, as far as it was followed."""
        self._resolved_epoch = membership.roster.resolved_epoch

    # -- what others ask

    @property
    def is_coming(self) -> bool:
        """A transfer is under way, or a state is put back."""
        return self.fetch.plan is not None or self.restore.running is not None

    def offer(self) -> CheckpointFacts | None:
        """The newest checkpoint, on disk or nearly, that the worker could load, if nobody has the state."""
        return self.files.offered(self.session.spec_digest) if self.session.present else None

    def lineage(self) -> int:
        """Of the worker's state, as far as this site's journal and disk know."""
        return self.files.lineage(self._reached.held(self.session.round))

    def unsaved_in(self) -> int:
        """The lineage of which there is no checkpoint here, nor was, nor soon will be; 0: none is known."""
        return 0 if self.files.writing is not None else self._reached.unsaved_in

    @property
    def is_unsure(self) -> bool:
        """Which state its worker has is not known yet (see there)."""
        return is_unsure(self._rounds, self.session)

    def request(self) -> StateRequest | None:
        """What a member asks the scheduler for; None: its worker has the state, or it is on its way."""
        model = self.session.model
        if model is None or self._rounds.worker_round is not None or self.is_coming:
            return None
        if self.is_unsure:
            return None
        return StateRequest(
            incarnation=self._outbox.facts.incarnation,
            worker_round=self.session.round,
            model=model,
            reason="" if self._membership.begun else "its daemon was restarted",
            checkpoint=self.offer(),
            lineage=self.lineage(),
            trained=self._membership.is_member
            and self._reached.outlived_training(self._membership.roster, self.session.round),
            outrun=self.fetch.outrun.asks,
        )

    # -- the roster

    def follow_agreed(self, roster: Roster) -> None:
        """The run was agreed to go on from a state, or a round to stand."""
        if roster.restore_epoch > self._restore_epoch:
            self._go_on_from(roster)
        elif roster.resolved_epoch > self._resolved_epoch and self._membership.begun and not roster.resolving:
            self._rounds.learn(roster)
            self.fetch.resolved(roster.resolved_round)
            self._outbox.emit(self._rounds.resolved(roster.resolved_round))
        self._restore_epoch, self._resolved_epoch = roster.restore_epoch, roster.resolved_epoch

    def _go_on_from(self, roster: Roster) -> None:
        """The run goes on from a worker's state: ours, or another's."""
        facts, rounds, session = self._outbox.facts, self._rounds, self.session
        self.fetch.cancel()
        self.restore.abandon()
        self.files.history_changed()
        own = roster.restored_from == (facts.site, facts.incarnation)
        in_roster = self._membership.in_roster
        self._membership.begin(begun=in_roster)
        rounds.learn(roster)
        settled = session.present and not rounds.delivery.unanswered
        if own and settled and session.round == roster.resolved_round:
            self._reached.holds(roster.restore_epoch, session.round, roster)
            self._outbox.emit(rounds.begin_from_worker(roster.resolved_round))
        elif in_roster:
            self._outbox.emit(rounds.begin_at(roster.resolved_round))
            if own:
                self.restore.from_disk(roster.resolved_round)

    def begin_if_new(self, roster: Roster) -> bool:
        """In the roster: take up a plan by which this site gets the state, or begin where the roster stands. Whether a
        transfer has begun."""
        plan, membership, rounds = roster.replication, self._membership, self._rounds
        if plan is not None and plan.joiner == self._outbox.facts.site and self.fetch.is_new(plan):
            trains = membership.is_member and membership.begun and rounds.active
            if trains or self.last.step is not LastCheckpointStep.UNBEGUN:
                self.fetch.pass_over(plan)  # what it asked for came late, or its turn did; or it goes
                return False
            self.fetch.cancel()
            if not membership.is_member or not membership.begun:
                self._outbox.emit(rounds.begin_at(plan.round))
            else:
                self._outbox.emit(rounds.collect_from(plan.round))
            membership.begin()
            self.restore.abandon()
            self.fetch.take(plan, roster)
            if rounds.delivery.is_damaged:  # what it has is brought to that round, and written for the comparison
                self.session.copy(plan.round, alone=True)
            return self._start_fetch()
        if not membership.begun and membership.is_member and not roster.resolving:
            self._outbox.emit(rounds.begin_at(roster.resolved_round))
            membership.begin()
        return False

    def _start_fetch(self) -> bool:
        """Begin, unless a thread or the worker may still touch the place where the state belongs: then when they have
        ended."""
        plan, region = self.fetch.plan, self.session.region
        writes = plan is not None and region.is_asked_for(plan.round) and self._rounds.delivery.is_damaged
        if writes or self.restore.region_is_written or not self.fetch.start():
            return False
        self.memory.yield_region()
        return True

    def _region_given(self) -> StateComes:
        """The worker has answered what it was asked of its region: what waits for that may begin."""
        self.restore.go_on()
        return StateComes.BY_TRANSFER if self.fetch.waits and self._start_fetch() else StateComes.FROM_HERE

    def serve(self, roster: Roster) -> None:
        """Be a source where the plan says so."""
        stays = self.last.step is LastCheckpointStep.UNBEGUN  # who goes tells the joiner to look elsewhere
        if self.source.follow(roster, has_state=stays and self._rounds.worker_round is not None):
            self.memory.yield_region()

    def activate_if_ready(self, roster: Roster) -> None:
        """Promoted: the roster has us as member and no transfer for us any more, and our worker has the state."""
        plan = roster.replication
        if not self._membership.is_member or (plan is not None and plan.joiner == self._outbox.facts.site):
            return
        fetched = self.fetch.plan is not None and self._rounds.worker_round is not None
        if fetched or self.restore.caught_up():
            self.fetch.completed()
            if not self._membership.leaving:
                self._outbox.emit(self._rounds.activate())

    def leave_run(self) -> None:
        """This site is out of the roster."""
        if not self._membership.begun:
            return
        self._membership.begin(begun=False)
        self.fetch.cancel()
        self.restore.abandon()
        self._outbox.emit(self._rounds.leave_run())
        self.source.release()

    def lost(self, reason: str) -> None:
        """The worker cannot catch up by results alone."""
        self._outbox.record("scale-out", self._outbox.facts.name, reason, "", None, "the state is fetched again")
        self.source.state_lost()
        if not self.last.awaits_copy:
            self.memory.state_lost()
        self.fetch.cancel()
        self.restore.abandon()

    # -- the worker

    def worker_came(self, *, held: bool) -> StateComes:
        """Its hello is taken: where it gets the state from, if it has not. `held`: see `StateFetch.new_worker`."""
        self.fetch.new_worker(held=held)
        self.last.state_came()
        if self.fetch.plan is not None:  # agreed while there was no worker
            return StateComes.BY_TRANSFER if self._start_fetch() else StateComes.FROM_HERE
        return StateComes.FROM_HERE if self._from_memory() else StateComes.ON_REQUEST

    def _from_memory(self) -> bool:
        membership = self._membership
        if membership.leaving or not membership.is_member or not membership.begun:
            return False
        return self.restore.from_memory()

    def worker_lost(self, reason: str) -> None:
        """Its session is over."""
        self.fetch.cancel()
        self.memory.state_lost()
        self.restore.worker_lost(reason)
        self.source.release()
        self._outbox.emit(self._rounds.worker_lost())

    def worker_loaded(self, round_number: int) -> tuple[bool, StateComes]:
        """The worker has the state of the end of that round. Whether it is one that it was given to go on from; and
        what begins now that its region is free."""
        self.session.region.loaded(round_number)
        loaded, fetch = self.fetch.loaded(round_number), self.fetch
        restored = self.restore.loaded(round_number)
        if restored is not None and (loaded is None or not restored.cancelled):
            loaded = Loaded(transfer="", lineage=restored.lineage)
        if loaded is None:
            return False, self._region_given()
        self.session.has(round_number)  # also if it was given up meanwhile: it may be the newest state there is
        self._reached.holds(loaded.lineage, round_number, self._membership.roster)
        self.last.state_came()
        called_off = restored is not None and restored.cancelled
        goes_on = fetch.is_running(loaded.transfer) if loaded.transfer else not called_off
        return goes_on, self._region_given()

    def worker_applied(self, round_number: int) -> None:
        """The worker's state is that of the end of that round; before it gets the next result, say whether to keep a
        copy of that."""
        if self.session.in_part:
            return  # what it has is no state, also when nobody brings it forward any more
        self.session.has(round_number)
        self.memory.applied(round_number)
        if not self.memory.idle or self.source.busy or self.is_coming:
            return
        if not self._rounds.active or self._membership.leaving or not self.session.present:
            return
        following = round_number + 1
        if self.memory.is_due(following) or self.files.is_due(following, self.memory.pause_s):
            self.memory.ask_for(following)

    def worker_copied(self, event: events.WorkerSnapshotTaken | events.WorkerSnapshotMissed) -> StateComes:
        """Its region holds its state of that round, for a joiner or for a checkpoint; or it has gone on already."""
        self.session.region.answered(event.round)
        if isinstance(event, events.WorkerSnapshotTaken):
            self.source.snapshot_taken(event.round)
            if self.memory.snapshot_taken(event.round):
                self._begin_file(event.round)
            if self._rounds.delivery.is_damaged:
                self.fetch.filled()
        else:
            self.source.snapshot_missed(event.round, event.now)
            self.memory.snapshot_missed(event.round)
        return self._region_given()

    # -- the transfer to this site

    def transfer_progressed(self, event: events.TransferProgressed) -> None:
        """The engine has some more of it."""
        self.fetch.progressed(event.transfer, event.verified_bytes)

    def transfer_finished(self, event: events.TransferFinished) -> None:
        """The engine has all bytes, verified."""
        plan = self.fetch.plan
        if plan is not None and self.fetch.is_running(event.transfer) and self.session.present:
            self._record_transfer(plan, event.held_bytes)
            self._reached.before_load(self.fetch.brings_lineage, plan.round, had=self.session.round)
            self.fetch.finished(plan)

    def _record_transfer(self, plan: ReplicationPlan, held_bytes: int) -> None:
        called = self._membership.roster.called
        shares = "; ".join(f"{called(part.source)} {part.stop - part.start:,}" for part in plan.ranges)
        reason = f"{plan.state_bytes:,} bytes of round {plan.round}, verified; planned from {shares}"
        if held_bytes:
            reason += f"; {held_bytes:,} were here already, and not sent"
        self._outbox.record("transfer", self._outbox.facts.name, "state replication", "done", None, reason)

    def transfer_failed(self, transfer: str, reason: str) -> bool:
        """The engine cannot have them. Whether that was the present transfer."""
        if not self.fetch.is_running(transfer):
            return False
        plan, done = self.fetch.plan, self.fetch.verified_bytes
        assert plan is not None
        told = f"{reason}; {done:,} of {plan.state_bytes:,} bytes had come; the state is asked for anew"
        self._outbox.record("scale-out", self._outbox.facts.name, "state transfer", "failed", None, told)
        if self.session.present:
            self.session.tell(RunWarned(reason=f"the transfer of the state of round {plan.round} has ended: {told}"))
        self.fetch.failed()
        return True

    # -- checkpoints

    def _begin_file(self, round_number: int) -> None:
        """The worker's state of that round is being copied: it is to be written, too, if that is due, or the last."""
        last, files = self.last.takes(round_number), self.files
        if last or files.is_due(round_number, self.memory.pause_s):
            lineage = self.lineage() if last else files.lineage(self._membership.roster.restore_epoch)
            files.begin(round_number, self.memory.spec_digest, lineage)

    def checkpoint_made(self, event: events.MemoryCheckpointSaved | events.CheckpointWritten) -> StateComes:
        """A step further: it lies in memory, or on the disk; or it could not be made."""
        return self.copied(event) if isinstance(event, events.MemoryCheckpointSaved) else self.checkpoint_written(event)

    def copied(self, event: events.MemoryCheckpointSaved) -> StateComes:
        """The daemon's memory holds the state of that round, or could not take it."""
        file = self.files.writing
        awaited = file is not None and self.restore.waits_for(file) is not None
        if self.memory.copied(event.round, event.reason, last=awaited or self.last.takes(event.round)):
            self.restore.new_copy()
            self.files.copied(event.round, epoch=self._membership.roster.epoch)
            self.memory.written()
            return StateComes.FROM_HERE
        lost = self.files.not_copied(event.round)
        attempt = None if lost is None else self.restore.waits_for(lost)
        reason = event.reason or "the worker's memory was wanted for a transfer before it was copied"
        return StateComes.FROM_HERE if attempt is None else self.restore_failed(attempt, reason)

    def checkpoints_found(self, event: events.CheckpointsFound) -> None:
        """What lies on this site's disk."""
        self.files.found(event.checkpoints)

    def checkpoint_written(self, event: events.CheckpointWritten) -> StateComes:
        """It is on disk, or could not be written."""
        self._reached.checkpoint_ended()
        self.files.written(event, self.memory.pause_s)
        attempt = self.restore.waits_for(event.checkpoint)
        if attempt is not None and event.reason:
            return self.restore_failed(attempt, event.reason)
        self.restore.go_on()
        return StateComes.FROM_HERE

    def restored(self, attempt: int) -> StateComes:
        """A state lies in the worker's region, verified."""
        if not self.restore.is_running(attempt) or not self.session.present:
            return StateComes.FROM_HERE
        self.fetch.filled()
        loads = self.restore.ready(self._membership.roster.restore_epoch)
        return StateComes.FROM_HERE if loads else self._from_elsewhere()

    def restore_failed(self, attempt: int, reason: str) -> StateComes:
        """It does not: the next best is asked for."""
        if not self.restore.is_running(attempt):
            return StateComes.FROM_HERE
        self.restore.failed(reason)
        return self._from_elsewhere()

    def _from_elsewhere(self) -> StateComes:
        if self.fetch.plan is None:
            return StateComes.ON_REQUEST
        return StateComes.BY_TRANSFER if self._start_fetch() else StateComes.FROM_HERE
