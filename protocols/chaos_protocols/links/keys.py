"""The keys with which this site's links came in and words were signed, what neighbours tell each other of keys, and
which of two keys, or of two starts with one key, wins (spec 4.11, 20.5, 20.6, 20.9).

Driven by `SiteMachine`: a link comes and goes, a neighbour tells, the run has agreed on something. A link whose key
counts no more, or was followed by another one, is closed, and what was heard under that key of its site's newest start
is forgotten: it was not the site's.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.causes import Cause, Why
from chaos_protocols.links.network import Network
from chaos_protocols.names import SiteId, short
from chaos_protocols.outbox import Outbox
from chaos_protocols.wire.control import Envelope
from chaos_protocols.wire.keys import KEYS_KEPT_MAX, KeyChain, KeysTold

FORMER_KEY = "its site has changed its key, and the one that it shows counts no more"


class LinkKeys:
    """See the module."""

    def __init__(self, outbox: Outbox, replica: RosterReplica, network: Network) -> None:
        self._outbox, self._replica, self._network, self._ring = outbox, replica, network, replica.keys
        self._shown: dict[SiteId, tuple[int, KeyChain]] = {}
        """What the far end of each link showed in its handshake, and which start of its daemon that was."""

    # -- the later key wins

    def accepts(self, site: SiteId, chain: KeyChain) -> bool:
        """Whether who shows this chain, and has the newest key of it, may have a link as that site: its key counts, and
        the site has shown none here that came after it."""
        return self._ring.accepts(site, chain) and not self._is_former(site, chain.key)

    def _is_former(self, site: SiteId, key: bytes) -> bool:
        known = self._network.spoke_with(site)
        return known is not None and known.replaces(key)

    def shown(self, site: SiteId, incarnation: int, chain: KeyChain | None) -> bool:
        """A link has come up, or was renewed; None: its transport says nothing of keys. False: its key is a former one
        of a site that has shown a later one since, and it is closed. A later key wins over any start number of a former
        one, and of two keys of which neither came after the other no number shuts the other out."""
        self._shown.pop(site, None)
        if chain is None:
            return True
        self._shown[site] = (incarnation, chain)
        if self._is_former(site, chain.key):
            self._turn_away(site)
            return False
        known = self._network.spoke_with(site)
        if known is not None and known.key != chain.key:
            self._forget_start(site, incarnation)
        return True

    def lets_speak(self, neighbour: SiteId, envelope: Envelope) -> bool:
        """Whether the source of this has shown no key here that came after the one with which it is said. If it is said
        with a later one itself, what was shown with the former goes, and the link with it."""
        network, source = self._network, envelope.source
        known = network.spoke_with(source)
        key = self.key_of(neighbour) if source == neighbour else envelope.public_key
        if known is None or not key or key == known.key:
            return True
        if known.replaces(key):
            return False
        if source != neighbour and network.naming.takes(neighbour, envelope):
            chain = self._ring.chain_of(source, key)
            if chain is not None and chain.replaces(known.key) and self._forget_start(source, envelope.incarnation):
                self._turn_away(source)
        return True

    def said_with(self, neighbour: SiteId, envelope: Envelope) -> KeyChain | None:
        """The key with which the source of this says it, and how it came to be its own; None: not known."""
        source, key = envelope.source, envelope.public_key
        if source == neighbour:
            return self.chain_of(source)
        known = self._network.spoke_with(source)
        return known if known is not None and known.key == key else self._ring.chain_of(source, key)

    def _forget_start(self, site: SiteId, incarnation: int) -> bool:
        """It speaks with another key than before. Its numbers count for themselves: True if they are no later ones."""
        is_no_later = incarnation <= self._network.incarnations.get(site, 0)
        if is_no_later:
            self._network.forget(site)
        return is_no_later

    def _turn_away(self, site: SiteId) -> None:
        self._close(site, Cause.SHUT_OUT.told(reason=FORMER_KEY), FORMER_KEY)

    def _close(self, site: SiteId, why: Why, reason: str) -> None:
        outbox = self._outbox
        outbox.emit(self._network.links.turn_away(site, why, now_s=outbox.now_s))
        outbox.record("refused", short(site), reason, "refused", None, "the link is closed")

    # -- the start that the run has agreed on

    def is_older_start(self, site: SiteId, incarnation: int, key: bytes) -> bool:
        """Whether the roster has a newer start of its daemon, with the key that this one shows (spec 4.11). Which
        of two keys is the later one is no matter of start numbers."""
        record = self._replica.roster.record(site)
        return record is not None and incarnation < record.incarnation and (not key or self._ring.counts(site, key))

    def starts_changed(self) -> None:
        """Who dials with an older start than the roster has is not let in (spec 2.14). One that was linked before this
        site knew goes: its word would pass for that of the site, which others have trained with."""
        links = self._network.links
        for site in links.up_sites():
            start = links.neighbours[site].incarnation
            if self.is_older_start(site, start, self.key_of(site)):
                why = Cause.REFUSED_START.told(reason=f"start {start} is older than the one in the roster")
                self._close(site, why, why.text)

    # -- links come and go

    def tell(self, site: SiteId) -> None:
        """To a neighbour, when a link comes up: it may have slept, and hear of others through this site alone."""
        chains = self._ring.chains()
        if chains:
            self._network.tell(site, KeysTold(chains=chains[:KEYS_KEPT_MAX]))

    def went_down(self, site: SiteId, incarnation: int) -> None:
        """The link to this start of its daemon is gone; one to another start may have taken its place."""
        if self._shown.get(site, (incarnation, None))[0] == incarnation:
            self._shown.pop(site, None)
        self._ring.forget(site)
        if site not in self._shown and not self._is_vouched_for(site):
            self._network.forget_starts(site)  # it may have been a thief, who names any number

    def _is_vouched_for(self, site: SiteId) -> bool:
        """Whether the key with which it has shown its newest start counts here, or the run has agreed on that start."""
        spoke, record = self._network.spoke_with(site), self._replica.roster.record(site)
        if spoke is None or self._ring.counts(site, spoke.key):
            return True
        return record is not None and self._network.incarnations.get(site, 0) <= record.incarnation

    def heard(self, neighbour: SiteId, message: KeysTold) -> None:
        """What a neighbour of the run tells."""
        self._ring.told(neighbour, message.chains)

    def changed(self, sites: Iterable[SiteId]) -> None:
        """Of these other keys count than before, as the run has agreed."""
        network = self._network
        for site in sites:
            chain = self.chain_of(site)
            if chain is not None and not self._ring.accepts(site, chain):
                self._turn_away(site)
            if not self._is_vouched_for(site):
                network.forget(site)  # no start of its own: the one that settled the change is in the roster
        for neighbour in network.links.up_sites():
            self.tell(neighbour)

    def chain_of(self, site: SiteId) -> KeyChain | None:
        """What the far end of the link to this site has shown of its key; None: nothing."""
        return self._shown.get(site, (0, None))[1]

    def key_of(self, site: SiteId) -> bytes:
        """The key at the far end of the link to this site; empty: not known."""
        chain = self.chain_of(site)
        return chain.key if chain is not None else b""
