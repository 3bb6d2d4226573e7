"""Bulk and control frames over real sockets: intact, in the memory that was given, with bounded memory in between."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from pathlib import Path

import pytest
from tests.rigs.transport import LOOPS, Site, close, link, linked, run, until

from chaos_protocols.names import BULK_HEADER_BYTES_MAX, BULK_PAYLOAD_BYTES_MAX, CONTROL_FRAME_BYTES_MAX
from chaosd.transport import LinkClosed, LinkUsageError

pytestmark = pytest.mark.parametrize("loop_kind", LOOPS)


def test_bulk_payloads_of_any_size_land_intact_in_the_given_memory(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        rng = random.Random(7)
        sizes = [0, 1, 7, 16_383, 16_384, 16_385, 65_535, 73_728, 262_144, 1_048_577, 5_000_000, BULK_PAYLOAD_BYTES_MAX]
        sizes += [rng.randrange(200_000) for _ in range(40)]
        payloads = [rng.randbytes(size) for size in sizes]
        headers = [b"%d " % index + bytes(rng.randrange(100)) for index in range(len(sizes))]
        headers[3] = b"long" + bytes(BULK_HEADER_BYTES_MAX - 4)
        arena = memoryview(bytearray(sum(sizes)))
        offset = 0
        for header, payload in zip(headers, payloads, strict=True):
            b.events.buffers[header] = arena[offset : offset + len(payload)]
            offset += len(payload)
        for index, (header, payload) in enumerate(zip(headers, payloads, strict=True)):
            await a.transport.send_bulk(b.id, index % 2, header, payload)
        await until(lambda: len(b.events.bulk) == len(sizes))
        assert bytes(arena) == b"".join(payloads)
        for stream in (0, 1):
            assert [bulk[1] for bulk in b.events.bulk if bulk[0] == stream] == headers[stream::2], "in order"
        sent = sum(sizes) + sum(map(len, headers)) + 8 * len(sizes)
        assert b.transport.bulk_progress(a.id)[0] == sent == a.transport.bulk_progress(b.id)[1]
        await close(a, b)

    run(loop_kind, main)


def test_control_frames_of_any_size_arrive_whole_and_in_order(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        rng = random.Random(3)
        sizes = [0, 1, 4096, 73_727, 73_728, 73_729, CONTROL_FRAME_BYTES_MAX, 5] + [rng.randrange(3000)] * 500
        frames = [rng.randbytes(size) for size in sizes]
        for frame in frames:
            assert a.transport.send_control(b.id, frame)
        await until(lambda: len(b.events.frames) == len(frames))
        assert b.events.frames == frames
        with pytest.raises(LinkUsageError):
            a.transport.send_control(b.id, bytes(CONTROL_FRAME_BYTES_MAX + 1))
        with pytest.raises(LinkUsageError):
            await a.transport.send_bulk(b.id, 0, b"", bytes(BULK_PAYLOAD_BYTES_MAX + 1))
        await close(a, b)

    run(loop_kind, main)


def test_unwanted_payloads_are_discarded_and_the_stream_goes_on(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        await a.transport.send_bulk(b.id, 1, b"discard", bytes(3_000_000))
        await a.transport.send_bulk(b.id, 1, b"wanted", b"abc")
        await until(lambda: len(b.events.bulk) == 2)
        assert b.events.bulk[0] == (1, b"discard", None)
        assert b.events.bulk[1][1:] == (b"wanted", b"abc")
        await close(a, b)

    run(loop_kind, main)


def test_a_refused_payload_costs_its_stream_alone_and_a_dial_restores_it(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        # so many on purpose: a busy machine looks like a long way, for which there would be more
        a, b = (Site(tmp_path, name, bulk_streams=2) for name in "ab")
        await link(a, b)
        await a.transport.send_bulk(b.id, 1, b"refuse", bytes(100_000))
        await until(lambda: a.events.bulk_losses and b.events.bulk_losses)
        assert "this test takes no such payload" in b.events.bulk_losses[0][1]
        assert not a.events.losses and not b.events.losses
        with pytest.raises(LinkClosed):
            await a.transport.send_bulk(b.id, 1, b"x")
        await a.transport.send_bulk(b.id, 0, b"the other stream")
        await a.dial(b)
        assert a.transport.links()[0].streams == (0, 1)
        await a.transport.send_bulk(b.id, 1, b"again", b"payload")
        await until(lambda: len(b.events.bulk) == 2)
        assert len(a.events.ups) == 1
        await close(a, b)

    run(loop_kind, main)


def test_a_neighbour_that_does_not_read_bounds_the_senders_memory(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        for connection in b.transport._links[a.id].connections():
            connection.flow(False)
        payload = memoryview(bytearray(8 << 20))
        tracemalloc.start()
        sending = asyncio.ensure_future(send_many(a, b, payload, 16))
        last = -1
        while (sent := a.transport.bulk_progress(b.id)[1]) != last:  # until no more goes out
            last = sent
            await asyncio.sleep(0.05)
        assert not sending.done() and sent < 128 << 20
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        tracemalloc.stop()
        for connection in b.transport._links[a.id].connections():
            connection.flow(True)
        await sending
        await until(lambda: len(b.events.bulk) == 16)
        await close(a, b)

    run(loop_kind, main)


async def send_many(a: Site, b: Site, payload: memoryview, count: int) -> None:
    for _ in range(count):
        await a.transport.send_bulk(b.id, 1, b"discard", payload)


def test_a_full_control_queue_closes_the_link_with_the_reason(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        for connection in b.transport._links[a.id].connections():
            connection.flow(False)
        frame = bytes(1 << 20)
        sent = 0
        while a.transport.send_control(b.id, frame):
            sent += 1
            assert sent < 64, "the queue is not bounded"
            await asyncio.sleep(0)
        await until(lambda: a.events.losses)
        assert "did not take control frames" in a.events.losses[0][2] and not a.events.losses[0][3]
        await close(a, b)

    run(loop_kind, main)


def test_cancelled_sends_leave_the_stream_whole(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        rng = random.Random(11)
        for index in range(60):
            task = asyncio.ensure_future(a.transport.send_bulk(b.id, 1, b"%d" % index, bytes(2 << 20)))
            for _ in range(rng.randrange(12)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        await a.transport.send_bulk(b.id, 1, b"last", b"whole")
        await until(lambda: b.events.bulk and b.events.bulk[-1][1] == b"last")
        assert b.events.bulk[-1][2] == b"whole" and not b.events.bulk_losses
        assert all(len(payload or b"") == 2 << 20 for _, _, payload in b.events.bulk[:-1])
        await close(a, b)

    run(loop_kind, main)


def test_waiting_senders_are_told_when_the_link_closes(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        for connection in b.transport._links[a.id].connections():
            connection.flow(False)
        senders = [asyncio.ensure_future(send_many(a, b, memoryview(bytearray(8 << 20)), 8)) for _ in range(3)]
        await until(lambda: a.transport.bulk_progress(b.id)[1] > 1 << 20)
        a.transport.close_link(b.id, "enough")
        for result in await asyncio.gather(*senders, return_exceptions=True):
            assert isinstance(result, LinkClosed)
        await close(a, b)

    run(loop_kind, main)
