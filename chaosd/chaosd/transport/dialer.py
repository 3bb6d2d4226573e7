"""Brings up the connections of one link from this side. Decides nothing about which link stays (see `admission`).

Driven by the transport, one `Attempt` at a time for each site. Either all connections of an attempt stand, or none.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import secrets
import ssl
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from chaos_protocols.causes import Cause, Why
from chaos_protocols.fingerprint import words_of
from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.handshake import (
    ACCEPTED,
    NONCE_BYTES,
    PURPOSE_BULK,
    PURPOSE_CONTROL,
    REFUSED,
    REFUSED_RUN,
    REFUSED_SIMULTANEOUS,
    REFUSED_VERSION,
    Hello,
    Session,
    Verdict,
)
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.recovered import RunRecovered
from chaosd.addresses import split_address
from chaosd.identity import Identity
from chaosd.os_errors import brief
from chaosd.proxy import Proxy, ProxyError, Tunnel
from chaosd.transport.connection import PeerConnection
from chaosd.transport.errors import DialError, PeerProtocolError
from chaosd.transport.handshake import DialerHandshake, Speaker
from chaosd.transport.lookups import Lookups
from chaosd.transport.settings import TransportSettings
from chaosd.transport.sockets import SocketOptions
from chaosd.transport.starts import Start, Starts, start_of
from chaosd.transport.tls import TlsChannel


class Yielded(Exception):
    """The peer dials too, and its attempt is the one that stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialerContext:
    """What all attempts of this daemon have in common."""

    identity: Identity
    tls: ssl.SSLContext
    run: str
    own: Speaker
    starts: Starts
    run_id: Callable[[], str]
    """Which run this site is or was in."""
    recovered: Callable[[], RunRecovered | None]
    """Of which recovery that is."""
    both_in_run: Callable[[SiteId], bool]
    """Whether that site and this one are of one run."""
    heard_recovered: Callable[[SiteId, str, RunRecovered], None]
    """A listener, dialled there, says that its run is another one, and a recovered one."""
    address_seen_from: Callable[[PeerConnection], str]
    """Where we listen, for the peer at the other end of a connection."""
    track: Callable[[PeerConnection], None]
    settings: TransportSettings
    """Of all links of this daemon."""
    reached: dict[SiteId, str] = field(default_factory=dict)
    """Which address of its name a site, or the proxy on the way to it, answered at last."""
    lookups: Lookups = field(default_factory=Lookups)


def let_go(error: BaseException) -> None:
    """An error, and each that it was raised for, names the calls that it went through, and their frames name it and the
    connections of the dial: until Python's next full collection a failed dial would keep 30 to 60 KiB of TLS memory.
    For the error of a task that has ended: what still waits must not lose its frame."""
    one: BaseException | None = error
    while one is not None:
        traceback.clear_frames(one.__traceback__)
        one = one.__context__


async def _reach(
    address: str, channel: TlsChannel, proxy: Proxy | None, *, lookups: Lookups, first: str, limit_s: float
) -> str:
    """Connect the channel, through the proxy where that serves the host; the address of that name that took it. Raises
    OSError, ValueError."""
    host, port = split_address(address)
    if proxy is None or not proxy.serves(host):
        return await _connect(host, port, channel, lookups=lookups, first=first, limit_s=limit_s)
    tunnel = Tunnel(proxy, host, port, channel)
    try:
        found = await _connect(proxy.host, proxy.port, tunnel, lookups=lookups, first=first, limit_s=limit_s)
        await tunnel.opened
        return found
    except ProxyError:
        raise
    except OSError as error:
        raise proxy.failed(brief(error), error.errno) from None
    finally:
        tunnel.close()


async def _connect(
    host: str, port: int, protocol: asyncio.BufferedProtocol, *, lookups: Lookups, first: str, limit_s: float
) -> str:
    """To the first address of that name which takes it; that one. `first`: what did before is tried first. One that
    says nothing, as where a network has no way for IPv6, must leave the others their part of `limit_s`. Raises OSError
    of the last, ValueError.

    Asked for a name, asyncio's loop would keep the failure of an address that did not answer, and by its frame the
    channel of the one that did, until Python's next full collection; asked for one address, it keeps nothing.
    """
    loop = asyncio.get_running_loop()
    hosts = [host]
    if not _is_number(host):
        hosts = sorted(await lookups.addresses(host), key=lambda number: number != first)
    for number in hosts:
        try:
            async with asyncio.timeout(None if number == hosts[-1] else limit_s / len(hosts)):
                await loop.create_connection(lambda: protocol, number, port)
            return number
        except OSError:
            if number == hosts[-1]:
                raise
    raise OSError(f"{host} has no address")


def _is_number(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def _unreached(site: SiteId, address: str, error: OSError | ValueError) -> DialError:
    """Nobody took the connection."""
    said = brief(error)
    if isinstance(error, ConnectionRefusedError):
        return DialError("connection refused", Cause.NOT_RUNNING.told(site=short(site), address=address))
    reason = said
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        reason = f"{reason}: this daemon's limit of open files is reached; raise it with `ulimit -n`"
    return DialError(said, Cause.UNREACHABLE.told(site=short(site), address=address, reason=reason))


def _decisive(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Of the errors of connections that were brought up together, the one that counts; lets go of all."""
    for error in (errors, *errors.exceptions):
        let_go(error)
    return next((error for error in errors.exceptions if isinstance(error, Yielded)), errors.exceptions[0])


class Attempt:
    """One dial of a whole link, or the repair of the streams that a link lacks."""

    def __init__(
        self,
        context: DialerContext,
        site: SiteId,
        address: str,
        *,
        session: Session,
        known: Session | None,
        streams: int,
        limit_s: float,
    ) -> None:
        """`limit_s`: so long the dial may take."""
        self.site = site
        self.address = address
        self.session = session
        self.streams = streams
        self.superseded = False
        self.listener = Speaker()
        """What the other end speaks; known when its control connection stands."""
        self.task: asyncio.Task[None] | None = None
        self._known = known
        self._limit_s = limit_s
        self._context = context
        self._hello_sent = False
        self._connections: list[PeerConnection] = []

    @property
    def committed(self) -> bool:
        """Our hello for the control connection is on its way, and the attempt goes on."""
        return self._hello_sent and not self.superseded and self.task is not None and not self.task.done()

    def commit(self) -> None:
        """The hello for the control connection is sent now."""
        self._hello_sent = True

    def supersede(self) -> None:
        """The peer's own dial was accepted: give this one up. Here and now, lest a challenge that has arrived already
        be answered, and the peer give up its dial for this one."""
        self.superseded = True
        if self.task is not None:
            self.task.cancel()
        self.abandon("the neighbour's own dial stands")

    def abandon(self, reason: str) -> None:
        """Cut whatever stands."""
        for connection in self._connections:
            connection.abort(reason)
        self._connections.clear()

    def close(self, task: asyncio.Task[None]) -> None:
        """`task` has come to its end: cut what was not kept, and let go of it."""
        self.abandon("the dial was given up")
        try:
            error: BaseException | None = task.exception()  # nobody else may look at one that lost
        except asyncio.CancelledError as cancelled:
            error = cancelled
        if error is not None:
            let_go(error)

    def keep(self) -> None:
        """The connections belong to a link now."""
        self._connections.clear()

    async def control(self) -> tuple[PeerConnection, Verdict]:
        """Raises DialError, Yielded."""
        return await self._connect(None)

    async def bulk(self, streams: list[int]) -> list[PeerConnection]:
        """All of these bulk streams at once. Raises DialError, Yielded."""
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._connect(stream)) for stream in streams]
        except BaseExceptionGroup as errors:
            failure = _decisive(errors)
        if failure is not None:
            try:
                raise failure  # not where it would name the group, which names it
            finally:
                failure = None
        return [task.result()[0] for task in tasks]

    async def _connect(self, stream: int | None) -> tuple[PeerConnection, Verdict]:
        handshake = _Handshake(self, stream)
        connection = PeerConnection(self._context.tls, handshake, server_side=False)
        self._connections.append(connection)
        self._context.track(connection)
        try:
            context, channel = self._context, connection.channel
            first, proxy = context.reached.get(self.site, ""), context.settings.proxy
            context.reached[self.site] = await _reach(
                self.address, channel, proxy, lookups=context.lookups, first=first, limit_s=self._limit_s
            )
        except (OSError, ValueError) as error:  # ValueError: text that cannot be the name of a host
            connection.channel.disown()
            raise _unreached(self.site, self.address, error) from error
        except BaseException:
            connection.channel.disown()
            raise
        verdict = await handshake.outcome
        if verdict.code == ACCEPTED:
            return connection, verdict
        connection.abort("refused")
        if verdict.code == REFUSED_SIMULTANEOUS:
            raise Yielded
        if verdict.code == REFUSED_RUN and verdict.recovered is not None:
            self._context.heard_recovered(self.site, self.address, verdict.recovered)
        raise DialError("refused", self._why_refused(verdict))

    def _why_refused(self, verdict: Verdict) -> Why:
        """What a refusal means for this site."""
        context, site = self._context, short(self.site)
        newest = Start(incarnation=verdict.newest, signature=verdict.newest_start, named=verdict.newest_run_start)
        if context.starts.is_replaced(newest):
            return Cause.KEY_ELSEWHERE.told(site=site)
        if verdict.newest > context.starts.incarnation:
            return Cause.OLDER_START.told(site=site, reason=verdict.reason)
        match verdict.code:
            case code if code == REFUSED:
                called, own = context.settings.name_of(self.site), context.identity.site
                if context.both_in_run(self.site):
                    return Cause.KEPT_OUT.told(site=called)
                if self._known is not None:  # its operator need not accept this site: it has been let in
                    return Cause.LET_IN_BEFORE.told(site=called)
                return Cause.DISTRUSTED.told(site=called, own=own, words=words_of(own))
            case code if code == REFUSED_VERSION:
                return Cause.OTHER_VERSION.told(site=site, reason=verdict.reason)
            case code if code == REFUSED_RUN and verdict.run_id:
                return Cause.OTHER_RUN.told(site=site, there=short(verdict.run_id), here=short(context.run_id()))
            case code if code == REFUSED_RUN:
                return Cause.OTHER_NAME.told(site=site, reason=verdict.reason)
        return Cause.LINK_FAILED.told(site=site, address=self.address, reason=verdict.reason)

    def hello(self, connection: PeerConnection, stream: int | None) -> Hello:
        """What we state on this connection."""
        context, start = self._context, self._context.starts.own()
        return Hello(
            version=context.own.versions.newest,
            oldest=context.own.versions.oldest,
            software=context.own.software,
            run=context.run,
            run_id=context.run_id(),
            start=start.signature,
            run_start=start.named,
            site=context.identity.site,
            public_key=context.identity.public_key,
            incarnation=start.incarnation,
            purpose=PURPOSE_CONTROL if stream is None else PURPOSE_BULK,
            stream=stream or 0,
            streams=self.streams,
            session=self.session,
            known=self._known,
            address=context.address_seen_from(connection),
            nonce=secrets.token_bytes(NONCE_BYTES),
            keys=context.identity.chain if context.identity.chain.changes else None,
            recovered=context.recovered(),
        )

    def saw_start(self, chain: KeyChain, verdict: Verdict) -> None:
        """The listener, which has shown this of its key, says which start of its daemon it is."""
        self._context.starts.saw(self.site, chain, start_of(verdict), verdict.run_id)

    def accepts(self, site: SiteId, chain: KeyChain) -> bool:
        """Whether who shows this chain is that site, as far as is known here."""
        return self._context.starts.run.accepts(site, chain)

    @property
    def options(self) -> SocketOptions:
        """Of the connections."""
        return self._context.settings.socket_options

    @property
    def identity(self) -> Identity:
        """Whose proof is given."""
        return self._context.identity


class _Handshake:
    """The dialing end of one connection (HandshakeOwner)."""

    def __init__(self, attempt: Attempt, stream: int | None) -> None:
        self._attempt = attempt
        self._stream = stream
        self._machine: DialerHandshake | None = None
        self._answered = False
        self._cause, self._found = Cause.LINK_FAILED, ""
        self.outcome: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

    def secured(self, connection: PeerConnection) -> None:
        hello = self._attempt.hello(connection, self._stream)
        machine = DialerHandshake(self._attempt.identity, self._attempt.site, hello, self._attempt.accepts)
        try:
            machine.check_certificate(connection.channel.peer_certificate)
        except PeerProtocolError as error:
            self._cause, self._found = Cause.ANOTHER_SITE, str(error)
            raise
        self._machine = machine

    def handshake_received(self, connection: PeerConnection, frame: bytes) -> None:
        if self._machine is None or self.outcome.done():
            raise PeerProtocolError("an unexpected handshake message")
        if not self._answered:
            connection.send_handshake(self._machine.answer(frame))
            self._answered = True
            if self._stream is None:
                self._attempt.commit()
            return
        verdict = self._machine.verdict(frame)
        if self._stream is None:
            self._attempt.listener = self._machine.listener
        if verdict.code == ACCEPTED:
            assert self._machine.listener.chain is not None, "the certificate was checked first"
            self._attempt.saw_start(self._machine.listener.chain, verdict)
            connection.establish(self._stream, options=self._attempt.options)
        self.outcome.set_result(verdict)

    def ended(self, connection: PeerConnection, reason: str, end_of_file: bool) -> None:
        if not self.outcome.done():
            site, address = short(self._attempt.site), self._attempt.address
            why = self._cause.told(site=site, address=address, reason=self._found or reason)
            self.outcome.set_exception(DialError(reason, why))
            self.outcome.exception()  # an attempt that was given up does not look
