"""The built-in link probe: a burst over a bulk stream, timed by the site that receives it. Decides how long it lasts.

Driven by the driver: `measure` when a rate is missing or stale; `is_probe`, `bulk_received` and `link_lost` for what
arrives; by the watchdog: `full_size`. One class plays both ends. It needs nothing installed and passes where the link
itself passes; it shares the bulk connection's congestion window, so it sees what a transfer would see. Chaos paper,
section IV: transmission rates are measured before shards are assigned; spec 8.9: active only where passive figures
are missing.

    measuring -> other     probe.ping    answered by probe.pong, three times: the round-trip time is the least
    measuring -> other     probe.ping    with a payload: where that takes so long that a burst would not end in time,
                                         again, and the shortest one is the measurement
    measuring -> other     probe.burst   frames, until bytes or seconds are used up; the last one says so
    other -> measuring     probe.report  bytes and seconds between the arrival of the first and the last frame, and
                                         the rate over the second half, when the congestion window has opened
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from chaos_protocols.names import SITES_MAX, SiteId, short
from chaos_protocols.wire.handshake import FULL_FRAME_BYTES
from chaos_protocols.wire.probe import (
    PROBE_BURST,
    PROBE_KINDS,
    PROBE_PING,
    PROBE_PONG,
    PROBE_REPORT,
    ProbeHeader,
    encode,
)
from chaosd.transport.errors import LinkClosed, PeerProtocolError

FRAME_BYTES = 64 << 10
"""Resolution of the timing: 0.5 ms at 1 Gbit/s, 50 ms at 10 Mbit/s."""
BURST_BYTES = 8 << 20
BURST_SECONDS = 0.25
"""Defaults: a few round trips of a continental path; 1 % of link time allows one every 25 s."""
BURST_BYTES_MAX = 64 << 20
FRAMES_MAX = BURST_BYTES_MAX // FRAME_BYTES
FRAMES_MIN = 4
"""Fewer do not have a second half; a slow link gets these even when the time is used up."""
PINGS = 3
SIZED_PING_BYTES = 16 << 10
SIZED_PINGS = 3
"""For links that are too slow for a burst. The first one opens the window of the connection; several, since one may
have waited for a processor."""
PINGS_SHARE = 0.9
"""Of the time for a probe: so long these may take."""
BURST_SHARE = 0.5
"""Of the time that is left: a burst is tried where by the first of these it takes no longer. What one ping shows is
rough, and a link may carry something else at the same time."""
LEAST_S = 1e-6
BURSTS_MAX = 2 * SITES_MAX
"""Bursts under way towards this site, one for each neighbour; further ones are not answered. More than can be linked at
once: as many guests as may be would else keep the links of members from being measured."""
REPLIES_EACH_MAX = 4
"""Answers that wait until one neighbour reads; who does not read takes those of the others else."""
STREAM = 1
"""Stream 0 belongs to the rounds."""

_PAYLOAD = memoryview(bytes(FRAME_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What was measured towards one site."""

    rate_bytes_per_s: float
    rtt_s: float
    method: str
    """`built-in` or `iperf3`."""
    bytes: int
    seconds: float


class ProbeError(Exception):
    """A probe did not come to a result; the text says why."""


class Sender(Protocol):
    """The part of the transport that a probe uses."""

    async def send_bulk(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> None: ...


@dataclass(slots=True)
class _Burst:
    """A burst that arrives here: when how many bytes were complete."""

    id: int
    arrivals_s: list[float] = field(default_factory=list)


class LinkProbe:
    """See the module."""

    def __init__(self, sender: Sender, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._sender = sender
        self._clock = clock
        self._ids = itertools.count(1)
        self._answers: dict[tuple[SiteId, int], asyncio.Future[ProbeHeader]] = {}
        self._bursts: dict[SiteId, _Burst] = {}
        self._replies: dict[asyncio.Task[None], SiteId] = {}

    async def measure(
        self,
        site: SiteId,
        *,
        bytes_max: int = BURST_BYTES,
        seconds_max: float = BURST_SECONDS,
        timeout_s: float = 10.0,
        stream: int = STREAM,
    ) -> ProbeResult:
        """Rate and round-trip time towards a neighbour. Raises ProbeError."""
        if not FRAME_BYTES * FRAMES_MIN <= bytes_max <= BURST_BYTES_MAX:
            raise ValueError(f"bytes_max = {bytes_max}: must be {FRAME_BYTES * FRAMES_MIN} to {BURST_BYTES_MAX}")
        ends_s = self._clock() + timeout_s
        sized: ProbeResult | None = None
        try:
            async with asyncio.timeout(timeout_s):
                rtt_s = min([await self._ping(site, stream) for _ in range(PINGS)])
                sized, burst_fits = await self._sized_pings(site, stream, rtt_s, ends_s)
                if not burst_fits:
                    return sized
                report = await self._burst(site, stream, bytes_max // FRAME_BYTES, seconds_max)
        except TimeoutError:
            if sized is not None:  # it has grown slower since the ping: it carries as much as the least burst at most
                at_most = FRAMES_MIN * FRAME_BYTES / timeout_s
                return dataclasses.replace(sized, rate_bytes_per_s=min(sized.rate_bytes_per_s, at_most))
            raise ProbeError(f"site {short(site)} did not answer the probe within {timeout_s:g} s") from None
        except LinkClosed as error:
            raise ProbeError(f"the link to site {short(site)} was lost during the probe: {error}") from error
        if report.rate_bytes_per_s <= 0:
            raise ProbeError(f"site {short(site)} could not time the probe")
        return ProbeResult(
            rate_bytes_per_s=report.rate_bytes_per_s,
            rtt_s=rtt_s,
            method="built-in",
            bytes=report.bytes,
            seconds=report.seconds,
        )

    async def full_size(self, site: SiteId, *, stream: int = STREAM) -> None:
        """Send one ping that needs a packet of full size (spec 3.16). Its answer is of no use: where the way swallows
        such packets, the system's count of unacknowledged bytes shows it."""
        header = encode(ProbeHeader(kind=PROBE_PING, id=next(self._ids)))
        with contextlib.suppress(LinkClosed):
            await self._sender.send_bulk(site, stream, header, _PAYLOAD[:FULL_FRAME_BYTES])

    @staticmethod
    def is_probe(kind: object) -> bool:
        """Does a bulk header of this kind belong here? Its payload is discarded (`bulk_buffer` returns None)."""
        return kind in PROBE_KINDS

    def bulk_received(self, site: SiteId, stream: int, header: bytes) -> None:
        """A probe frame is complete. Raises PeerProtocolError when it breaks the rules."""
        try:
            message = msgspec.msgpack.decode(header, type=ProbeHeader)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PeerProtocolError(f"not a probe header: {error}") from None
        if message.kind not in PROBE_KINDS:
            raise PeerProtocolError(f"unknown probe frame {message.kind!r}")
        if message.kind == PROBE_PING:
            self._reply(site, stream, ProbeHeader(kind=PROBE_PONG, id=message.id))
        elif message.kind == PROBE_BURST:
            self._burst_arrived(site, stream, message)
        else:  # an answer
            answer = self._answers.get((site, message.id))
            if answer is not None and not answer.done():
                answer.set_result(message)

    def link_lost(self, site: SiteId, reason: str) -> None:
        """End what is under way with a site."""
        self._bursts.pop(site, None)
        for (other, _), answer in self._answers.items():
            if other == site and not answer.done():
                answer.set_exception(LinkClosed(reason))

    async def close(self) -> None:
        """Nothing is left behind."""
        for task in list(self._replies):
            task.cancel()
        await asyncio.gather(*self._replies, return_exceptions=True)

    async def _ping(self, site: SiteId, stream: int, size_bytes: int = 0) -> float:
        begun_s = self._clock()
        await self._ask(site, stream, ProbeHeader(kind=PROBE_PING, id=next(self._ids)), _PAYLOAD[:size_bytes])
        return self._clock() - begun_s

    async def _sized_pings(self, site: SiteId, stream: int, rtt_s: float, ends_s: float) -> tuple[ProbeResult, bool]:
        """What the link carries by pings with a payload, and whether a burst would end well before `ends_s`."""
        left_s = PINGS_SHARE * (ends_s - self._clock())
        took_s = [left_s]  # at least, if none of them comes back
        burst_fits = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                while not burst_fits and len(took_s) <= SIZED_PINGS:
                    took_s.append(await self._ping(site, stream, SIZED_PING_BYTES))
                    at_most = SIZED_PING_BYTES / max(min(took_s) - rtt_s, LEAST_S)
                    burst_fits = at_most * BURST_SHARE * (ends_s - self._clock()) > FRAMES_MIN * FRAME_BYTES
        seconds = max(min(took_s) - rtt_s, LEAST_S)
        sized = ProbeResult(
            rate_bytes_per_s=SIZED_PING_BYTES / seconds,
            rtt_s=rtt_s,
            method="built-in",
            bytes=SIZED_PING_BYTES,
            seconds=seconds,
        )
        return sized, burst_fits

    async def _burst(self, site: SiteId, stream: int, frames: int, seconds_max: float) -> ProbeHeader:
        number = next(self._ids)
        header = encode(ProbeHeader(kind=PROBE_BURST, id=number))
        ends_s = self._clock() + seconds_max
        sent = 0
        while sent < frames - 1 and (sent < FRAMES_MIN - 1 or self._clock() < ends_s):
            await self._sender.send_bulk(site, stream, header, _PAYLOAD)
            sent += 1
        return await self._ask(site, stream, ProbeHeader(kind=PROBE_BURST, id=number, last=True), _PAYLOAD)

    async def _ask(
        self, site: SiteId, stream: int, header: ProbeHeader, payload: memoryview | bytes = b""
    ) -> ProbeHeader:
        answer: asyncio.Future[ProbeHeader] = asyncio.get_running_loop().create_future()
        self._answers[site, header.id] = answer
        try:
            await self._sender.send_bulk(site, stream, encode(header), payload)
            return await answer
        finally:
            del self._answers[site, header.id]
            if answer.done() and not answer.cancelled():
                answer.exception()  # looked at here when the send itself failed first

    def _burst_arrived(self, site: SiteId, stream: int, message: ProbeHeader) -> None:
        burst = self._bursts.get(site)
        if burst is None or burst.id != message.id:
            if burst is None and len(self._bursts) >= BURSTS_MAX:
                return
            burst = self._bursts[site] = _Burst(message.id)
        burst.arrivals_s.append(self._clock())
        if len(burst.arrivals_s) > FRAMES_MAX:
            raise PeerProtocolError(f"a probe of more than {FRAMES_MAX} frames")
        if message.last:
            del self._bursts[site]
            self._reply(site, stream, report(message.id, burst.arrivals_s))

    def _reply(self, site: SiteId, stream: int, header: ProbeHeader) -> None:
        if list(self._replies.values()).count(site) >= REPLIES_EACH_MAX:
            return
        task = asyncio.get_running_loop().create_task(self._send(site, stream, header), name="probe reply")
        self._replies[task] = site
        task.add_done_callback(self._replies.pop)

    async def _send(self, site: SiteId, stream: int, header: ProbeHeader) -> None:
        try:
            await self._sender.send_bulk(site, stream, encode(header))
        except LinkClosed:
            pass  # the asking end sees the link close by itself


def report(number: int, arrivals_s: list[float]) -> ProbeHeader:
    """What the receiver tells: the time of the first frame is when counting starts, so its bytes do not count."""
    seconds = arrivals_s[-1] - arrivals_s[0]
    middle = (len(arrivals_s) - 1) // 2
    second_half_s = arrivals_s[-1] - arrivals_s[middle]
    frames = len(arrivals_s) - 1 - middle
    return ProbeHeader(
        kind=PROBE_REPORT,
        id=number,
        bytes=(len(arrivals_s) - 1) * FRAME_BYTES,
        seconds=seconds,
        rate_bytes_per_s=frames * FRAME_BYTES / second_half_s if second_half_s > 0 else 0.0,
    )
