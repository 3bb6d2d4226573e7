"""One site, whole: the machine that the daemon and the simulator run. Facts in, effects out; it does nothing itself.

It puts the parts together: the agreement decides what the roster is (`raft/`, `commands.py`); links are watched
(`liveness.py`) and messages routed (`courier.py`); the scheduler's role is played where this site leads
(`scheduler.py`); its own standing, worker and state are looked after (`standing.py`); rounds run (`rounds.py`). Each
event gets an id, which the messages it causes carry.
"""

from __future__ import annotations

import random
from collections import deque
from typing import assert_never

from chaos_protocols import dispatch
from chaos_protocols.commands import (
    Command,
    apply_command,
    decode_command,
    decode_roster,
    encode_command,
    encode_roster,
)
from chaos_protocols.courier import Courier
from chaos_protocols.effects import Effect, Record, SetTimer
from chaos_protocols.events import Event
from chaos_protocols.liveness import BeatDue, LinkCameUp, LinkRenewed, LinkTable, LinkWentDown
from chaos_protocols.messages import LinkReport, Message, RaftEnvelope, Report, SettleAnswer
from chaos_protocols.names import SiteId, short
from chaos_protocols.plans import Tag
from chaos_protocols.raft import Commit, Persist, RaftMachine, RestoreSnapshot, Role, RoleChanged, Send
from chaos_protocols.raft import Effect as RaftEffect
from chaos_protocols.raft.messages import Configuration, LogEntry
from chaos_protocols.roster import Roster, SiteRecord
from chaos_protocols.rounds import RoundCompleted, RoundMachine, StateLost
from chaos_protocols.scheduler import SchedulerMachine
from chaos_protocols.settings import SiteSettings
from chaos_protocols.site_facts import SiteFacts, empty_roster, last_known_roster
from chaos_protocols.site_versions import SiteVersions
from chaos_protocols.standing import Standing
from chaos_protocols.views import Planner

TIMER_STEP_S = 0.001
"""A deadline that has passed, but whose step cannot be taken yet, must not spin."""

COMPACT_AFTER_ENTRIES = 256
"""Log entries kept before the roster itself replaces them: a joiner then gets the roster, not its history."""


class SiteMachine:
    """See the module. `roster` is the committed one; `handle` is the only way in. Also the scheduler's `Host`."""

    def __init__(
        self,
        facts: SiteFacts,
        *,
        settings: SiteSettings,
        planner: Planner,
        rng: random.Random,
        raft: RaftMachine,
        roster: Roster | None = None,
        entries: tuple[LogEntry, ...] = (),
        now_s: float,
    ) -> None:
        self.facts = facts
        self.site, self.incarnation = facts.site, facts.incarnation
        self.settings = settings
        self.planner, self.rng, self.raft, self.now_s = planner, rng, raft, now_s
        self.links = LinkTable(facts.site, settings, now_s=now_s)
        self.courier = Courier(facts.site, facts.public_key, facts.incarnation)
        self.scheduler = SchedulerMachine(self)
        self.incarnations: dict[SiteId, int] = {facts.site: facts.incarnation}
        self.restarts_seen = 0
        self.versions = SiteVersions(facts.site, facts.incarnation, facts.versions)
        self.leader_seen_s = now_s
        self.overlay_version = 0
        self.stalled: Tag | None = None
        self._knew_leader = False
        self.disbelieved = 0
        self.heard_steps: dict[SiteId, tuple[int, str]] = {}
        self.event_id = ""
        self._event_prefix = f"{short(facts.site)}-{facts.incarnation}-"
        self.roster: Roster = roster if roster is not None else empty_roster(facts.run)
        self.last_known = last_known_roster(self.roster, entries)
        self.rounds = RoundMachine(facts.site, self.roster)
        self.standing, self.orders = Standing(self), dispatch.LinkOrders(self)
        self._applied = raft.commit_index
        self._hold: tuple[int, int] | None = None
        self._out: list[Effect] = []
        self._inbox: deque[tuple[SiteId, Message]] = deque()
        self._timer_s: float | None = None
        self._events = 0
        self._completed_s: float | None = None

    # -- the way in

    def handle(self, event: Event, *, now_s: float) -> list[Effect]:
        """Take one event; the effects are to be executed in this order."""
        if now_s > self.now_s:
            self.now_s = now_s
        self._events += 1
        self.event_id = f"{self._event_prefix}{self._events}"
        dispatch.dispatch(self, event)
        self._drain()
        if self.scheduler.leading:
            self.scheduler.evaluate(now_s=self.now_s)
            self._drain()
        self._set_timer()
        effects, self._out = self._out, []
        return effects

    def _drain(self) -> None:
        """Until nothing is left over: notices of the parts, messages of this site to itself."""
        while self.links.notices or self.rounds.notices or self._inbox:
            notices, self.links.notices = self.links.notices, []
            for notice in notices:
                self._link_notice(notice)
            completed, self.rounds.notices = self.rounds.notices, []
            for done in completed:
                self._round_notice(done)
            if self._inbox:
                source, message = self._inbox.popleft()
                dispatch.deliver(self, source, message)

    def _set_timer(self) -> None:
        at_s = self.links.deadline_s
        for deadline_s in (self.raft.deadline_s, self.scheduler.deadline_s):
            if deadline_s is not None and deadline_s < at_s:
                at_s = deadline_s
        at_s = max(at_s, self.now_s + TIMER_STEP_S)
        if at_s != self._timer_s:
            self._timer_s = at_s
            self._out.append(SetTimer(at_s=at_s))

    def timer_fired(self) -> None:
        self._timer_s = None
        if self.raft.deadline_s is not None and self.now_s >= self.raft.deadline_s:
            self.raft_effects(self.raft.tick(now_s=self.now_s))
        if self.now_s >= self.links.deadline_s:
            self.emit(self.links.tick(now_s=self.now_s))

    # -- what the parts use

    def emit(self, effects: list[Effect]) -> None:
        self._out += effects

    @property
    def configuration(self) -> Configuration:
        return self.raft.configuration

    @property
    def term(self) -> int:
        return self.raft.term

    @property
    def done_round(self) -> int:
        return self.rounds.done

    @property
    def contributed_round(self) -> int:
        return self.rounds.contributed_round

    @property
    def own_record(self) -> SiteRecord | None:
        return self.roster.record(self.site)

    @property
    def leaving(self) -> bool:
        return self.standing.leaving

    @property
    def active(self) -> bool:
        """The worker here has the state and trains, and this site is in the roster."""
        return self.rounds.active and self.standing.in_roster

    def can_propose(self) -> bool:
        """Only when everything that went before is committed, and so applied here: a command is made from the roster
        that it will be applied to."""
        return self.raft.can_propose and self.roster_is_newest()

    def roster_is_newest(self) -> bool:
        """For a leader: an entry of its own term is committed, so all earlier ones are, and are applied here."""
        return self.raft.term_at(self.raft.commit_index) == self.raft.term

    def tell(self, site: SiteId, message: Message) -> None:
        """Send a control message; to itself it goes by the same door."""
        if site == self.site:
            self._inbox.append((site, message))
            return
        own_up = self.links.up_sites()
        self.emit(self.courier.send(site, message, roster=self.roster, own_up=own_up, event_id=self.event_id))

    def tell_scheduler(self, message: Message) -> bool:
        """To whoever leads, as far as is known here; False when nobody is known."""
        target = self.scheduler_site()
        if target is None:
            return False
        self.tell(target, message)
        return True

    def scheduler_site(self) -> SiteId | None:
        if self.scheduler.leading:
            return self.site
        if self.raft.leader is not None and self.standing.in_roster:
            return self.raft.leader
        return self.standing.scheduler_hint

    def record(self, kind: str, subject: str, cause: str, outcome: str, started_s: float | None, reason: str) -> None:
        duration_s = None if started_s is None else self.now_s - started_s
        self.emit(
            [Record(kind=kind, subject=subject, cause=cause, outcome=outcome, duration_s=duration_s, reason=reason)]
        )

    def reachable(self) -> set[SiteId]:
        return self.courier.overlay.reachable(self.roster, self.links.up_sites())

    def link_is_up(self, one: SiteId, other: SiteId) -> bool:
        if self.site in (one, other):
            far = other if one == self.site else one
            reported = self.courier.overlay.report(far, self.site)
            return self.links.is_up(far) and (reported is None or reported.up)
        return self.courier.overlay.is_up(one, other)

    def restarted_as(self, site: SiteId) -> int | None:
        return self.incarnations.get(site)

    def saw_incarnation(self, site: SiteId, incarnation: int) -> None:
        """A link to this start of the site's daemon is there, here or elsewhere."""
        if incarnation > self.incarnations.get(site, 0):
            self.incarnations[site] = incarnation
            self.restarts_seen += 1

    def believes(self, source: SiteId) -> bool:
        """Whether `source` may say what only sites of the run say. A site outside it must believe those it is pointed
        to; one inside, the roster and the agreement's configuration."""
        if source == self.site or self.roster.record(source) is not None:
            return True
        configuration = self.raft.configuration
        if source in configuration.voters or source in configuration.learners:
            return True
        return not self.standing.in_roster

    def settle_answer(self) -> SettleAnswer:
        """This site's answer; it may only be asked for once the settling entry is applied here (it is a promise)."""
        rounds, epoch = self.rounds, self.roster.epoch
        if not self.standing.begun:
            return SettleAnswer(epoch=epoch, done_round=0, digest="")
        done, known, digest, has_state = rounds.done, rounds.known_round, rounds.digest, rounds.active and rounds.level
        return SettleAnswer(epoch=epoch, done_round=done, digest=digest, has_state=has_state, known_round=known)

    def own_report(self) -> Report:
        return Report(
            incarnation=self.incarnation,
            epoch=self.roster.epoch,
            done_round=self.rounds.done,
            active=self.active,
            transfer_bytes=self.standing.transfer_bytes,
            stalled=self.stalled,
            worker_round=self.rounds.worker_round or 0,
            known_round=self.rounds.known_round,
            mirror=self.standing.keeping.copy is not None,
        )

    def propose(self, command: Command, configuration: Configuration | None, first_round: int | None) -> bool:
        """Give a command to the agreement. A planned change holds this site's contributions back from its first round
        on until the entry's fate is known (protocols.md section 4)."""
        if self.versions.holds_back(command, self.roster, self.emit):
            return False
        index, effects = self.raft.propose(encode_command(command), configuration=configuration, now_s=self.now_s)
        if index is not None:
            assert self.scheduler.in_flight is not None
            self.scheduler.in_flight.index = index
            if first_round is not None:
                self._hold = (index, self.raft.term)
                self.rounds.hold_round = first_round
        self.raft_effects(effects)
        return index is not None

    def hand_over(self, target: SiteId | None) -> None:
        """Give the scheduler's role to another voter."""
        self.raft_effects(self.raft.transfer_leadership(target, now_s=self.now_s))

    # -- the agreement

    def raft_effects(self, effects: list[RaftEffect]) -> None:
        for effect in effects:
            match effect:
                case Persist():
                    self.emit([effect])
                case Send(destination=destination, message=message):
                    self.tell(destination, RaftEnvelope(message=message))
                case Commit(entries=entries):
                    for entry in entries:
                        self._applied = entry.index
                        if entry.command:
                            self._apply(decode_command(entry.command), entry.index)
                    self._compact()
                case RestoreSnapshot(snapshot=snapshot):
                    self._applied = snapshot.index
                    self._install(decode_roster(snapshot.state), None)
                case RoleChanged(role=role, term=term, leader=leader, reason=reason):
                    self._role_changed(role, term, leader, reason)
                case _:
                    assert_never(effect)
        self._release_hold()

    def _apply(self, command: Command, index: int) -> None:
        self._install(apply_command(self.roster, command, index), command)
        if self.scheduler.leading:
            self.scheduler.committed(command, index, now_s=self.now_s)

    def _install(self, roster: Roster, command: Command | None) -> None:
        old, self.roster = self.roster, roster
        self.standing.roster_changed(old, command)
        self._release_hold()  # only now: the rounds know the new views, so nothing is contributed under the old tag

    def _compact(self) -> None:
        snapshot = self.raft.snapshot
        first = snapshot.index if snapshot is not None else 0
        if self._applied - first >= COMPACT_AFTER_ENTRIES:
            self.raft_effects(self.raft.compact(self._applied, encode_roster(self.roster)))

    def _release_hold(self) -> None:
        if self._hold is None:
            return
        index, term = self._hold
        if self._applied >= index or self.raft.term_at(index) != term:
            self._hold = None
            self.rounds.hold_round = None
            self.emit(self.rounds.advance())

    def _role_changed(self, role: Role, term: int, leader: SiteId | None, reason: str) -> None:
        if leader is not None or self._knew_leader:
            self.leader_seen_s = self.now_s
        self._knew_leader = leader is not None
        leads = role is Role.LEADER
        if leads and not self.scheduler.leading:
            self.scheduler.lead(now_s=self.now_s)
            self.record("election", self.facts.name, reason, "done", None, f"scheduler of term {term}")
        elif not leads and self.scheduler.leading:
            self.scheduler.retire()
            self.record("election", self.facts.name, reason, "", None, f"no longer the scheduler (term {term})")

    # -- notices of the parts

    def _link_notice(self, notice: LinkCameUp | LinkRenewed | LinkWentDown | BeatDue) -> None:
        match notice:
            case LinkCameUp(site=site, incarnation=incarnation):
                self.saw_incarnation(site, incarnation)
                self.emit(self.courier.introduce(site))
                self.report_link(site, incarnation, up=True, reason="connected")
                self.standing.link_came_up(site)
                self.orders.look(site)
            case LinkRenewed(site=site):
                self.emit(self.courier.introduce(site))
            case LinkWentDown(site=site, incarnation=incarnation, reason=reason):
                self.report_link(site, incarnation, up=False, reason=reason)
                self.record("link-down", short(site), reason, "", None, "the link to this site is down")
                self.standing.links.went_down(site)
            case BeatDue():
                dispatch.beat(self)
            case _:
                assert_never(notice)

    def report_link(self, site: SiteId, incarnation: int, *, up: bool, reason: str) -> None:
        """Tell everybody."""
        neighbour = self.links.neighbours.get(site)
        report = LinkReport(
            neighbour=site,
            incarnation=incarnation,
            up=up,
            rtt_s=(neighbour.rtt_s or 0.0) if neighbour else 0.0,
            rate_bytes_per_s=0.0,
            reason=reason,
            versions=self.versions.of(site) if up else None,
        )
        own_up = self.links.up_sites()
        self.emit(self.courier.flood(report, roster=self.roster, own_up=own_up, event_id=self.event_id))
        self.overlay_changed()

    def overlay_changed(self) -> None:
        """Links came or went, here or elsewhere: is the leader still to be reached?"""
        self.overlay_version += 1
        leader = self.raft.leader
        if leader is not None and leader != self.site and leader not in self.reachable():
            self.raft_effects(self.raft.leader_lost(now_s=self.now_s))

    def _round_notice(self, notice: RoundCompleted | StateLost) -> None:
        match notice:
            case RoundCompleted():
                if self._completed_s is not None:
                    took_s, known_s = self.now_s - self._completed_s, self.scheduler.round_s
                    self.scheduler.round_s = took_s if known_s is None else known_s + 0.2 * (took_s - known_s)
                self._completed_s = self.now_s
                self.standing.round_completed(notice)
            case StateLost(reason=reason):
                self.standing.state_lost(reason)
            case _:
                assert_never(notice)
