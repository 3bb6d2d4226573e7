"""Who is listened to on the workers' socket, and what a line's end says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.unit.protocols.worker_group.group_bench import hello

from chaos_protocols.worker_group.messages import (
    ControllerMessage,
    Done,
    Finish,
    Go,
    StoreSet,
    WorkerMessage,
    encode,
    frame_size,
    from_controller,
)
from chaosd.worker_group import lines as module
from chaosd.worker_group.lines import WorkerLines

LIMIT_S = 30.0
HELLO = hello(3)


class Told:
    """What the controller would be told."""

    def __init__(self) -> None:
        self.said: list[tuple[int, WorkerMessage]] = []
        self.ended: list[tuple[int, str]] = []
        self.unread: list[int] = []
        self.lines = WorkerLines(HELLO.token, said=self._said, ended=self._ended, unread=self.unread.append)
        self._changed = asyncio.Event()

    def _said(self, worker: int, message: WorkerMessage) -> None:
        self.said.append((worker, message))
        self._changed.set()

    def _ended(self, worker: int, reason: str) -> None:
        self.ended.append((worker, reason))
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


Story = Callable[[Told, asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def play(folder: Path, story: Story) -> Told:
    """A worker's end, and the controller's."""

    async def run() -> Told:
        told = Told()
        await told.lines.listen(folder / "group.sock")
        reader, writer = await asyncio.open_unix_connection(folder / "group.sock")
        try:
            await story(told, reader, writer)
        finally:
            told.lines.close()
            writer.close()
        return told

    return asyncio.run(run())


async def heard(reader: asyncio.StreamReader) -> ControllerMessage:
    async with asyncio.timeout(LIMIT_S):
        return from_controller(await reader.readexactly(frame_size(await reader.readexactly(4))))


def test_messages_are_taken_in_order_however_their_bytes_are_cut(tmp_path: Path) -> None:
    messages = [HELLO, StoreSet(generation=1, key="k", value=b"v" * 1000), Done(step=4)]

    async def story(told: Told, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = b"".join(map(encode, messages))
        for cut in (data[:2], data[2:9], data[9:-1], data[-1:]):
            writer.write(cut)
            await writer.drain()
            await asyncio.sleep(0.01)
        await told.until(lambda: len(told.said) == 3)
        assert 3 in told.lines
        writer.close()
        await told.until(lambda: bool(told.ended))
        assert 3 not in told.lines

    told = play(tmp_path, story)
    assert told.said == [(3, each) for each in messages] and told.ended == [(3, "")]


def test_who_does_not_know_the_token_is_not_listened_to(tmp_path: Path) -> None:
    async def story(told: Told, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(hello(3, token="other")) + encode(Done(step=1)))
        async with asyncio.timeout(LIMIT_S):
            assert await reader.read() == b""

    told = play(tmp_path, story)
    assert told.said == [] and told.ended == []


def test_a_second_process_that_calls_itself_the_same_worker_is_told_so_and_the_first_is_heard_on(
    tmp_path: Path,
) -> None:
    async def story(told: Told, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(HELLO))
        await told.until(lambda: bool(told.said))
        second_reader, second = await asyncio.open_unix_connection(tmp_path / "group.sock")
        second.write(encode(HELLO) + encode(Done(step=9)))
        answer = await heard(second_reader)
        assert isinstance(answer, Finish) and "worker 3 trains already, in another process" in answer.failed
        async with asyncio.timeout(LIMIT_S):
            assert await second_reader.read() == b""
        second.close()
        told.lines.send(3, Go(generation=1))
        assert await heard(reader) == Go(generation=1)
        writer.write(encode(Done(step=4)))
        await told.until(lambda: len(told.said) == 2)

    told = play(tmp_path, story)
    assert told.said == [(3, HELLO), (3, Done(step=4))] and told.ended == []


@pytest.mark.parametrize("nonsense", [(1 << 31).to_bytes(4, "big"), b"\x00\x00\x00\x01\xc1"])
def test_what_makes_no_sense_ends_the_line_with_the_reason(tmp_path: Path, nonsense: bytes) -> None:
    async def story(told: Told, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(HELLO) + nonsense)
        await told.until(lambda: bool(told.ended))
        async with asyncio.timeout(LIMIT_S):
            assert await reader.read() == b""

    told = play(tmp_path, story)
    assert [message for _, message in told.said] == [HELLO]
    assert len(told.ended) == 1 and told.ended[0][0] == 3 and told.ended[0][1]


def test_what_is_said_to_one_or_to_all_arrives_and_to_nobody_is_nothing(tmp_path: Path) -> None:
    async def story(told: Told, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(HELLO))
        await told.until(lambda: bool(told.said))
        first, second = Go(generation=1), Go(generation=2, hold=True)
        for worker, message in ((7, first), (3, first), (3, first), (3, second)):
            told.lines.send(worker, message)
        assert [await heard(reader) for _ in range(3)] == [first, first, second]

    assert play(tmp_path, story).unread == []


def test_what_one_worker_is_told_in_a_turn_leaves_in_one_piece_in_order(tmp_path: Path) -> None:
    orders = [Go(generation=number) for number in range(1, 4)]

    async def story(told: Told, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(HELLO))
        await told.until(lambda: bool(told.said))
        for order in orders:
            told.lines.send(3, order)
        async with asyncio.timeout(LIMIT_S):
            assert await reader.read(1 << 16) == b"".join(map(encode, orders)), "one read has all of it"
        told.lines.send(3, orders[0])
        told.lines.close()
        assert await heard(reader) == orders[0], "what was said before the end leaves before it"

    assert play(tmp_path, story).unread == []


def test_a_worker_that_does_not_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNSENT_BYTES_MAX", 1 << 16)

    async def story(told: Told, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(HELLO))
        await told.until(lambda: bool(told.said))
        for _ in range(200_000):
            told.lines.send(3, Go(generation=1))
            if told.unread:
                break

    assert play(tmp_path, story).unread == [3]
