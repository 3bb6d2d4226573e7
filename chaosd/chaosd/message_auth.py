"""Whose message it is: signs what this site says to somebody beyond its neighbour, and checks every control frame
before the site's machine sees it.

A neighbour's own messages to this site are authenticated by TLS; what it relays, by the signature of whoever made it.
What this site will hand on must be signed too, even if the neighbour made it: the next one checks it, and would blame
the messenger. A key that is to enter the roster must be that of its site. Which keys count for a site is known to the
machine (`agreement/key_ring.py`).
"""

from __future__ import annotations

import msgspec

from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.control import (
    Envelope,
    JoinRequest,
    Unreadable,
    decode_envelope,
    encode_envelope,
    signed_bytes,
)
from chaosd.identity import Identity, verify

SIGNED_KEPT_MAX = 64
"""A flooded envelope goes to several neighbours: it is signed once."""


class MessageAuth:
    """Envelopes of one site, out and in. Used by the driver on its loop."""

    def __init__(self, identity: Identity, ring: KeyRing | None = None) -> None:
        """`ring`: of the site's machine; None: nobody changes his key."""
        self._identity = identity
        self._ring = ring if ring is not None else KeyRing(identity, identity.chain)
        self.unknown = 0
        """Words that were dropped since they were signed with a key that does not count here."""
        self._signatures: dict[tuple[SiteId, int], bytes] = {}

    def encode(self, neighbour: SiteId, envelope: Envelope) -> bytes:
        """The frame for a neighbour; signed where it is ours and somebody else than the neighbour will read it."""
        if envelope.source != self._identity.site or envelope.destination == neighbour:
            return encode_envelope(envelope)
        key = (envelope.destination, envelope.sequence)
        signature = self._signatures.get(key)
        if signature is None:
            signature = self._identity.sign(signed_bytes(envelope))
            self._signatures[key] = signature
            if len(self._signatures) > SIGNED_KEPT_MAX:
                del self._signatures[next(iter(self._signatures))]
        return encode_envelope(msgspec.structs.replace(envelope, signature=signature))

    def decode(self, neighbour: SiteId, frame: bytes) -> Envelope | None:
        """What a neighbour sent; None: it is signed with a key that does not count here, of which one of the two may
        not have heard yet: nobody is to blame. Raises CodecError or RemoteProtocolError, with what the neighbour
        did."""
        envelope = decode_envelope(frame)
        if check_source(self._identity.site, neighbour, envelope, self._ring):
            return envelope
        self.unknown += 1
        return None


def check_source(own: SiteId, neighbour: SiteId, envelope: Envelope, ring: KeyRing) -> bool:
    """`own`: this site. Whether the key that it is signed with counts for its source. Raises RemoteProtocolError, with
    what the neighbour did, for an envelope that is not what it claims to be."""
    source, message = envelope.source, envelope.message
    counts = not isinstance(message, JoinRequest) or ring.counts(source, message.public_key)
    if source == neighbour and isinstance(message, Unreadable) and message.problem:
        raise RemoteProtocolError(f"sent a {message.kind} that cannot be read: {message.problem}")
    if source == neighbour and envelope.destination == own:
        return counts
    if not verify(envelope.public_key, envelope.signature, signed_bytes(envelope)):
        raise RemoteProtocolError(f"relayed a message of {short(source)} with a wrong signature")
    return counts and ring.counts(source, envelope.public_key)
