"""Frames on their way out: in order, dropped with their link, never sent over another connection."""

from __future__ import annotations

import asyncio
import logging

import pytest

from chaos_protocols.names import SiteId
from chaos_protocols.wire.bulk import BlockGone, decode_bulk_header
from chaosd.bulk import send_queue as bulk_outbox
from chaosd.bulk.send_queue import FIRST, Frame, SendQueue
from chaosd.bulk.vector import BufferPool
from chaosd.transport.errors import LinkClosed

A, B = SiteId("a"), SiteId("b")


class Sender:
    """Takes frames only while `gate` is open; `at_once` of them before a sender has to wait."""

    def __init__(self) -> None:
        self.at_once = 0
        self.gate = asyncio.Event()
        self.sent: list[tuple[SiteId, str]] = []
        self.fails: Exception | None = None

    async def send_bulk(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> None:
        await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        message = decode_bulk_header(header)
        assert isinstance(message, BlockGone)
        self.sent.append((site, message.transfer))

    def send_bulk_now(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> bool:
        if self.at_once and self.fails is not None:
            raise self.fails
        message = decode_bulk_header(header)
        assert isinstance(message, BlockGone)
        if self.at_once:
            self.at_once -= 1
            self.sent.append((site, message.transfer))
            return True
        return False

    def bulk_progress(self, site: SiteId) -> tuple[int, int]:
        return 0, 0


def frame(name: str) -> Frame[str]:
    return Frame(key=name, header=BlockGone(transfer=name))


async def rounds_of_the_loop() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_frames_go_out_in_order_and_unwanted_ones_do_not() -> None:
    sender = Sender()
    outbox: SendQueue[str] = SendQueue(sender, 1, lambda site: None)
    outbox.link_up(A)
    assert outbox.is_up(A) and not outbox.is_up(B)
    outbox.put(B, frame("nobody"))
    for name in ("one", "two", "three"):
        outbox.put(A, frame(name))
    await rounds_of_the_loop()
    outbox.drop(lambda key: key == "two")
    sender.gate.set()
    await rounds_of_the_loop()
    assert sender.sent == [(A, "one"), (A, "three")]
    await outbox.close()


async def test_frames_of_one_turn_go_by_rank_and_those_of_others_keep_their_places() -> None:
    """The first is on its way when the rest is put there. Of equal rank who came first goes first."""
    sender = Sender()
    outbox: SendQueue[str] = SendQueue(sender, 1, lambda site: None)
    outbox.link_up(A)
    outbox.put(A, frame("under way"))
    await rounds_of_the_loop()
    put = [("r1 9", 1, 9), ("r1 2", 1, 2), ("r1 5", 1, 5), ("r1 grant", 1, FIRST), ("r1 want", 1, FIRST)]
    put += [("alone 1", None, 7), ("alone 2", None, 3), ("r1 0", 1, 0), ("r2 4", 2, 4), ("r2 3", 2, 3)]
    for name, turn, rank in put:
        outbox.put(A, Frame(key=name, header=BlockGone(transfer=name), turn=turn, rank=rank))
    outbox.drop(lambda key: key == "r1 2")
    sender.gate.set()
    await rounds_of_the_loop()
    expected = ["under way", "r1 grant", "r1 want", "r1 5", "r1 9", "alone 1", "alone 2", "r1 0", "r2 3", "r2 4"]
    assert [name for _, name in sender.sent] == expected
    await outbox.close()


async def test_what_the_link_takes_at_once_goes_without_a_task_and_the_rest_follows_in_order() -> None:
    sender = Sender()
    sender.at_once = 2
    outbox: SendQueue[str] = SendQueue(sender, 1, lambda site: None)
    outbox.link_up(A)
    outbox.put(A, frame("one"))
    before = asyncio.all_tasks()
    await asyncio.sleep(0)
    assert sender.sent == [(A, "one")] and asyncio.all_tasks() == before
    for name in ("two", "three", "four"):
        outbox.put(A, frame(name))
    await rounds_of_the_loop()
    assert sender.sent == [(A, "one"), (A, "two")]
    sender.at_once = 1
    outbox.put(A, frame("five"))  # not past those that wait
    await rounds_of_the_loop()
    assert sender.sent == [(A, "one"), (A, "two")]
    sender.gate.set()
    await rounds_of_the_loop()
    assert [name for _, name in sender.sent] == ["one", "two", "three", "four", "five"]
    await outbox.close()


def two_with_buffers(sender: Sender) -> tuple[SendQueue[str], BufferPool]:
    """Two frames were put whose bytes lie in buffers of the pool."""
    pool = BufferPool(8, kept_max=4)
    outbox: SendQueue[str] = SendQueue(sender, 1, lambda site: None)
    outbox.link_up(A)
    for name in ("one", "two"):
        buffer = pool.take()
        outbox.put(A, Frame(key=name, header=BlockGone(transfer=name), payload=buffer.view(0, 8), buffer=buffer))
    return outbox, pool


async def test_a_link_that_is_closed_when_a_frame_is_to_go_at_once_takes_all_along() -> None:
    sender = Sender()
    sender.at_once, sender.fails = 1, LinkClosed("gone")
    outbox, pool = two_with_buffers(sender)
    await rounds_of_the_loop()
    assert (pool.taken, sender.sent) == (0, [])
    await outbox.close()


async def test_a_lost_link_takes_its_frames_along_and_gives_their_buffers_back() -> None:
    sender = Sender()
    outbox, pool = two_with_buffers(sender)
    await rounds_of_the_loop()
    outbox.link_up(A)
    outbox.put(A, frame("new"))
    sender.fails = LinkClosed("gone")
    sender.gate.set()
    await rounds_of_the_loop()
    assert pool.taken == 0
    assert sender.sent == []
    outbox.put(A, frame("after the stream was lost"))
    sender.fails = None
    outbox.link_up(A)
    outbox.put(A, frame("again"))
    await rounds_of_the_loop()
    assert sender.sent == [(A, "again")]
    await outbox.close()


async def test_a_neighbour_that_takes_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_outbox, "FRAMES_QUEUED_MAX", 3)
    overflowed: list[SiteId] = []
    sender = Sender()
    outbox: SendQueue[str] = SendQueue(sender, 1, overflowed.append)
    outbox.link_up(A)
    for number in range(5):
        outbox.put(A, frame(str(number)))
    assert overflowed == [A]
    sender.gate.set()
    await rounds_of_the_loop()
    assert sender.sent == []
    await outbox.close()


async def test_a_defect_of_the_sender_is_logged_and_closing_ends_what_runs(caplog: pytest.LogCaptureFixture) -> None:
    sender = Sender()
    outbox: SendQueue[str] = SendQueue(sender, 1, lambda site: None)
    outbox.link_up(A)
    outbox.link_up(B)
    sender.fails = RuntimeError("a defect")
    sender.gate.set()
    with caplog.at_level(logging.ERROR):
        outbox.put(A, frame("one"))
        await rounds_of_the_loop()
    assert "a defect" in caplog.text
    sender.gate.clear()
    outbox.put(B, frame("two"))
    await rounds_of_the_loop()
    await outbox.close()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
