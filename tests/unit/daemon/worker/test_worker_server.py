"""The worker socket of the daemon, against real sockets, real descriptors and real processes."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import uvloop
from tests.unit.daemon.worker.worker_kit import Client, Recorder, hello_message, memory, specs

from chaos_protocols.names import WORKER_FRAME_BYTES_MAX
from chaos_protocols.wire.worker import (
    Dismissed,
    RoundContributed,
    TrainFrom,
    WorkerRefused,
    encode,
)
from chaosd.unix_sockets import UnixSocketError
from chaosd.worker import channel as worker_channel
from chaosd.worker import server as worker_server
from chaosd.worker.server import WorkerServer

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="memfd seals and pidfd are Linux's")


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest_asyncio.fixture
async def served(socket_file: Path) -> AsyncIterator[tuple[WorkerServer, Recorder]]:
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    recorder = Recorder()
    server = WorkerServer(socket_file, recorder)
    await server.start()
    yield server, recorder
    await server.close()
    recorder.close()
    assert not socket_file.exists()
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) <= before, "file descriptors were left open"


@pytest_asyncio.fixture
async def connect(socket_file: Path) -> AsyncIterator[Callable[[], Client]]:
    clients: list[Client] = []

    def open_client() -> Client:
        clients.append(Client(socket_file))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()


Served = tuple[WorkerServer, Recorder]
Connect = Callable[[], Client]


async def test_hello_with_memory_gives_views_of_the_workers_own_bytes(served: Served, connect: Connect) -> None:
    server, recorder = served
    client = connect()
    _, _, size = specs()
    fd = memory(size)
    keep = os.dup(fd)
    await client.say_hello(hello_message(), fd)
    await recorder.until(lambda: recorder.hellos)
    arena = recorder.hellos[0][1]
    os.pwrite(keep, b"grad", arena.layout.contribution_offset)
    arena.result[:3] = b"sum"
    assert bytes(arena.contribution[:4]) == b"grad"
    assert os.pread(keep, 3, arena.layout.result_offset) == b"sum"
    assert (len(arena.contribution), len(arena.result), len(arena.state)) == (32, 32, 32)
    os.close(keep)
    assert server.connected


async def test_messages_pass_both_ways_in_order_even_in_single_bytes(served: Served, connect: Connect) -> None:
    server, recorder = served
    client = connect()
    await client.say_hello(hello_message(), memory(specs()[2]))
    await recorder.until(lambda: recorder.hellos)
    sent = [RoundContributed(round=number, weight=1.5) for number in range(1, 4)]
    for byte in b"".join(encode(message) for message in sent):
        await client.send(bytes([byte]))
    await recorder.until(lambda: len(recorder.messages) == 3)
    assert recorder.messages == sent
    assert server.send(TrainFrom(round=1)) and server.send(TrainFrom(round=2))
    assert [await client.receive(), await client.receive()] == [TrainFrom(round=1), TrainFrom(round=2)]


async def test_what_a_newer_script_says_is_skipped_where_it_may_be(served: Served, connect: Connect) -> None:
    _, recorder = served
    client = connect()
    await client.say_hello(hello_message(), memory(specs()[2]))
    await recorder.until(lambda: recorder.hellos)
    newer = msgspec.msgpack.encode({"type": "Progress", "optional": True, "percent": 3})
    after = RoundContributed(round=1, weight=1.5)
    await client.send(len(newer).to_bytes(4, "big") + newer + encode(after))
    await recorder.until(lambda: recorder.messages)
    assert recorder.messages == [after] and not recorder.losses
    unmarked = msgspec.msgpack.encode({"type": "Progress", "percent": 3})
    await client.send(len(unmarked).to_bytes(4, "big") + unmarked)
    await recorder.until(lambda: recorder.losses)
    assert "not one of the protocol" in recorder.losses[0]


async def test_closed_socket_is_a_lost_worker_once_and_another_may_come(served: Served, connect: Connect) -> None:
    server, recorder = served
    for number in (1, 2):
        client = connect()
        await client.say_hello(hello_message(), memory(specs()[2]))
        await recorder.until(lambda number=number: len(recorder.hellos) == number)
        client.close()
        await recorder.until(lambda number=number: len(recorder.losses) == number)
    assert recorder.losses == ["it closed the connection"] * 2
    assert not server.send(TrainFrom(round=1))


async def test_refused_worker_reads_why_even_if_it_had_sent_more(served: Served, connect: Connect) -> None:
    server, recorder = served
    client = connect()
    await client.say_hello(hello_message(), memory(specs()[2]))
    await recorder.until(lambda: recorder.hellos)
    await client.send(encode(RoundContributed(round=1, weight=1)) * 100)
    server.refuse("the model differs: 'weight' is float32[8] here and '\x1b]0;x\x07' there")  # a neighbour's words
    refusal = await client.receive()
    assert isinstance(refusal, WorkerRefused) and "'weight'" in refusal.reason and refusal.reason.isprintable()
    assert await client.ends()
    assert not server.connected and not recorder.losses


async def test_hello_without_memory_is_refused(served: Served, connect: Connect) -> None:
    _, recorder = served
    client = connect()
    await client.say_hello(hello_message(), None)
    refusal = await client.receive()
    assert isinstance(refusal, WorkerRefused) and "shared memory" in refusal.reason
    assert not recorder.hellos


@linux_only
async def test_a_daemon_that_may_open_no_more_files_says_so_and_blames_no_release(
    served: Served, connect: Connect
) -> None:
    _, recorder = served
    client = connect()
    await client.send(b"")
    fd = memory(specs()[2])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    frame = encode(hello_message())
    socket.send_fds(client.socket, [frame], [fd])
    os.close(fd)
    await asyncio.sleep(0)
    held = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 1, hard))  # one is left: for the connection alone
    try:
        os.close(held[0])
        refusal = await client.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(refusal, WorkerRefused) and "ulimit -n" in refusal.reason
    assert not recorder.hellos


async def test_first_message_other_than_hello_is_refused(served: Served, connect: Connect) -> None:
    client = connect()
    await client.send(encode(RoundContributed(round=1, weight=1)))
    refusal = await client.receive()
    assert isinstance(refusal, WorkerRefused) and "hello" in refusal.reason


@pytest.mark.parametrize(
    ("changes", "size", "word"),
    [
        ({}, 4096, "4096 bytes"),
        ({"arena_bytes": 4096}, 12288, "claims 4096"),
        ({"arena_bytes": 1 << 40}, 12288, "claims"),
    ],
    ids=["file shorter than claimed", "claim too small", "claim too big"],
)
async def test_memory_that_does_not_fit_its_specs_is_refused(
    served: Served, connect: Connect, changes: dict[str, Any], size: int, word: str
) -> None:
    _, recorder = served
    client = connect()
    await client.say_hello(hello_message(**changes), memory(size))
    refusal = await client.receive()
    assert isinstance(refusal, WorkerRefused) and word in refusal.reason
    assert not recorder.hellos


@linux_only
async def test_memory_that_could_still_shrink_is_refused(served: Served, connect: Connect) -> None:
    client = connect()
    await client.say_hello(hello_message(), memory(specs()[2], seals=0))
    refusal = await client.receive()
    assert isinstance(refusal, WorkerRefused) and "F_SEAL_SHRINK" in refusal.reason


@linux_only
async def test_descriptor_of_a_device_or_a_plain_file_is_refused(
    served: Served, connect: Connect, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(bytes(1 << 16))
    for name, word in ((os.devnull, "no shared memory"), (str(plain), "not a memfd")):
        client = connect()
        await client.say_hello(hello_message(), os.open(name, os.O_RDWR))
        refusal = await client.receive()
        assert isinstance(refusal, WorkerRefused) and word in refusal.reason


async def test_spec_with_a_lie_about_its_sizes_is_refused(served: Served, connect: Connect) -> None:
    state, _, _ = specs()
    lying = type(state)(tensors=state.tensors, size_bytes=64, shard_bytes=4096, digest=state.digest)
    client = connect()
    await client.say_hello(hello_message(state=lying), memory(1 << 16))
    refusal = await client.receive()
    assert isinstance(refusal, WorkerRefused) and "claims 64 bytes" in refusal.reason


async def test_oversized_frame_ends_the_connection_before_memory_is_taken(served: Served, connect: Connect) -> None:
    _, recorder = served
    client = connect()
    await client.say_hello(hello_message(), memory(specs()[2]))
    await recorder.until(lambda: recorder.hellos)
    await client.send((WORKER_FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
    await recorder.until(lambda: recorder.losses)
    assert "at most" in recorder.losses[0]
    assert await client.ends()


async def test_garbage_after_the_hello_is_a_lost_worker(served: Served, connect: Connect) -> None:
    _, recorder = served
    generator = random.Random(7)
    for number in range(1, 21):
        client = connect()
        await client.say_hello(hello_message(), memory(specs()[2]))
        await recorder.until(lambda number=number: len(recorder.hellos) == number)
        body = generator.randbytes(generator.randrange(1, 200))
        await client.send(len(body).to_bytes(4, "big") + body)
        await recorder.until(lambda number=number: len(recorder.losses) == number)
    assert all("not one of the protocol" in reason for reason in recorder.losses)


async def test_frame_cut_short_by_the_end_is_a_lost_worker(served: Served, connect: Connect) -> None:
    _, recorder = served
    client = connect()
    await client.say_hello(hello_message(), memory(specs()[2]))
    await recorder.until(lambda: recorder.hellos)
    await client.send(encode(RoundContributed(round=1, weight=1))[:-1])
    client.close()
    await recorder.until(lambda: recorder.losses)
    assert recorder.losses == ["it ended in the middle of a message"]


async def test_worker_that_reads_no_more_is_lost_and_memory_stays_bounded(served: Served, connect: Connect) -> None:
    server, recorder = served
    client = connect()
    await client.say_hello(hello_message(), memory(specs()[2]))
    await recorder.until(lambda: recorder.hellos)
    goodbye = Dismissed(last_round=1, graceful=True, reason="x" * 4096)
    sent = 0
    while server.send(goodbye):
        sent += 1
        assert sent < 10_000, "messages to a worker that does not read are queued without limit"
    await recorder.until(lambda: recorder.losses)
    assert len(recorder.losses) == 1 and "does not read" in recorder.losses[0]


async def test_silent_connection_is_closed_after_the_hello_timeout(
    served: Served, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_server, "HELLO_TIMEOUT_S", 0.01)
    assert await connect().ends()


async def test_more_silent_connections_than_the_limit_are_closed_at_once(served: Served, connect: Connect) -> None:
    clients = [connect() for _ in range(worker_server.PENDING_MAX + 1)]
    assert await clients[-1].ends()


async def test_surplus_descriptors_are_closed(served: Served, connect: Connect) -> None:
    _, recorder = served
    client = connect()
    frame = encode(hello_message())
    fds = [memory(specs()[2]) for _ in range(worker_channel.FDS_MAX)]
    socket.send_fds(client.socket, [frame], fds)
    for fd in fds:
        os.close(fd)
    await recorder.until(lambda: recorder.hellos)  # the fixture counts what is left open


async def test_socket_file_is_for_its_owner_only(served: Served, socket_file: Path) -> None:
    assert stat.S_IMODE(socket_file.stat().st_mode) == 0o600


async def test_connection_of_another_user_is_closed(
    served: Served, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_server, "peer_of", lambda connection: worker_channel.Peer(uid=54321, pid=1))
    assert await connect().ends()


async def test_live_daemon_on_the_socket_is_an_error_that_says_so(served: Served, socket_file: Path) -> None:
    with pytest.raises(UnixSocketError, match="a daemon already answers"):
        await WorkerServer(socket_file, Recorder()).start()
    assert socket_file.exists()


WORKER_WITH_CHILD = """
import os, socket, sys, time
sys.path[:0] = {path!r}
from tests.unit.daemon.worker.worker_kit import hello_message, memory, specs
from chaos_protocols.wire.worker import RoundContributed, encode
s = socket.socket(socket.AF_UNIX)
s.connect({socket!r})
child = os.fork()
if child == 0:
    time.sleep(60)  # holds the socket open, as a data loader's process does
    os._exit(0)
socket.send_fds(s, [encode(hello_message())], [memory(specs()[2])])
print(child, flush=True)
sys.stdin.readline()
s.sendall(encode(RoundContributed(round=1, weight=1)))
os.kill(os.getpid(), 9)
"""


@linux_only
async def test_killed_process_is_lost_at_once_after_its_last_words_though_a_child_holds_the_socket(
    served: Served, socket_file: Path
) -> None:
    _, recorder = served
    root = str(Path(__file__).resolve().parents[4])
    code = WORKER_WITH_CHILD.format(path=[root], socket=str(socket_file))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        await recorder.until(lambda: recorder.hellos)
        child = int(worker.stdout.readline())
        try:
            worker.stdin.write("die\n")
            worker.stdin.flush()
            await recorder.until(lambda: recorder.losses)
        finally:
            os.kill(child, signal.SIGKILL)
    assert recorder.losses == [f"its process {worker.pid} ended"]
    assert recorder.messages == [RoundContributed(round=1, weight=1.0)]


async def test_last_words_are_heard_before_the_death_is_reported(served: Served, connect: Connect) -> None:
    """Whichever of the two events the loop delivers first."""
    server, recorder = served
    client = connect()
    await client.say_hello(hello_message(), memory(specs()[2]))
    await recorder.until(lambda: recorder.hellos)
    client.socket.send(encode(RoundContributed(round=1, weight=1)))
    assert server._worker is not None
    server._worker._process_ended()
    assert recorder.messages == [RoundContributed(round=1, weight=1.0)]
    assert len(recorder.losses) == 1 and recorder.losses[0].startswith("its process")
