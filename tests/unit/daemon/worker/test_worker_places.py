"""Whose place it is: a second worker of the same process, and one of another, against real sockets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from tests.unit.daemon.worker.worker_kit import Client, Recorder, hello_message, memory, specs

from chaos_protocols.wire.worker import RoundContributed, TrainFrom, WorkerRefused, encode
from chaosd.worker import server as worker_server
from chaosd.worker.channel import Peer
from chaosd.worker.server import WorkerServer

Served = tuple[WorkerServer, Recorder]
Connect = Callable[[], Client]


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    with tempfile.TemporaryDirectory(prefix="cw") as folder:
        recorder = Recorder()
        server = WorkerServer(Path(folder) / "w", recorder)
        await server.start()
        yield server, recorder
        await server.close()
        recorder.close()


@pytest_asyncio.fixture
async def connect(served: Served) -> AsyncIterator[Connect]:
    clients: list[Client] = []

    def open_client() -> Client:
        clients.append(Client(served[0].path))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()


async def test_a_worker_of_another_process_knocks_with_the_rivals_number_and_may_be_turned_away(
    served: Served, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, recorder = served
    first = connect()
    await first.say_hello(hello_message(), memory(specs()[2]))
    await recorder.until(lambda: recorder.hellos)
    monkeypatch.setattr(worker_server, "peer_of", lambda _: Peer(uid=os.geteuid(), pid=os.getppid()))
    second = connect()
    await second.say_hello(hello_message(), memory(specs()[2]))
    refusal = await second.receive()
    assert isinstance(refusal, WorkerRefused) and f"process {os.getpid()}" in refusal.reason
    assert await second.ends()
    assert len(recorder.hellos) == 1 and not recorder.losses
    assert server.send(TrainFrom(round=1)) and await first.receive() == TrainFrom(round=1)


async def test_a_new_start_in_the_same_process_takes_the_place_and_the_older_one_is_told(
    served: Served, connect: Connect
) -> None:
    server, recorder = served
    first, second = connect(), connect()
    await first.say_hello(hello_message(), memory(specs()[2]))
    await recorder.until(lambda: recorder.hellos)
    await second.say_hello(hello_message(), memory(specs()[2]))
    told = await first.receive()
    assert isinstance(told, WorkerRefused) and "taken its place" in told.reason
    await first.send(encode(RoundContributed(round=1, weight=1)))
    assert await first.ends()
    assert server.send(TrainFrom(round=1)) and await second.receive() == TrainFrom(round=1)
    assert recorder.losses == [] and recorder.messages == [], "what the older one still says counts no more"


@pytest.mark.parametrize(("kernel", "told"), [(os.getppid(), os.getppid()), (0, None)])
async def test_the_number_of_the_workers_process_is_what_the_system_says_and_not_what_it_says_itself(
    served: Served, connect: Connect, monkeypatch: pytest.MonkeyPatch, kernel: int, told: int | None
) -> None:
    """In a container it has another one, which here is some other process: that one would be killed by `on_hang`."""
    monkeypatch.setattr(worker_server, "peer_of", lambda _: Peer(uid=os.geteuid(), pid=kernel))
    server, recorder = served
    assert server.pid is None
    worker = connect()
    await worker.say_hello(hello_message(pid=-7), memory(specs()[2]))
    await recorder.until(lambda: recorder.hellos)
    assert server.pid == told
    worker.close()
    await recorder.until(lambda: recorder.losses)
    assert server.pid is None


async def test_a_refusal_that_was_looked_into_is_for_the_worker_that_it_was_meant_for(
    served: Served, connect: Connect
) -> None:
    """A neighbour is asked where the models differ; meanwhile the right script has come. It was sent away, and nobody
    told the machine: rounds waited for it."""
    server, recorder = served
    first, second = connect(), connect()
    await first.say_hello(hello_message(), memory(specs()[2]))
    await recorder.until(lambda: len(recorder.hellos) == 1)
    late, in_time = server.refusal(), server.refusal
    await second.say_hello(hello_message(), memory(specs()[2]))
    await recorder.until(lambda: len(recorder.hellos) == 2)
    late("another model")
    assert server.connected and server.send(TrainFrom(round=1)) and await second.receive() == TrainFrom(round=1)
    in_time()("another model")
    assert await second.receive() == WorkerRefused(reason="another model") and await second.ends()
    late("nobody is here any more")
