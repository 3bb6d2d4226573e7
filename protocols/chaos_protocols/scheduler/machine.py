"""The scheduler: the role of the agreement's leader. It drives the negotiations and proposes every change of the
roster, one at a time.

It works by looking, not by remembering: after each event `evaluate` compares the roster with what is known of links
and sites, and takes the most urgent step. So a new scheduler that knows nothing but the roster goes on where the old
one stopped. Order of urgency: sites that failed, the round under way when they did, daemons that were restarted, then
what was asked for in the order of asking, a round that ended empty, a state to go on from, the voters, other bounds,
keys, other trees. The parts look and decide, this machine acts. Driven by `SiteMachine`, which is its `Host`. Sources:
spec 7; Chaos IV.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import assert_never

from chaos_protocols.agreement.commands import (
    AddSite,
    Command,
    Replicate,
    RoundResolved,
    SetRestorePoint,
    SetVoters,
)
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.admission import Admission, TurnedBack
from chaos_protocols.scheduler.bounding import Bounding
from chaos_protocols.scheduler.decisions import Decision
from chaos_protocols.scheduler.facts import Host
from chaos_protocols.scheduler.failures import FailureDetector
from chaos_protocols.scheduler.join_figures import RunFigures
from chaos_protocols.scheduler.negotiation import Committed, Negotiation, ProposalLost, ScaleIn
from chaos_protocols.scheduler.pace import Pace
from chaos_protocols.scheduler.progress import ProgressWatch
from chaos_protocols.scheduler.proposals import CannotPropose, Proposal, Situation
from chaos_protocols.scheduler.proposer import InFlight, Proposer
from chaos_protocols.scheduler.rekeying import Rekeying
from chaos_protocols.scheduler.replanning import Replanning
from chaos_protocols.scheduler.reports import Reports
from chaos_protocols.scheduler.restore_awaited import WitnessedRemovals
from chaos_protocols.scheduler.restore_point import RestorePoint
from chaos_protocols.scheduler.round_resolution import RoundResolution
from chaos_protocols.scheduler.running import RunningNegotiations
from chaos_protocols.scheduler.uplinks import Uplinks
from chaos_protocols.scheduler.voters import VoterChoice
from chaos_protocols.scheduler.waits import WaitsWatch
from chaos_protocols.wire.control import (
    CaughtUp,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeaveRequest,
    LinkAnswer,
    LinkReady,
    LinkRequest,
    RoundStatusReply,
    SiteStatus,
    StateRequest,
)
from chaos_protocols.wire.recovery import RecoverAnswer, RecoverRequest

STEPS_MAX = 8
"""In one go, after one event: a lone voter commits at once, so that one step may follow another. What is left is done
after the next event."""

ForScheduler = (
    JoinRequest
    | StateRequest
    | CaughtUp
    | LeaveRequest
    | LinkRequest
    | LinkReady
    | SiteStatus
    | RoundStatusReply
    | RecoverRequest
)
"""Messages that only a scheduler acts on."""


class SchedulerPhase(Enum):
    """Where this site stands as the scheduler of the present term."""

    FOLLOWING = "following"
    """Another site leads, or nobody."""
    ELECTED = "elected"
    """It leads, but its roster may not be the newest yet."""
    AT_WORK = "at work"
    """It leads, and what the schedulers before left half-done is known."""


class Term:
    """Everything that this site knows as the scheduler of one term of the agreement. Made anew with each, so that
    nothing of an older one is left: whoever waits asks the next scheduler."""

    def __init__(
        self, host: Host, pace: Pace, turned_back: TurnedBack, removals: WitnessedRemovals, *, since_s: float
    ) -> None:
        self.proposer = Proposer(host, pace)
        self.negotiations = RunningNegotiations(host)
        self.reports = Reports(host)
        self.failures = FailureDetector(host, self.negotiations, self.reports)
        self.progress = ProgressWatch(host, self.negotiations, self.reports)
        self.resolution = RoundResolution(host, self.reports)
        self.restore_point = RestorePoint(host, self.reports, removals, led_since_s=since_s)
        self.voters = VoterChoice(host, self.negotiations, led_since_s=since_s)
        self.waits = WaitsWatch(host, self.reports, pace)
        self.replanning = Replanning(host, self.reports, pace)
        self.bounding = Bounding(host, self.reports, pace)
        self.rekeying = Rekeying(host, self.reports)
        self.admission = Admission(
            host, self.negotiations, self.reports, self.restore_point, turned_back, self.proposer
        )


class SchedulerMachine:
    """See the module."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.phase = SchedulerPhase.FOLLOWING
        self.pace = Pace()
        """Kept over the terms, as are those that were turned back and the removals: each says why."""
        self.turned_back, self.removals = TurnedBack(), WitnessedRemovals()
        self.term = self._new_term(0.0)
        """Empty while this site does not lead."""

    # -- the role

    def lead(self, *, now_s: float) -> None:
        """This site became the leader. It begins when its roster is the newest (`at_work`)."""
        self.term = self._new_term(now_s)
        self.phase = SchedulerPhase.ELECTED

    def retire(self) -> None:
        """Not the leader any more: forget everything."""
        self.term = self._new_term(0.0)
        self.phase = SchedulerPhase.FOLLOWING

    def _new_term(self, since_s: float) -> Term:
        return Term(self.host, self.pace, self.turned_back, self.removals, since_s=since_s)

    def at_work(self, *, now_s: float) -> bool:
        """Whether this site leads and its roster is the newest. Before that it answers nobody: in an older roster a
        member may be missing, or a leaver still be there."""
        if self.phase is SchedulerPhase.ELECTED and self.host.roster_is_newest():
            self.phase = SchedulerPhase.AT_WORK
            self.term.negotiations.take_over(now_s=now_s)
        return self.phase is SchedulerPhase.AT_WORK

    @property
    def leading(self) -> bool:
        return self.phase is not SchedulerPhase.FOLLOWING

    @property
    def taken_over(self) -> bool:
        return self.phase is SchedulerPhase.AT_WORK

    @property
    def in_flight(self) -> InFlight | None:
        return self.term.proposer.in_flight

    @property
    def negotiations(self) -> Mapping[str, Negotiation]:
        """Those that run, by their names."""
        return self.term.negotiations.all

    @property
    def deadline_s(self) -> float | None:
        """When to look again though nothing happens."""
        if not self.leading:
            return None
        term, resolving = self.term, self.host.roster.resolving
        if not (resolving or term.negotiations.all or term.failures.waits):
            return None
        deadlines = (
            term.negotiations.deadline_s,
            term.failures.deadline_s,
            term.resolution.asks_again_s if resolving else None,
        )
        return min((at_s for at_s in deadlines if at_s is not None), default=None)

    # -- events

    def receive(self, source: SiteId, message: ForScheduler, *, now_s: float) -> None:
        """One message, while `at_work`. Whether it still matters is checked by the part."""
        admission = self.term.admission
        answer: JoinAnswer | LeaveAnswer | LinkAnswer | RecoverAnswer | None = None
        match message:
            case SiteStatus():
                self._reported(source, message, now_s)
            case JoinRequest():
                answer = admission.join_requested(source, message, now_s=now_s)
            case StateRequest():
                answer = admission.state_requested(source, message, now_s=now_s)
            case CaughtUp(transfer=transfer, waits=waits):
                admission.caught_up_reported(source, transfer, waits=waits, now_s=now_s)
            case LeaveRequest():
                answer = admission.leave_requested(source, message, now_s=now_s)
            case LinkRequest():
                answer = admission.link_requested(source, message, now_s=now_s)
            case LinkReady():
                admission.link_ready(source, message)
            case RoundStatusReply():
                self.term.resolution.answered(source, message)
            case RecoverRequest():
                answer = admission.recovery_requested(source, message)
            case _:
                assert_never(message)
        if answer is not None:
            self.host.tell(source, answer)

    def _reported(self, source: SiteId, report: SiteStatus, now_s: float) -> None:
        roster = self.host.roster
        known = roster.record(source) or roster.departure(source, report.incarnation)
        if known is not None and known.incarnation == report.incarnation:  # a leaver may be the root of its last round
            self.term.reports.take(source, report, now_s=now_s)

    def appended(self, index: int) -> None:
        """The proposal under way is in the log; it may be committed before `Host.propose` returns."""
        self.term.proposer.appended(index)

    def committed(self, command: Command, index: int, *, now_s: float) -> None:
        """A command was committed and the roster is already the one after it."""
        term = self.term
        if not isinstance(command, SetVoters):
            term.resolution.epoch_changed()
        flight = term.proposer.committed(index, now_s=now_s)
        if flight is not None and flight.negotiation is not None:
            last_round = self._last_round_of(flight.negotiation)
            term.negotiations.feed(flight.negotiation, Committed(last_round=last_round))
        if isinstance(command, RoundResolved):
            term.negotiations.round_resolved()
        if isinstance(command, AddSite | SetRestorePoint):
            term.restore_point.offers.is_void(command.record.site)
        elif isinstance(command, Replicate):
            term.restore_point.offers.is_void(command.replication.joiner)

    def _last_round_of(self, identifier: str) -> int:
        """Of the site that this negotiation has removed, as the roster says."""
        negotiation = self.term.negotiations.all.get(identifier)
        if not isinstance(negotiation, ScaleIn):
            return 0
        gone = self.host.roster.departure(negotiation.site, negotiation.incarnation)
        return gone.last_round if gone else 0

    def evaluate(self, *, now_s: float) -> None:
        """Take the most urgent step that can be taken. Called after every event while this site leads."""
        if not self.at_work(now_s=now_s):
            return
        term = self.term
        term.negotiations.pass_deadlines(now_s)
        for lost in term.failures.look(now_s):
            term.negotiations.take(lost, now_s=now_s)
        for finding in term.progress.look(self.host.awake_s):
            term.negotiations.take(finding, now_s=now_s)
        waits = term.waits.look(now_s) or term.resolution.unanswered(now_s)
        if waits is not None:
            for record in self.host.roster.sites:
                self.host.tell(record.site, waits)
        for lost in term.waits.lost:
            term.negotiations.take(lost, now_s=now_s)
        steps = 0
        while self.leading and self.term.proposer.is_free() and steps < STEPS_MAX:
            steps += 1
            if not self._step(now_s):
                break

    # -- deciding

    def _step(self, now_s: float) -> bool:
        term = self.term
        if self.host.roster.resolving:
            return (
                self._propose_pending(now_s, resolving=True)
                or self._carry_out(term.failures.renewal(), now_s)
                or self._carry_out(term.resolution.step(now_s), now_s)
            )
        return (
            self._carry_out(term.failures.renewal(), now_s)
            or self._propose_pending(now_s, resolving=False)
            or self._carry_out(term.resolution.retry_empty_round(now_s), now_s)
            or self._restore(now_s)
            or self._carry_out(term.voters.step(now_s), now_s)
            or self._agree_on_rules(now_s)
            or self._carry_out(term.bounding.step(), now_s)
            or self._carry_out(term.rekeying.step(), now_s)
            or self._carry_out(term.replanning.step(now_s), now_s)
        )

    def _agree_on_rules(self, now_s: float) -> bool:
        """Only by one who keeps them itself."""
        decision = self.term.voters.rules(now_s)
        return decision is not None and self.host.shows_votes() and self._carry_out(decision, now_s)

    def _restore(self, now_s: float) -> bool:
        restore_point = self.term.restore_point
        if not self._carry_out(restore_point.step(now_s), now_s):
            return False
        restore_point.proposed(now_s)
        return True

    def _carry_out(self, decision: Decision | None, now_s: float) -> bool:
        """True if a step was taken, and everything is to be looked at anew."""
        if decision is None:
            return False
        for told in decision.tells:
            self.host.tell(told.site, told.message)
        for lost in decision.failed:
            self.term.negotiations.take(lost, now_s=now_s)
        if decision.successor is not None:
            self.host.transfer_leadership(decision.successor)
        if decision.proposal is None:
            return decision.look_again
        if not self.term.proposer.propose(decision.proposal, None, now_s=now_s):
            return False
        note = decision.note
        if note is not None:
            self.host.record(note.kind, note.subject, note.cause, note.outcome, None, note.reason)
        return True

    def _propose_pending(self, now_s: float, *, resolving: bool) -> bool:
        """The first negotiation whose turn it can be. While a round is resolved only failures are removed."""
        negotiations, proposer = self.term.negotiations, self.term.proposer
        for identifier in negotiations.pending:
            negotiation = negotiations.all.get(identifier)
            if negotiation is None:  # it has ended since
                negotiations.has_its_turn(identifier)
                return True
            if resolving and not negotiation.urgent:
                continue
            if not negotiations.may_propose(negotiation, trains=self.term.reports.anybody_active()):
                continue
            proposal = self._proposal_of(negotiation, now_s)
            if isinstance(proposal, ProposalLost):
                negotiations.has_its_turn(identifier)
                negotiations.feed(identifier, proposal)
                return True
            if proposal is None or not proposer.quorum_in_reach(proposal.configuration):
                continue  # another one may have to come first: a link, a failure
            negotiations.has_its_turn(identifier)
            if proposer.propose(proposal, identifier, now_s=now_s):
                return True
            negotiations.waits_again(identifier)
            return False
        return False

    def _proposal_of(self, negotiation: Negotiation, now_s: float) -> Proposal | ProposalLost | None:
        """Its command, made from the roster as it is now; why there is none; or None: later, when a leaver no longer
        holds the overlay together."""
        try:
            return negotiation.command(self._situation())
        except CannotPropose as error:
            leaver = negotiation if error.split and isinstance(negotiation, ScaleIn) else None
            if leaver is not None and self.term.negotiations.bridge(leaver, now_s=now_s):
                return None
            return ProposalLost(reason=error.reason, final=error.final, refused=error.refused)
        except ValueError as no_plan:  # the overlay does not connect the members at the moment
            return ProposalLost(reason=str(no_plan), final=True)

    def _situation(self) -> Situation:
        host = self.host
        return Situation(
            roster=host.roster,
            configuration=host.configuration,
            planner=host.planner,
            first_round=self.pace.first_round(host),
            done=host.done_round,
            active=self.term.reports.active_sites(),
            holding=self.term.reports.holding_sites(),
            ending=self.term.reports.ending_sites(),
            figures=RunFigures(
                round_bytes=self.pace.round_bytes, round_s=self.pace.round_s, hold_s=host.settings.join_hold_s
            ),
            newest_round=self.term.reports.newest_possible(),
            banned=self.term.reports.banned(),
            uplinks=self.term.reports.uplinks(),
        )

    def uplinks(self) -> Uplinks:
        """What sites say that they send at most; nothing while another site leads."""
        return self.term.reports.uplinks() if self.leading else {}
