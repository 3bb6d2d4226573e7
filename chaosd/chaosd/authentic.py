"""Whose message it is: asked of every control frame before the site's machine sees it.

A neighbour's own messages to this site are authenticated by TLS; what it relays, by the signature of whoever made it.
What this site will hand on must be signed too, even if the neighbour made it: the next one checks it, and would blame
the messenger. A key that is to enter the roster must be that of its site.
"""

from __future__ import annotations

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.messages import Envelope, JoinRequest, Unreadable, signed_bytes
from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.handshake import PUBLIC_KEY_BYTES
from chaosd.identity import site_of, verify


def check_source(own: SiteId, neighbour: SiteId, envelope: Envelope) -> None:
    """`own`: this site. Raises RemoteProtocolError, with what the neighbour did, for an envelope that is not what it
    claims to be."""
    source, message = envelope.source, envelope.message
    if isinstance(message, JoinRequest) and not _is_key_of(source, message.public_key):
        raise RemoteProtocolError(f"brought a request of {short(source)} to join with another site's key")
    if source == neighbour and isinstance(message, Unreadable) and message.problem:
        raise RemoteProtocolError(f"sent a {message.kind} that cannot be read: {message.problem}")
    if source == neighbour and envelope.destination == own:
        return
    if not _is_key_of(source, envelope.public_key):
        raise RemoteProtocolError(f"relayed a message of {short(source)} with another site's key")
    if not verify(envelope.public_key, envelope.signature, signed_bytes(envelope)):
        raise RemoteProtocolError(f"relayed a message of {short(source)} with a wrong signature")


def _is_key_of(site: SiteId, public_key: bytes) -> bool:
    return len(public_key) == PUBLIC_KEY_BYTES and site_of(public_key) == site
