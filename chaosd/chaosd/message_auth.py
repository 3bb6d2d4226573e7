"""Whose message it is: signs what this site says to somebody beyond its neighbour, and checks every control frame
before the site's machine sees it.

A neighbour's own messages to this site are authenticated by TLS; what it relays, by the signature of whoever made it.
What this site will hand on must be signed too, even if the neighbour made it: the next one checks it, and would blame
the messenger. A key that is to enter the roster must be that of its site.
"""

from __future__ import annotations

import msgspec

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
from chaosd.identity import Identity, is_key_of, verify

SIGNED_KEPT_MAX = 64
"""A flooded envelope goes to several neighbours: it is signed once."""


class MessageAuth:
    """Envelopes of one site, out and in. Used by the driver on its loop."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
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

    def decode(self, neighbour: SiteId, frame: bytes) -> Envelope:
        """What a neighbour sent. Raises CodecError or RemoteProtocolError, with what the neighbour did."""
        envelope = decode_envelope(frame)
        check_source(self._identity.site, neighbour, envelope)
        return envelope


def check_source(own: SiteId, neighbour: SiteId, envelope: Envelope) -> None:
    """`own`: this site. Raises RemoteProtocolError, with what the neighbour did, for an envelope that is not what it
    claims to be."""
    source, message = envelope.source, envelope.message
    if isinstance(message, JoinRequest) and not is_key_of(source, message.public_key):
        raise RemoteProtocolError(f"brought a request of {short(source)} to join with another site's key")
    if source == neighbour and isinstance(message, Unreadable) and message.problem:
        raise RemoteProtocolError(f"sent a {message.kind} that cannot be read: {message.problem}")
    if source == neighbour and envelope.destination == own:
        return
    if not is_key_of(source, envelope.public_key):
        raise RemoteProtocolError(f"relayed a message of {short(source)} with another site's key")
    if not verify(envelope.public_key, envelope.signature, signed_bytes(envelope)):
        raise RemoteProtocolError(f"relayed a message of {short(source)} with a wrong signature")
