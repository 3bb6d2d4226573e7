"""One site, whole: the machine that the daemon and the simulator run. Facts in, effects out; it does nothing itself.

It puts the parts together and hands each event and message to the one that it concerns: the agreement decides what the
roster is (`agreement/`); links are watched and messages routed (`links/`); the scheduler's role is played where this
site leads (`scheduler/`); how it takes part in the run, and what becomes of its worker's state, is looked after
(`membership/`, `state/`); rounds run (`rounds/`). The parts call downwards only, and say upwards in notices and in what
they return. Each event gets an id, which the messages it causes carry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from chaos_protocols import events, wishes
from chaos_protocols.agreement.commands import Command, RemoveSite, RoundResolved, encode_command
from chaos_protocols.agreement.key_ring import KeyRing, NoKeys
from chaos_protocols.agreement.raft import Commit, Persist, RaftMachine, RestoreSnapshot, Role, RoleChanged, Send
from chaos_protocols.agreement.raft import Effect as RaftEffect
from chaos_protocols.agreement.raft.effects import Unproven
from chaos_protocols.agreement.raft.messages import Configuration, LogEntry
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.agreement.views import Planner
from chaos_protocols.effects import Effect, SetTimer
from chaos_protocols.inbound import Inbound
from chaos_protocols.links.liveness import BeatDue, LinkCameUp, LinkRenewed, LinkWentDown
from chaos_protocols.membership.facts import SiteFacts
from chaos_protocols.membership.leaving import SchedulerRole
from chaos_protocols.names import SiteId, short
from chaos_protocols.rounds.notices import RoundCompleted, RoundNotice
from chaos_protocols.scheduler.failures import connected_sites
from chaos_protocols.scheduler.machine import SchedulerMachine
from chaos_protocols.scheduler.uplinks import UplinkPlanner
from chaos_protocols.settings import SiteSettings
from chaos_protocols.site_parts import SiteParts
from chaos_protocols.wire import control as messages

TIMER_STEP_S = 0.001  # a deadline that has passed, but whose step cannot be taken yet, must not spin


class SiteMachine(SiteParts):
    """See the module. `handle` is the only way in. What the scheduler has it do is here, too (`facts.Host`)."""

    def __init__(
        self,
        facts: SiteFacts,
        *,
        settings: SiteSettings,
        planner: Planner,
        raft: RaftMachine,
        roster: Roster | None = None,
        entries: tuple[LogEntry, ...] = (),
        keys: KeyRing | None = None,
        now_s: float,
    ) -> None:
        """`keys`: those that the agreement was given; None: nobody changes his."""
        super().__init__(
            facts,
            settings=settings,
            planner=planner,
            raft=raft,
            roster=roster,
            entries=entries,
            keys=keys or KeyRing(NoKeys()),
            now_s=now_s,
        )
        self.scheduler = SchedulerMachine(self)
        self.planner = UplinkPlanner(planner, self.scheduler.uplinks)
        self.inbound = Inbound(
            self.outbox, self.replica, self.network, self.participation, self.orders, self.scheduler, self.link_keys
        )
        self._timer_s: float | None = None
        self._unfit_told: set[str] = set()
        """Kinds of commands of which it was told that one cannot be agreed on."""
        self._deposed = False
        """This site gave up the role, and has not looked since whether it may lead again."""
        self.parts = self._table()

    def _table(self) -> dict[type, Callable[[Any], None]]:
        """Which part takes which event. Every event has its line here."""
        participation, network, state = self.participation, self.network, self.participation.state
        return {
            events.Started: self._started,
            events.TimerFired: self._timer_fired,
            events.EnvelopeReceived: self._received,
            events.LinkUp: self._linked,
            events.LinkLost: network.link_lost,
            events.DialFailed: participation.dial_failed,
            events.SiteRefused: network.refused,
            events.LinkProgressed: network.link_progressed,
            events.RatesMeasured: network.rates_measured,
            wishes.SendLimitSet: network.send_limit_set,
            events.LinkProbed: self.orders.probed,
            events.PeersChanged: participation.links.peers_changed,
            **participation.client.takes,
            **participation.keys.takes,
            events.LinkChangeRequested: participation.links.change_requested,
            events.RecoverRequested: participation.recovering.requested,
            wishes.RecoverWithout: self.starting_over.recover,
            wishes.FollowWanted: self.starting_over.follow,
            wishes.RecoveryTold: participation.recovered.told,
            events.LeaveRequested: participation.leave_requested,
            events.ForcedStop: participation.forced_stop,
            events.WorkerReady: participation.worker_ready,
            events.WorkerLost: participation.session_end.lost,
            events.WorkerStopped: participation.worker_stopped,
            events.WorkerContinued: participation.worker_continued,
            events.WorkerContributed: participation.worker_contributed,
            events.ScriptPaused: participation.worker_paused,
            events.ScriptResumed: participation.worker_resumed,
            events.WorkerUpdating: participation.worker_updating,
            events.WorkerApplied: participation.worker_applied,
            events.WorkerLoaded: participation.worker_loaded,
            events.WorkerSnapshotTaken: participation.worker_copied,
            events.WorkerSnapshotMissed: participation.worker_copied,
            events.ReduceFinished: participation.reduce_finished,
            events.RoundCameUpEmpty: participation.round_came_up_empty,
            events.ResultFetched: participation.result_fetched,
            events.ResultMissed: participation.result_missed,
            events.TransferProgressed: state.transfer_progressed,
            events.TransferFinished: state.transfer_finished,
            events.TransferFailed: participation.transfer_failed,
            events.MemoryCheckpointSaved: participation.checkpoint_made,
            events.StateRestored: participation.state_restored,
            events.RestoreFailed: participation.restore_failed,
            events.CheckpointsFound: state.checkpoints_found,
            events.CheckpointWritten: participation.checkpoint_made,
        }

    # -- the way in

    def handle(self, event: events.Event, *, now_s: float) -> list[Effect]:
        """Take one event; the effects are to be executed in this order."""
        self.outbox.begin(now_s=now_s)
        self.parts[type(event)](event)
        self._drain()
        if self.scheduler.leading:
            self.scheduler.evaluate(now_s=self.now_s)
            self._drain()
        self._set_timer()
        self.participation.reached.before_effects(self.roster)
        return self.outbox.take()

    def _drain(self) -> None:
        """Until nothing is left over: notices of the parts, messages of this site to itself."""
        links, rounds, inbox = self.network.links, self.rounds, self.network.inbox
        self._look_for_the_leader()
        while links.notices or rounds.notices or inbox:
            for link_notice in links.take_notices():
                self._link_notice(link_notice)
            for round_notice in rounds.take_notices():
                self._round_notice(round_notice)
            if inbox:
                source, message = inbox.popleft()
                self._carry_out(self.inbound.deliver(source, message))
            self._look_for_the_leader()

    def _set_timer(self) -> None:
        at_s, raft_s = self.network.links.deadline_s, self.replica.raft.deadline_s
        if raft_s is not None and raft_s < at_s:
            at_s = raft_s
        looks_s = self.scheduler.deadline_s
        if looks_s is not None and looks_s < at_s:
            at_s = looks_s
        at_s = max(at_s, self.outbox.now_s + TIMER_STEP_S)
        if at_s != self._timer_s:
            self._timer_s = at_s
            self.outbox.emit([SetTimer(at_s=at_s)])

    def _linked(self, event: events.LinkUp) -> None:
        if self.link_keys.shown(event.site, event.incarnation, event.chain):
            self.network.link_up(event)

    def _started(self, event: events.Started) -> None:
        self.network.name_runs(self.participation.client.is_of_run)
        self.participation.links.started(event)
        self.participation.roster_changed(self.roster, None)

    def _received(self, event: events.EnvelopeReceived) -> None:
        self._carry_out(self.inbound.received(event))

    def _timer_fired(self, _: events.TimerFired) -> None:
        self._timer_s = None
        if late_s := self.links.late_s(now_s=self.now_s):
            self.raft.stood_still(late_s, now_s=self.now_s)
        if self.raft.deadline_s is not None and self.now_s >= self.raft.deadline_s:
            self._carry_out(self.raft.tick(now_s=self.now_s))
        if self.now_s >= self.links.deadline_s:
            self.outbox.emit(self.links.tick(now_s=self.now_s))

    # -- the agreement

    def _carry_out(self, effects: list[RaftEffect]) -> None:
        if not effects:
            return
        for effect in effects:
            match effect:
                case Persist():
                    self.outbox.emit([effect])
                case Send(destination=destination, message=message):
                    self.tell(destination, messages.RaftEnvelope(message=message))
                case Commit(entries=entries, late_until=until):
                    for entry in entries:
                        self._apply(entry, late=entry.index <= until)
                    self._carry_out(self.replica.compact())
                case RestoreSnapshot(snapshot=snapshot):
                    self._install(self.replica.restored(snapshot), None)
                case RoleChanged(role=role, term=term, leader=leader, reason=reason):
                    self._role_changed(role, term, leader, reason)
                case Unproven():
                    self.outbox.emit(self.replica.unproven(effect))
                    self.participation.joining.unproven(effect.leader)
                case _:
                    assert_never(effect)
        self._lift_fence()

    def _apply(self, entry: LogEntry, *, late: bool) -> None:
        command = self.replica.committed(entry, late=late)
        if command is None:
            return
        self._install(self.replica.apply(command, entry.index), command)
        self._witness(command, entry.index)
        if self.scheduler.leading:
            self.scheduler.committed(command, entry.index, now_s=self.now_s)

    def _witness(self, command: Command, index: int) -> None:
        """What is known here about it, and to nobody else perhaps, is remembered for the time when this site leads."""
        if isinstance(command, RemoveSite):
            gone = command.departure
            noted = self.participation.reached.done_before(index, gone.lineage)
            self.scheduler.removals.note(gone, max(self.done_round, noted), resolve=command.resolve)
        elif isinstance(command, RoundResolved):
            self.scheduler.removals.resolved(command.round)

    def _install(self, roster: Roster, command: Command | None) -> None:
        old, rekeyed = self.replica.install(roster)
        self.network.name_runs(self.participation.client.is_of_run)
        self.participation.roster_changed(old, command)
        if rekeyed:
            self._keys_changed(rekeyed)
        self.link_keys.starts_changed()
        self._lift_fence()  # only now: the rounds know the new views, so nothing is contributed under the old tag
        self._look_for_the_leader()

    def _keys_changed(self, sites: list[SiteId]) -> None:
        """The run has agreed on something about their keys."""
        self.participation.keys.follow(sites)
        self.link_keys.changed(sites)
        self._carry_out(self.raft.keys_changed(now_s=self.now_s))

    def _lift_fence(self) -> None:
        if self.replica.lift_fence():
            self.outbox.emit(self.rounds.lift_fence())

    def _role_changed(self, role: Role, term: int, leader: SiteId | None, reason: str) -> None:
        leads = role is Role.LEADER
        if not self.replica.role_changed(leader, leads=leads, now_s=self.now_s):
            return
        if leads:
            self.scheduler.lead(now_s=self.now_s)
            self.record("election", self.facts.name, reason, "done", None, f"scheduler of term {term}")
        else:
            self.scheduler.retire()
            self._deposed = True
            self.record("election", self.facts.name, reason, "", None, f"no longer the scheduler (term {term})")

    def _look_for_the_leader(self) -> None:
        """Links came or went, here or elsewhere, or this site gave up the role: is the leader still to be reached?"""
        looks, self._deposed = self.network.take_change() or self._deposed, False
        if not looks:
            return
        leader = self.raft.leader
        if leader is None and self.raft.waits_alone and self._reaches_all():
            self._carry_out(self.raft.all_reached(now_s=self.now_s))
        if leader is not None and leader != self.site and leader not in self.reachable():
            self._carry_out(self.raft.leader_lost(now_s=self.now_s))

    def _reaches_all(self) -> bool:
        """Of the roster there is no site and no link of this one that it, as the scheduler, would call lost."""
        own = (self.link_is_up(self.site, far) for far in self.roster.neighbours(self.site))
        return all(own) and connected_sites(self).issuperset(self.roster.site_ids())

    # -- notices of the parts

    def _link_notice(self, notice: LinkCameUp | LinkRenewed | LinkWentDown | BeatDue) -> None:
        network = self.network
        match notice:
            case LinkCameUp(site=site, incarnation=incarnation):
                network.saw_incarnation(site, incarnation, self.link_keys.chain_of(site))
                self.link_keys.tell(site)
                self.outbox.emit(network.router.introduce(site))
                network.report_link(site, incarnation, up=True, reason="connected")
                self._look_for_the_leader()
                self.participation.link_came_up()
                self.orders.look(site)
            case LinkRenewed(site=site):
                self.link_keys.tell(site)
                self.outbox.emit(network.router.introduce(site))
            case LinkWentDown(site=site, incarnation=incarnation, reason=reason):
                self.link_keys.went_down(site, incarnation)
                network.report_link(site, incarnation, up=False, reason=reason)
                self._look_for_the_leader()
                self.record("link-down", short(site), reason, "", None, "the link to this site is down")
                self.participation.links.went_down(site)
            case BeatDue():
                self._beat()
            case _:
                assert_never(notice)

    def _beat(self) -> None:
        """A heartbeat over every live link, and whatever is asked again."""
        scheduler, rounds = self.scheduler, self.rounds
        self.network.beat(self.scheduler_site(), rounds.completed_round, rounds.phase.value)
        proposed_s = scheduler.in_flight.started_s if scheduler.in_flight is not None else None
        self.orders.beat()
        self.participation.beat(SchedulerRole(at_work=scheduler.taken_over, proposed_s=proposed_s))

    def _round_notice(self, notice: RoundNotice) -> None:
        if isinstance(notice, RoundCompleted):
            hold, round_bytes = self.participation.hold, self.rounds.delivery.round_bytes
            self.scheduler.pace.round_done(self.now_s, round_bytes, waited=hold.take_waited())
            self.participation.round_completed(notice)
        else:
            self.participation.state_notice(notice)
        self._look_for_the_leader()

    # -- what the scheduler has its site do

    def tell(self, site: SiteId, message: messages.Message) -> None:
        self.network.tell(site, message)

    def record(self, kind: str, subject: str, cause: str, outcome: str, started_s: float | None, reason: str) -> None:
        self.outbox.record(kind, subject, cause, outcome, started_s, reason)

    def propose(self, command: Command, configuration: Configuration | None, first_round: int | None) -> bool:
        """Give a command to the agreement. A planned change holds this site's contributions back from its first round
        on until the entry's fate is known (spec 6.7)."""
        if self.network.versions.holds_back(command, self.roster, self.outbox.emit):
            return False
        data, kind = encode_command(command), type(command).__name__
        if unfit := self.replica.unfit(data):
            if kind not in self._unfit_told:
                self._unfit_told.add(kind)
                self.record("refused", kind, "it cannot be agreed on", "refused", None, unfit)
            return False
        index, effects = self.raft.propose(data, configuration=configuration, now_s=self.now_s)
        if index is not None:
            self.scheduler.appended(index)
            if first_round is not None:
                self.replica.fence(index)
                self.rounds.fence(first_round)
        self._carry_out(effects)
        return index is not None

    def shows_votes(self) -> bool:
        """This site, which leads, can show who elected it; it asks for signed votes that it lacks."""
        self._carry_out(self.raft.gather_votes(now_s=self.now_s))
        return self.raft.shows_votes

    def transfer_leadership(self, target: SiteId | None) -> None:
        """Give the scheduler's role to another voter."""
        self._carry_out(self.raft.transfer_leadership(target, now_s=self.now_s))
