"""Raw speed of a bulk stream: state bytes from one site's memory into another's, TLS on, loopback, no shaping.

Two daemons' transports, each in a process of its own as in real life, one bulk stream, 1 MiB payloads straight into a
touched arena. The baseline is a plain TLS socket copy (`sendall` / `recv_into` in 1 MiB pieces, two threads of one
process, the same cipher), taken in turn in the same run (measures.md, `replication_raw`).
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
import statistics
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from chaos_protocols.names import SiteId
from chaosd.identity import Identity
from chaosd.transport import LinkClosed, Transport, TransportSettings
from chaosd.transport.tls import client_context, server_context

FRAME_BYTES = 1 << 20
REPETITIONS = 5
DIAL_TIMEOUT_S = 10.0
TRANSFER_TIMEOUT_S = 120.0

Figure = float | bool | dict[str, float]


def run(*, short: bool, seed: int) -> dict[str, Figure]:
    """`throughput_over_tls_copy` and both throughputs in GB/s. The bytes do not matter, so the seed is not used."""
    del seed
    total_bytes = (256 << 20) if short else (1 << 30)
    ours, copies = [], []
    with tempfile.TemporaryDirectory() as folder:
        identities = (Identity.create(Path(folder) / "receiver"), Identity.create(Path(folder) / "sender"))
        for _ in range(REPETITIONS):
            copies.append(total_bytes / tls_copy_seconds(identities[0], total_bytes))
            ours.append(total_bytes / transport_seconds(folder, total_bytes))
    ratios = [one / copy for one, copy in zip(ours, copies, strict=True)]
    return {
        "throughput_over_tls_copy": _spread(ratios),
        "throughput_gb_per_s": _spread([one / 1e9 for one in ours]),
        "tls_copy_gb_per_s": _spread([one / 1e9 for one in copies]),
        "total_bytes": total_bytes,
    }


def tls_copy_seconds(identity: Identity, total_bytes: int) -> float:
    """The baseline: from the first byte to the last, at the receiving end."""
    listening = socket.create_server(("127.0.0.1", 0))
    seconds: list[float] = []

    def receive() -> None:
        accepted, _ = listening.accept()
        with server_context(identity).wrap_socket(accepted, server_side=True) as connection:
            buffer = memoryview(bytearray(FRAME_BYTES))
            count = connection.recv_into(buffer)
            begun_s = time.perf_counter()
            while count < total_bytes:
                count += connection.recv_into(buffer)
            seconds.append(time.perf_counter() - begun_s)

    receiver = threading.Thread(target=receive)
    receiver.start()
    with client_context().wrap_socket(socket.create_connection(listening.getsockname())) as connection:
        data = bytearray(FRAME_BYTES)
        for _ in range(total_bytes // FRAME_BYTES):
            connection.sendall(data)
        receiver.join()
    listening.close()
    return seconds[0]


def transport_seconds(folder: str, total_bytes: int) -> float:
    """Our transport: the same, with the sender in another process."""
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    sender = context.Process(target=_sender_process, args=(far, folder, total_bytes), daemon=True)
    sender.start()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_receive(near, folder, total_bytes))
    finally:
        near.close()
        sender.join(DIAL_TIMEOUT_S)
        if sender.is_alive():
            sender.kill()
            sender.join()


class _Receiver:
    """The driver of one end: admits everybody, takes payloads into the arena."""

    def __init__(self, total_bytes: int) -> None:
        self.arena = memoryview(bytearray(max(total_bytes, FRAME_BYTES)))
        if total_bytes:
            self.arena[:] = b"\x01" * len(self.arena)  # touched once, as limits.md asks
        self.begun_s = 0.0
        self.received_bytes = 0
        self.total_bytes = total_bytes
        self.done: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def admits(self, site: SiteId, purpose: str) -> str | None:
        return None

    def link_up(self, site: SiteId, incarnation: int, address: str) -> None: ...

    def link_lost(self, site: SiteId, incarnation: int, reason: str, end_of_file: bool) -> None:
        if not self.done.done():
            self.done.set_exception(LinkClosed(reason))

    def control_received(self, site: SiteId, frame: bytes) -> None: ...

    def bulk_buffer(self, site: SiteId, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        self.begun_s = self.begun_s or time.perf_counter()
        offset = int.from_bytes(header, "big")
        return self.arena[offset : offset + size_bytes]

    def bulk_received(self, site: SiteId, stream: int, header: bytes, payload: memoryview | None) -> None:
        self.received_bytes += len(payload or b"")
        if self.received_bytes == self.total_bytes:
            self.done.set_result(time.perf_counter() - self.begun_s)

    def bulk_lost(self, site: SiteId, stream: int, reason: str) -> None: ...


def _transport(folder: str, name: str, events: _Receiver) -> Transport:
    return Transport(
        identity=Identity.load(Path(folder) / name),
        run="benchmark",
        incarnation=1,
        events=events,
        settings=TransportSettings(listen_host="127.0.0.1"),
    )


async def _receive(pipe: Connection, folder: str, total_bytes: int) -> float:
    events = _Receiver(total_bytes)
    transport = _transport(folder, "receiver", events)
    await transport.start()
    pipe.send((Identity.load(Path(folder) / "receiver").site, transport.address))
    try:
        return await asyncio.wait_for(events.done, TRANSFER_TIMEOUT_S)
    finally:
        await transport.close()


def _sender_process(pipe: Connection, folder: str, total_bytes: int) -> None:
    site, address = pipe.recv()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_send(folder, site, address, total_bytes))


async def _send(folder: str, site: SiteId, address: str, total_bytes: int) -> None:
    events = _Receiver(0)
    transport = _transport(folder, "sender", events)
    await transport.dial(site, address, timeout_s=DIAL_TIMEOUT_S)
    payload = memoryview(bytearray(b"\x02" * FRAME_BYTES))
    for offset in range(0, total_bytes, FRAME_BYTES):
        await transport.send_bulk(site, 1, offset.to_bytes(8, "big"), payload)
    with contextlib.suppress(LinkClosed):
        await asyncio.wait_for(events.done, TRANSFER_TIMEOUT_S)  # the receiver closes when it has everything
    await transport.close()


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
