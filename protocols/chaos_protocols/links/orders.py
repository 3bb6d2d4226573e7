"""The scheduler's orders to have, and measure, a link: answered when the link is up and measured.

An order moves a daemon to dial, so it is taken from the scheduler alone, and not for longer than a negotiation lasts;
what a joiner says of its address is not dialled on an order. Driven by `SiteMachine`. Source: spec 8.7.
"""

from __future__ import annotations

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.effects import ProbeLink
from chaos_protocols.events import LinkProbed
from chaos_protocols.links.desired import DesiredLinks
from chaos_protocols.links.network import Network
from chaos_protocols.membership.scheduler_client import SchedulerClient
from chaos_protocols.names import SiteId
from chaos_protocols.outbox import Outbox
from chaos_protocols.wire.control import ConnectOrder, LinkReady

LINK_ORDERS_MAX = 64
"""Orders that wait for their link; the oldest goes first. A scheduler has a few negotiations under way at a time."""


class LinkOrders:
    """See the module."""

    def __init__(
        self,
        outbox: Outbox,
        replica: RosterReplica,
        network: Network,
        client: SchedulerClient,
        desired: DesiredLinks,
    ) -> None:
        self._desired = desired
        self._outbox = outbox
        self._replica = replica
        self._network = network
        self._client = client
        self._orders: dict[str, tuple[SiteId, ConnectOrder]] = {}
        """By negotiation: who ordered it, and what."""
        self._until_s: dict[SiteId, float] = {}
        """Sites that orders named, and how long each is dialled for that."""
        self._probing: set[SiteId] = set()

    def ordered(self, source: SiteId, order: ConnectOrder) -> None:
        """Have this link. Where no scheduler is known here yet, whoever has a vote may be it."""
        outbox, replica, scheduler = self._outbox, self._replica, self._client.scheduler
        may_order = source == scheduler or (scheduler is None and source in replica.configuration.voters)
        if not may_order or order.other == replica.site:
            return
        self._orders[order.negotiation] = (source, order)
        while len(self._orders) > LINK_ORDERS_MAX:
            self._orders.pop(next(iter(self._orders)))
        self._until_s.pop(order.other, None)
        self._until_s[order.other] = outbox.now_s + outbox.settings.negotiation_timeout_s
        while len(self._until_s) > LINK_ORDERS_MAX:
            self._let_go(next(iter(self._until_s)))
        known = replica.roster.record(order.other)
        # A joiner's own word: its neighbours have links to it already, over which it has said where it listens.
        self._network.want(order.other, (known.address or order.address) if known is not None else "")
        self.look(order.other)

    def beat(self) -> None:
        """What was ordered and did not come about is over, for the scheduler too."""
        for site in [one for one, until_s in self._until_s.items() if self._outbox.now_s >= until_s]:
            self._let_go(site)

    def _let_go(self, site: SiteId) -> None:
        del self._until_s[site]
        if site not in self._probing:
            for order in self._orders_for(site):
                del self._orders[order.negotiation]
        self._desired.release(site)

    def look(self, site: SiteId) -> None:
        """The link to `site` may be up now: measure, or answer."""
        if not self._network.links.is_up(site):
            return
        for order in self._orders_for(site):
            if not order.probe:
                self._answer(order, 0.0, "connected")
            elif site not in self._probing:
                self._probing.add(site)
                self._outbox.emit([ProbeLink(site=site)])

    def probed(self, event: LinkProbed) -> None:
        """The measurement is over."""
        self._probing.discard(event.site)
        for order in self._orders_for(event.site):
            self._answer(order, event.rate_bytes_per_s, event.reason)

    def _orders_for(self, site: SiteId) -> list[ConnectOrder]:
        return [order for _, order in self._orders.values() if order.other == site]

    def _answer(self, order: ConnectOrder, rate_bytes_per_s: float, reason: str) -> None:
        scheduler, _ = self._orders.pop(order.negotiation)
        links = self._network.links
        neighbour = links.neighbours.get(order.other)
        ready = LinkReady(
            negotiation=order.negotiation,
            other=order.other,
            ready=links.is_up(order.other),
            rtt_s=(neighbour.rtt_s or 0.0) if neighbour else 0.0,
            rate_bytes_per_s=rate_bytes_per_s,
            reason=reason,
        )
        self._network.tell(scheduler, ready)
