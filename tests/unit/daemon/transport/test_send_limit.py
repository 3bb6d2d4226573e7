"""At most so many bytes a second over all links: the rate, under virtual time, and whose turn it is."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.rigs.virtual_time import run
from tests.unit.daemon.transport.test_link import Written

from chaos_protocols.wire.bulk import STREAM_AVERAGING
from chaosd.transport.connection import PeerConnection
from chaosd.transport.send_limit import AHEAD_S, PIECE_BYTES_MIN, PIECE_S, SendLimit
from chaosd.transport.stream import PIECE_BYTES, BulkProgress, Stream, StreamOwner, cut

RATE = 1e6
"""Bytes per second."""


class Sending:
    """Some that send through one limit, each piece after piece; `went`: who, when, how much."""

    def __init__(self, limit: SendLimit) -> None:
        self.limit = limit
        self.went: list[tuple[str, float, int]] = []

    async def send(self, who: str, pieces: int, size_bytes: int, *, averaging: bool = False) -> None:
        for _ in range(pieces):
            await self.limit.turn(size_bytes, averaging=averaging)
            self.went.append((who, asyncio.get_running_loop().time(), size_bytes))

    def bytes_of(self, who: str, *, until_s: float = float("inf")) -> int:
        return sum(size for name, at_s, size in self.went if name == who and at_s <= until_s)


def test_all_together_send_no_more_than_the_rate() -> None:
    async def main() -> None:
        sending = Sending(SendLimit(RATE))
        await asyncio.gather(*(sending.send(name, 50, 20_000) for name in "abc"))
        for _, at_s, _ in sending.went:
            before = sum(size for _, other_s, size in sending.went if other_s <= at_s)
            assert before <= RATE * (at_s + 2 * AHEAD_S) + 20_000
        _, last_s, _ = sending.went[-1]
        assert last_s == pytest.approx(3 * 50 * 20_000 / RATE, rel=0.02)

    run(main)


def test_who_asked_first_goes_first_and_links_share() -> None:
    async def main() -> None:
        sending = Sending(SendLimit(RATE))
        await asyncio.gather(*(sending.send(name, 20, 20_000) for name in "abcd"))
        names = [name for name, _, _ in sending.went]
        assert all({*names[at : at + 4]} == {*"abcd"} for at in range(1, 73))

    run(main)


def test_averaging_goes_first_and_a_quarter_is_left_for_states() -> None:
    async def main() -> None:
        sending = Sending(SendLimit(RATE))
        rounds = [sending.send(f"round {number}", 40, 20_000, averaging=True) for number in range(2)]
        await asyncio.gather(*rounds, *(sending.send("state", 40, 20_000) for _ in range(4)))
        busy_s = 80 * 20_000 / (0.75 * RATE)
        assert sending.bytes_of("state", until_s=busy_s) == pytest.approx(0.25 * RATE * busy_s, rel=0.1)
        assert max(at_s for name, at_s, _ in sending.went if name != "state") == pytest.approx(busy_s, rel=0.05)

    run(main)


@pytest.mark.parametrize("first", ["averaging", "state"])
def test_who_comes_late_has_nothing_to_make_up_for(first: str) -> None:
    """However much the other one has sent before."""

    async def main() -> None:
        sending = Sending(SendLimit(RATE))
        other = "state" if first == "averaging" else "averaging"
        before = asyncio.ensure_future(sending.send(first, 500, 20_000, averaging=first == "averaging"))
        await asyncio.sleep(2.0)
        await sending.send(other, 25, 20_000, averaging=other == "averaging")
        ends_s = asyncio.get_running_loop().time()
        share = 0.25 if other == "state" else 0.75
        assert ends_s - 2.0 == pytest.approx(25 * 20_000 / (share * RATE), rel=0.15)
        before.cancel()

    run(main)


def test_a_limit_that_is_changed_counts_at_once_and_one_that_is_lifted_lets_all_go() -> None:
    async def main() -> None:
        loop, sending = asyncio.get_running_loop(), Sending(SendLimit(RATE / 100))
        task = asyncio.ensure_future(sending.send("a", 30, 20_000))
        await asyncio.sleep(1.0)
        assert len(sending.went) == 1, "two seconds each"
        sending.limit.change(RATE)
        await asyncio.sleep(0.1)
        assert len(sending.went) == pytest.approx(6, abs=1)
        sending.limit.change(0.0)
        await task
        assert loop.time() == pytest.approx(1.1)
        sending.limit.change(RATE)
        begun_s = loop.time()
        await sending.send("a", 11, 20_000)
        assert loop.time() - begun_s == pytest.approx(0.2, abs=0.03), "what went without a limit is no debt"

    run(main)


def test_who_goes_away_costs_the_others_nothing() -> None:
    async def main() -> None:
        sending = Sending(SendLimit(RATE))
        gone = [asyncio.ensure_future(sending.send("gone", 1, 10_000_000)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        await sending.send("here", 1, 20_000)
        assert asyncio.get_running_loop().time() <= 10.0, "the first one went, and that was all"
        assert [name for name, _, _ in sending.went] == ["here"] or sending.bytes_of("gone") == 10_000_000

    run(main)


class Owner:
    """What a stream needs of its link."""

    def __init__(self, limit: SendLimit) -> None:
        self.progress, self.send_limit = BulkProgress(), limit
        self.is_averaging = True


@pytest.mark.parametrize("number", [STREAM_AVERAGING, 1])
@pytest.mark.parametrize("rate", [2_000.0, RATE, 1e9])
def test_a_frame_goes_whole_in_pieces_that_suit_the_rate(rate: float, number: int) -> None:
    """At 16 kbit/s, 8 Mbit/s and 8 Gbit/s."""

    async def main() -> None:
        loop, channel = asyncio.get_running_loop(), Written()
        connection: Any = type("Established", (), {"stream": number, "is_open": True, "channel": channel})()
        owner = Owner(SendLimit(rate))
        stream = Stream(cast(PeerConnection, connection), cast(StreamOwner, owner))
        stream._ahead = None  # no system below
        payload = memoryview(bytes(range(256)) * 8192)
        await stream.send(b"header", payload)
        assert b"".join(channel.writes) == b"".join(cut(b"header", payload))
        assert owner.progress.sent_bytes == len(b"".join(channel.writes))
        most = max(PIECE_BYTES_MIN, min(PIECE_BYTES, rate * PIECE_S)) + 64  # of the prefix
        assert max(map(len, channel.writes)) <= most
        assert loop.time() == pytest.approx(len(payload) / rate, rel=0.05, abs=2 * AHEAD_S)

    run(main)
