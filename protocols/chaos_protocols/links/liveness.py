"""Which of this site's links are alive: dialling, heartbeats, silence (spec 3).

Driven by `SiteMachine`. A link that breaks is redialled once, at once: a daemon that lives answers within a round
trip, one XX"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

from chaos_protocols.causes import Cause, Why
from chaos_protocols.changes import checked_change
from chaos_protocols.effects import CloseLink, Dial, Effect
from chaos_protocols.events import ConnectionProgress
from chaos_protocols.links.silence import LinkWatch
from chaos_protocols.names import SiteId
from chaos_protocols.settings import SiteSettings
from chaos_protocols.smoothing import smoothed
from chaos_protocols.wire.control import Heartbeat

BEATS_REMEMBERED = 64
"""Send times kept for the round-trip time; an echo older than this many beats tells nothing new."""
GONE_MAX = 64
"""Sites outside the run that were linked and are not: so many of them are remembered, those that went last."""
LATE_BEATS_MIN = 0.2
"""A beat that is later than this share of the time between two of them: this site stood still, or lacks a processor."""
LATE_KEPT = 0.98
"""Of the longest such lateness, with each beat: the patience that is asked for fades like `silence.GAP_KEPT`."""


class LinkPhase(Enum):
    DOWN = "down"
    DIALLING = "dialling"
    UP = "up"
    REDIALLING = "redialling"


PHASE_CHANGES = {
    (LinkPhase.DOWN, LinkPhase.DIALLING): "the link is wanted, or it is time to try again",
    (LinkPhase.DOWN, LinkPhase.UP): "the neighbour has dialled",
    (LinkPhase.DIALLING, LinkPhase.DOWN): "nobody answers, or the neighbour refuses",
    (LinkPhase.DIALLING, LinkPhase.UP): "a connection is ready, whoever dialled",
    (LinkPhase.UP, LinkPhase.DOWN): "silence, or the connection ended after a goodbye",
    (LinkPhase.UP, LinkPhase.REDIALLING): "the connection broke, or one of several is dead",
    (LinkPhase.REDIALLING, LinkPhase.DOWN): "the redial failed, or none came in time",
    (LinkPhase.REDIALLING, LinkPhase.UP): "a connection is ready again",
}
"""From, to, and what brings it about. A change that is not here is a defect of ours; docs/protocols/states.md is made
from it."""


@dataclass(slots=True, kw_only=True)
class LinkCameUp:
    """Notice: the link is new, or the neighbour's daemon is (`incarnation`)."""

    site: SiteId
    incarnation: int


@dataclass(slots=True, kw_only=True)
class LinkRenewed:
    """Notice: the connection broke and is back; nothing was lost but what was under way."""

    site: SiteId


@dataclass(slots=True, kw_only=True)
class LinkWentDown:
    """Notice: there is no link any more, or it is to another start of the neighbour's daemon."""

    site: SiteId
    incarnation: int
    reason: str


@dataclass(slots=True, kw_only=True)
class BeatDue:
    """Notice: send a heartbeat over every live link."""


Notice = LinkCameUp | LinkRenewed | LinkWentDown | BeatDue


@dataclass(slots=True)
class Neighbour:
    """What is known of one site that we have, or want, a link to."""

    site: SiteId
    address: str = ""
    wanted: bool = False
    phase: LinkPhase = LinkPhase.DOWN
    incarnation: int = 0
    heard_beat_s: float = 0.0
    retry_at_s: float = 0.0
    heard_sequence: int = 0
    rtt_s: float | None = None
    goodbye: str = ""
    failure: str = ""
    why: Why | None = None
    """Why there is no link, as the last dial has shown; None: none failed since there was one."""
    told: set[Cause] = field(default_factory=set)
    """Causes that are in the history since there was a link."""
    beat: Heartbeat | None = None
    """The last one that was heard over this link."""
    sent_at_s: dict[int, float] = field(default_factory=dict)
    watch: LinkWatch = field(default_factory=LinkWatch)


class LinkTable:
    """All links of one site. `neighbours` is readable by everybody, changed here alone."""

    def __init__(self, settings: SiteSettings, *, now_s: float) -> None:
        self.settings = settings
        self.neighbours: dict[SiteId, Neighbour] = {}
        self.notices: list[Notice] = []
        self._up: tuple[SiteId, ...] | None = None
        self._deadline_s: float | None = None
        self._sequence = 0
        self._beat_at_s = now_s
        self._latest_s = 0.0

    # -- what others ask

    def is_up(self, site: SiteId, incarnation: int | None = None) -> bool:
        """Whether there is a link to it; to this start of its daemon, if one is named."""
        neighbour = self.neighbours.get(site)
        up = neighbour is not None and (neighbour.phase is LinkPhase.UP or neighbour.phase is LinkPhase.REDIALLING)
        return up and (incarnation is None or self.neighbours[site].incarnation == incarnation)

    def up_sites(self) -> tuple[SiteId, ...]:
        """Ascending; the same until a link changes, and asked for with every message."""
        if self._up is None:
            self._up = tuple(sorted(site for site in self.neighbours if self.is_up(site)))
        return self._up

    def rounds_came_s(self, site: SiteId) -> float:
        """When bytes of a round, or of its result, last came from this neighbour."""
        return self.neighbours[site].watch.rounds_s

    @property
    def deadline_s(self) -> float:
        """When to call `tick`; the same until a link changes or a beat is over, and asked for after every event."""
        if self._deadline_s is None:
            self._deadline_s = self._next_deadline_s()
        return self._deadline_s

    def _next_deadline_s(self) -> float:
        deadline_s = self._beat_at_s
        for one in self.neighbours.values():
            if one.retry_at_s >= deadline_s or one.phase is LinkPhase.UP:
                continue
            if one.phase is LinkPhase.REDIALLING or (one.phase is LinkPhase.DOWN and self._dials(one)):
                deadline_s = one.retry_at_s
        return deadline_s

    def late_s(self, *, now_s: float) -> float:
        """How long the beat that is due has been waiting; 0 while that is no more than usual. So long this site did
        nothing of what it should have done: it stood still, or lacks a processor."""
        late_s = now_s - self._beat_at_s
        return late_s if late_s > LATE_BEATS_MIN * self.settings.beat_s else 0.0

    @property
    def lateness_s(self) -> float:
        """The longest lateness of this site, fading: what its neighbours are told."""
        return self._latest_s

    def silence_limit_s(self, site: SiteId) -> float:
        """So long the neighbour may be silent, by what its link has shown."""
        timeout_s = self.settings.failure_timeout_s
        return self.neighbours[site].watch.limit_s(timeout_s) if site in self.neighbours else timeout_s

    def unacknowledged(self, stream: int, *, now_s: float) -> tuple[SiteId | None, float]:
        """Who has for longest acknowledged nothing of the bytes that wait on that stream, and for how long; None: all
        do."""
        waits = (
            (one.watch.unacknowledged_s(stream, now_s=now_s), site)
            for site, one in self.neighbours.items()
            if self.is_up(site)
        )
        longest_s, site = max(waits, default=(0.0, None))
        return (site, longest_s) if longest_s else (None, 0.0)

    def gone(self, is_kept: Callable[[SiteId], bool]) -> list[SiteId]:
        """Sites that are not linked, nor dialled, nor to be kept: all but the GONE_MAX that went last."""
        if len(self.neighbours) <= GONE_MAX:
            return []
        down = [one for one in self.neighbours.values() if one.phase is LinkPhase.DOWN and not one.wanted]
        found = sorted((one.retry_at_s, one.site) for one in down if not is_kept(one.site))
        return [site for _, site in found[: max(0, len(found) - GONE_MAX)]]

    def take_notices(self) -> list[Notice]:
        """What the owner has to hear of, in order; nothing is left."""
        notices, self.notices = self.notices, []
        return notices

    # -- what happens

    def want(self, site: SiteId, address: str, *, now_s: float) -> list[Effect]:
        """Have a link to `site` from now on, dialling again until `unwant`."""
        neighbour = self._neighbour(site)
        neighbour.wanted, self._deadline_s = True, None
        neighbour.address = address or neighbour.address
        if neighbour.phase is LinkPhase.DOWN and self._dials(neighbour):
            return self._dial(neighbour, self.settings.dial_timeout_s)
        return []

    def forget(self, site: SiteId) -> None:
        """Do not dial again; a link that is up stays until somebody closes it."""
        if site in self.neighbours:
            self.neighbours[site].wanted, self._deadline_s = False, None

    def drop(self, site: SiteId) -> None:
        """Remember no more of a site that is not linked."""
        del self.neighbours[site]

    def unwant(self, site: SiteId, reason: str) -> list[Effect]:
        """Close the link, if there is one, and do not dial again. Not a failure: no notice."""
        neighbour = self.neighbours.pop(site, None)
        self._up = self._deadline_s = None
        if neighbour is None or neighbour.phase is LinkPhase.DOWN:
            return []
        return [CloseLink(site=site, reason=reason)]

    def link_up(self, site: SiteId, incarnation: int, address: str, *, now_s: float) -> list[Effect]:
        neighbour = self._neighbour(site)
        old_phase, old_incarnation = neighbour.phase, neighbour.incarnation
        self._enter(neighbour, LinkPhase.UP)
        neighbour.incarnation = incarnation
        neighbour.address = address or neighbour.address
        neighbour.watch.connected(now_s=now_s)
        neighbour.goodbye, neighbour.why = "", None
        neighbour.told.clear()
        if old_phase in (LinkPhase.UP, LinkPhase.REDIALLING):
            if old_incarnation == incarnation:
                self.notices.append(LinkRenewed(site=site))
                return []
            self._went_down(neighbour, old_incarnation, "its daemon was restarted")
        neighbour.heard_sequence, neighbour.beat = 0, None
        neighbour.watch.restarted()
        neighbour.sent_at_s.clear()
        self.notices.append(LinkCameUp(site=site, incarnation=incarnation))
        self._beat_at_s = now_s
        return []

    def link_lost(self, site: SiteId, incarnation: int, reason: str, *, now_s: float) -> list[Effect]:
        neighbour = self.neighbours.get(site)
        if neighbour is None or neighbour.phase is not LinkPhase.UP or neighbour.incarnation != incarnation:
            return []
        if neighbour.goodbye:
            self._down(neighbour, now_s)
            self._went_down(neighbour, incarnation, f"goodbye: {neighbour.goodbye}")
            return []
        return self._redial(neighbour, reason, now_s)

    def dial_failed(self, site: SiteId, reason: str, why: Why | None = None, *, now_s: float) -> list[Effect]:
        neighbour = self.neighbours.get(site)
        if neighbour is None or neighbour.phase in (LinkPhase.UP, LinkPhase.DOWN):
            return []
        old_phase = neighbour.phase
        self._down(neighbour, now_s)
        neighbour.why = why
        if old_phase is LinkPhase.REDIALLING:
            self._went_down(neighbour, neighbour.incarnation, f"{neighbour.failure}; redial: {reason}")
        else:
            neighbour.failure = reason
        return []

    def turn_away(self, site: SiteId, why: Why, *, now_s: float) -> list[Effect]:
        """Close a link that must not be there, or that would have come up; it is dialled again like any other that is
        down."""
        neighbour = self.neighbours.get(site)
        if neighbour is not None and neighbour.phase is not LinkPhase.DOWN:
            was_up = self.is_up(site)
            self._down(neighbour, now_s)
            neighbour.why = why
            if was_up:
                self._went_down(neighbour, neighbour.incarnation, why.text)
        return [CloseLink(site=site, reason=why.text)]

    def is_news(self, site: SiteId, cause: Cause) -> bool:
        """Of this neighbour the cause is told for the first time since there was a link: counts it as told."""
        neighbour = self.neighbours.get(site)
        if neighbour is None or cause in neighbour.told:
            return False
        neighbour.told.add(cause)
        return True

    def heard(self, site: SiteId, *, now_s: float) -> None:
        """Anything at all arrived from the neighbour."""
        if (neighbour := self.neighbours.get(site)) is not None:
            neighbour.watch.heard(now_s=now_s, late_s=self.late_s(now_s=now_s))

    def progressed(self, site: SiteId, connections: tuple[ConnectionProgress, ...], *, now_s: float) -> None:
        """Bytes move over connections of the link, or wait to be acknowledged."""
        if (neighbour := self.neighbours.get(site)) is not None:
            late_s = self.late_s(now_s=now_s)
            for one in connections:
                neighbour.watch.progressed(one, now_s=now_s, late_s=late_s)

    def heartbeat_received(self, site: SiteId, beat: Heartbeat, *, now_s: float) -> None:
        if (neighbour := self.neighbours.get(site)) is None:
            return
        neighbour.heard_beat_s, neighbour.beat = now_s, beat
        neighbour.heard_sequence = max(neighbour.heard_sequence, beat.sequence)
        sent_at_s = neighbour.sent_at_s.get(beat.echo_sequence)
        echo = beat.echo_sequence if sent_at_s is not None else 0
        neighbour.watch.beat(echo, beat.late_s, now_s=now_s, late_s=self.late_s(now_s=now_s))
        if sent_at_s is None:
            return
        neighbour.rtt_s = smoothed(neighbour.rtt_s, max(0.0, now_s - sent_at_s - beat.echo_delay_s))

    def goodbye_received(self, site: SiteId, reason: str) -> None:
        if site in self.neighbours:
            self.neighbours[site].goodbye = reason

    def next_beat(self, *, now_s: float) -> int:
        """Sequence number for the heartbeats that the owner sends now to every live link."""
        self._sequence += 1
        for neighbour in self.neighbours.values():
            if neighbour.phase is LinkPhase.UP:
                neighbour.sent_at_s[self._sequence] = now_s
                neighbour.sent_at_s.pop(self._sequence - BEATS_REMEMBERED, None)
        return self._sequence

    def tick(self, *, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        late_s = self.late_s(now_s=now_s)
        for neighbour in list(self.neighbours.values()):
            if late_s:  # what the others sent meanwhile may lie unread: that time is nobody's silence
                neighbour.watch.forgive(late_s, now_s=now_s)
                if neighbour.phase is LinkPhase.REDIALLING:
                    neighbour.retry_at_s += late_s
            effects += self._tick_link(neighbour, now_s)
        if now_s >= self._beat_at_s:
            self._latest_s = max(late_s, LATE_KEPT * self._latest_s)
            self._beat_at_s, self._deadline_s = now_s + self.settings.beat_s, None
            self.notices.append(BeatDue())
        return effects

    # -- helpers

    def _tick_link(self, neighbour: Neighbour, now_s: float) -> list[Effect]:
        match neighbour.phase:
            case LinkPhase.UP:
                timeout_s = self.settings.failure_timeout_s
                reason = neighbour.watch.silence(timeout_s, now_s=now_s)
                if not reason:
                    reason = neighbour.watch.dead_connection(timeout_s, now_s=now_s)
                    if not reason:
                        return []
                    if neighbour.watch.may_be_redialled(timeout_s, now_s=now_s):
                        return [CloseLink(site=neighbour.site, reason=reason), *self._redial(neighbour, reason, now_s)]
                self._down(neighbour, now_s)
                self._went_down(neighbour, neighbour.incarnation, reason)
                return [CloseLink(site=neighbour.site, reason=reason)]
            case LinkPhase.REDIALLING:
                if now_s >= neighbour.retry_at_s:
                    self._down(neighbour, now_s)
                    self._went_down(neighbour, neighbour.incarnation, f"{neighbour.failure}; not redialled")
            case LinkPhase.DOWN:
                if self._dials(neighbour) and now_s >= neighbour.retry_at_s:
                    return self._dial(neighbour, self.settings.dial_timeout_s)
            case LinkPhase.DIALLING:
                pass
            case _:
                assert_never(neighbour.phase)
        return []

    def _dials(self, neighbour: Neighbour) -> bool:
        return neighbour.wanted and bool(neighbour.address)

    def _dial(self, neighbour: Neighbour, timeout_s: float) -> list[Effect]:
        self._enter(neighbour, LinkPhase.DIALLING)
        return [Dial(site=neighbour.site, address=neighbour.address, timeout_s=timeout_s)]

    def _redial(self, neighbour: Neighbour, reason: str, now_s: float) -> list[Effect]:
        """Once, at once; meanwhile the link counts as up."""
        self._enter(neighbour, LinkPhase.REDIALLING)
        neighbour.failure = reason
        neighbour.retry_at_s = now_s + 2 * self.settings.redial_timeout_s
        if not neighbour.address:
            return []
        return [Dial(site=neighbour.site, address=neighbour.address, timeout_s=self.settings.redial_timeout_s)]

    def _down(self, neighbour: Neighbour, now_s: float) -> None:
        self._enter(neighbour, LinkPhase.DOWN)
        neighbour.rtt_s = None
        neighbour.retry_at_s = now_s + self.settings.redial_pause_s

    def _enter(self, neighbour: Neighbour, phase: LinkPhase) -> None:
        neighbour.phase = checked_change(PHASE_CHANGES, neighbour.phase, phase, f"link to {neighbour.site}")
        self._up = self._deadline_s = None

    def _went_down(self, neighbour: Neighbour, incarnation: int, reason: str) -> None:
        self.notices.append(LinkWentDown(site=neighbour.site, incarnation=incarnation, reason=reason))

    def _neighbour(self, site: SiteId) -> Neighbour:
        return self.neighbours.setdefault(site, Neighbour(site))
