"""How a site takes part in the run: it drives its membership, its worker's state and what it asks for, and puts them in
step with the committed roster.

It works by comparing the roster with what this site has. What it wants of the scheduler it asks again at every beat
until the roster shows it (`asking.py`). Each part below owns its fields and says in what it returns what is to be done
next; the order of the steps is decided here. Driven by `SiteMachine`. Sources: spec 12, 14; Chaos IV-B.
"""

from __future__ import annotations

from chaos_protocols import events
from chaos_protocols.agreement.commands import Command, RemoveLink
from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.causes import Cause
from chaos_protocols.effects import RefuseWorker, TakeWorker
from chaos_protocols.links.desired import DesiredLinks
from chaos_protocols.links.network import Network
from chaos_protocols.membership.absence import WorkerAbsence
from chaos_protocols.membership.asking import Asking
from chaos_protocols.membership.bounded import Bounded
from chaos_protocols.membership.catch_up import CatchUp
from chaos_protocols.membership.drift import Drift
from chaos_protocols.membership.hello import why_not
from chaos_protocols.membership.join_hold import JoinHold
from chaos_protocols.membership.joining import Joining
from chaos_protocols.membership.leaving import Leaving, SchedulerRole
from chaos_protocols.membership.own import Membership
from chaos_protocols.membership.own_keys import OwnKeys
from chaos_protocols.membership.pause import Pause
from chaos_protocols.membership.recovered_runs import RecoveredRuns
from chaos_protocols.membership.recovering import Recovering
from chaos_protocols.membership.reporting import Reporting
from chaos_protocols.membership.scheduler_client import SchedulerClient
from chaos_protocols.membership.session_end import SessionEnd
from chaos_protocols.membership.skips import Skips
from chaos_protocols.membership.waits import Waits
from chaos_protocols.membership.warnings import Warnings
from chaos_protocols.names import SiteId
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.lost_results import LostResults
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.rounds.notices import NothingToClipAround, PartGivenUp, RoundCompleted, StateLost, StatesDiffer
from chaos_protocols.rounds.phases import RoundPhase
from chaos_protocols.rounds.reached import ReachedRound
from chaos_protocols.state.machine import StateComes, WorkerState
from chaos_protocols.state.worker_session import WorkerSession
from chaos_protocols.wire.control import Heartbeat, SiteStatus


class Participation:
    """See the module."""

    def __init__(self, outbox: Outbox, replica: RosterReplica, network: Network, rounds: RoundMachine) -> None:
        self.membership = Membership(outbox.facts.site, outbox.facts.incarnation, replica.roster)
        self.client = SchedulerClient(outbox, replica, network, self.membership, self.report)
        self.links = DesiredLinks(outbox, replica, network, self.membership, self.client)
        self.session = WorkerSession(outbox)
        self.reached = ReachedRound(outbox, rounds)
        self.recovering = Recovering(outbox, network, self.membership, self.client, rounds)
        self.state = WorkerState(outbox, self.membership, rounds, self.links, self.session, self.reached)
        self.catch_up = CatchUp(outbox, replica, self.membership, self.client, rounds, self.state.fetch)
        self.joining = Joining(outbox, replica, self.membership, self.session)
        self.leaving = Leaving(
            outbox, replica, network, self.membership, self.joining, rounds, self.session, self.state.last
        )
        self.hold = JoinHold(outbox, replica, rounds)
        self.absence = WorkerAbsence(outbox, self.membership, rounds, self.session, self.state.fetch)
        self.skips = Skips(outbox, replica)
        self.waits = Waits(outbox, replica, self.client, rounds, self.absence, self.skips)
        client, joining, hold, state = self.client, self.joining, self.hold, self.state
        self._asking = Asking(
            replica, network, self.membership, client, joining, self.leaving, self.session, state, self.absence
        )
        self.recovered = RecoveredRuns(outbox, replica)
        self.pause = Pause(
            outbox, replica, network, self.membership, client, joining, hold, rounds, state, self.waits, self.recovered
        )
        self.warnings = Warnings(outbox, replica, network, self.session)
        self.bounded = Bounded(outbox, replica)
        self.keys = OwnKeys(outbox, replica, self._tell_report)
        self.drift = Drift(outbox, replica, self.state, self.session)
        self.lost_results = LostResults(outbox, replica, network, rounds)
        self.reporting = Reporting(
            outbox, replica, network, self.membership, client, rounds, self.state, self.absence, self.reached, self.keys
        )
        self.session_end = SessionEnd(
            outbox,
            self.membership,
            client,
            self.session,
            state,
            joining,
            self.leaving,
            self.absence,
            self.skips,
            self.reporting,
        )
        self._outbox = outbox
        self._replica = replica
        self._network = network
        self._rounds = rounds

    # -- what others ask

    def report(self) -> SiteStatus:
        """What this site tells the scheduler of itself."""
        return self.reporting.status()

    def _tell_report(self) -> None:
        """At once: something has changed that it says."""
        if self.membership.in_roster:
            self.client.tell(self.report())

    # -- the roster

    def roster_changed(self, old: Roster, command: Command | None) -> None:
        """The roster that is committed now is another than `old`; `command` made it, None: a snapshot brought it."""
        roster, membership, state = self._replica.roster, self.membership, self.state
        membership.follow(roster)
        failed = isinstance(command, RemoveLink) and command.resolve
        self.links.follow(old, roster, failed=failed, completed_round=self._rounds.completed_round)
        state.follow_agreed(roster)
        self.catch_up.promoted(command)
        self.recovering.agreed(command)
        self.hold.roster_changed()
        self.bounded.roster_changed(old, command)
        self.keys.look()
        if membership.in_roster:
            if state.fetch.is_called_off(roster):
                state.fetch.cancel()
                self.client.ask_soon()
            elif state.begin_if_new(roster):
                self.catch_up.fetching()
            state.fetch.part_with_sources(roster)
        elif not membership.takes_part:
            state.leave_run()
        if membership.takes_part:
            state.activate_if_ready(roster)  # first: a site that has caught up gives to its first round as a member
            self._outbox.emit(self._rounds.install(roster))
        state.serve(roster)

    def heard(self, site: SiteId, beat: Heartbeat) -> None:
        """A neighbour tells how it sees the roster: who schedules, and whether we are in it."""
        membership, replica = self.membership, self._replica
        if self.client.named(site, beat) and (membership.leaving or not membership.in_roster):
            self._asking.ask()
        if not self.client.is_trusted(site) or self.client.is_made_up(beat) or beat.epoch <= replica.roster.epoch:
            return
        if beat.knows_you:
            self.leaving.in_says_a_neighbour()
        elif membership.leaving:
            self.leaving.out_says_a_neighbour()
        elif membership.in_roster and self.client.may_be_out(site):
            membership.evict(beat.epoch)
            self._outbox.record("scale-in", self._outbox.facts.name, "removed while cut off", "", None, "joins again")
            self.state.leave_run()

    # -- the worker

    def worker_ready(self, event: events.WorkerReady) -> None:
        """A worker said hello. It is judged before anything of it is taken: who is refused changes nothing here."""
        roster = self._replica.roster
        problem = why_not(event, roster.model, roster.bounds, trains_already=self.session.present)
        if problem:
            self._outbox.record("worker", self._outbox.facts.name, "said hello", "refused", None, problem)
            self._outbox.emit([RefuseWorker(reason=problem)])
            return
        if self.session.present:
            self.session_end.over("a newer start of its script has taken its place")
        self._outbox.emit([TakeWorker()])
        self._rounds.worker_came(event.contribution_bytes, event.damaged_round)
        self.session.began(event.model, event.round, in_part=event.damaged_round > 0)
        self.membership.worker_came()
        self.catch_up.new_worker()
        self.joining.new_worker()
        self.warnings.new_worker()
        self.client.ask_soon()
        reason = f"its state is that of round {event.round}"
        self._outbox.record("worker", self._outbox.facts.name, "said hello", "", None, reason)
        self._follow_up(self.state.worker_came(held=event.held))

    def _follow_up(self, comes: StateComes) -> None:
        """The state comes from where it does."""
        if comes is StateComes.BY_TRANSFER:
            self.catch_up.fetching()
        elif comes is StateComes.ON_REQUEST:
            self._asking.ask()

    def worker_stopped(self, event: events.WorkerStopped) -> None:
        """It stands still: it is waited for, but not for ever."""
        self.session.stopped(event.reason)

    def worker_continued(self, _: events.WorkerContinued) -> None:
        """It goes on."""
        self.session.continued()

    def worker_loaded(self, event: events.WorkerLoaded) -> None:
        """It has a state that it was given."""
        self.absence.spoke()
        given, comes = self.state.worker_loaded(event.round)
        if given:
            self.catch_up.loaded(event.round)
            self._outbox.emit(self._rounds.worker_loaded(event.round))
            self._after_worker()
        self._follow_up(comes)

    def worker_copied(self, event: events.WorkerSnapshotTaken | events.WorkerSnapshotMissed) -> None:
        """It has copied its state of a round into its region, or cannot any more."""
        self._follow_up(self.state.worker_copied(event))

    def checkpoint_made(self, event: events.MemoryCheckpointSaved | events.CheckpointWritten) -> None:
        """It lies in memory, or on the disk, or could not be made: a site that leaves may have waited for that."""
        self._follow_up(self.state.checkpoint_made(event))
        self.leaving.finish_if_done()

    def worker_applied(self, event: events.WorkerApplied) -> None:
        """It has done one more round."""
        self.absence.spoke()
        self.state.worker_applied(event.round)
        self._outbox.emit(self._rounds.worker_applied(event.round, event.digests))
        self.catch_up.applied(event.round)
        self._after_worker()

    def _after_worker(self) -> None:
        self.catch_up.report()
        self.state.activate_if_ready(self._replica.roster)
        self.absence.look()
        self.leaving.finish_if_done()

    def worker_contributed(self, event: events.WorkerContributed) -> None:
        """Its part of a round lies in the arena, or it gives nothing."""
        self.absence.spoke()
        if event.ready_bytes is None:
            self.skips.contributed(event, begun=self._rounds.own.begun > 0)
            self.bounded.weighed(event.round, event.weight)
        self._outbox.emit(self._rounds.worker_contributed(event.round, event.weight, event.ready_bytes))

    def worker_paused(self, event: events.ScriptPaused) -> None:
        """Its script does something else for a while."""
        self.absence.paused(event.reason)
        self.client.tell(self.report())

    def worker_resumed(self, _: events.ScriptResumed) -> None:
        """It goes on."""
        self.absence.resumed()
        self.client.ask_soon()

    def worker_updating(self, _: events.WorkerUpdating) -> None:
        """It applies a result."""
        self.absence.spoke()
        self._rounds.worker_updating()

    # -- the reduce engine

    def reduce_finished(self, event: events.ReduceFinished) -> None:
        """The result of a round is here."""
        if event.tag == self._rounds.running:
            self.bounded.reduced(event)
            self._network.reduced(event.encoding_error)
            if not event.finite:
                self.skips.void(event.tag.round, event.culprits)
        self._outbox.emit(self._rounds.reduce_finished(event.tag, event.digest, event.weights, event.checks))

    def round_came_up_empty(self, event: events.RoundCameUpEmpty) -> None:
        """It has none: every part had weight 0."""
        self._rounds.round_came_up_empty(event.tag)
        reason = Cause.NOTHING_GIVEN.told().text
        self._outbox.record("pause", f"round {event.tag.round}", "every contribution has weight 0", "", None, reason)

    def result_fetched(self, event: events.ResultFetched) -> None:
        """The result that was agreed on is here."""
        if not event.finite and event.round == self._rounds.fetching:
            self.skips.void(event.round, ())
        elif not event.bounded and event.round == self._rounds.fetching:
            self.bounded.void(event.round)
        self._outbox.emit(self._rounds.result_fetched(event.round, event.digest))

    def result_missed(self, event: events.ResultMissed) -> None:
        """The result of the running round cannot be had any more."""
        self._outbox.emit(self._rounds.result_missed(event.tag))

    # -- the state

    def state_notice(self, notice: StateLost | StatesDiffer | NothingToClipAround | PartGivenUp) -> None:
        """What the rounds have found of the states, or of this site's part."""
        if isinstance(notice, StateLost):
            if notice.outrun:
                self.state.fetch.outrun.noted(self.state.fetch.plan)
            self.state_lost(notice.reason)
        elif isinstance(notice, StatesDiffer):
            self.drift.found(notice)
        elif isinstance(notice, PartGivenUp):
            self.skips.given_up(notice.round)
        else:
            self.bounded.left_out(notice.round)

    def state_lost(self, reason: str) -> None:
        """The worker cannot catch up by results alone."""
        self.state.lost(reason)
        self.client.ask_soon()

    def transfer_failed(self, event: events.TransferFailed) -> None:
        """The state cannot be had by this plan."""
        if self.state.transfer_failed(event.transfer, event.reason):
            self.client.ask_soon()

    def _part_with_a_promise(self) -> None:
        """A part of a state waits to be brought to the round of its plan, which its sources do not do any more, by what
        they say over their own links (spec 11.18)."""
        fetch, plan, links = self.state.fetch, self.state.fetch.plan, self._network.links
        if plan is None or not self._rounds.delivery.is_damaged or self._rounds.completed_round >= plan.round:
            return
        heard = [links.neighbours[source].beat for source in fetch.sources() if links.is_up(source)]
        trains = any(beat is not None and beat.phase != RoundPhase.STANDBY.value for beat in heard)
        if fetch.is_promised_in_vain(trains=trains):
            reason = f"none of its sources works at round {plan.round} any more"
            self.transfer_failed(events.TransferFailed(transfer=plan.transfer, reason=reason))

    def state_restored(self, event: events.StateRestored) -> None:
        """What lay in this site is in the worker's region."""
        self._follow_up(self.state.restored(event.attempt))

    def restore_failed(self, event: events.RestoreFailed) -> None:
        """It is not."""
        self._follow_up(self.state.restore_failed(event.attempt, event.reason))

    # -- links

    def dial_failed(self, event: events.DialFailed) -> None:
        """There is no link. Who hears that its own key is in use elsewhere, and has seen the proof, ends."""
        self._network.dial_failed(event)
        if (why := event.why) is not None and why.cause is Cause.KEY_ELSEWHERE:
            self.leaving.stop(why.text, graceful=False, cause=why.cause)

    def link_came_up(self) -> None:
        """Whoever is there now may be a way to the scheduler."""
        if self.session.present and not self.membership.in_roster:
            self.client.ask_soon()

    def round_completed(self, notice: RoundCompleted) -> None:
        """The result of a round is here."""
        self.reached.completed(self._replica.roster, notice.round, applied=self._replica.applied)
        self.links.close_removed(self._rounds.completed_round)
        self.state.memory.round_completed()
        if dict(notice.weights).get(self._outbox.facts.site):
            self.state.fetch.outrun.counted()
        self.catch_up.report()
        if self.leaving.answer is not None or notice.round in self._replica.roster.last_rounds():
            self.client.tell(self.report())
        self.leaving.finish_if_done()

    # -- asking

    def leave_requested(self, event: events.LeaveRequested) -> None:
        """A user wants this site to leave."""
        wish = {"contributes": event.contributes, "by_worker": event.by_worker}
        if self.leaving.requested(event.request, event.reason, **wish):
            self.client.ask_soon()
            self._asking.ask()
            self.leaving.finish_if_done()

    def forced_stop(self, event: events.ForcedStop) -> None:
        """A user insists: nobody is waited for."""
        self.leaving.stop(event.reason, graceful=False)

    def beat(self, role: SchedulerRole) -> None:
        """Everything that is still wanted is asked again; the user's worker hears why nothing moves."""
        self.client.look()
        self.session_end.look()
        self.absence.look()
        self.waits.look()
        self.leaving.look()
        if self.membership.takes_part:
            self.client.tell(self.report())
        self.catch_up.report()
        self.catch_up.beat()
        self._part_with_a_promise()
        self.hold.beat()
        if self.client.is_due:
            self._asking.ask()
        self.links.ask()
        self.recovering.ask()
        self.pause.tell()
        self.warnings.tell()
        self.leaving.finish_if_done()
        self.leaving.give_up(role)
        self.lost_results.look()
        self._look_for_a_way_back()
        self.links.look_for_a_later_start()

    def _look_for_a_way_back(self) -> None:
        in_roster = self.membership.in_roster
        waits_outside = self.session.present and not in_roster
        leaderless = in_roster and self._replica.raft.leader is None  # its neighbours may all be outside by now
        apart = in_roster and self.client.is_apart
        bereft = in_roster and len(self._replica.roster.sites) == 1 and not self._rounds.active  # they may have it
        alone = waits_outside or leaderless or apart or bereft or not self._network.links.up_sites()
        self.links.look_for_a_way_back(connected=not alone)
