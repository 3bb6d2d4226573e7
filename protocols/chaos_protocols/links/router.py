"""How one site's messages leave and arrive: made into envelopes, routed over the overlay, flooded, each taken once.

Driven by `SiteMachine`. What a message means is no concern of the router's, save for `LinkStateAdvertisement`, from
which it knows the ways.
"""

from __future__ import annotations

import msgspec

from chaos_protocols.agreement.roster import Roster, RunId
from chaos_protocols.effects import CloseLink, Effect, Record, SendEnvelope
from chaos_protocols.links.link_state import LinkStateTable, ReplayGuard
from chaos_protocols.links.naming import RunNaming
from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.control import (
    EVERYBODY,
    HOPS_MAX,
    OPTIONAL,
    UNREADABLE_BYTES_MAX,
    Envelope,
    LinkStateAdvertisement,
    Message,
    Unreadable,
)
from chaos_protocols.wire.versions import NEWEST

FLOODED_BYTES_MAX = 32 << 10
"""A report is kept as it came, with what a newer version added to it; without that it takes up to half of this."""

UNREADABLE_KINDS_TOLD_MAX = 64
"""Kinds of messages that could not be read and were told of. Peers make them up: beyond that nothing is told."""


class Router:
    """See the module. `overlay`: what is known of all links. `naming`: which run words name, and have to. `speaks`: the
    newest version of this site."""

    def __init__(
        self, site: SiteId, public_key: bytes, incarnation: int, naming: RunNaming, *, speaks: int = NEWEST
    ) -> None:
        self.site = site
        self.overlay = LinkStateTable(site)
        self.undeliverable = 0
        self.unread = 0
        """Messages for this site that it could not read."""
        self.foreign = 0
        """Messages that were said in another run, or do not say in which where they have to."""
        self._unreadable_told: set[str] = set()
        self._public_key = public_key
        self._incarnation = incarnation
        self._naming = naming
        self._speaks = speaks
        self._guard = ReplayGuard()
        """Of what others hand on."""
        self._near = ReplayGuard()
        """Of what sites say over their own links."""
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
            return self._to(destination, self._envelope(destination, message, roster, event_id, keyed=False))
        hop = self.overlay.next_hops(roster, own_up).get(destination)
        if hop is None:
            self.undeliverable += 1
            return []
        run = self._naming.of_word_to(destination)
        return self._to(hop, self._envelope(destination, message, roster, event_id, run=run))

    def flood(
        self, report: LinkStateAdvertisement, *, roster: Roster, own_up: tuple[SiteId, ...], event_id: str
    ) -> list[Effect]:
        """Tell everybody about one of our links."""
        envelope = self._envelope(EVERYBODY, report, roster, event_id, run=self._naming.of_word_to(EVERYBODY))
        self.overlay.learn(envelope)
        return [effect for neighbour in own_up for effect in self._to(neighbour, envelope)]

    def say_again(self, *, roster: Roster, own_up: tuple[SiteId, ...], event_id: str) -> list[Effect]:
        """Everything that this site has said of its links: it names its run from now on."""
        said = [one.message for one in self.overlay.envelopes() if one.source == self.site]
        return [
            effect
            for report in said
            if isinstance(report, LinkStateAdvertisement)
            for effect in self.flood(report, roster=roster, own_up=own_up, event_id=event_id)
        ]

    def introduce(self, neighbour: SiteId) -> list[Effect]:
        """A link is new, or was renewed: everything known of the overlay goes over it."""
        known = [envelope for envelope in self.overlay.envelopes() if envelope.source != neighbour]
        return [effect for envelope in known for effect in self._to(neighbour, envelope)]

    def follow(self, roster: Roster) -> None:
        """At every beat: of who has left not all is remembered."""
        self._guard.follow(roster)
        self._near.follow(roster)

    def forget(self, site: SiteId) -> None:
        """What was heard from this site was not its word: neither its reports nor its numbers count."""
        self._guard.forget(site)
        self._near.forget(site)
        self.overlay.forget(site)

    def receive(
        self, neighbour: SiteId, envelope: Envelope, *, roster: Roster, own_up: tuple[SiteId, ...]
    ) -> tuple[Envelope | None, list[Effect]]:
        """What is for this site (once), and what must be passed on."""
        if envelope.source == self.site:
            return None, []
        if envelope.destination in (EVERYBODY, self.site) and not self._naming.takes(neighbour, envelope):
            self.foreign += 1
            outside = envelope.destination == self.site and roster.record(envelope.source) is None
            return (envelope if outside and self._naming.can_only_be_refused(envelope) else None), []
        if envelope.destination == EVERYBODY:
            self.overlay.follow(roster)
            return self._receive_flooded(neighbour, envelope, own_up)
        if envelope.destination == self.site:
            if isinstance(envelope.message, Unreadable):
                return None, self._left_unread(neighbour, envelope, envelope.message)
            return (envelope if self._is_new(neighbour, envelope, roster) else None), []
        return None, self._pass_on(neighbour, envelope, roster, own_up)

    def _is_new(self, neighbour: SiteId, envelope: Envelope, roster: Roster) -> bool:
        """What a site says over its own link was not said in another run, and nobody else could say it: what others
        have handed on in its name, with whatever numbers, shuts that out never. The other way round it does."""
        source, insider = envelope.source, roster.record(envelope.source) is not None
        if source == neighbour:
            return self._near.is_new(envelope, insider=insider)
        if self._near.is_outdated(envelope):
            return False
        return self._guard.is_new(envelope, insider=insider)

    def _receive_flooded(
        self, neighbour: SiteId, envelope: Envelope, own_up: tuple[SiteId, ...]
    ) -> tuple[Envelope | None, list[Effect]]:
        """For everybody: taken and passed to every other neighbour, where it says something new of a link."""
        if not isinstance(envelope.message, LinkStateAdvertisement) or len(envelope.raw) > FLOODED_BYTES_MAX:
            return None, []
        if not self.overlay.lets_in(neighbour, envelope) or not self.overlay.learn(envelope):
            return None, []
        passed = self._one_hop_further(envelope)
        others = [site for site in own_up if site not in (neighbour, envelope.source)]
        return envelope, [effect for site in others for effect in self._to(site, passed)] if passed is not None else []

    def _pass_on(
        self, neighbour: SiteId, envelope: Envelope, roster: Roster, own_up: tuple[SiteId, ...]
    ) -> list[Effect]:
        """For another site: towards it, never back where it came from; nothing where no way is known."""
        if len(envelope.raw) > UNREADABLE_BYTES_MAX and isinstance(envelope.message, Unreadable):
            self.undeliverable += 1
            return []
        passed = self._one_hop_further(envelope)
        if passed is None:
            return []
        if envelope.destination in own_up:
            return self._to(envelope.destination, passed)
        hops = self.overlay.next_hops(roster, tuple(site for site in own_up if site != neighbour))
        hop = hops.get(envelope.destination)
        if hop is None:
            self.undeliverable += 1
            return []
        return self._to(hop, passed)

    def _left_unread(self, neighbour: SiteId, envelope: Envelope, message: Unreadable) -> list[Effect]:
        """A message for this site that it cannot read is skipped where it may be; otherwise the neighbour that made it
        loses its link, lest both go on as if it had been heard. Whoever only handed it on is not to blame. Told once
        for each kind."""
        self.unread += 1
        breaks = not envelope.optional and envelope.source == neighbour
        what = f"{message.kind} cannot be read: {message.problem}" if message.problem else f"{message.kind} is unknown"
        effects: list[Effect] = []
        if message.kind not in self._unreadable_told and len(self._unreadable_told) < UNREADABLE_KINDS_TOLD_MAX:
            self._unreadable_told.add(message.kind)
            outcome = "closed the link" if breaks else "skipped"
            reason = f"{outcome}; this site speaks protocol {self._speaks}, that one {envelope.version}"
            if not envelope.optional and not message.problem:
                reason += ": install the newer chaos-train at both"
            effects.append(
                Record(
                    kind="refused",
                    subject=short(envelope.source),
                    cause=f"its message {what[:300]}",
                    outcome="refused" if breaks else "",
                    duration_s=None,
                    reason=reason,
                )
            )
        if breaks:
            effects.append(CloseLink(site=neighbour, reason=f"its message {what[:300]}"))
        return effects

    def _one_hop_further(self, envelope: Envelope) -> Envelope | None:
        if envelope.hops >= HOPS_MAX:
            self.undeliverable += 1
            return None
        return msgspec.structs.replace(envelope, hops=envelope.hops + 1)

    def _envelope(
        self,
        destination: SiteId,
        message: Message,
        roster: Roster,
        event_id: str,
        *,
        run: RunId = "",
        keyed: bool = True,
    ) -> Envelope:
        """`keyed`: somebody else than the neighbour that it goes to will check its signature."""
        self._sequence += 1
        return Envelope(
            version=self._speaks,
            source=self.site,
            destination=destination,
            incarnation=self._incarnation,
            sequence=self._sequence,
            epoch=roster.epoch,
            event_id=event_id,
            hops=0,
            public_key=self._public_key if keyed else b"",
            signature=b"",
            message=message,
            optional=type(message) in OPTIONAL,
            run=run,
        )

    def _to(self, neighbour: SiteId, envelope: Envelope) -> list[Effect]:
        if not self._naming.may_go(neighbour, envelope):
            self.undeliverable += 1
            return []
        return [SendEnvelope(neighbour=neighbour, envelope=envelope)]
