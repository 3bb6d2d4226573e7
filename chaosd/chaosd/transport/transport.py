"""All links of this daemon to its neighbours: the one door between the driver and the network.

Decides which connection belongs to which link and which link stays when two meet; knows nothing of what frames mean.
Driven by the driver (methods of `Transport`) and the event loop; reports through `TransportEvents`, always from the
loop and never from inside one of its own methods, so the driver needs no locks and sees no surprises.

Spec 2.2: control and bulk have connections of their own, so that heartbeats do not starve; either end may dial.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Callable

from chaos_protocols.causes import Cause
from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.handshake import ACCEPTED, PURPOSE_CONTROL, Hello, Session, Verdict
from chaos_protocols.wire.versions import agreed
from chaosd.addresses import split_address
from chaosd.identity import Identity
from chaosd.transport import admission
from chaosd.transport.connection import PeerConnection
from chaosd.transport.dialer import Attempt, DialerContext, Yielded
from chaosd.transport.errors import DialError, LinkClosed
from chaosd.transport.handshake import Speaker, chain_of
from chaosd.transport.link import BulkProgress, Link, SocketLinkPhase
from chaosd.transport.listener import Listener
from chaosd.transport.paths import Paths
from chaosd.transport.settings import (
    CLOSE_FLUSH_TIMEOUT_S,
    ConnectionCounters,
    LinkInfo,
    TransportEvents,
    TransportSettings,
)
from chaosd.transport.starts import Starts, start_of
from chaosd.transport.stream_scaling import Widening
from chaosd.transport.tls import client_context

YIELD_S = 0.5
"""How long a dial that gave way waits for the neighbour's own before it tries again: four round trips of 100 ms."""


class Transport:
    """See the module. All methods must be called on the loop that `start` ran on. `paths`: the open network, unless
    something else is to lie between the sites."""

    def __init__(
        self,
        *,
        identity: Identity,
        run: str,
        incarnation: int,
        events: TransportEvents,
        settings: TransportSettings,
        paths: Paths | None = None,
    ) -> None:
        self._identity = identity
        self._run = run
        self._events = events
        self._settings = settings
        self._own = Speaker(versions=settings.versions, software=settings.software)
        self._starts = Starts(identity, incarnation, events)
        self._listener = Listener(identity, settings, self, self._track)
        self._dialer = DialerContext(
            identity=identity,
            tls=client_context(),
            run=run,
            own=self._own,
            starts=self._starts,
            run_id=events.run_id,
            address_seen_from=self._listener.address_seen_from,
            track=self._track,
            settings=settings,
        )
        self._links: dict[SiteId, Link] = {}
        self._attempts: dict[SiteId, Attempt] = {}
        self._arrivals: dict[SiteId, asyncio.Future[None]] = {}
        self._known: dict[SiteId, Session] = {}
        self._progress: dict[SiteId, BulkProgress] = {}
        self._attempts_made = 0
        self._paths = paths or Paths()
        self._connections: set[PeerConnection] = set()
        self._widening = Widening(self._dialer)
        self._completion_timers: dict[Link, asyncio.TimerHandle] = {}
        self._closing = False

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self, listening: socket.socket | None = None) -> None:
        """Listen, with a socket that does already or a new one. Raises ListenError that names port and remedy."""
        await self._listener.start(listening)

    @property
    def address(self) -> str:
        """Where neighbours are told to dial; with the actual port. "" when this site is not reachable."""
        return self._listener.address

    async def close(self) -> None:
        """Close everything; what was sent before is handed over if that takes at most CLOSE_FLUSH_TIMEOUT_S."""
        self._closing = True
        attempts = [attempt.task for attempt in self._attempts.values() if attempt.task is not None]
        for task in attempts:
            task.cancel()
        await self._listener.close()
        links = list(self._links.values())
        finishing = [stream.stop() for link in links for stream in link.streams.values()]
        for link in links:
            link.close("this daemon is stopping")
        await self._widening.stop()
        tasks = [task for task in (*attempts, *finishing) if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        gone = [connection.channel.gone for connection in self._connections]
        if gone:
            await asyncio.wait(gone, timeout=CLOSE_FLUSH_TIMEOUT_S)
        self._paths.close()
        for connection in list(self._connections):
            connection.abort("the transport is closing")
        if rest := [connection.channel.gone for connection in self._connections]:
            await asyncio.wait(rest, timeout=CLOSE_FLUSH_TIMEOUT_S)
        await self._listener.wait_closed()

    # -- links -----------------------------------------------------------------------------------------------------

    async def dial(self, site: SiteId, address: str, *, timeout_s: float) -> None:
        """Bring up the link to `site`: control connection and bulk streams. Raises DialError.

        Returns at once when the link is up (restoring streams that were lost, if this end dialed it). Returns also when
        the neighbour's own dial succeeds first. `link_up` was reported when this returns.
        """
        if self._closing:
            raise DialError("this daemon is stopping")
        if site == self._identity.site:
            raise DialError(f"site {short(site)} is this site itself; link to another one")
        try:
            split_address(address)
        except ValueError as error:
            raise DialError(f"address {address!r}: {error}") from None
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while (link := self._links.get(site)) is None or link.state is not SocketLinkPhase.UP or self._can_repair(link):
            shared = self._attempts.get(site)
            attempt = shared or self._new_attempt(site, address, link)
            try:
                if await self._await_link(attempt, site, deadline_s):
                    return
            finally:
                if shared is None and attempt.task is not None and not attempt.task.done():
                    attempt.task.cancel()
                    await asyncio.wait([attempt.task])
            if self._closing or loop.time() >= deadline_s:
                late = "no answer in time"
                raise DialError(late, Cause.UNREACHABLE.told(site=short(site), address=address, reason=late))

    def close_link(self, site: SiteId, reason: str) -> None:
        """Close the link (what was sent before is handed over). `link_lost` follows. Nothing happens without a link."""
        if (link := self._links.get(site)) is not None:
            link.close(reason)

    def links(self) -> list[LinkInfo]:
        """The links that are up, by site."""
        up = (link for _, link in sorted(self._links.items()) if link.state is SocketLinkPhase.UP)
        return [link.info(self._identity.site) for link in up]

    # -- traffic ---------------------------------------------------------------------------------------------------

    def send_control(self, site: SiteId, frame: bytes) -> bool:
        """Send at most CONTROL_FRAME_BYTES_MAX bytes. False when there is no link.

        A neighbour that takes nothing while CONTROL_QUEUE_BYTES_MAX wait loses its link (`link_lost` with the reason).
        Raises LocalProtocolError for a longer frame.
        """
        link = self._links.get(site)
        return link is not None and link.send_control(frame)

    async def send_bulk(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> None:
        """Send one bulk frame; waits for room. The payload is read until this returns. Raises LinkClosed.

        Returning means that the frame was handed to the kernel, not that it arrived. A cancelled send is completed in
        the background, so the payload is read a little longer then. Raises LocalProtocolError beyond the limits.
        """
        link = self._links.get(site)
        if link is None:
            raise LinkClosed(f"there is no link to site {short(site)}")
        view = memoryview(payload)
        await link.send_bulk(stream, header, view if view.format == "B" and view.ndim == 1 else view.cast("B"))

    def bulk_progress(self, site: SiteId) -> tuple[int, int]:
        """Bytes received from and sent to a site on all bulk streams since the daemon started."""
        progress = self._progress.get(site)
        return (progress.received_bytes, progress.sent_bytes) if progress is not None else (0, 0)

    def counters(self, site: SiteId) -> tuple[ConnectionCounters, ...]:
        """What each connection of the link has carried; none without a link."""
        return link.counters() if (link := self._links.get(site)) is not None else ()

    def state_streams(self, site: SiteId) -> tuple[int, ...]:
        """Streams that the blocks of a state go over at the moment: as many as the round trip asks for."""
        return link.state_streams() if (link := self._links.get(site)) is not None else ()

    def forget_payload(self, site: SiteId, stream: int) -> None:
        """The rest of the payload under way there is discarded: its buffer is not written any more."""
        if link := self._links.get(site):
            link.forget_payload(stream)

    # -- Gatekeeper: what the listener asks ------------------------------------------------------------------------

    def judge(self, site: SiteId, hello: Hello, connection: PeerConnection) -> tuple[Verdict | None, str]:
        if not self._paths.answers(site):
            return None, "nothing reaches this site"
        link, attempt = self._links.get(site), self._attempts.get(site)
        facts = admission.AdmissionFacts(
            own_site=self._identity.site,
            own_run=self._run,
            own_address=self._listener.address_seen_from(connection),
            own=self._own,
            own_run_id=self._events.run_id(),
            own_start=self._starts.own(),
            newest=self._starts.newest(site, self._events.newest_start(site)),
            kept_out=self._events.keeps_out(site, hello.purpose, chain_of(hello)),
            link=link.standing if link is not None else None,
            committed=attempt is not None and attempt.committed,
        )
        verdict, reason = admission.judge(site, hello, facts)
        if verdict.code == ACCEPTED:
            self._starts.saw(site, hello.public_key, start_of(hello), hello.run_id)
        elif (why := admission.why_refused(site, hello, facts, verdict, connection.peer_host)) is not None:
            self._tell(self._events.refused, site, why)
        return verdict, reason

    def adopt(self, site: SiteId, hello: Hello, connection: PeerConnection) -> None:
        if hello.purpose == PURPOSE_CONTROL:
            if (attempt := self._attempts.get(site)) is not None:
                attempt.supersede()
            speaker = Speaker(versions=hello.versions, software=hello.software, chain=chain_of(hello))
            link = self._new_link(site, hello.incarnation, hello.session, hello.streams, hello.address, speaker)
            timeout_s = self._settings.handshake_timeout_s
            late = f"its streams did not come up within {timeout_s:g} s"
            self._completion_timers[link] = asyncio.get_running_loop().call_later(timeout_s, link.close, late)
        else:
            link = self._links[site]
        link.add(connection)
        if link.state is SocketLinkPhase.COMING_UP and not link.missing:
            link.complete()

    # -- LinkReports: what links tell ------------------------------------------------------------------------------

    def link_completed(self, link: Link) -> None:
        self._stop_completion_timer(link)
        self._known[link.site] = link.session
        attempt = self._attempts.get(link.site)
        if attempt is not None and attempt.session != link.session:
            attempt.supersede()
        self._tell(self._events.link_up, link.site, link.incarnation, link.address, link.speaker.versions)
        if (arrival := self._arrivals.pop(link.site, None)) is not None and not arrival.done():
            arrival.set_result(None)

    def link_ended(self, link: Link, reason: str, end_of_file: bool) -> None:
        was_up = self._stop_completion_timer(link) is None
        if self._links.get(link.site) is link:
            del self._links[link.site]
        if was_up:
            self._tell(self._events.link_lost, link.site, link.incarnation, reason, end_of_file)

    def stream_ended(self, link: Link, stream: int, reason: str) -> None:
        self._tell(self._events.bulk_lost, link.site, stream, reason)

    def control_received(self, link: Link, frame: bytes) -> float | None:
        return self._events.control_received(link.site, frame)

    def bulk_buffer(self, link: Link, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        return self._events.bulk_buffer(link.site, stream, header, size_bytes)

    def bulk_received(self, link: Link, stream: int, header: bytes, payload: memoryview | None) -> None:
        self._events.bulk_received(link.site, stream, header, payload)

    # -- dialing ---------------------------------------------------------------------------------------------------

    def _new_attempt(self, site: SiteId, address: str, link: Link | None) -> Attempt:
        repairs = link is not None and self._can_repair(link)
        self._attempts_made += 0 if repairs else 1
        session = Session(dialer=self._identity.site, attempt=self._attempts_made)
        attempt = Attempt(
            self._dialer,
            site,
            address,
            session=link.session if link is not None and repairs else session,
            known=self._known.get(site),
            streams=link.streams_wanted if link is not None and repairs else self._settings.streams_wanted,
        )
        self._attempts[site] = attempt
        work = self._repair(attempt, link) if link is not None and repairs else self._bring_up(attempt)
        attempt.task = asyncio.get_running_loop().create_task(work, name=f"dial {short(site)}")
        attempt.task.add_done_callback(functools.partial(self._end_attempt, attempt))
        return attempt

    async def _await_link(self, attempt: Attempt, site: SiteId, deadline_s: float) -> bool:
        """True when the link came up, by the attempt or by the neighbour's own dial. Raises the attempt's DialError.

        An attempt that yields leaves the neighbour YIELD_S to bring its own to an end, since that may fail as well.
        """
        loop, task = asyncio.get_running_loop(), attempt.task
        arrival = self._arrivals.setdefault(site, loop.create_future())
        assert task is not None
        waiting: set[asyncio.Future[None]] = {arrival, task}
        while waiting and not self._closing:
            remaining_s = max(0.0, deadline_s - loop.time())
            done, waiting = await asyncio.wait(waiting, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
            if arrival in done:
                return True
            if not done:
                return False
            try:
                task.result()
                return True
            except (Yielded, asyncio.CancelledError):
                deadline_s = min(deadline_s, loop.time() + YIELD_S)
        return False

    async def _bring_up(self, attempt: Attempt) -> None:
        try:
            await self._paths.before_dial(attempt.site)
            control, verdict = await attempt.control()
            bulk = await attempt.bulk(list(range(self._settings.streams_at_once)))
            connections = [control, *bulk]
            site, standing = attempt.site, self._links.get(attempt.site)
            if standing is not None and standing.incarnation > verdict.incarnation:
                raise DialError(f"site {short(site)} has restarted meanwhile")
            if not all(connection.is_open for connection in connections):
                raise DialError(f"site {short(site)} closed the link while it came up")
            session, streams = attempt.session, attempt.streams
            link = self._new_link(site, verdict.incarnation, session, streams, attempt.address, attempt.listener)
            attempt.keep()
            for connection in connections:
                link.add(connection)
            link.complete()
            self._widening.consider(link)
        except (asyncio.CancelledError, DialError):
            if attempt.superseded:
                raise Yielded from None
            raise

    async def _repair(self, attempt: Attempt, link: Link) -> None:
        try:
            await self._paths.before_dial(attempt.site)
            connections = await attempt.bulk(link.missing)
            if link.state is not SocketLinkPhase.UP:
                raise DialError(f"the link to site {short(attempt.site)} was lost meanwhile")
            attempt.keep()
            for connection in connections:
                link.add(connection)
        except (asyncio.CancelledError, DialError):
            if attempt.superseded:
                raise Yielded from None
            raise

    def _can_repair(self, link: Link) -> bool:
        return link.state is SocketLinkPhase.UP and link.session.dialer == self._identity.site and bool(link.missing)

    def _end_attempt(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        """However it ended, and even if it was cancelled before its first step."""
        attempt.close(task)
        if self._attempts.get(attempt.site) is attempt:
            del self._attempts[attempt.site]

    # -- inside ----------------------------------------------------------------------------------------------------

    def _new_link(
        self, site: SiteId, incarnation: int, session: Session, streams: int, address: str, speaker: Speaker
    ) -> Link:
        if (standing := self._links.get(site)) is not None:
            restarted = incarnation != standing.incarnation
            standing.close(f"replaced by {f'start {incarnation} of that daemon' if restarted else 'a redial'}")
        progress = self._progress.setdefault(site, BulkProgress())
        link = self._paths.link(self, site, incarnation, session, streams, progress)
        link.address = address
        link.speaker, link.version = speaker, agreed(self._own.versions, speaker.versions) or 0
        self._links[site] = link
        return link

    def _track(self, connection: PeerConnection) -> None:
        """Every socket is known from its first to its last moment, so that `close` leaves nothing behind."""
        self._connections.add(connection)
        connection.channel.gone.add_done_callback(lambda _: self._connections.discard(connection))

    def _stop_completion_timer(self, link: Link) -> asyncio.TimerHandle | None:
        timer = self._completion_timers.pop(link, None)
        if timer is not None:
            timer.cancel()
        return timer

    def _tell(self, event: Callable[..., None], *facts: object) -> None:
        """Report from the loop, in order, never from inside a method that the driver called."""
        asyncio.get_running_loop().call_soon(self._tell_now, event, facts)

    def _tell_now(self, event: Callable[..., None], facts: tuple[object, ...]) -> None:
        if not self._closing:
            event(*facts)
