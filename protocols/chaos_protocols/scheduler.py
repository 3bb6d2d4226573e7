"""The scheduler: the role of the agreement's leader. It drives the negotiations and proposes every change of the
roster, one at a time.

It works by looking, not by remembering: after each event `evaluate` compares the roster with what is known of links
and sites, and takes the most urgent step. So a new scheduler that knows nothing but the roster goes on where the old
one stopped. Order of urgency: sites that failed, settling of the running round, links that failed, then what was asked
for in the order of asking, then the voters. Driven by `SiteMachine`, which is its `Host`. Sources: protocols.md
sections 1, 3, 4; Chaos section IV.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from chaos_protocols import proposals, reconcile, succession
from chaos_protocols.commands import Command, Settled, SetVoters
from chaos_protocols.host import Host
from chaos_protocols.messages import JoinRequest, Report, SettleAnswer, StateRequest
from chaos_protocols.names import SiteId, short
from chaos_protocols.negotiation import (
    Committed,
    Conclude,
    ConnectLink,
    DisconnectLink,
    Intent,
    Negotiation,
    Order,
    ProposalLost,
    Propose,
    ScaleIn,
    ScaleOut,
    Settlement,
    Tell,
)
from chaos_protocols.negotiation.base import NegotiationEvent
from chaos_protocols.negotiation.scale_out import ScaleOutState
from chaos_protocols.proposals import CannotPropose, Proposal, Situation
from chaos_protocols.raft.config import majority
from chaos_protocols.raft.messages import Configuration
from chaos_protocols.roster import SiteRecord

MARGIN_ROUNDS_MAX = 1000
SMOOTHING = 0.2


@dataclass(slots=True)
class InFlight:
    """The one proposal under way; `index` is its place in the log."""

    command: Command
    negotiation: str | None
    started_s: float
    index: int = 0


class SchedulerMachine:
    """See the module. Everything in it is volatile: it starts empty with each term."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.leading = False
        self.taken_over = False
        self.negotiations: dict[str, Negotiation] = {}
        self.reports: dict[SiteId, tuple[Report, float]] = {}
        self.stalled: set[SiteId] = set()
        self.renewed_for: tuple[int, int] = (-1, -1)
        self.state_requests: dict[SiteId, tuple[StateRequest, float]] = {}
        self.join_requests: dict[SiteId, tuple[JoinRequest, float]] = {}
        self.in_flight: InFlight | None = None
        self.commit_s = 0.005
        self.round_s: float | None = None
        self.wishes: deque[tuple[str, Intent]] = deque()
        self.answers: dict[SiteId, SettleAnswer] = {}
        self.asked_s = float("-inf")
        self.led_since_s = 0.0
        self.suspects: dict[tuple[SiteId, SiteId], float] = {}
        self.departing: dict[SiteId, float] = {}
        self.turned_back: dict[SiteId, int] = {}
        self.idle_since_s: float | None = None
        self.inactive_since_s: float | None = None
        self.loading: tuple[SiteId, float] | None = None
        self.looked_at: tuple[object, ...] = ()
        self.unstalled_s = float("-inf")
        self.voters_fit_epoch = -1
        self.voters_that_fit: Configuration | None = None
        self._counter = 0
        self.progress: dict[str, tuple[tuple[int, int], float]] = {}

    # -- the role

    def lead(self, *, now_s: float) -> None:
        """This site became the leader. It begins when its roster is the newest (`at_work`)."""
        self.retire()
        self.leading = True
        self.led_since_s = now_s

    def at_work(self, *, now_s: float) -> bool:
        """Whether this site leads and its roster is the newest. Before that it answers nobody: in an older roster a
        member may be missing, or a leaver still be there."""
        if self.leading and not self.taken_over and self.host.roster_is_newest():
            self.taken_over = True
            succession.take_over(self, now_s)
        return self.leading and self.taken_over

    def retire(self) -> None:
        """Not the leader any more: forget everything; whoever waits asks the next scheduler."""
        self.leading = self.taken_over = False
        self.negotiations.clear()
        self.wishes.clear()
        self.answers.clear()
        self.suspects.clear()
        self.departing.clear()
        self.progress.clear()
        self.reports.clear()
        self.stalled.clear()
        self.renewed_for = (-1, -1)
        self.state_requests.clear()
        self.join_requests.clear()
        self.in_flight = None
        self.idle_since_s = self.inactive_since_s = self.loading = None
        self.looked_at = ()
        self.voters_fit_epoch, self.voters_that_fit = -1, None
        self.asked_s = float("-inf")

    def name(self, kind: str, now_s: float) -> str:
        """A fresh identifier for a negotiation: unique over terms and schedulers."""
        self._counter += 1
        return f"{kind}-{short(self.host.site)}-{self.host.term}-{self._counter}"

    @property
    def deadline_s(self) -> float | None:
        if not self.leading:
            return None
        settling = self.host.roster.settling
        if not (settling or self.negotiations or self.suspects or self.departing):
            return None
        now_s, settings = self.host.now_s, self.host.settings
        deadlines = [one.deadline_s for one in self.negotiations.values() if one.deadline_s is not None]
        if settling:
            deadlines.append(max(self.asked_s, now_s) + settings.retry_s)
        graces = [since_s + settings.link_grace_s for since_s in self.suspects.values()]
        graces += [since_s + 2 * settings.beat_s for since_s in self.departing.values()]
        deadlines += [at_s for at_s in graces if at_s > now_s]
        return min(deadlines, default=None)

    def active_sites(self) -> frozenset[SiteId]:
        """Members whose workers have the state and train, as far as they have reported."""
        return frozenset(self._active())

    def anybody_active(self) -> bool:
        return next(self._active(), None) is not None

    def _active(self) -> Iterator[SiteId]:
        host = self.host
        for record in host.roster.sites:
            if record.state != "member":
                continue
            if record.site == host.site:
                active = host.active and host.incarnation == record.incarnation
            else:
                report = self.report_of(record)
                active = report is not None and report.active
            if active:
                yield record.site

    def report_of(self, record: SiteRecord) -> Report | None:
        """What a site has reported that was removed since, or restarted, is no measure: it may have been void."""
        report, _ = self.reports.get(record.site, (None, 0.0))
        return report if report is not None and report.incarnation == record.incarnation else None

    def first_round(self) -> int:
        """From which round on a planned change may begin: not yet contributed to here, not before the views already
        agreed, and far enough ahead that the entry is committed first (protocols.md section 4)."""
        roster, host = self.host.roster, self.host
        begun = max(host.done_round, host.contributed_round) if roster.started else host.done_round
        margin = 0
        if roster.started and self.round_s is not None and self.round_s > 0:
            margin = min(MARGIN_ROUNDS_MAX, int(2 * self.commit_s / self.round_s))
        known = roster.views[-1].first_round if roster.views else 1
        return max(begun + 1 + margin, known, 1)

    # -- events

    def start(self, negotiation: Negotiation, orders: list[Order], *, now_s: float) -> None:
        self.negotiations[negotiation.identifier] = negotiation
        self.obey(negotiation, orders, now_s=now_s)

    def feed(self, identifier: str, event: NegotiationEvent, *, now_s: float) -> None:
        negotiation = self.negotiations.get(identifier)
        if negotiation is not None:
            self.obey(negotiation, negotiation.handle(event), now_s=now_s)

    def take_report(self, site: SiteId, report: Report, *, now_s: float) -> None:
        self.reports[site] = (report, now_s)
        if report.stalled is None:
            self.stalled.discard(site)
        else:
            self.stalled.add(site)

    def stalled_round(self) -> int | None:
        """A round under way to which everybody has given weight 0, as its root says: it is never done under its tag."""
        host = self.host
        for tag in (host.stalled, *(self.reports[site][0].stalled for site in sorted(self.stalled))):
            if tag is not None and tag.round > host.done_round and tag == host.roster.tag_of(tag.round):
                return tag.round
        return None

    def settle_answered(self, site: SiteId, answer: SettleAnswer) -> None:
        if answer.epoch == self.host.roster.epoch and self.host.roster.settling:
            self.answers[site] = answer

    def committed(self, command: Command, index: int, *, now_s: float) -> None:
        """A command was committed and the roster is already the one after it."""
        flight = self.in_flight
        if not isinstance(command, SetVoters):
            self.answers.clear()
            self.asked_s = float("-inf")
        if flight is not None and flight.index == index:
            self.in_flight = None
            self.commit_s += SMOOTHING * (now_s - flight.started_s - self.commit_s)
            if flight.negotiation is not None:
                self._note_last_round(flight)
                self.feed(flight.negotiation, Committed(), now_s=now_s)
        if isinstance(command, Settled):
            for identifier in list(self.negotiations):
                self.feed(identifier, Settlement(), now_s=now_s)

    def _note_last_round(self, flight: InFlight) -> None:
        negotiation = self.negotiations.get(flight.negotiation or "")
        if isinstance(negotiation, ScaleIn):
            gone = self.host.roster.departure(negotiation.site, negotiation.incarnation)
            negotiation.last_round = gone.last_round if gone else 0

    def evaluate(self, *, now_s: float) -> None:
        """Take the most urgent step that can be taken. Called after every event while this site leads."""
        if not self.at_work(now_s=now_s):
            return
        reconcile.pass_deadlines(self, now_s)
        reconcile.find_failures(self, now_s)
        reconcile.find_progress(self, now_s)
        steps = 0
        while self.leading and self.in_flight is None and self.host.can_propose() and steps < 8:
            steps += 1  # a lone voter commits at once: several steps may be taken in one go
            if not self._step(now_s):
                break

    # -- deciding

    def _step(self, now_s: float) -> bool:
        if self.host.roster.settling:
            return (
                self._propose_wish(now_s, settling=True)
                or reconcile.renew(self, now_s)
                or reconcile.settle(self, now_s)
            )
        return (
            reconcile.renew(self, now_s)
            or self._propose_wish(now_s, settling=False)
            or reconcile.unstall(self, now_s)
            or reconcile.adopt(self, now_s)
            or succession.choose_voters(self, now_s)
        )

    def propose(self, proposal: Proposal, negotiation: str | None, *, planned: bool, now_s: float) -> bool:
        """`planned`: begins at a coming round, up to which this site must hold back (protocols.md section 4)."""
        command, configuration = proposal
        if not self._quorum_in_reach(configuration):
            return False
        self.in_flight = InFlight(command, negotiation, now_s)
        first_round = None
        if planned and not isinstance(command, SetVoters):
            first_round = command.views[-1].first_round
        if self.host.propose(command, configuration, first_round):
            return True
        self.in_flight = None
        return False

    def _quorum_in_reach(self, changed: Configuration | None) -> bool:
        """What cannot be committed is not appended: a configuration counts from then on, and one that leaves out a
        voter who comes back would keep the run standing although a majority is there."""
        reachable = self.host.reachable()
        return all(
            sum(voter in reachable for voter in one.voters) >= majority(len(one.voters))
            for one in (self.host.configuration, changed or self.host.configuration)
        )

    def _propose_wish(self, now_s: float, *, settling: bool) -> bool:
        """The first wish whose turn it can be. While settling only failures are removed."""
        for position, (identifier, intent) in enumerate(self.wishes):
            negotiation = self.negotiations.get(identifier)
            removes = isinstance(negotiation, ScaleIn) and not negotiation.graceful
            if negotiation is not None and settling and not removes:
                continue
            if isinstance(negotiation, ScaleOut) and self._transfer_running(negotiation):
                continue
            if negotiation is None:
                del self.wishes[position]
                return True
            try:
                proposal = self._make(intent, negotiation)
            except CannotPropose as error:
                if error.split and succession.bridge(self, negotiation, now_s):
                    continue
                del self.wishes[position]
                self.feed(identifier, ProposalLost(reason=error.reason, final=error.final), now_s=now_s)
                return True
            except ValueError as no_plan:  # the overlay does not connect the members at the moment
                del self.wishes[position]
                self.feed(identifier, ProposalLost(reason=str(no_plan), final=True), now_s=now_s)
                return True
            if not self._quorum_in_reach(proposal[1]):
                continue  # another failure may have to be removed first
            del self.wishes[position]
            planned = not getattr(proposal[0], "settle", False) and not isinstance(proposal[0], SetVoters)
            if not self.propose(proposal, identifier, planned=planned, now_s=now_s):
                self.wishes.appendleft((identifier, intent))
                return False
            return True
        return False

    def _make(self, intent: Intent, negotiation: Negotiation) -> Proposal:
        situation = Situation(
            scheduler=self.host.site,
            roster=self.host.roster,
            configuration=self.host.configuration,
            planner=self.host.planner,
            first_round=self.first_round(),
            done=self.host.done_round,
            active=self.active_sites(),
        )
        match negotiation, intent:
            case ScaleOut(), Intent.ADD_SITE:
                return proposals.add_site(situation, negotiation)
            case ScaleOut(), Intent.REPLICATE:
                return proposals.replicate(situation, negotiation)
            case ScaleOut(), Intent.PROMOTE_SITE:
                return proposals.promote_site(situation, negotiation)
            case ScaleIn(), Intent.REMOVE_SITE:
                return proposals.remove_site(situation, negotiation)
            case ScaleIn(), Intent.RELEASE_SITE:
                return proposals.release_site(situation, negotiation)
            case ConnectLink(), Intent.ADD_LINK:
                return proposals.add_link(situation, negotiation)
            case DisconnectLink(), Intent.REMOVE_LINK:
                return proposals.remove_link(situation, negotiation)
        raise AssertionError(f"{negotiation.KIND} does not propose '{intent.value}'")

    def _transfer_running(self, asking: ScaleOut) -> bool:
        """One state transfer at a time: a site has one snapshot (architecture.md section 4)."""
        return asking.state is ScaleOutState.ADMITTING and any(
            isinstance(other, ScaleOut)
            and other is not asking
            and other.state in (ScaleOutState.REPLICATING, ScaleOutState.PROMOTING)
            for other in self.negotiations.values()
        )

    def obey(self, negotiation: Negotiation, orders: list[Order], *, now_s: float) -> None:
        """Carry out what a negotiation orders."""
        for order in orders:
            match order:
                case Tell(site=site, message=message):
                    self.host.tell(site, message)
                case Propose(intent=intent):
                    wish = (negotiation.identifier, intent)
                    if isinstance(negotiation, ScaleIn) and not negotiation.graceful:
                        self.wishes.appendleft(wish)
                    else:
                        self.wishes.append(wish)
                case Conclude(outcome=outcome, reason=reason):
                    self.negotiations.pop(negotiation.identifier, None)
                    self.host.record(
                        negotiation.KIND,
                        negotiation.subject,
                        negotiation.cause,
                        outcome,
                        negotiation.started_s,
                        reason,
                    )
                case _:
                    assert_never(order)

    def connect(
        self, one: SiteId, other: SiteId, *, request: tuple[SiteId, str] | None, cause: str, now_s: float
    ) -> None:
        negotiation = ConnectLink(
            self.name("link", now_s), one=one, other=other, request=request, cause=cause, now_s=now_s
        )
        addresses = {record.site: record.address for record in self.host.roster.sites}
        deadline_s = now_s + self.host.settings.negotiation_timeout_s
        self.start(negotiation, negotiation.begin(addresses, deadline_s=deadline_s), now_s=now_s)
