"""The built-in link probe over real links, against itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgpack
import pytest
from tests.rigs.transport import LOOPS, Recorder, Site, close, link, run

from chaos_lab.links.shape import LinkShape
from chaos_protocols.names import SiteId
from chaos_protocols.wire.probe import PROBE_BURST, ProbeHeader, encode
from chaosd.monitor.probe import FRAME_BYTES, SIZED_PING_BYTES, LinkProbe, ProbeError, report
from chaosd.transport import PeerProtocolError

# What a link carries is measured: beside other tests it is what they leave of it.
pytestmark = [pytest.mark.alone, pytest.mark.parametrize("loop_kind", LOOPS)]


class ProbedSite(Site):
    """Dispatches bulk frames on the kind of their header, as the driver does."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, name)
        self.probe = LinkProbe(self.transport)
        self.deaf = False
        self.events.bulk_buffer = self._buffer  # type: ignore[method-assign]
        self.events.bulk_received = self._received  # type: ignore[method-assign]
        self.events.link_lost = self._lost  # type: ignore[method-assign]

    def _buffer(self, site, stream, header, size_bytes):  # type: ignore[no-untyped-def]
        assert LinkProbe.is_probe(msgpack.unpackb(header)["kind"])

    def _received(self, site, stream, header, payload):  # type: ignore[no-untyped-def]
        if not self.deaf:
            self.probe.bulk_received(site, stream, header)

    def _lost(self, site, incarnation, reason, end_of_file):  # type: ignore[no-untyped-def]
        Recorder.link_lost(self.events, site, incarnation, reason, end_of_file)
        self.probe.link_lost(site, reason)


async def linked(folder: Path) -> tuple[ProbedSite, ProbedSite]:
    a, b = ProbedSite(folder, "a"), ProbedSite(folder, "b")
    await link(a, b)
    return a, b


async def finish(*sites: ProbedSite) -> None:
    for site in sites:
        await site.probe.close()
    await close(*sites)


TRIES = 12


async def until_found(probe: Callable[[], Awaitable[bool]]) -> None:
    """Other work on the machine makes a link look slow: one undisturbed probe will do."""
    for _ in range(TRIES):
        if await probe():
            return
    raise AssertionError(f"none of {TRIES} probes found the rate")


def test_the_probe_finds_rate_and_round_trip_of_a_shaped_link_both_ways(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        a.transport.shape(b.id, LinkShape(rate_bytes_per_s=8e6, latency_s=0.01))
        b.transport.shape(a.id, LinkShape(rate_bytes_per_s=2e6, latency_s=0.01))

        async def both() -> bool:
            there, back = await asyncio.gather(a.probe.measure(b.id), b.probe.measure(a.id))
            assert there.method == "built-in" and there.bytes <= 8 << 20
            assert there.rtt_s > 0.019 and back.rtt_s > 0.019, "light is never faster"
            rates = (there.rate_bytes_per_s, back.rate_bytes_per_s)
            found = rates == pytest.approx((8e6, 2e6), rel=0.35) and max(there.rtt_s, back.rtt_s) < 0.2
            return found and there.seconds < 1.5

        await until_found(both)
        await finish(a, b)

    run(loop_kind, main)


def test_a_probe_is_bounded_in_bytes_on_a_fast_link_and_in_time_on_a_slow_one(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)

        async def fast_enough() -> bool:
            fast = await a.probe.measure(b.id, bytes_max=1 << 20)
            assert fast.bytes == (1 << 20) - FRAME_BYTES
            return fast.rate_bytes_per_s > 1e7

        await until_found(fast_enough)
        a.transport.shape(b.id, LinkShape(rate_bytes_per_s=1e6))

        async def bounded() -> bool:
            slow = await a.probe.measure(b.id, seconds_max=0.1)
            assert slow.bytes <= 6 * FRAME_BYTES
            return slow.rate_bytes_per_s == pytest.approx(1e6, rel=0.35)

        await until_found(bounded)
        await finish(a, b)

    run(loop_kind, main)


@pytest.mark.parametrize("rate", [1e5, 2e3])
def test_a_link_too_slow_for_a_burst_is_measured_all_the_same(loop_kind: str, tmp_path: Path, rate: float) -> None:
    """The least burst is 256 KiB. At 2 kB/s no ping with a payload comes back either: it carries that much at most."""

    async def main() -> None:
        a, b = await linked(tmp_path)
        a.transport.shape(b.id, LinkShape(rate_bytes_per_s=rate))
        slow = await a.probe.measure(b.id, timeout_s=0.5)
        assert slow.rate_bytes_per_s < 2e5, "a rate, and not that it did not answer"
        assert rate > 1e4 or slow.rate_bytes_per_s == pytest.approx(SIZED_PING_BYTES / (0.9 * 0.5), rel=0.2)
        await finish(a, b)

    run(loop_kind, main)


class Slowed:
    """A transport whose link takes this rate as soon as a burst begins."""

    def __init__(self, site: ProbedSite, other: ProbedSite, rate_bytes_per_s: float) -> None:
        self._site, self._other, self._rate_bytes_per_s = site, other, rate_bytes_per_s

    async def send_bulk(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> None:
        if msgpack.unpackb(header)["kind"] == PROBE_BURST:
            self._site.transport.shape(self._other.id, LinkShape(rate_bytes_per_s=self._rate_bytes_per_s))
        await self._site.transport.send_bulk(site, stream, header, payload)


def test_a_link_that_grows_too_slow_for_the_burst_is_measured_all_the_same(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        a.probe = LinkProbe(Slowed(a, b, 2e3))
        slow = await a.probe.measure(b.id, timeout_s=2.0)
        assert slow.rate_bytes_per_s <= 4 * FRAME_BYTES / 2.0, "a rate, and not that it did not answer"
        await finish(a, b)

    run(loop_kind, main)


def test_a_probe_that_is_not_answered_says_so(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        b.deaf = True
        with pytest.raises(ProbeError, match="did not answer"):
            await a.probe.measure(b.id, timeout_s=0.1)
        b.deaf = False
        assert (await a.probe.measure(b.id)).rate_bytes_per_s > 0
        await finish(a, b)

    run(loop_kind, main)


def test_a_probe_ends_with_its_link(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        b.deaf = True
        probing = asyncio.ensure_future(a.probe.measure(b.id, timeout_s=60))
        await asyncio.sleep(0.02)
        begun_s = time.monotonic()
        b.transport.close_link(a.id, "over")
        with pytest.raises(ProbeError, match="was lost"):
            await probing
        assert time.monotonic() - begun_s < 30
        await finish(a, b)

    run(loop_kind, main)


def test_headers_that_break_the_rules_are_refused_and_the_rate_is_of_the_second_half(
    loop_kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        for header in (
            b"",
            b"\xc1",
            encode(ProbeHeader(kind="probe.else", id=1)),
            msgpack.packb({"kind": 1, "id": -1}),
        ):
            with pytest.raises(PeerProtocolError):
                a.probe.bulk_received(b.id, 1, header)
        made = report(7, [0.0, 1.0, 2.0, 2.5, 3.0])  # slow at first
        assert made.rate_bytes_per_s == pytest.approx(2 * FRAME_BYTES) and made.seconds == 3.0
        await finish(a, b)

    run(loop_kind, main)
