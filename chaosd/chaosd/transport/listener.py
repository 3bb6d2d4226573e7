"""Accepts connections and lets only proven, admitted sites through. Decides who waits and who is thrown out.

Driven by the event loop; hands established connections to the transport. Strangers are bounded: in number
(HANDSHAKES_MAX; the oldest connection of the busiest address gives way, so that one slow or hostile host cannot shut
the others out), in time (one deadline from accept to proof, whatever trickles in meanwhile), in memory (2 KiB a
message, 16 KiB a read) and in log lines.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.handshake import (
    ACCEPTED,
    FIXED_REFUSAL,
    NONCE_BYTES,
    PURPOSE_BULK,
    REFUSED_SIMULTANEOUS,
    Hello,
    Verdict,
)
from chaosd.addresses import EVERY_ADDRESS, join_address, listening_socket, network_of, plain_host
from chaosd.identity import Identity
from chaosd.os_errors import explain_listening
from chaosd.transport.connection import PeerConnection
from chaosd.transport.errors import ListenError, PeerProtocolError
from chaosd.transport.handshake import ListenerHandshake, Speaker, encode
from chaosd.transport.refusals import RefusalLog
from chaosd.transport.settings import HANDSHAKES_MAX, TransportSettings
from chaosd.transport.tls import TlsChannel, server_context

_WILDCARD_HOSTS = ("", "0.0.0.0", EVERY_ADDRESS)  # noqa: S104 - recognised here, not bound to


class Gatekeeper(Protocol):
    """The transport, as the listener sees it."""

    def judge(self, site: SiteId, hello: Hello, connection: PeerConnection) -> tuple[Verdict | None, str]:
        """The verdict on a proven site and the reason for the log; None = no answer at all (see `paths`)."""

    def adopt(self, site: SiteId, hello: Hello, connection: PeerConnection) -> None:
        """An accepted, established connection."""


@dataclass(slots=True)
class _Visitor:
    handshake: ListenerHandshake
    deadline: asyncio.TimerHandle
    answered: bool = False


class Listener:
    """See the module."""

    def __init__(
        self,
        identity: Identity,
        settings: TransportSettings,
        gatekeeper: Gatekeeper,
        track: Callable[[PeerConnection], None],
    ) -> None:
        self._identity = identity
        self._context = server_context(identity)
        self._settings = settings
        self._gatekeeper = gatekeeper
        self._track = track
        self._own = Speaker(versions=settings.versions, software=settings.software)
        self._options = settings.socket_options
        self._server: asyncio.Server | None = None
        self._visitors: dict[PeerConnection, _Visitor] = {}
        self._refusals = RefusalLog()
        self.host = settings.listen_host
        self.port = settings.listen_port

    @property
    def visitors(self) -> int:
        """Connections that have not proven who they are yet."""
        return len(self._visitors)

    @property
    def address(self) -> str:
        """Where neighbours are told to dial; with the actual port. "" when this site is not reachable."""
        if self._settings.advertise_address is not None:
            return self._settings.advertise_address
        return join_address(self.host, self.port)

    def address_seen_from(self, connection: PeerConnection) -> str:
        """What the peer is told: where it can dial us. On a wildcard address, the one that this connection uses."""
        if self._settings.advertise_address is not None or self.host not in _WILDCARD_HOSTS:
            return self.address
        transport = connection.channel.transport
        name = transport.get_extra_info("sockname") if transport is not None else None
        return join_address(plain_host(str(name[0])), self.port) if name else self.address

    async def start(self, listening: socket.socket | None = None) -> None:
        """Open the port, or take over a socket that listens at it. Raises ListenError that names it and the remedy."""
        loop = asyncio.get_running_loop()
        where = join_address(self.host, self.port)
        try:
            if listening is None and self.host == EVERY_ADDRESS:
                listening = listening_socket(self.host, self.port)
            if listening is None:
                self._server = await loop.create_server(self._visit, self.host, self.port)
            else:
                self._server = await loop.create_server(self._visit, sock=listening)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ListenError(
                    f"cannot listen on {where}: another program uses that port. Stop it (`ss -ltnp` shows which), "
                    "or choose another port in the configuration (`listen`)."
                ) from error
            raise ListenError(explain_listening(error, where)) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Close the port and every connection that is not established."""
        if self._server is not None:
            self._server.close()
        for visitor in self._visitors.values():
            visitor.deadline.cancel()
        for connection in list(self._visitors):
            connection.abort("the transport is closing")

    async def wait_closed(self) -> None:
        """After all connections are closed."""
        if self._server is not None:
            await self._server.wait_closed()

    def _visit(self) -> TlsChannel:
        """A TCP connection was accepted."""
        if len(self._visitors) >= HANDSHAKES_MAX:
            self._make_room()
        connection = PeerConnection(self._context, self, server_side=True)
        loop = asyncio.get_running_loop()
        deadline = loop.call_later(self._settings.handshake_timeout_s, self._too_slow, connection)
        handshake = ListenerHandshake(self._identity, secrets.token_bytes(NONCE_BYTES), self._own)
        self._visitors[connection] = _Visitor(handshake, deadline)
        self._track(connection)
        return connection.channel

    # -- HandshakeOwner --------------------------------------------------------------------------------------------

    def secured(self, connection: PeerConnection) -> None:
        if (visitor := self._visitors.get(connection)) is not None:
            connection.send_handshake(visitor.handshake.challenge())

    def handshake_received(self, connection: PeerConnection, frame: bytes) -> None:
        visitor = self._visitors.get(connection)
        if visitor is None or visitor.answered:
            raise PeerProtocolError("more than one hello")
        visitor.answered = True
        try:
            site, hello = visitor.handshake.prove(frame)
        except PeerProtocolError as error:
            self._refuse(connection, FIXED_REFUSAL, f"a stranger: {error}")
            return
        verdict, reason = self._gatekeeper.judge(site, hello, connection)
        if verdict is None:
            return
        if verdict.code != ACCEPTED:
            if verdict.code == REFUSED_SIMULTANEOUS:  # nothing wrong: the neighbour gets the link by our own dial
                connection.send_handshake(encode(verdict))
                connection.close(reason)
            else:
                self._refuse(connection, verdict, f"site {short(site)} ({hello.purpose[:20]}): {reason}")
            return
        self._visitors.pop(connection).deadline.cancel()
        connection.send_handshake(encode(verdict))
        stream = hello.stream if hello.purpose == PURPOSE_BULK else None
        connection.establish(stream, options=self._options)
        self._gatekeeper.adopt(site, hello, connection)

    def ended(self, connection: PeerConnection, reason: str, end_of_file: bool) -> None:
        visitor = self._visitors.pop(connection, None)
        if visitor is not None:
            visitor.deadline.cancel()
            if not visitor.answered and not end_of_file:  # a dial that was given up is nothing to worry about
                self._log_refusal(connection, f"left without a proof of identity: {reason}")

    # -- inside ----------------------------------------------------------------------------------------------------

    def _refuse(self, connection: PeerConnection, verdict: Verdict, reason: str) -> None:
        self._log_refusal(connection, reason)
        connection.send_handshake(encode(verdict))
        connection.close("refused")

    def _too_slow(self, connection: PeerConnection) -> None:
        connection.abort(f"no proof of identity within {self._settings.handshake_timeout_s:g} s")

    def _make_room(self) -> None:
        networks = {connection: network_of(connection.peer_host) for connection in self._visitors}
        busiest = Counter(networks.values()).most_common(1)[0][0]
        oldest = next(connection for connection, network in networks.items() if network == busiest)
        self._visitors.pop(oldest).deadline.cancel()
        oldest.abort(f"more than {HANDSHAKES_MAX} unproven connections at once")

    def _log_refusal(self, connection: PeerConnection, reason: str) -> None:
        self._refusals.tell(connection.peer_host, reason, now_s=asyncio.get_running_loop().time())
