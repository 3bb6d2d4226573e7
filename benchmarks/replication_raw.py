"""Raw speed of a state transfer: one site's memory into another's arena, TLS on, loopback, no shaping.

The whole engine: two sites (then four), each a process with transport and replication engine as in a daemon; blocks
hashed, encrypted, decrypted, verified, the digest of the whole at the end. The baseline is a plain TLS socket copy
(`sendall` / `recv_into` in 1 MiB pieces, two threads of one process, the same cipher), taken in turn in the same run.
Memory: the most that a site's process grows during a transfer, over its arena.
"""

from __future__ import annotations

import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.engine_sites import fetch, linked_sites
from chaosd.identity import Identity
from chaosd.transport.tls import client_context, server_context

PIECE_BYTES = 1 << 20
REPETITIONS = 5
SOURCES = (1, 3)

Figure = float | bool | dict[str, float]


def run(*, short: bool, seed: int) -> dict[str, Figure]:
    """`throughput_over_tls_copy` with one source and with three, throughputs in GB/s, memory in bytes. The bytes do not
    matter, so the seed is not used."""
    del seed
    total_bytes = (256 << 20) if short else (1 << 30)
    figures: dict[str, Figure] = {"total_bytes": total_bytes}
    with tempfile.TemporaryDirectory() as folder:
        identity = Identity.create(Path(folder) / "copy")
        for count in SOURCES:
            place = Path(folder) / str(count)
            place.mkdir()
            ours, copies, memory, digests = [], [], [], set()
            with linked_sites(place, count, total_bytes) as (joiner, sources):
                fetch("warm", joiner, sources, total_bytes)
                for number in range(REPETITIONS):
                    copies.append(total_bytes / tls_copy_seconds(identity, total_bytes))
                    fetched = fetch(f"t{number}", joiner, sources, total_bytes)
                    ours.append(total_bytes / fetched.seconds)
                    memory.append(fetched.memory_bytes)
                    digests.add(fetched.digest)
            suffix = "" if count == 1 else f"_{count}_sources"
            ratios = [one / copy for one, copy in zip(ours, copies, strict=True)]
            figures[f"throughput_over_tls_copy{suffix}"] = _spread(ratios)
            figures[f"throughput_gb_per_s{suffix}"] = _spread([one / 1e9 for one in ours])
            figures[f"tls_copy_gb_per_s{suffix}"] = _spread([one / 1e9 for one in copies])
            figures[f"joiner_memory_over_arena_mib{suffix}"] = max(memory) / (1 << 20)
            figures[f"equal_digests{suffix}"] = len(digests) == 1
    return figures


def tls_copy_seconds(identity: Identity, total_bytes: int) -> float:
    """The baseline: from the first byte to the last, at the receiving end."""
    listening = socket.create_server(("127.0.0.1", 0))
    seconds: list[float] = []

    def receive() -> None:
        accepted, _ = listening.accept()
        with server_context(identity).wrap_socket(accepted, server_side=True) as connection:
            buffer = memoryview(bytearray(PIECE_BYTES))
            count = connection.recv_into(buffer)
            begun_s = time.perf_counter()
            while count < total_bytes:
                count += connection.recv_into(buffer)
            seconds.append(time.perf_counter() - begun_s)

    receiver = threading.Thread(target=receive)
    receiver.start()
    with client_context().wrap_socket(socket.create_connection(listening.getsockname())) as connection:
        data = bytearray(PIECE_BYTES)
        for _ in range(total_bytes // PIECE_BYTES):
            connection.sendall(data)
        receiver.join()
    listening.close()
    return seconds[0]


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
