"""What only a person can take away, while this site's training goes on: told at its script, once to each worker.

Two founders of one run, and two daemons with one key, stop nobody, so that neither shows as a pause; who looks at the
script alone would never know (spec 12.16). What is wrong is looked up at every beat in what the links have found; a
neighbour's bare word warns, and does no more.
"""

from __future__ import annotations

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.causes import Cause, Why
from chaos_protocols.links.network import Network
from chaos_protocols.links.refusals import REFUSALS_WINDOW_S
from chaos_protocols.names import SiteId, short
from chaos_protocols.outbox import Outbox
from chaos_protocols.state.worker_session import WorkerSession
from chaos_protocols.wire.starts import OlderStartRefused
from chaos_protocols.wire.user_words import RunWarned

WARNINGS_MAX = 16
"""Told to one worker; further ones stand in the event history alone."""

WORDS_MAX = 4096

SAME_MATTER = {Cause.REFUSED_RUN: Cause.OTHER_RUN}
"""Seen from the other end of the link: to a script both are one."""

MATTERS = frozenset((Cause.OTHER_RUN, Cause.OLDER_START, Cause.REFUSED_START, Cause.KEY_USED))
"""Those that go beside training; whoever waits outside hears of the others as what it waits for."""


class Warnings:
    """See the module. Driven by `Participation`. `heard_of_copy`: what the neighbours say of older starts of this
    site's daemon, each with the time."""

    def __init__(self, outbox: Outbox, replica: RosterReplica, network: Network, session: WorkerSession) -> None:
        self.heard_of_copy: dict[SiteId, tuple[float, Why]] = {}
        self._outbox = outbox
        self._replica = replica
        self._network = network
        self._session = session
        self._told: set[tuple[SiteId, Cause]] = set()

    def new_worker(self) -> None:
        """It has been told nothing yet."""
        self._told.clear()

    def heard(self, source: SiteId, message: OlderStartRefused) -> None:
        """A site of the run has refused an older start of this very site. A word about a start that is not this one was
        overtaken: then this daemon is itself the older one, or a former life of it was meant."""
        outbox = self._outbox
        if message.older_than != outbox.facts.incarnation:
            return
        why = Cause.KEY_USED.told(site=self._replica.roster.called(source), reason=message.reason)
        before_s, _ = self.heard_of_copy.get(source, (float("-inf"), why))
        self.heard_of_copy[source] = (outbox.now_s, why)
        if outbox.now_s >= before_s + REFUSALS_WINDOW_S:
            outbox.record("refused", short(source), why.cause.code, "", None, why.text)

    def standing(self) -> dict[tuple[SiteId, Cause], str]:
        """What is wrong now, by the site where it shows: the sentence, with what to do."""
        now_s, found = self._outbox.now_s, dict[tuple[SiteId, Cause], str]()
        links, refusals = self._network.links, self._network.refusals
        for site, refusal in refusals.sites.items():
            if now_s < refusal.last_s + REFUSALS_WINDOW_S:
                self._note(found, site, refusal.why, f"{self._replica.roster.called(site)}: ")
        for neighbour in links.neighbours.values():
            if neighbour.why is not None and not links.is_up(neighbour.site):
                self._note(found, neighbour.site, neighbour.why, "")
        for site, (at_s, why) in self.heard_of_copy.items():
            if now_s < at_s + REFUSALS_WINDOW_S:
                self._note(found, site, why, "")
        return found

    def tell(self) -> None:
        """At every beat: the worker hears what it was not told yet."""
        if not self._session.present:
            return
        for key, text in self.standing().items():
            if key not in self._told and len(self._told) < WARNINGS_MAX:
                self._told.add(key)
                self._session.tell(RunWarned(reason=text[:WORDS_MAX]))

    def _note(self, found: dict[tuple[SiteId, Cause], str], site: SiteId, why: Why, subject: str) -> None:
        matter = SAME_MATTER.get(why.cause, why.cause)
        if matter in MATTERS:
            found.setdefault((site, matter), f"{subject}{why.text}. What to do: {matter.value.remedy}")
