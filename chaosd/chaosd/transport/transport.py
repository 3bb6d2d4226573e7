"""All links of this daemon to its neighbours: the one door between the driver and the network.

Decides which connection belongs to which link and which link stays when two meet; knows nothing of what frames mean.
Driven by the driver (methods of `Transport`) and the event loop; reports through `TransportEvents`, always from the
loop and never from inside one of its own methods, so the driver needs no locks and sees no surprises.

Spec 2.2: control and bulk have connections of their own, so that heartbeats do not starve; either end may dial.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from chaos_protocols.names import SITES_MAX, SiteId, short
from chaos_protocols.wire.handshake import ACCEPTED, PURPOSE_CONTROL, REFUSED_RUN, Hello, Session, Verdict
from chaos_protocols.wire.versions import agreed
from chaosd.addresses import lies_at, split_address
from chaosd.identity import Identity
from chaosd.transport import admission
from chaosd.transport.connection import PeerConnection
from chaosd.transport.dialer import DialerContext
from chaosd.transport.dials import Dials
from chaosd.transport.errors import DialError, LinkClosed
from chaosd.transport.handshake import Speaker, chain_of
from chaosd.transport.link import Link, SocketLinkPhase
from chaosd.transport.listener import Listener
from chaosd.transport.paths import Paths
from chaosd.transport.send_limit import SendLimit
from chaosd.transport.settings import (
    CLOSE_FLUSH_TIMEOUT_S,
    ConnectionCounters,
    LinkInfo,
    TransportEvents,
    TransportSettings,
)
from chaosd.transport.starts import Starts, start_of, weighs
from chaosd.transport.stream import BulkProgress
from chaosd.transport.tls import client_context


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
        self.send_limit = SendLimit()
        """Of all links together; whoever configures the daemon may change it."""
        self._starts = Starts(identity, incarnation, events)
        self._listener = Listener(identity, settings, self, self._track)
        dialer = DialerContext(
            identity=identity,
            tls=client_context(),
            run=run,
            own=self._own,
            starts=self._starts,
            run_id=events.run_id,
            both_in_run=events.both_in_run,
            recovered=events.recovered,
            heard_recovered=lambda *told: self._tell(events.heard_recovered, *told),
            address_seen_from=self._listener.address_seen_from,
            track=self._track,
            settings=settings,
        )
        self._links: dict[SiteId, Link] = {}
        self._progress: dict[SiteId, BulkProgress] = {}
        self._paths = paths or Paths()
        self._dials = Dials(dialer, self._paths, self)
        self._connections: set[PeerConnection] = set()
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
        await self._dials.close()
        await self._listener.close()
        links = list(self._links.values())
        finishing = [stream.stop() for link in links for stream in link.streams.values()]
        for link in links:
            link.close("this daemon is stopping")
        await asyncio.gather(*(task for task in finishing if task is not None), return_exceptions=True)
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
        await self._dials.dial(site, address, timeout_s=timeout_s)

    def close_link(self, site: SiteId, reason: str) -> None:
        """Close the link (what was sent before is handed over). `link_lost` follows. Nothing happens without a link."""
        if (link := self._links.get(site)) is not None:
            link.close(reason)

    def links(self) -> list[LinkInfo]:
        """The links that are up, by site."""
        up = (link for _, link in sorted(self._links.items()) if link.state is SocketLinkPhase.UP)
        return [link.info(self._identity.site) for link in up]

    def linked_sites(self) -> tuple[SiteId, ...]:
        """Who has a link, or one that comes up: that costs as much."""
        return tuple(self._links)

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

    def send_bulk_now(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> bool:
        """A short frame that nothing stands before, of the averaging stream; False: use `send_bulk`. Raises
        LinkClosed."""
        link = self._links.get(site)
        if link is None:
            raise LinkClosed(f"there is no link to site {short(site)}")
        return link.send_bulk_now(stream, header, payload)

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

    def payload_bytes(self, site: SiteId, stream: int) -> int:
        """Of the payload under way there, so many bytes are here; 0 where none is."""
        link = self._links.get(site)
        return link.streams[stream].connection.payload_bytes if link is not None and stream in link.streams else 0

    # -- Gatekeeper: what the listener asks ------------------------------------------------------------------------

    def judge(self, site: SiteId, hello: Hello, connection: PeerConnection) -> tuple[Verdict | None, str]:
        if not self._paths.answers(site):
            return None, "nothing reaches this site"
        link, chain = self._links.get(site), chain_of(hello)
        facts = admission.AdmissionFacts(
            own_site=self._identity.site,
            own_run=self._run,
            own_address=self._listener.address_seen_from(connection),
            own=self._own,
            own_run_id=self._events.run_id(),
            own_recovered=self._events.recovered(),
            own_start=self._starts.own(),
            newest=self._starts.newest(site, chain, self._events.newest_start(site)),
            kept_out=self._events.keeps_out(site, hello.purpose, chain, connection.peer_host),
            link=link.standing if link is not None and weighs(link.speaker.chain, chain) else None,
            committed=self._dials.is_committed(site),
        )
        verdict, reason = admission.judge(site, hello, facts)
        if verdict.code == ACCEPTED:
            self._starts.saw(site, chain, start_of(hello), hello.run_id)
        elif (why := admission.why_refused(site, hello, facts, verdict, connection.peer_host)) is not None:
            self._tell(self._events.refused, site, why)
        if verdict.code == REFUSED_RUN and hello.recovered is not None:
            self._tell(self._events.heard_recovered, site, self._believed(site, hello, connection), hello.recovered)
        return verdict, reason

    def _believed(self, site: SiteId, hello: Hello, connection: PeerConnection) -> str:
        """Where a dialer says that it listens, if it may: nobody explores this site's network by way of its redials."""
        believed = self._events.may_name_hosts(site) or lies_at(hello.address, connection.peer_host)
        return hello.address if believed else ""

    def adopt(self, site: SiteId, hello: Hello, connection: PeerConnection) -> None:
        if hello.purpose == PURPOSE_CONTROL:
            self._dials.give_way(site)
            self._tell(self._events.let_in, site)
            speaker = Speaker(versions=hello.versions, software=hello.software, chain=chain_of(hello))
            address = self._believed(site, hello, connection)
            link = self.new_link(site, hello.incarnation, hello.session, hello.streams, address, speaker)
            timeout_s = self._settings.handshake_timeout_s
            late = f"its streams did not come up within {timeout_s:g} s"
            self._completion_timers[link] = asyncio.get_running_loop().call_later(timeout_s, link.close, late)
        else:
            link = self._links[site]
        link.add(connection)
        if link.state is SocketLinkPhase.COMING_UP and not link.missing:
            link.complete()

    # -- Links: what the dials ask -----------------------------------------------------------------------------------

    def link_to(self, site: SiteId) -> Link | None:
        return self._links.get(site)

    def new_link(
        self, site: SiteId, incarnation: int, session: Session, streams: int, address: str, speaker: Speaker
    ) -> Link:
        if (standing := self._links.get(site)) is not None:
            restarted = incarnation != standing.incarnation
            standing.close(f"replaced by {f'start {incarnation} of that daemon' if restarted else 'a redial'}")
        if len(self._progress) > SITES_MAX:
            self._progress.pop(next((one for one in self._progress if one not in self._links), site), None)
        progress = self._progress.setdefault(site, BulkProgress())
        link = self._paths.link(self, site, incarnation, session, streams, progress)
        link.address = address
        link.speaker, link.version = speaker, agreed(self._own.versions, speaker.versions) or 0
        self._links[site] = link
        return link

    # -- LinkReports: what links tell ------------------------------------------------------------------------------

    def link_completed(self, link: Link) -> None:
        self._stop_completion_timer(link)
        self._dials.link_up(link)
        self._tell(self._events.link_up, link.site, link.incarnation, link.address, link.speaker)
        self._dials.arrived(link.site)

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

    # -- inside ----------------------------------------------------------------------------------------------------

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
