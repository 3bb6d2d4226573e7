"""The shaper under virtual time: exact rates and latencies, and control before bulk. No sockets, no waiting."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.rigs.virtual_time import run

from chaos_lab.links.shape import LinkShape
from chaos_lab.links.shaper import LinkShaper
from chaosd.addresses import join_address, split_address
from chaosd.transport.errors import LinkClosed
from chaosd.transport.settings import CONTROL_QUEUE_BYTES_MAX, TransportSettings


class FakeChannel:
    def __init__(self) -> None:
        self.paused = False
        self.written: list[tuple[float, bytes]] = []

    def write(self, data: bytes) -> None:
        self.written.append((asyncio.get_running_loop().time(), bytes(data)))


class FakeConnection:
    """What the shaper uses of a connection."""

    def __init__(self) -> None:
        self.channel = FakeChannel()
        self.is_open = True
        self.closed_s: float | None = None

    def close(self, reason: str) -> None:
        self.closed_s = asyncio.get_running_loop().time()

    abort = close

    @property
    def received(self) -> bytes:
        return b"".join(data for _, data in self.channel.written)

    @property
    def last_s(self) -> float:
        return self.channel.written[-1][0]


def shaper_of(**shape: Any) -> LinkShaper:
    return LinkShaper(LinkShape(**shape))


async def resolve(shaper: LinkShaper) -> None:
    while not shaper.is_empty:  # noqa: ASYNC110 - virtual time costs nothing
        await asyncio.sleep(0.001)


@pytest.fixture(params=[1e5, 1e7, 1e9])
def rate(request: pytest.FixtureRequest) -> float:
    return float(request.param)


def test_bytes_arrive_at_the_rate_and_after_the_latency(rate: float) -> None:
    async def main() -> None:
        shaper, link = shaper_of(rate_bytes_per_s=rate, latency_s=0.05), FakeConnection()
        data = random.Random(1).randbytes(int(rate / 10))
        for start in range(0, len(data), 256 << 10):
            await shaper.bulk(link, data[start : start + (256 << 10)])  # type: ignore[arg-type]
        await resolve(shaper)
        assert link.received == data
        assert link.last_s == pytest.approx(0.1 + 0.05, rel=0.02)
        half_s = next(
            at for index, (at, _) in enumerate(link.channel.written) if index * 2 >= len(link.channel.written)
        )
        assert half_s == pytest.approx(0.05 + 0.05, rel=0.25), "evenly, not in a burst"

    run(main)


def test_a_control_frame_passes_the_bulk_that_waits() -> None:
    async def main() -> None:
        shaper, bulk, control = shaper_of(rate_bytes_per_s=1e6), FakeConnection(), FakeConnection()
        sending = asyncio.ensure_future(shaper.bulk(bulk, bytes(1_000_000)))  # type: ignore[arg-type]
        await asyncio.sleep(0.3)
        assert shaper.control(control, b"now")  # type: ignore[arg-type]
        await resolve(shaper)
        await sending
        assert 0.3 <= control.last_s <= 0.32
        assert bulk.last_s == pytest.approx(1.0, rel=0.02)

    run(main)


def test_two_streams_share_one_bucket() -> None:
    async def main() -> None:
        shaper, one, other = shaper_of(rate_bytes_per_s=1e6), FakeConnection(), FakeConnection()
        await asyncio.gather(*(shaper.bulk(link, bytes(500_000)) for link in (one, other)))  # type: ignore[arg-type]
        await resolve(shaper)
        assert max(one.last_s, other.last_s) == pytest.approx(1.0, rel=0.02)

    run(main)


def test_an_idle_link_saves_up_no_rate() -> None:
    async def main() -> None:
        shaper, link = shaper_of(rate_bytes_per_s=1e6), FakeConnection()
        await asyncio.sleep(5)
        await shaper.bulk(link, bytes(1_000_000))  # type: ignore[arg-type]
        await resolve(shaper)
        assert link.last_s == pytest.approx(6.0, rel=0.01)

    run(main)


def test_nothing_passes_a_cut_and_everything_after_it() -> None:
    async def main() -> None:
        shaper, link = shaper_of(cut_out=True), FakeConnection()
        assert shaper.control(link, b"a")  # type: ignore[arg-type]
        sending = asyncio.ensure_future(shaper.bulk(link, b"b"))  # type: ignore[arg-type]
        await asyncio.sleep(100)
        assert not link.channel.written and not sending.done()
        shaper.change(LinkShape())
        await sending
        assert link.received == b"ab"

    run(main)


def test_shortening_the_latency_keeps_the_order() -> None:
    async def main() -> None:
        shaper, link = shaper_of(latency_s=1.0), FakeConnection()
        shaper.control(link, b"first")  # type: ignore[arg-type]
        shaper.change(LinkShape(latency_s=0.1))
        shaper.control(link, b"second")  # type: ignore[arg-type]
        shaper.change(LinkShape())
        shaper.control(link, b"third")  # type: ignore[arg-type]
        await resolve(shaper)
        assert link.received == b"firstsecondthird"

    run(main)


def test_a_stream_that_does_not_take_bytes_does_not_stop_the_other() -> None:
    async def main() -> None:
        shaper, stuck, other = shaper_of(rate_bytes_per_s=1e6), FakeConnection(), FakeConnection()
        stuck.channel.paused = True
        waiting = asyncio.ensure_future(shaper.bulk(stuck, b"x"))  # type: ignore[arg-type]
        await shaper.bulk(other, bytes(1000))  # type: ignore[arg-type]
        assert not waiting.done()
        stuck.channel.paused = False
        shaper.kick()
        await waiting

    run(main)


def test_a_close_comes_after_what_was_queued_and_ends_the_waiting_sends() -> None:
    async def main() -> None:
        shaper, link = shaper_of(rate_bytes_per_s=1000, latency_s=0.5), FakeConnection()
        shaper.control(link, bytes(500))  # type: ignore[arg-type]
        waiting = asyncio.ensure_future(shaper.bulk(link, bytes(10_000)))  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        shaper.close(link, "over")  # type: ignore[arg-type]
        with pytest.raises(LinkClosed, match="over"):
            await waiting
        await resolve(shaper)
        assert link.closed_s is not None and link.closed_s >= link.last_s == pytest.approx(1.0)

    run(main)


def test_the_control_queue_of_a_cut_link_is_bounded() -> None:
    async def main() -> None:
        shaper, link = shaper_of(cut_out=True), FakeConnection()
        frame = bytes(1 << 20)
        taken = sum(shaper.control(link, frame) for _ in range(100))  # type: ignore[arg-type]
        assert taken == CONTROL_QUEUE_BYTES_MAX // len(frame)
        shaper.stop()
        assert shaper.is_empty

    run(main)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate_bytes_per_s": 0},
        {"rate_bytes_per_s": float("nan")},
        {"latency_s": -1},
        {"corrupt_probability": 2, "corrupt_random": random.Random(0)},
        {"corrupt_probability": 0.5},
    ],
)
def test_a_wrong_shape_names_its_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"rate_bytes_per_s|latency_s|corrupt_probability|corrupt_random"):
        LinkShape(**wrong)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("listen_port", 70_000),
        ("bulk_streams", -1),
        ("bulk_streams", 1),
        ("bulk_streams", 17),
        ("handshake_timeout_s", 0),
        ("congestion", ""),
    ],
)
def test_a_wrong_setting_names_its_field(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field} = {value}"):
        TransportSettings(**{field: value})  # type: ignore[arg-type]


def test_addresses_are_read_and_written_the_same() -> None:
    for text, parts in (("h.example.org:7700", ("h.example.org", 7700)), ("[::1]:1", ("::1", 1))):
        assert split_address(text) == parts and join_address(*parts) == text
    for wrong in ("", "host", "host:", ":7", "host:0", "host:65536", "host:+7", "host:99999999999", "host:٣"):
        with pytest.raises(ValueError, match="host:port"):
            split_address(wrong)
