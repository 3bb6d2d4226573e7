"""What bytes through Python's `ssl` cost at least: two processes with nothing between the library and a TCP socket.

One way over loopback, blocking sockets, pieces of 512 KiB, in turn: without TLS (`plain`); TLS in memory, as the
daemons have it, what it seals or is to open going through two `MemoryBIO` (`memory`); TLS on the socket itself
(`socket`), and the same with TCP_CORK, so that records of 16 KiB leave in full segments (`corked`, Linux). No loop, no
frames, no hash, no sum: what a round of averaging costs beyond this is ours.

Figures: processor seconds of both ends together, for each GB, and those of each end. Rates are left out: on a machine
with other work they say nothing. `openssl` is the library's release, on which the figures depend.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import cast

from benchmarks.measure import Figures, alternating, ratios, spread
from chaosd.identity import Identity
from chaosd.transport.tls import client_context, server_context

PIECE_BYTES = 512 << 10
TOTAL_BYTES, TOTAL_BYTES_SHORT = 512 << 20, 128 << 20
REPEATS, REPEATS_SHORT = 11, 5
WAYS = ("plain", "memory", "socket", *(("corked",) if sys.platform == "linux" else ()))
TIMEOUT_S = 120.0


def run(*, short: bool, seed: int) -> Figures:
    """See the module. The bytes do not matter, so the seed is not used."""
    del seed
    total_bytes = TOTAL_BYTES_SHORT if short else TOTAL_BYTES
    figures: Figures = {"openssl": ssl.OPENSSL_VERSION, "total_bytes": total_bytes}
    with tempfile.TemporaryDirectory() as folder:
        Identity.create(Path(folder) / "site")
        ends: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}

        def sampler(way: str) -> Callable[[], float]:
            def sample() -> float:
                one = _processor_s(way, Path(folder) / "site", total_bytes)
                ends[way].append((one[0] * 1e9 / total_bytes, one[1] * 1e9 / total_bytes))
                return sum(ends[way][-1])

            return sample

        taken = alternating({way: sampler(way) for way in WAYS}, repeats=REPEATS_SHORT if short else REPEATS)
    for way in WAYS:
        figures[f"{way}_processor_s_per_gb"] = spread(taken[way])
        figures[f"{way}_sending_s_per_gb"] = spread([sending for sending, _ in ends[way]])
        figures[f"{way}_receiving_s_per_gb"] = spread([receiving for _, receiving in ends[way]])
    for way in WAYS[2:]:
        figures[f"{way}_over_memory"] = ratios(taken[way], taken["memory"])
    return figures


def _processor_s(way: str, key: Path, total_bytes: int) -> tuple[float, float]:
    """Of the sending and of the receiving end."""
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(TIMEOUT_S)
        address = listener.getsockname()
        process = context.Process(target=_send, args=(far, way, address, total_bytes), daemon=True)
        process.start()
        far.close()
        accepted, _ = listener.accept()
    with accepted:
        accepted.settimeout(TIMEOUT_S)
        receiving_s = _receive(way, accepted, Identity.load(key), total_bytes)
    if not near.poll(TIMEOUT_S):
        raise RuntimeError("the sending process does not answer")
    sending_s: float = near.recv()
    process.join()
    return sending_s, receiving_s


def _send(pipe: Pipe, way: str, address: tuple[str, int], total_bytes: int) -> None:
    piece = memoryview(os.urandom(PIECE_BYTES))
    with socket.create_connection(address, timeout=TIMEOUT_S) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if way == "corked":
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        if way in ("plain", "memory"):
            tls = _InMemory(plain, client_context(), server_side=False) if way == "memory" else None
            begun_s = time.process_time()
            for _ in range(total_bytes // PIECE_BYTES):
                plain.sendall(piece if tls is None else tls.sealed(piece))
            pipe.send(time.process_time() - begun_s)
            return
        with client_context().wrap_socket(plain) as over:
            begun_s = time.process_time()
            for _ in range(total_bytes // PIECE_BYTES):
                over.sendall(piece)
            pipe.send(time.process_time() - begun_s)


def _receive(way: str, plain: socket.socket, identity: Identity, total_bytes: int) -> float:
    place = memoryview(bytearray(PIECE_BYTES))
    if way == "memory":
        tls = _InMemory(plain, server_context(identity), server_side=True)
        begun_s = time.process_time()
        tls.receive(place, total_bytes)
        return time.process_time() - begun_s
    source = plain if way == "plain" else server_context(identity).wrap_socket(plain, server_side=True)
    with source:
        begun_s, missing_bytes = time.process_time(), total_bytes
        while missing_bytes:
            filled = -missing_bytes % PIECE_BYTES
            missing_bytes -= _some(source.recv_into(place[filled:]))
        return time.process_time() - begun_s


class _InMemory:
    """TLS between two `MemoryBIO`, and a blocking socket."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._socket = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._raw = memoryview(bytearray(PIECE_BYTES))
        done = False
        while not done:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                plain.sendall(self._outgoing.read())
                self._fetch()
        plain.sendall(self._outgoing.read())

    def _fetch(self) -> None:
        self._incoming.write(self._raw[: _some(self._socket.recv_into(self._raw))])

    def sealed(self, piece: memoryview) -> bytes:
        self._tls.write(piece)
        return self._outgoing.read()

    def receive(self, place: memoryview, total_bytes: int) -> None:
        read = cast("Callable[[int, memoryview], int]", self._tls.read)
        missing_bytes = total_bytes
        while missing_bytes:
            filled = -missing_bytes % PIECE_BYTES
            try:
                missing_bytes -= _some(read(PIECE_BYTES - filled, place[filled:]))
            except ssl.SSLWantReadError:
                self._fetch()


def _some(size_bytes: int) -> int:
    """Raises RuntimeError at the end of a connection that has not brought everything."""
    if size_bytes == 0:
        raise RuntimeError("the sending process ended early")
    return size_bytes
