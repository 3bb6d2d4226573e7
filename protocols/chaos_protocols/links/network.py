"""This site's part of the overlay: its links, the ways over those of others, and the sending of messages over them.

Driven by `SiteMachine` and used by every part that has something to say. What a message means is no concern of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from chaos_protocols import events, wishes
from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.causes import Cause, Why
from chaos_protocols.links.link_state import OUTSIDE_REASON_MAX
from chaos_protocols.links.liveness import LinkTable
from chaos_protocols.links.naming import RunNaming
from chaos_protocols.links.refusals import FOR_GOOD, NEWER_LINK_S, Refusals
from chaos_protocols.links.router import Router
from chaos_protocols.links.site_versions import KNOWN_MAX, SiteVersions
from chaos_protocols.links.steps import Steps
from chaos_protocols.names import SiteId, other_run, short
from chaos_protocols.outbox import Outbox
from chaos_protocols.wire.control import Goodbye, Heartbeat, LinkStateAdvertisement, Message, OlderStartRefused
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.site_status import RATES_TOLD_MAX
from chaos_protocols.wire.versions import NAMES_SINCE


class Network:
    """See the module."""

    def __init__(self, outbox: Outbox, replica: RosterReplica) -> None:
        facts = outbox.facts
        self.links = LinkTable(outbox.settings, now_s=outbox.now_s)
        self.refusals = Refusals(outbox)
        self.versions = SiteVersions(facts.site, facts.incarnation, facts.versions)
        """What each site speaks, as far as was heard."""
        self.naming = RunNaming(self.versions)
        self.router = Router(facts.site, facts.public_key, facts.incarnation, self.naming, speaks=facts.versions.newest)
        self.incarnations: dict[SiteId, int] = {facts.site: facts.incarnation}
        """The newest start of each site's daemon that it has shown itself."""
        self._keys: dict[SiteId, KeyChain] = {}
        """The key with which each site has shown that start, and how it came to be its own; none where that was not
        told."""
        self.restarts_seen = 0
        """Grows with every newer start that is seen."""
        self.overlay_version = 0
        """Grows whenever a link came or went, here or elsewhere."""
        self.steps = Steps(facts.site)
        """Round and phase of each site, as far as was heard."""
        self.encoding_error: float | None = None
        """What the encoding lost here in the last round that counts, for people; None: nothing is encoded."""
        self.inbox: deque[tuple[SiteId, Message]] = deque()
        """Messages of this site to itself: they go by the same door as those of others."""
        self.rates: tuple[tuple[SiteId, float], ...] = ()
        """What this site's links carried lately in rounds."""
        self.send_limit = 0.0
        """Bytes per second that it sends over all of them at most; 0: no limit is set."""
        self._unsound: dict[SiteId, float] = {}
        """Sites of the roster that broke a rule here, and when they last did."""
        self._told_early: dict[SiteId, LinkStateAdvertisement] = {}
        """Of sites of the roster: the last word of others on a start that has not been seen."""
        self._site = facts.site
        self._outbox = outbox
        self._replica = replica
        self._changed = False

    def tell(self, site: SiteId, message: Message) -> None:
        """Send a control message."""
        if site == self._site:
            self.inbox.append((site, message))
            return
        outbox, roster = self._outbox, self._replica.roster
        outbox.emit(
            self.router.send(site, message, roster=roster, own_up=self.links.up_sites(), event_id=outbox.event_id)
        )

    def report_link(self, site: SiteId, incarnation: int, *, up: bool, reason: str) -> None:
        """Tell everybody."""
        neighbour = self.links.neighbours.get(site)
        report = LinkStateAdvertisement(
            neighbour=site,
            incarnation=incarnation,
            up=up,
            rtt_s=(neighbour.rtt_s or 0.0) if neighbour else 0.0,
            rate_bytes_per_s=0.0,
            reason=reason[:OUTSIDE_REASON_MAX],  # it repeats what the far end has said, at whatever length
            versions=self.versions.of(site) if up else None,
            software=self.versions.software_of(site) if up else "",
        )
        outbox, roster = self._outbox, self._replica.roster
        outbox.emit(self.router.flood(report, roster=roster, own_up=self.links.up_sites(), event_id=outbox.event_id))
        self.overlay_changed()

    # -- events of the transport

    def refused(self, event: events.SiteRefused) -> None:
        """Somebody was not let in. An older start of a site whose newer one is linked here: that one hears it, so that
        its operator looks for the other machine (spec 2.16)."""
        news, site = self.refusals.refused(event), event.site
        if news and self.links.is_up(site):
            self._tell_of_older_start(site, event.why, self.links.neighbours[site].incarnation)

    def _tell_of_older_start(self, site: SiteId, why: Why, newest: int) -> None:
        if why.cause is Cause.REFUSED_START:
            self.tell(site, OlderStartRefused(older_than=newest, reason=why.text))

    def link_up(self, event: events.LinkUp) -> None:
        """A connection is ready. Its hello may have had an older start refused before all of its streams were there."""
        refusal = self.refusals.admitted(event.site)
        self.versions.met(event.site, event.incarnation, event.versions, event.software)
        now_s = self._outbox.now_s
        self._outbox.emit(self.links.link_up(event.site, event.incarnation, event.address, now_s=now_s))
        if refusal is not None and now_s < refusal.last_s + NEWER_LINK_S:
            self._tell_of_older_start(event.site, refusal.why, event.incarnation)

    def link_lost(self, event: events.LinkLost) -> None:
        """A connection broke."""
        now_s, roster = self._outbox.now_s, self._replica.roster
        if event.broke_a_rule:
            kept = {site: at_s for site, at_s in self._unsound.items() if roster.record(site) is not None}
            self._unsound = {**kept, event.site: now_s}
        self._outbox.emit(self.links.link_lost(event.site, event.incarnation, event.reason, now_s=now_s))

    def dial_failed(self, event: events.DialFailed) -> None:
        """Nobody is there, or does not want us."""
        site, roster = event.site, self._replica.roster
        self._outbox.emit(self.links.dial_failed(site, event.reason, event.why, now_s=self._outbox.now_s))
        self._tell_once(site, event.why)
        if roster.link(self._site, site) is not None and self.router.overlay.silent(site):
            self.report_link(site, 0, up=False, reason=event.reason)  # nobody saw it go down: all were restarted

    def rates_measured(self, event: events.RatesMeasured) -> None:
        """Told to the scheduler with the next reports."""
        self.rates = event.rates[:RATES_TOLD_MAX]

    def send_limit_set(self, wish: wishes.SendLimitSet) -> None:
        """Told to the scheduler with the next reports, too."""
        self.send_limit = wish.bytes_per_s

    def link_progressed(self, event: events.LinkProgressed) -> None:
        """Bytes move over it, or wait."""
        self.links.progressed(event.site, event.connections, now_s=self._outbox.now_s)

    def _tell_once(self, site: SiteId, why: Why | None) -> None:
        """What somebody has to take away before there is a link: in the history once, not at every dial."""
        if why is not None and why.cause in FOR_GOOD and self.links.is_news(site, why.cause):
            self._outbox.record("refused", short(site), why.cause.code, "refused", None, why.text)

    # -- heartbeats

    def beat(self, scheduler: SiteId | None, completed_round: int, phase: str) -> None:
        """One over every live link: how this site sees the run, and where it stands."""
        self.forget_gone()
        self.router.follow(self._replica.roster)
        outbox, roster = self._outbox, self._replica.roster
        sequence = self.links.next_beat(now_s=outbox.now_s)
        others = self.steps.told(roster.site_ids(), now_s=outbox.now_s)
        for site in self.links.up_sites():
            neighbour = self.links.neighbours[site]
            heartbeat = Heartbeat(
                sequence=sequence,
                echo_sequence=neighbour.heard_sequence,
                echo_delay_s=max(0.0, outbox.now_s - neighbour.heard_beat_s),
                round=completed_round,
                phase=phase,
                epoch=roster.epoch,
                scheduler=scheduler,
                knows_you=roster.record(site) is not None,
                late_s=self.links.lateness_s,
                others=tuple(one for one in others if one.site != site),
                run_id=roster.run_id,
                rules=self._replica.rules,
                log_index=self._replica.chain.index,
                log_head=self._replica.chain.head,
                encoding_error=self.encoding_error,
            )
            self.tell(site, heartbeat)

    def reduced(self, encoding_error: float | None) -> None:
        """A round's result is here; what the encoding lost at this site."""
        self.encoding_error = encoding_error

    def encoding_errors(self) -> dict[SiteId, float]:
        """What the encoding lost at each member of the roster in its last round that counts, as far as it is known."""
        steps, here = self.steps, self._site
        told = {
            site: self.encoding_error if site == here else heard.encoding_error if (heard := steps.of(site)) else None
            for site in self._replica.roster.member_ids()
        }
        return {site: error for site, error in told.items() if error is not None}

    def forget_gone(self) -> None:
        """Of sites outside the run that had a link, whatever was heard of them: keys cost nothing, and each would be
        remembered, and told to every new neighbour, for ever (spec 4.22)."""
        for site in self.links.gone(self._was_in_run):
            self.links.drop(site)
            self.versions.forget(site)
            self.steps.forget(site)
            self.router.overlay.forget_link(site)
            self._forget_shown(site)
        if max(len(self.incarnations), len(self._keys)) >= KNOWN_MAX:
            for site in {*self.incarnations, *self._keys} - {self._site, *self.links.neighbours}:
                if not self._was_in_run(site):
                    self._forget_shown(site)

    def _forget_shown(self, site: SiteId) -> None:
        for shown in (self.incarnations, self._keys, self._told_early):
            shown.pop(site, None)

    def _was_in_run(self, site: SiteId) -> bool:
        """It is, or was, as far as is remembered."""
        replica = self._replica
        roster, last_known = replica.roster, replica.last_known
        named = roster.record(site) is not None or last_known.record(site) is not None or replica.has(site)
        return named or roster.gone(site) is not None

    def heard_beat(self, site: SiteId, beat: Heartbeat, *, of_run: bool) -> bool:
        """A neighbour lives, and says where it stands. False: it is in another run, and the link is closed."""
        here = self._replica.roster.run_id
        if other_run(here, beat.run_id):
            why = Cause.OTHER_RUN.told(site=short(site), there=short(beat.run_id), here=short(here))
            self.tell(site, Goodbye(reason=why.text))
            self._outbox.emit(self.links.turn_away(site, why, now_s=self._outbox.now_s))
            self._tell_once(site, why)
            return False
        neighbour = self.links.neighbours.get(site)
        if neighbour is not None:
            told = self._was_in_run if self._replica.was_in_run else lambda _: True
            self.steps.heard(site, neighbour.incarnation, beat, now_s=self._outbox.now_s, of_run=of_run, is_of_run=told)
        self.links.heartbeat_received(site, beat, now_s=self._outbox.now_s)
        return True

    def runs_heard(self, is_of_run: Callable[[SiteId], bool]) -> dict[str, list[SiteId]]:
        """The runs that neighbours whose word counts say they are in, each with those that do; ascending."""
        found: dict[str, list[SiteId]] = {}
        for site in self.links.up_sites():
            beat = self.links.neighbours[site].beat
            if beat is not None and beat.run_id and is_of_run(site):
                found.setdefault(beat.run_id, []).append(site)
        return dict(sorted(found.items()))

    def hears_of_two_runs(self, is_of_run: Callable[[SiteId], bool]) -> bool:
        """And has never been in one of them."""
        return not self._replica.roster.run_id and len(self.runs_heard(is_of_run)) > 1

    def name_runs(self, is_of_run: Callable[[SiteId], bool]) -> None:
        """Whether this site's words are to name the run, and those of others have to, as things are now: what it has
        agreed on itself, or what others tell of the run (spec 4.20)."""
        replica, outbox, naming = self._replica, self._outbox, self.naming
        roster, run = replica.roster, replica.roster.run_id
        if outbox.facts.versions.newest < NAMES_SINCE:
            return
        if run and replica.rules >= NAMES_SINCE:
            news = naming.settle(run, named=True, required=True)
        elif run:
            inside = roster.record(self._site) is not None
            told = run == naming.shown or run in self._naming_runs(is_of_run if inside else lambda _: True)
            named = told and not any(
                self.versions.lacks(site, NAMES_SINCE) for site in self.reachable() if roster.record(site) is not None
            )
            news = naming.settle(run, named=named, required=False)
        else:
            heard = list(self.runs_heard(is_of_run))
            telling = {naming.shown, *self._naming_runs(lambda _: True)}
            only = heard[0] if len(heard) == 1 and heard[0] in telling else ""
            required = bool(only) and only in self._naming_runs(is_of_run)
            news = naming.settle(only, named=bool(only), required=required)
        if news:
            up = self.links.up_sites()
            outbox.emit(self.router.say_again(roster=roster, own_up=up, event_id=outbox.event_id))

    def _naming_runs(self, counts: Callable[[SiteId], bool]) -> set[str]:
        """The runs of which neighbours that count say that they have agreed on it."""
        beats = [self.links.neighbours[site].beat for site in self.links.up_sites() if counts(site)]
        return {beat.run_id for beat in beats if beat is not None and beat.rules >= NAMES_SINCE}

    # -- the overlay

    def overlay_changed(self) -> None:
        """Links came or went, here or elsewhere."""
        self.overlay_version += 1
        self._changed = True

    def take_change(self) -> bool:
        """Whether the overlay has changed since this was asked."""
        changed, self._changed = self._changed, False
        return changed

    def want(self, site: SiteId, address: str) -> None:
        """Have a link to `site` from now on."""
        self._outbox.emit(self.links.want(site, address, now_s=self._outbox.now_s))

    def reachable(self, *, sound: bool = False) -> frozenset[SiteId]:
        """Sites of the roster to which a way is known. `sound`: without those that broke a rule here, and have not kept
        to them since for as long as a site that is cut off by it may need to find another way (spec 7.4)."""
        found = self.router.overlay.reachable(self._replica.roster, self.links.up_sites())
        if not sound or not self._unsound:
            return found
        before_s = self._outbox.now_s - 2 * self._outbox.settings.cut_off_s
        return found - {site for site, at_s in self._unsound.items() if at_s > before_s}

    def without_journal(self, voters: Iterable[SiteId]) -> tuple[SiteId, ...]:
        """Of these sites of the run the neighbours that say that they are in none. Whoever has a vote has had a roster
        in its journal before: such a daemon has lost that, or has it elsewhere."""
        links, up = self.links, frozenset(self.links.up_sites())
        beats = [(site, links.neighbours[site].beat) for site in voters if site in up]
        return tuple(site for site, beat in beats if beat is not None and beat.epoch == 0 and not beat.run_id)

    def link_is_up(self, one: SiteId, other: SiteId) -> bool:
        """As far as its ends have said, or this site sees. What the other end says of an earlier start of this site is
        no word of the present link."""
        if self._site in (one, other):
            far = other if one == self._site else one
            said = self.router.overlay.report(far, self._site)
            denied = said is not None and not said.up and said.incarnation >= self.incarnations[self._site]
            return self.links.is_up(far) and not denied
        return self.router.overlay.is_up(one, other)

    def has_said_up(self, site: SiteId, outsider: SiteId) -> bool:
        """A site of the roster says itself that its link with somebody outside is up (spec 4.16)."""
        if site == self._site:
            return self.links.is_up(outsider)
        said = self.router.overlay.report(site, outsider)
        return said is not None and said.up

    def restarted_as(self, site: SiteId) -> int | None:
        """The newest start of its daemon that was seen."""
        return self.incarnations.get(site)

    def spoke_with(self, site: SiteId) -> KeyChain | None:
        """The key with which the site has shown its newest start, and how it came to be its own; None: not told."""
        return self._keys.get(site)

    def forget(self, site: SiteId) -> None:
        """Whoever has said this last in a site's name is not the site (spec 20.6)."""
        self._keys.pop(site, None)
        self.forget_starts(site)

    def forget_starts(self, site: SiteId) -> None:
        """Whoever has said this last may not be the site; the key with which it was said is still known (spec 20.9)."""
        self.incarnations.pop(site, None)
        self._told_early.pop(site, None)
        self.versions.forget(site)
        self.router.forget(site)
        self.overlay_changed()

    def saw_incarnation(self, site: SiteId, incarnation: int, chain: KeyChain | None = None) -> None:
        """The site itself has shown that this start of its daemon is there: by a link, or in an envelope that it made
        (spec 4.11). `chain`: with the key that it leads to; None: not told."""
        if incarnation >= self.incarnations.get(site, 0) and chain is not None:
            self._keys[site] = chain
        if incarnation > self.incarnations.get(site, 0):
            self.incarnations[site] = incarnation
            self.restarts_seen += 1
            told = self._told_early.pop(site, None)
            if told is not None:
                self.told_of(told)

    def told_of(self, report: LinkStateAdvertisement) -> None:
        """A site of the run says what its neighbour speaks. Of a start that nobody knows of it is only remembered,
        until the neighbour itself is heard with it."""
        site, record = report.neighbour, self._replica.roster.record(report.neighbour)
        if report.versions is None:
            return
        if record is not None and report.incarnation > max(record.incarnation, self.incarnations.get(site, 0)):
            self._told_early[site] = report
            return
        if self.versions.is_full:
            self.versions.forget_all_but(lambda one: one in self.links.neighbours or self._was_in_run(one))
        self.versions.heard(site, report.incarnation, report.versions, report.software)
