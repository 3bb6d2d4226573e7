"""The keys with which this site's links came in, and what neighbours tell each other of keys (spec 20.5, 20.6).

Driven by `SiteMachine`: a link comes and goes, a neighbour tells, the run has agreed on something. A link whose key
counts no more is closed, and what was heard under that key of its site's newest start is forgotten: it was not the
site's.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.causes import Cause
from chaos_protocols.links.network import Network
from chaos_protocols.names import SiteId, short
from chaos_protocols.outbox import Outbox
from chaos_protocols.wire.keys import KEYS_KEPT_MAX, KeyChain, KeysTold

FORMER_KEY = "its site has changed its key, and the one that it shows counts no more"


class LinkKeys:
    """See the module."""

    def __init__(self, outbox: Outbox, replica: RosterReplica, network: Network) -> None:
        self._outbox, self._replica, self._network, self._ring = outbox, replica, network, replica.keys
        self._shown: dict[SiteId, tuple[int, KeyChain]] = {}
        """What the far end of each link showed in its handshake, and which start of its daemon that was."""

    def shown(self, site: SiteId, incarnation: int, chain: KeyChain | None) -> None:
        """A link has come up, or was renewed; None: its transport says nothing of keys."""
        self._shown.pop(site, None)
        if chain is not None:
            self._shown[site] = (incarnation, chain)

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

    def heard(self, neighbour: SiteId, message: KeysTold) -> None:
        """What a neighbour of the run tells."""
        self._ring.told(neighbour, message.chains)

    def changed(self, sites: Iterable[SiteId]) -> None:
        """Of these other keys count than before, as the run has agreed."""
        network, outbox = self._network, self._outbox
        for site in sites:
            _, chain = self._shown.get(site, (0, None))
            if chain is not None and not self._ring.accepts(site, chain):
                outbox.emit(network.links.turn_away(site, Cause.SHUT_OUT.told(reason=FORMER_KEY), now_s=outbox.now_s))
                outbox.record("refused", short(site), FORMER_KEY, "refused", None, "the link is closed")
            key, record = network.spoke_with(site), self._replica.roster.record(site)
            begun = network.incarnations.get(site, 0)
            if key and not self._ring.counts(site, key) and (record is None or begun > record.incarnation):
                network.forget(site)  # no start of its own: the one that settled the change is in the roster
        for neighbour in network.links.up_sites():
            self.tell(neighbour)

    def key_of(self, site: SiteId) -> bytes:
        """The key at the far end of the link to this site; empty: not known."""
        _, chain = self._shown.get(site, (0, None))
        return chain.key if chain is not None else b""
