"""The bytes of a transfer on threads: hashing blocks, checking them into the state, the digest of the whole.

Called by `replication.py`, which decides when; nothing here knows of links or loops.
"""

from __future__ import annotations

from threading import Lock

from blake3 import blake3


class Gate:
    """Between the destination and the thread that copies into it. `closed`: nothing is copied any more."""

    def __init__(self) -> None:
        self.closed = False
        self._lock = Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def hash_of(data: memoryview) -> bytes:
    """BLAKE3, 32 bytes: goes before the block."""
    return blake3(data).digest()


def check_block(data: memoryview, expected: bytes, place: memoryview, gate: Gate) -> bool:
    """Runs on a thread: copied into the state only if it has its hash and the fetch still runs; after it, the same
    memory may hold a snapshot that this site serves."""
    if blake3(data).digest() != expected:
        return False
    with gate:
        if gate.closed:
            return False
        place[:] = data
    return True


def digest_of(state: memoryview) -> str:
    """Runs on a thread, and on more of them for a large state."""
    return blake3(state, max_threads=blake3.AUTO).hexdigest()
