"""Fuzz targets: the local API over a real unix socket (any bytes; any method, path and body) and a worker's socket (any
frames, in any pieces, with and without a descriptor)."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from chaos_lab.api import LabRoutes
from chaos_protocols.wire.worker import RoundContributed, WorkerHello, WorkerLeaveRequest, encode
from chaosd.api.server import LocalApi
from chaosd.worker.arena import Arena, ArenaError
from chaosd.worker.channel import Channel
from tests.fuzz.engine import Target
from tests.unit.daemon.api.local_api import FakeControl
from tests.unit.daemon.worker.worker_kit import hello_message, memory, specs
from tests.unit.lab.fake_transport import FakeLabTransport

ANSWER_BYTES_MAX = 1 << 20
ANSWER_S = 60.0
"""Nothing here takes a hundredth of it; a target that waits longer hangs."""
STILL_TURNS = 30
"""Turns of the loop without a byte, after which nobody will say anything more."""


# ---- the local API


class _Served:
    """An API on a loop of this thread, so that the fuzzer sees which lines it runs."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="chaos-fuzz-")
        self.path = Path(self.folder.name) / "api.sock"
        self.loop = asyncio.new_event_loop()
        self.complaints: list[str] = []
        self.control = FakeControl(records=30)
        self.api = LocalApi(self.path, self.control, further=LabRoutes(FakeLabTransport()).routes())
        self.loop.run_until_complete(self.api.start())
        logging.getLogger("chaosd.api.server").addFilter(self._heard)
        logging.getLogger("aiohttp.server").addFilter(lambda record: False)  # it tells each bad request at length

    def _heard(self, record: logging.LogRecord) -> bool:
        self.complaints.append(record.getMessage())
        return False

    def exchange(self, data: bytes) -> bytes:
        self.complaints.clear()
        self.control.asked.clear()
        answer = self.loop.run_until_complete(asyncio.wait_for(self._exchange(data), ANSWER_S))
        assert not self.complaints, f"the API failed: {self.complaints[0]}"
        return answer

    async def _exchange(self, data: bytes) -> bytes:
        """What comes back until nothing moves any more: client and server share the loop, so a few turns are enough."""
        reader, writer = await asyncio.open_unix_connection(str(self.path))
        answer, still = b"", 0
        try:
            writer.write(data)
            while still < STILL_TURNS and len(answer) < ANSWER_BYTES_MAX and not reader.at_eof():
                await asyncio.sleep(0)
                piece = bytes(reader._buffer)  # type: ignore[attr-defined]
                reader._buffer.clear()  # type: ignore[attr-defined]
                answer, still = answer + piece, 0 if piece else still + 1
        finally:
            writer.close()
        return answer


@functools.cache
def _served() -> _Served:
    return _Served()


def _request(method: str, path: str, body: bytes = b"") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _http_seeds() -> Iterable[bytes]:
    yield _request("GET", "/v1/status")
    yield _request("GET", "/v1/events?after=3&limit=2")
    yield _request("GET", "/v1/events?last=5")
    yield _request("GET", "/v1/events/follow?after=1")
    yield _request("POST", "/v1/link", b'{"site": "beta", "add": true}')
    yield _request("POST", "/v1/leave", b'{"reason": "done"}')
    yield _request("POST", "/v1/lab/shape", b'{"site": null, "rate_bytes_per_s": 1e6, "latency_s": 0.1}')
    yield _request("PUT", "/v2/nothing", b"x" * 100)
    yield _request("GET", "/v1/status") + _request("GET", "/v1/status")
    yield b"POST /v1/leave HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"


def _http(data: bytes) -> str:
    """Whatever is sent, an answer below 500 or none at all; and the next one who asks gets the status."""
    served = _served()
    answer = served.exchange(data)
    if answer:
        status = answer.partition(b"\r\n")[0].split(b" ")[1]
        assert status[:1] in (b"1", b"2", b"3", b"4"), answer[:300]
    right = served.exchange(_request("GET", "/v1/status"))
    assert right.startswith(b"HTTP/1.1 200"), "the API does not serve any more"
    return answer[:12].decode("latin-1")


BODY_PATHS = ("/v1/link", "/v1/leave", "/v1/lab/shape")


def _body_seeds() -> Iterable[bytes]:
    yield b'\x00{"site": "beta", "add": true}'
    yield b'\x01{"reason": "done"}'
    yield b'\x02{"site": "beta", "rate_bytes_per_s": 1e6, "latency_s": 0.1, "cut_in": true, "corrupt_probability": 0.5}'


def _body(data: bytes) -> str:
    """A body of any content at each route that takes one: done or refused, in JSON, with words."""
    path = BODY_PATHS[data[0] % len(BODY_PATHS)] if data else BODY_PATHS[0]
    answer = _served().exchange(_request("POST", path, data[1:]))
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ")[1])
    told = msgspec.json.decode(body, type=dict[str, Any])
    assert (status == 200 and "done" in told) or (status == 400 and told["error"]), answer[:300]
    return str(status)


# ---- the worker's socket


class _Readiness:
    """The part of a loop that a channel uses; the fuzzer turns it by hand."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], None]] = {}
        self.soon: list[tuple[Any, ...]] = []

    def add_reader(self, number: int, call: Callable[[], None]) -> None:
        self.readers[number] = call

    def remove_reader(self, number: int) -> None:
        self.readers.pop(number, None)

    def add_writer(self, number: int, call: Callable[[], None]) -> None: ...

    def remove_writer(self, number: int) -> None: ...

    def call_soon(self, *work: Any) -> None:
        self.soon.append(work)


def _channel_seeds() -> Iterable[bytes]:
    # pid 1, so that the seeds are the same in every process
    hello = encode(hello_message(pid=1))
    yield b"\x00\x00" + hello
    yield b"\x01\x05" + hello + encode(RoundContributed(round=1, weight=2.0)) + encode(WorkerLeaveRequest(reason="x"))
    yield b"\x02\xff" + b"\xff\xff\xff\xff"
    yield b"\x01\x00" + encode(RoundContributed(round=1, weight=2.0))[:-1]


def _channel(data: bytes) -> str:
    """Frames in pieces, the first with no, one or five descriptors: messages of the protocol come out, or the end with
    a reason, once; a hello's memory is mapped only if it fits; no descriptor is left."""
    before = len(os.listdir("/dev/fd"))
    ours, theirs = socket.socketpair()
    readiness = _Readiness()
    heard: list[str] = []
    ends: list[str] = []

    def received(channel: Channel, message: object) -> None:
        heard.append(type(message).__name__)
        if isinstance(message, WorkerHello) and (descriptor := channel.take_fd()) is not None:
            try:
                Arena.from_hello(message, descriptor).close()
                heard.append("mapped")
            except ArenaError as error:
                heard.append(str(error))

    def ended(channel: Channel, reason: str) -> None:
        ends.append(reason)
        channel.close()

    channel = Channel(ours, 0, readiness, received=received, ended=ended)  # type: ignore[arg-type]
    try:
        _send_in_pieces(theirs, data, channel, readiness)
    finally:
        theirs.close()
        while not channel.closed and readiness.readers:
            for call in list(readiness.readers.values()):
                call()
        channel.close()
    assert len(ends) == 1 and ends[0], ends
    assert len(os.listdir("/dev/fd")) <= before, "descriptors are left behind"
    return f"{heard[:3]}: {ends[0]}"


def _send_in_pieces(theirs: socket.socket, data: bytes, channel: Channel, readiness: _Readiness) -> None:
    count = (0, 1, 5)[data[0] % 3] if data else 0
    size = (data[1] if len(data) > 1 else 0) * 4 + 1 + len(data) // 50
    _, _, arena_bytes = specs()
    descriptors = [memory(arena_bytes) for _ in range(count)]
    try:
        for at in range(2, len(data), size):
            piece = data[at : at + size]
            if descriptors and at == 2:
                socket.send_fds(theirs, [piece], descriptors)
            else:
                theirs.sendall(piece)
            for call in list(readiness.readers.values()):
                call()
            if channel.closed:
                return
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


TARGETS = (
    Target(
        name="http",
        run=_http,
        refusals=(),
        seeds=_http_seeds,
        tokens=(
            *(b"GET ", b"POST ", b"/v1/", b"status", b"events", b"?after=", b"?last=", b"HTTP/1.1", b"\r\n"),
            *(b"\r\n\r\n", b"Content-Length: 9\r\n", b"Transfer-Encoding: chunked\r\n", b"%00", b"%ff", b"9" * 30),
            *(b"Expect: 100-continue\r\n", b"Connection: close\r\n"),
        ),
    ),
    Target(
        name="body",
        run=_body,
        refusals=(),
        seeds=_body_seeds,
        prefix=1,
        tokens=(b"null", b"true", b"1e999", b"-1", b'"site"', b'"add"', b"[" * 500, b'"\\ud800"', b"\xff", b"{}"),
    ),
    Target(
        name="channel",
        run=_channel,
        refusals=(),
        seeds=_channel_seeds,
        prefix=2,
        tokens=(b"\0\0\0\0", b"\0\0\0\1\x80", b"\xa4type", b"WorkerHello", b"\xaaLeaveReque"),
    ),
)
