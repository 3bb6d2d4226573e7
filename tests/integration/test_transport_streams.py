"""Several bulk streams of a link: brought up where the path asks for them, used by states, averaging before states."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.rigs.transport import LOOPS, Site, close, linked, run, start, until

from chaos_lab.links.shape import LinkShape
from chaosd.transport import link as link_module

pytestmark = pytest.mark.parametrize("loop_kind", LOOPS)

MIB = 1 << 20


def streams(site: Site) -> tuple[int, ...]:
    (link,) = site.transport.links()
    return link.streams


def test_a_short_path_has_two_streams_and_one_for_states(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        assert streams(a) == streams(b) == (0, 1)
        assert a.transport.state_streams(b.id) == (1,)
        assert a.transport.state_streams(a.id) == ()
        await close(a, b)

    run(loop_kind, main)


def test_a_long_path_gets_further_streams_once_the_link_is_up(
    loop_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "round_trip_s", lambda _: 0.08)

    async def main() -> None:
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b)
        await a.dial(b)
        await until(lambda: streams(a) == (0, 1, 2, 3) and b.neighbours and streams(b) == (0, 1, 2, 3))
        for near, far in ((a, b), (b, a)):
            assert near.transport.state_streams(far.id) == (1, 2, 3)
            await near.transport.send_bulk(far.id, 3, b"over the last one", b"x" * 1000)
            await until(lambda far=far: far.events.bulk)
        assert not a.events.bulk_losses and not b.events.bulk_losses
        await close(a, b)

    run(loop_kind, main)


def test_further_streams_that_are_under_way_do_not_hold_up_the_end(
    loop_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "round_trip_s", lambda _: 0.08)

    async def main() -> None:
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b)
        await a.dial(b)
        await close(a, b)

    run(loop_kind, main)


def test_a_payload_that_is_forgotten_is_not_written_any_more_and_the_stream_goes_on(
    loop_kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        place = b.events.buffers[b"first"] = memoryview(bytearray(4 * MIB))
        a.transport.shape(b.id, LinkShape(rate_bytes_per_s=8e6))
        sending = asyncio.ensure_future(a.transport.send_bulk(b.id, 1, b"first", b"\x01" * len(place)))
        await until(lambda: any(place[:1000]))
        b.transport.forget_payload(a.id, 1)
        held = bytes(place)
        assert held.count(1) < len(held), "still under way"
        await sending
        await a.transport.send_bulk(b.id, 1, b"second", b"y")
        await until(lambda: len(b.events.bulk) == 2)
        assert bytes(place) == held
        assert [(header, payload is None) for _, header, payload in b.events.bulk] == [
            (b"first", True),
            (b"second", False),
        ]
        b.transport.forget_payload(a.id, 1)
        b.transport.forget_payload(b.id, 1)
        await close(a, b)

    run(loop_kind, main)


def test_a_round_goes_before_a_state_on_a_busy_link_and_the_state_is_not_starved(
    loop_kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        a.transport.shape(b.id, LinkShape(rate_bytes_per_s=10e6))
        state = asyncio.ensure_future(send_many(a, b, 1, 24))
        await until(lambda: b.events.bulk)
        await send_many(a, b, 0, 8)
        during = sum(1 for stream, _, _ in b.events.bulk if stream == 1)
        assert not state.done()
        await state
        assert 2 <= during < 7, "a share is left to the state, and less than half of the link"
        await close(a, b)

    run(loop_kind, main)


async def send_many(a: Site, b: Site, stream: int, count: int) -> None:
    for number in range(count):
        await a.transport.send_bulk(b.id, stream, b"%d" % number, bytes(MIB // 2))
