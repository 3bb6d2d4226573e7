"""Who answers at an address: a connection, TLS, and the site id in the certificate. Blocking; says nothing itself.

Used by `chaosd doctor` for its peers, and by a daemon that a neighbour asks whether it can be dialled (`peer_view`).
"""

from __future__ import annotations

import socket
import ssl
import time

from chaos_protocols.names import SiteId
from chaos_protocols.wire.handshake import FULL_FRAME_BYTES, HANDSHAKE_BYTES_MAX
from chaosd.identity import site_of_certificate
from chaosd.proxy import Proxy, connect
from chaosd.transport.framing import CONTROL_PREFIX
from chaosd.transport.sockets import unacknowledged_bytes

ACKNOWLEDGED_POLL_S = 0.01


def answers_as(site: SiteId, address: str, timeout_s: float, proxy: Proxy | None = None) -> bool:
    """Whether a daemon with that key takes connections there. `proxy`: this site's way out, if it needs one."""
    try:
        with connect(address, timeout_s, proxy) as raw:
            with _secured(raw) as secured:
                return site_of_certificate(secured.getpeercert(binary_form=True) or b"") == site
    except (OSError, ValueError):
        return False


def site_behind(raw: socket.socket, timeout_s: float) -> tuple[SiteId | None, str]:
    """The site, and which way large packets do not pass; empty: both ways they do."""
    with _secured(raw) as secured:
        site = site_of_certificate(secured.getpeercert(binary_form=True) or b"")
        try:
            secured.recv(HANDSHAKE_BYTES_MAX)  # the challenge, which is filled up (spec 3.13)
        except TimeoutError:
            return site, "from it do not arrive here"
        # A part of a frame, so that the peer waits for the rest: it is this end that sees whether the bytes arrived.
        secured.sendall(CONTROL_PREFIX.pack(HANDSHAKE_BYTES_MAX) + bytes(FULL_FRAME_BYTES))
        until_s = time.monotonic() + timeout_s
        while unacknowledged_bytes(secured):
            if time.monotonic() > until_s:
                return site, "from here do not arrive there"
            time.sleep(ACKNOWLEDGED_POLL_S)
    return site, ""


def _secured(raw: socket.socket) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # a site is known by its id, which the caller compares
    return context.wrap_socket(raw)
