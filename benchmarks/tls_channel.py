"""TLS by our own channel against TLS by the event loop: one way over loopback, in the frames of averaging.

Two processes, one TLS connection between them, bulk frames with payloads of 512 KiB, cut and received in place as a
link does it (`transport.framing`). In turn in the same run: the daemon's channel over memory buffers
(`transport.tls.TlsChannel`), and the same frames over the loop's own TLS by `BufferedProtocol`; on uvloop and on
asyncio's loop. What the order of cipher suites costs is measured by a third pair, whose library is told by its
configuration file to put AES-128-GCM first. Decision 0002 rests on these figures.

Rate is not all that decision 0002 asks of a channel. `held_bytes_lost`: a peer sends a frame and dies while this end
does not read yet, as between a link's handshake and its report; so many bytes of what had arrived are never handed on.

Wall-clock rates on a machine with other work spread widely; the processor time of both ends together does not.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, cast

import uvloop

from benchmarks.measure import Figures, Spread, alternating, ratios, spread
from chaosd.identity import Identity
from chaosd.transport.framing import BULK_PREFIX, FrameMode, FrameReader
from chaosd.transport.settings import PIECE_BYTES, WRITE_BUFFER_BYTES_MAX
from chaosd.transport.tls import TlsChannel, client_context, server_context

LOOPS = ("uvloop", "asyncio")
KINDS = ("own", "loop")
PAYLOAD_BYTES = 512 << 10
HEADER = bytes(64)
REPEATS, REPEATS_SHORT = 11, 5
TOTAL_BYTES, TOTAL_BYTES_SHORT = 512 << 20, 128 << 20
HANDSHAKE_TIMEOUT_S = 30.0
HELD_BYTES = 64 << 10
HELD_S = 0.3
"""Generous: bytes over loopback, and the end of a connection, take milliseconds."""
AES_128_FIRST = """openssl_conf = conf
[conf]
ssl_conf = sections
[sections]
system_default = suites
[suites]
Ciphersuites = TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384
"""


def run(*, short: bool, seed: int) -> Figures:
    """For each loop: GB/s and processor seconds a GB (both ends together) of both kinds, and `loop` over `own`, pair by
    pair: `rate` (above 1: the loop's TLS is faster) and `processor` (above 1: it costs more). The bytes do not matter,
    so the seed is not used."""
    del seed
    total_bytes = TOTAL_BYTES_SHORT if short else TOTAL_BYTES
    repeats = REPEATS_SHORT if short else REPEATS
    figures: Figures = {"total_bytes": total_bytes, "repeats": repeats}
    with tempfile.TemporaryDirectory() as folder:
        identity = Identity.create(Path(folder) / "site")
        for loop in LOOPS:
            for kind in KINDS:
                with _runner(loop) as runner:
                    figures[f"{loop}_{kind}_held_bytes_lost"] = runner.run(_held(identity, kind))
        config = Path(folder) / "openssl.cnf"
        config.write_text(AES_128_FIRST, encoding="ascii")
        for loop in LOOPS:
            with _ends(loop, Path(folder) / "site", None) as ends:
                _compare(figures, loop, {kind: (ends, kind) for kind in KINDS}, total_bytes, repeats)
        with (
            _ends("uvloop", Path(folder) / "site", None) as plain,
            _ends("uvloop", Path(folder) / "site", config) as aes,
        ):
            names = {"own": (plain, "own"), "aes_128_first": (aes, "own")}
            _compare(figures, "ciphers", names, total_bytes, repeats)
    return figures


def _compare(
    figures: Figures, prefix: str, names: dict[str, tuple[_Ends, str]], total_bytes: int, repeats: int
) -> None:
    """Samples of two setups in turn; figures with the names `PREFIX_NAME_...`, the second over the first."""
    processor_s: dict[str, list[float]] = {name: [] for name in names}

    def sampler(name: str) -> Callable[[], float]:
        ends, kind = names[name]

        def sample() -> float:
            seconds, cpu_s, cipher = ends.send(kind, total_bytes)
            processor_s[name].append(cpu_s * 1e9 / total_bytes)
            figures[f"{prefix}_{name}_cipher"] = cipher
            return total_bytes / seconds / 1e9

        return sample

    rates = alternating({name: sampler(name) for name in names}, repeats=repeats, warm_up=1)
    for name in names:
        del processor_s[name][0]  # the warm-up's
        figures[f"{prefix}_{name}_gb_per_s"] = spread(rates[name])
        figures[f"{prefix}_{name}_processor_s_per_gb"] = spread(processor_s[name])
    first, second = names
    rate: Spread = ratios(rates[second], rates[first])
    figures[f"{prefix}_{second}_over_{first}_rate"] = rate
    figures[f"{prefix}_{second}_over_{first}_processor"] = ratios(processor_s[second], processor_s[first])


# -- two processes -----------------------------------------------------------------------------------------------------


class _Ends:
    """A sending and a receiving process."""

    def __init__(self, sender: Pipe, receiver: Pipe) -> None:
        self._sender, self._receiver = sender, receiver

    def send(self, kind: str, total_bytes: int) -> tuple[float, float, str]:
        """Seconds from the first payload to the last, processor seconds of both ends, the cipher."""
        self._receiver.send((kind, total_bytes, 0))
        port = self._receiver.recv()
        self._sender.send((kind, total_bytes, port))
        _, sender_cpu_s, _ = self._sender.recv()
        seconds, receiver_cpu_s, cipher = self._receiver.recv()
        return seconds, sender_cpu_s + receiver_cpu_s, cipher


@contextmanager
def _ends(loop: str, key: Path, openssl_config: Path | None) -> Iterator[_Ends]:
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    before = os.environ.get("OPENSSL_CONF")
    if openssl_config is not None:
        os.environ["OPENSSL_CONF"] = str(openssl_config)
    try:
        for work in (_send, _receive):
            ours, theirs = context.Pipe()
            process = context.Process(target=_child, args=(theirs, loop, key, work), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
    finally:
        if openssl_config is not None:
            os.environ.pop("OPENSSL_CONF")
            if before is not None:
                os.environ["OPENSSL_CONF"] = before
    try:
        yield _Ends(*pipes)
    finally:
        for pipe in pipes:
            pipe.close()  # the child ends at that
        for process in processes:
            process.join()


def _child(pipe: Pipe, loop: str, key: Path, work: Callable[..., Any]) -> None:
    with _runner(loop) as runner:
        while True:
            try:
                kind, total_bytes, port = pipe.recv()
            except EOFError:
                return
            pipe.send(runner.run(work(pipe, key, kind, total_bytes, port)))


def _runner(loop: str) -> asyncio.Runner:
    return asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None)


async def _listen(end: _End, identity: Identity, kind: str) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    context = server_context(identity)
    if kind == "own":
        return await loop.create_server(lambda: _own_channel(end, context, server_side=True), "127.0.0.1", 0)
    return await loop.create_server(
        lambda: _LoopChannel(end), "127.0.0.1", 0, ssl=context, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
    )


async def _dial(end: _End, kind: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    context = client_context()
    if kind == "own":
        await loop.create_connection(lambda: _own_channel(end, context, server_side=False), "127.0.0.1", port)
    else:
        await loop.create_connection(lambda: _LoopChannel(end), "127.0.0.1", port, ssl=context, server_hostname="")
    await end.up


async def _held(identity: Identity, kind: str) -> int:
    """Bytes of a frame that arrived before its sender died, and that were never handed on. Both ends on one loop."""
    receiving, sending = _End(HELD_BYTES), _End(0)
    server = await _listen(receiving, identity, kind)
    await _dial(sending, kind, server.sockets[0].getsockname()[1])
    await receiving.up
    receiving.channel.set_reading(False)
    sending.channel.write(BULK_PREFIX.pack(0, HELD_BYTES) + bytes(HELD_BYTES))
    await asyncio.sleep(HELD_S)
    sending.channel.abort("died")
    await asyncio.sleep(HELD_S)
    receiving.channel.set_reading(True)
    await asyncio.sleep(HELD_S)
    lost = 0 if receiving.complete.done() else HELD_BYTES
    receiving.channel.abort("measured")
    await receiving.channel.gone
    server.close()
    await server.wait_closed()
    return lost


async def _receive(pipe: Pipe, key: Path, kind: str, total_bytes: int, _: int) -> tuple[float, float, str]:
    end = _End(total_bytes)
    server = await _listen(end, Identity.load(key), kind)
    begun_s = time.process_time()
    pipe.send(server.sockets[0].getsockname()[1])
    await end.complete
    cpu_s = time.process_time() - begun_s
    cipher = end.channel.cipher
    await end.channel.gone
    server.close()
    await server.wait_closed()
    return end.seconds, cpu_s, cipher


async def _send(pipe: Pipe, key: Path, kind: str, total_bytes: int, port: int) -> tuple[float, float, str]:
    end = _End(0)
    await _dial(end, kind, port)
    begun_s = time.process_time()
    payload = memoryview(bytearray(PAYLOAD_BYTES))
    head = BULK_PREFIX.pack(len(HEADER), PAYLOAD_BYTES) + HEADER
    for _ in range(total_bytes // PAYLOAD_BYTES):
        await _write(end.channel, head)
        for start in range(0, PAYLOAD_BYTES, PIECE_BYTES):
            await _write(end.channel, payload[start : start + PIECE_BYTES])
    cpu_s = time.process_time() - begun_s
    end.channel.close("sent")
    await end.channel.gone
    return 0.0, cpu_s, end.channel.cipher


async def _write(channel: TlsChannel | _LoopChannel, piece: bytes | memoryview) -> None:
    """As `transport.stream.Stream` does it."""
    while channel.paused:
        await channel.room()
    channel.write(piece)
    await asyncio.sleep(0)


# -- one end -----------------------------------------------------------------------------------------------------------


class _End:
    """What lies above a channel of either kind: frames, received in place, counted."""

    def __init__(self, total_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        self.up: asyncio.Future[None] = loop.create_future()
        self.complete: asyncio.Future[None] = loop.create_future()
        self.seconds = 0.0
        self.channel: TlsChannel | _LoopChannel
        self._missing_bytes = total_bytes
        self._begun_s = 0.0
        self._place = memoryview(bytearray(PAYLOAD_BYTES))
        self._reader = FrameReader(self)
        self._reader.switch(FrameMode.BULK)

    def secured(self) -> None:
        self.up.set_result(None)
        if isinstance(self.channel, TlsChannel):
            self.channel.read_in_large_pieces()

    def wants_bytes(self) -> bool:
        return True

    def get_buffer(self) -> memoryview:
        return self._reader.get_buffer()

    def takes_more(self) -> bool:
        return self._reader.direct

    def received(self, size_bytes: int) -> None:
        self._reader.received(size_bytes)

    def writable(self) -> None: ...

    def ended(self, reason: str, end_of_file: bool) -> None: ...

    def frame_received(self, frame: bytes) -> None: ...

    def bulk_buffer(self, header: bytes, size_bytes: int) -> memoryview | None:
        self._begun_s = self._begun_s or time.perf_counter()
        return self._place[:size_bytes]

    def bulk_received(self, header: bytes, payload: memoryview | None) -> None:
        self._missing_bytes -= len(payload or b"")
        if self._missing_bytes <= 0 and not self.complete.done():
            self.seconds = time.perf_counter() - self._begun_s
            self.complete.set_result(None)


def _own_channel(end: _End, context: ssl.SSLContext, *, server_side: bool) -> TlsChannel:
    end.channel = TlsChannel(end, context, server_side=server_side)
    return end.channel


class _LoopChannel(asyncio.BufferedProtocol):
    """The same over the loop's TLS: what it decrypts goes where the frames want it."""

    def __init__(self, end: _End) -> None:
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self.paused = False
        end.channel = self

    @property
    def cipher(self) -> str:
        """Name of the cipher suite in use."""
        assert self._transport is not None
        return str(self._transport.get_extra_info("cipher")[0])

    def write(self, data: bytes | memoryview) -> None:
        """Encrypt and hand over."""
        assert self._transport is not None
        self._transport.write(data)

    async def room(self) -> None:
        """Wait until more may be written."""
        self._waiter = self._loop.create_future()
        await self._waiter

    def close(self, reason: str) -> None:
        """Hand over what was written, say goodbye, close."""
        assert self._transport is not None
        self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def set_reading(self, reading: bool) -> None:
        """Stop or resume reading."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.resume_reading() if reading else self._transport.pause_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        self._end.secured()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._end.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._end.received(nbytes)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
