"""What the transport asks and tells of the sites at the other ends: who may connect, whose key counts, what came.

Decides who is let in, by the lists of the operator, the roster and what a site has done (`conduct.py`); a frame becomes
an event for the driver, bulk goes to its engine. Who breaks a rule loses its link here, whoever noticed it.
"""

from __future__ import annotations

import logging

from chaos_protocols import effects, events
from chaos_protocols.causes import Why
from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.links.keys import FORMER_KEY
from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.control import CodecError
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.recovered import RunRecovered
from chaos_protocols.wishes import RecoveryTold
from chaosd.addresses import network_of
from chaosd.driver import Driver
from chaosd.transport.handshake import Speaker
from chaosd.transport.settings import KeptOut
from chaosd.trust import TrustList

log = logging.getLogger("chaosd")
REASON_MAX = 300
"""Characters of what a peer did wrong, in the log and in the history: part of it may be its own words."""


class Neighbours:
    """The `TransportEvents` of a daemon."""

    def __init__(self, driver: Driver, trust: TrustList) -> None:
        self._driver, self._trust = driver, trust

    # -- who may connect

    def keeps_out(self, site: SiteId, purpose: str, chain: KeyChain, host: str) -> KeptOut | None:
        roster, conduct = self._driver.machine.roster, self._driver.conduct
        if not self.accepts(site, chain):
            return KeptOut(FORMER_KEY)
        if site in roster.banned:
            return KeptOut("banned from the run")
        origin, linked = self._driver.machine.facts.origin, self._driver.transport.linked_sites()
        # Who was in the run before that was recovered is to hear of it.
        named = site in self._trust or site in roster.site_ids() or (origin is not None and site in origin.sites)
        if named:
            conduct.is_named(site)
        elif self._trust.is_open:
            conduct.calls_from(site, network_of(host), linked)
        if refusal := conduct.why_not(site):
            return KeptOut(refusal)
        if full := conduct.why_no_room(site, linked):
            return KeptOut(full)
        return None if named or self._trust.is_open else KeptOut("not trusted by this site", stranger=True)

    def let_in(self, site: SiteId) -> None:
        self._driver.conduct.linked(site)

    def accepts(self, site: SiteId, chain: KeyChain) -> bool:
        return self._driver.machine.link_keys.accepts(site, chain)

    def run_id(self) -> str:
        return self._driver.machine.roster.run_id

    def run_rules(self) -> int:
        return self._driver.machine.replica.rules

    def recovered(self) -> RunRecovered | None:
        origin = self._driver.machine.facts.origin
        return origin.statement if origin is not None else None

    def heard_recovered(self, site: SiteId, address: str, statement: RunRecovered) -> None:
        self._driver.feed(RecoveryTold(site=site, address=address, statement=statement))

    def may_name_hosts(self, site: SiteId) -> bool:
        return site in self._driver.machine.roster.site_ids()

    def both_in_run(self, site: SiteId) -> bool:
        machine = self._driver.machine
        return {machine.site, site} <= set(machine.roster.site_ids())

    def newest_start(self, site: SiteId) -> int:
        record = self._driver.machine.roster.record(site)
        return record.incarnation if record is not None else 0

    def refused(self, site: SiteId, why: Why) -> None:
        self._driver.feed(events.SiteRefused(site=site, why=why))

    # -- what came of it

    def link_up(self, site: SiteId, incarnation: int, address: str, speaker: Speaker) -> None:
        self._driver.feed(
            events.LinkUp(
                site=site,
                incarnation=incarnation,
                address=address,
                versions=speaker.versions,
                software=speaker.software,
                chain=speaker.chain,
            )
        )
        self._driver.bulk.link_up(site)
        self._count_links()

    def link_lost(self, site: SiteId, incarnation: int, reason: str, end_of_file: bool) -> None:
        self._driver.bulk.link_lost(site, reason)
        sent_away = self._driver.conduct.was_sent_away(site)
        self._driver.feed(events.LinkLost(site=site, incarnation=incarnation, reason=reason, broke_a_rule=sent_away))
        self._count_links()

    def control_received(self, site: SiteId, frame: bytes) -> float:
        """For how many seconds nothing more is to be read from it (spec 4.17)."""
        driver = self._driver
        messages, received_bytes = driver.metrics.control_received
        messages.inc()
        received_bytes.inc(len(frame))
        try:
            envelope = driver.auth.decode(site, frame)
        except (CodecError, RemoteProtocolError) as error:
            self.broke_rules(site, str(error))
            return 0.0
        if envelope is not None:
            driver.feed(events.EnvelopeReceived(neighbour=site, envelope=envelope))
        return driver.conduct.heard(site, len(frame))

    def bulk_buffer(self, site: SiteId, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        try:
            return self._driver.bulk.buffer(site, stream, header, size_bytes)
        except RemoteProtocolError as error:
            self.broke_rules(site, str(error))
            return None

    def bulk_received(self, site: SiteId, stream: int, header: bytes, payload: memoryview | None) -> None:
        try:
            self._driver.bulk.received(site, stream, header, payload)
        except RemoteProtocolError as error:
            self.broke_rules(site, str(error))

    def bulk_lost(self, site: SiteId, stream: int, reason: str) -> None:
        self._driver.transport.close_link(site, f"bulk stream {stream} was lost: {reason}")

    def broke_rules(self, site: SiteId, reason: str) -> None:
        """Whatever it was, this site is unharmed: the link is closed, and the event log says why."""
        driver = self._driver
        if not any(link.site == site for link in driver.transport.links()):
            return  # closed for it already: what was on its way does not fit any more
        reason, wait_s = reason[:REASON_MAX], driver.conduct.broke_a_rule(site)
        waits = f"; not let in again for {wait_s:g} s" if wait_s else ""
        log.warning("site %s broke the rules: %s%s", driver.machine.roster.called(site), reason, waits)
        driver.metrics.failures.labels("peer").inc()
        driver.record(
            effects.Record(
                kind="refused",
                subject=short(site),
                cause=reason,
                outcome="refused",
                duration_s=None,
                reason=f"closed{waits}",
            )
        )
        driver.transport.close_link(site, f"broke the rules: {reason}")

    def _count_links(self) -> None:
        self._driver.metrics.links_up.set(len(self._driver.machine.links.up_sites()))
