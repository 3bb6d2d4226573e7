"""Whether each peer answers at its address, as itself, and to large packets, too."""

from __future__ import annotations

import functools
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from chaos_protocols.names import SiteId, short
from chaosd import patient_threads
from chaosd.addresses import split_address
from chaosd.config.model import PeerConfig, SiteConfig
from chaosd.doctor.check import Check, Level, fail, ok, warn
from chaosd.identity import Identity, IdentityError
from chaosd.os_errors import brief
from chaosd.proxy import Proxy, ProxyError, connect
from chaosd.reach import site_behind
from chaosd.transport.handshake import NO_SITE

PEERS_AT_ONCE = 16
MTU_REMEDY = (
    "let ICMP type 3 code 4 (IPv6: packet too big) through both firewalls, or lower the MTU here until this passes: "
    "`ip link set dev INTERFACE mtu 1280`"
)


def check_peers(config: SiteConfig, timeout_s: float) -> list[Check]:
    """One finding a peer, all asked at once. A silent peer is a warning: it may come later, unless nobody answers."""
    if not config.peers:
        if config.bootstrap:
            return [ok("peers", "none named; this site founds the run and waits for others")]
        return [
            warn("peers", "none named and bootstrap = false", "add [[peers]], or wait for others to dial this site")
        ]
    own, proxy = _own_site(config), config.way_out
    with ThreadPoolExecutor(PEERS_AT_ONCE) as pool:
        checks = list(pool.map(lambda peer: check_peer(peer, timeout_s, proxy, own), config.peers))
    if not config.bootstrap and all(check.level is not Level.OK for check in checks):
        remedy = "this site cannot join: start a peer, or correct the addresses"
        checks.append(fail("peers", "not one of the peers answers as itself", remedy))
    return checks


def check_peer(peer: PeerConfig, timeout_s: float, proxy: Proxy | None = None, own: SiteId | None = None) -> Check:
    """Connects, and looks at the certificate: is the site at that address the one that is expected there? Then a frame
    of full size each way: small packets may pass where large ones are swallowed. `own`: this site."""
    name = f"peer {peer.name} ({short(peer.site)})" if peer.name else f"peer {short(peer.site)}"
    started_s = time.monotonic()
    try:
        _look_up(peer.address, timeout_s, proxy)
        raw = connect(peer.address, timeout_s, proxy)
    except OSError as error:
        remedy = "is it started, the address right, the port open in both firewalls?"
        if isinstance(error, ProxyError):
            remedy = "what to ask of the proxy's operator: `chaosd help behind-a-proxy`; is the peer started?"
        return warn(name, f"{peer.address}: {brief(error)}", remedy)
    with raw:
        rtt_ms = (time.monotonic() - started_s) * 1e3
        try:
            site, swallowed = site_behind(raw, timeout_s)
        except (OSError, ValueError) as error:
            return fail(name, f"{peer.address} answers, but not as a chaosd ({error})", "correct the peer's address")
    if site is None:
        remedy = "correct the peer's address; a firewall or proxy that opens TLS has to leave this host and port out"
        return fail(name, f"{peer.address} answers with the certificate of no site: {NO_SITE}", remedy)
    if site == own:
        return fail(name, f"{peer.address} leads to this site itself", "put the peer's own address there")
    if site != peer.site:
        return fail(name, f"{peer.address} is site {site}, not {peer.site}", "correct the peer's id or address")
    if swallowed:
        return fail(name, f"{peer.address}: small packets pass, large ones {swallowed} (MTU blackhole)", MTU_REMEDY)
    return ok(name, f"{peer.address} answers as itself, {rtt_ms:.1f} ms")


def _look_up(address: str, timeout_s: float, proxy: Proxy | None) -> None:
    """So that a resolver that does not answer takes no longer than a peer that does not. Raises OSError."""
    host, port = split_address(address)
    if proxy is not None and proxy.serves(host):
        host, port = proxy.host, proxy.port
    try:
        patient_threads.within(functools.partial(socket.getaddrinfo, host, port), timeout_s, f"look up {host}")
    except TimeoutError:
        said = f"the resolver says nothing of {host} within {timeout_s:g} s: its name server does not answer"
        raise TimeoutError(said) from None


def _own_site(config: SiteConfig) -> SiteId | None:
    """None: without a usable key, which is told by itself."""
    try:
        return Identity.load(config.data_dir).site
    except IdentityError:
        return None
