"""How one site's messages leave and arrive: made into envelopes, routed over the overlay, flooded, each taken once.

Driven by `SiteMachine`. What a message means is no concern of the courier's, save for `LinkReport`, from which it
knows the ways.
"""

from __future__ import annotations

import msgspec

from chaos_protocols.effects import Effect, SendEnvelope
from chaos_protocols.messages import EVERYBODY, HOPS_MAX, Envelope, LinkReport, Message
from chaos_protocols.names import PROTOCOL_VERSION, SiteId
from chaos_protocols.roster import Roster
from chaos_protocols.routing import OverlayView, ReplayGuard


class Courier:
    """See the module. `overlay`: what is known of all links."""

    def __init__(self, site: SiteId, public_key: bytes, incarnation: int) -> None:
        self.site = site
        self.overlay = OverlayView(site)
        self.undeliverable = 0
        self._public_key = public_key
        self._incarnation = incarnation
        self._guard = ReplayGuard()
        self._sequence = 0

    def send(
        self,
        destination: SiteId,
        message: Message,
        *,
        roster: Roster,
        own_up: tuple[SiteId, ...],
        event_id: str,
    ) -> list[Effect]:
        """To a neighbour directly, otherwise towards it; nothing where no way is known (the sender asks again
        later)."""
        if destination in own_up:
            return [self._to(destination, self._envelope(destination, message, roster, event_id))]
        hop = self.overlay.next_hops(roster, own_up).get(destination)
        if hop is None:
            self.undeliverable += 1
            return []
        return [self._to(hop, self._envelope(destination, message, roster, event_id))]

    def flood(self, report: LinkReport, *, roster: Roster, own_up: tuple[SiteId, ...], event_id: str) -> list[Effect]:
        """Tell everybody about one of our links."""
        envelope = self._envelope(EVERYBODY, report, roster, event_id)
        self.overlay.learn(envelope)
        return [self._to(neighbour, envelope) for neighbour in own_up]

    def introduce(self, neighbour: SiteId) -> list[Effect]:
        """A link is new, or was renewed: everything known of the overlay goes over it."""
        return [self._to(neighbour, envelope) for envelope in self.overlay.envelopes() if envelope.source != neighbour]

    def receive(
        self, neighbour: SiteId, envelope: Envelope, *, roster: Roster, own_up: tuple[SiteId, ...]
    ) -> tuple[Envelope | None, list[Effect]]:
        """What is for this site (once), and what must be passed on."""
        if envelope.source == self.site:
            return None, []
        if envelope.destination == EVERYBODY:
            if not isinstance(envelope.message, LinkReport) or not self.overlay.learn(envelope):
                return None, []
            passed = self._one_hop_further(envelope)
            others = [site for site in own_up if site not in (neighbour, envelope.source)]
            return envelope, [self._to(site, passed) for site in others] if passed is not None else []
        if envelope.destination == self.site:
            insider = roster.record(envelope.source) is not None
            return (envelope if self._guard.is_new(envelope, insider=insider) else None), []
        passed = self._one_hop_further(envelope)
        if passed is None:
            return None, []
        if envelope.destination in own_up:
            return None, [self._to(envelope.destination, passed)]
        hops = self.overlay.next_hops(roster, tuple(site for site in own_up if site != neighbour))
        hop = hops.get(envelope.destination)
        if hop is None:
            self.undeliverable += 1
            return None, []
        return None, [self._to(hop, passed)]

    def _one_hop_further(self, envelope: Envelope) -> Envelope | None:
        if envelope.hops >= HOPS_MAX:
            self.undeliverable += 1
            return None
        return msgspec.structs.replace(envelope, hops=envelope.hops + 1)

    def _envelope(self, destination: SiteId, message: Message, roster: Roster, event_id: str) -> Envelope:
        self._sequence += 1
        return Envelope(
            version=PROTOCOL_VERSION,
            source=self.site,
            destination=destination,
            incarnation=self._incarnation,
            sequence=self._sequence,
            epoch=roster.epoch,
            event_id=event_id,
            hops=0,
            public_key=self._public_key,
            signature=b"",
            message=message,
        )

    @staticmethod
    def _to(neighbour: SiteId, envelope: Envelope) -> Effect:
        return SendEnvelope(neighbour=neighbour, envelope=envelope)
