"""The lab's shaped links over real sockets: rate, latency, cuts, corruption. What a machine with
other work does later than another one is no failure: asserted is what comes before what, and what cannot be sooner."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.rigs.transport import LOOPS, Site, close, linked, run, start, until

from chaos_lab.links.shape import LinkShape
from chaosd.transport import DialError

pytestmark = pytest.mark.parametrize("loop_kind", LOOPS)

CUT = LinkShape(cut_in=True, cut_out=True)
FREE = LinkShape()


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_rate_holds_over_both_streams_and_control_goes_first(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        a.transport.shape(b.id, LinkShape(rate_bytes_per_s=3e4))
        payload = bytes(1_600_000)
        sending = [asyncio.ensure_future(a.transport.send_bulk(b.id, stream, b"s", payload)) for stream in (0, 1)]
        await until(lambda: b.transport.bulk_progress(a.id)[0])
        assert a.transport.send_control(b.id, b"heartbeat")
        await until(lambda: b.events.frames)
        assert not b.events.bulk, "a control frame does not queue behind the minutes that the bulk would take"
        there, begun_s = sum(b.transport.bulk_progress(a.id)), now_s()
        a.transport.shape(b.id, LinkShape(rate_bytes_per_s=8e6))
        await asyncio.gather(*sending)
        await until(lambda: len(b.events.bulk) == 2)
        assert now_s() - begun_s > (3.1e6 - there) / 8e6, "what is left of 3.2 MB, at 8 MB/s"
        assert all(payload == received for _, _, received in b.events.bulk)
        await close(a, b)

    run(loop_kind, main)


def test_latency_delays_each_way_but_not_the_rate(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        a.transport.shape(None, LinkShape(latency_s=0.25))
        begun_s = now_s()
        for _ in range(100):
            a.transport.send_control(b.id, b"x")
            await a.transport.send_bulk(b.id, 0, b"h", bytes(1 << 14))
        await until(lambda: b.events.frames)
        assert now_s() - begun_s > 0.249
        await until(lambda: len(b.events.frames) == 100 and len(b.events.bulk) == 100)
        assert now_s() - begun_s < 20.0, "all frames are on their way at the same time, or 25 s would have passed"
        a.transport.send_control(b.id, b"there")
        b.transport.send_control(a.id, b"back")
        await until(lambda: a.events.frames)
        assert len(b.events.frames) == 100, "only the direction that is shaped"
        await until(lambda: len(b.events.frames) == 101)
        begun_s = now_s()
        a.transport.close_link(b.id, "late goodbye")
        await until(lambda: b.events.losses)
        assert now_s() - begun_s > 0.24, "the end of a link is no faster than its frames"
        await close(a, b)

    run(loop_kind, main)


def test_a_cut_is_silent_and_what_was_held_arrives_late(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        a.transport.shape(b.id, CUT)
        assert a.transport.send_control(b.id, b"into the void"), "a black hole reports nothing"
        assert b.transport.send_control(a.id, b"into the void")
        bulk = asyncio.ensure_future(a.transport.send_bulk(b.id, 1, b"h", bytes(100_000)))
        await asyncio.sleep(0.15)
        assert not a.events.frames and not b.events.frames and not b.events.bulk and not bulk.done()
        assert not a.events.losses and not b.events.losses
        a.transport.shape(b.id, FREE)
        await until(lambda: a.events.frames and b.events.frames and b.events.bulk)
        await bulk
        assert not a.events.losses and not b.events.losses
        await close(a, b)

    run(loop_kind, main)


def test_behind_a_cut_no_end_of_file_is_seen(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        a.transport.shape(b.id, CUT)
        a.transport.close_link(b.id, "silent too long")
        await until(lambda: a.events.losses)
        await asyncio.sleep(0.1)
        assert not b.events.losses, "b must find out by silence"
        with pytest.raises(DialError, match="in time"):
            await a.dial(b, timeout_s=0.1)
        a.transport.shape(b.id, FREE)
        await until(lambda: b.events.losses)
        await a.dial(b)
        await until(lambda: b.neighbours)

        a.transport.shape(b.id, CUT)
        await b.transport.close()  # as if that daemon had died
        await asyncio.sleep(0.1)
        assert len(a.events.losses) == 1
        a.transport.shape(b.id, FREE)
        await until(lambda: len(a.events.losses) == 2)
        assert a.events.losses[1][3], "now the end-of-file is seen"
        await close(a, b)

    run(loop_kind, main)


def test_a_cut_site_gets_no_answer_to_its_dial(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b)
        b.transport.shape(a.id, LinkShape(cut_in=True))
        with pytest.raises(DialError, match="in time"):
            await a.dial(b, timeout_s=0.15)
        b.transport.shape(a.id, FREE)
        await a.dial(b)
        await close(a, b)

    run(loop_kind, main)


def test_shapes_may_change_in_the_middle_of_frames(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        rng = random.Random(4)
        payload = rng.randbytes(3 << 20)
        sending = asyncio.ensure_future(send_all(a, b, payload, 12))
        for _ in range(60):
            await asyncio.sleep(0.003)
            rate = rng.choice((None, 2e7, 2e8))
            a.transport.shape(b.id, LinkShape(rate_bytes_per_s=rate, latency_s=rng.choice((0.0, 0.002, 0.02))))
        a.transport.shape(b.id, FREE)
        await sending
        await until(lambda: len(b.events.bulk) == 12)
        assert all(received == payload for _, _, received in b.events.bulk)
        await close(a, b)

    run(loop_kind, main)


async def send_all(a: Site, b: Site, payload: bytes, count: int) -> None:
    for index in range(count):
        await a.transport.send_bulk(b.id, index % 2, b"", payload)


def test_corruption_changes_one_byte_of_the_payloads_it_hits(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        a.transport.shape(b.id, LinkShape(corrupt_probability=0.5, corrupt_random=random.Random(9)))
        payload = bytes(300_000)
        for index in range(20):
            await a.transport.send_bulk(b.id, 1, b"%d" % index, payload)
        await until(lambda: len(b.events.bulk) == 20)
        changed = [300_000 - bytes(received or b"").count(0) for _, _, received in b.events.bulk]
        assert set(changed) == {0, 1} and 4 <= sum(changed) <= 16
        assert payload == bytes(300_000), "the sender's own memory stays as it is"
        await close(a, b)

    run(loop_kind, main)


@pytest.mark.parametrize("stream", [None, 0])
def test_a_record_that_fails_its_check_costs_that_connection_and_nothing_of_it_is_handed_on(
    loop_kind: str, tmp_path: Path, stream: int | None
) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        assert a.transport.break_record(b.id, stream)
        lost = b.events.losses if stream is None else b.events.bulk_losses
        await until(lambda: lost)
        assert "broke TLS" in str(lost[0])
        assert not b.events.frames and not b.events.bulk
        assert not a.transport.break_record(a.id, stream), "there is no such link"
        await close(a, b)

    run(loop_kind, main)


def test_corruption_spares_the_streams_below_its_first(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        shape = LinkShape(corrupt_probability=1.0, corrupt_random=random.Random(9), corrupt_stream_min=1)
        a.transport.shape(b.id, shape)
        for stream in (0, 1):
            await a.transport.send_bulk(b.id, stream, b"%d" % stream, bytes(1000))
        await until(lambda: len(b.events.bulk) == 2)
        changed = {stream: 1000 - bytes(received or b"").count(0) for stream, _, received in b.events.bulk}
        assert changed == {0: 0, 1: 1}
        await close(a, b)

    run(loop_kind, main)
