"""A daemon that has no room for one more connection waits, and takes the worker that stands at the door later on."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from pathlib import Path

import pytest
import uvloop
from tests.unit.daemon.worker.worker_kit import Client, Recorder, hello_message, memory, specs

from chaosd.worker import server as worker_server
from chaosd.worker.server import WorkerServer

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")
TURNS = 200


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_a_worker_that_cannot_be_accepted_costs_a_line_and_no_processor_and_is_accepted_later(
    socket_file: Path, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays in the queue of the socket, and so the socket can be read at every turn of the loop."""
    refused, accept, tried = 0, socket.socket.accept, asyncio.Event()

    def no_room(listening: socket.socket) -> object:
        nonlocal refused
        refused += 1
        tried.set()
        raise OSError(number, "no room")

    monkeypatch.setattr(worker_server, "ACCEPT_PAUSE_S", 0.5)
    recorder, client = Recorder(), None
    server = WorkerServer(socket_file, recorder)
    await server.start()
    try:
        with caplog.at_level(logging.ERROR):
            monkeypatch.setattr(socket.socket, "accept", no_room)
            client = Client(socket_file)
            async with asyncio.timeout(60):
                await tried.wait()
            for _ in range(TURNS):
                await asyncio.sleep(0)
        assert refused == 1
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        monkeypatch.setattr(socket.socket, "accept", accept)
        await client.say_hello(hello_message(), memory(specs()[2]))
        await recorder.until(lambda: recorder.hellos)
    finally:
        if client is not None:
            client.close()
        await server.close()
        recorder.close()


async def test_a_server_that_is_closed_while_it_waits_for_room_is_closed(
    socket_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_server, "ACCEPT_PAUSE_S", 0.0)
    server = WorkerServer(socket_file, Recorder())
    await server.start()
    server._pause_accepting()
    await server.close()
    await asyncio.sleep(0.01)
    assert not socket_file.exists()
