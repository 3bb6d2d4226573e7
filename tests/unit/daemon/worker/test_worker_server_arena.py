"""The daemon's mapping of a worker's memory: safe while it is read, and against a worker that cuts its file."""

from __future__ import annotations

import fcntl
import os
import sys

import pytest
from tests.unit.daemon.worker.worker_kit import hello_message, memory, specs

from chaosd.worker.arena import F_GET_SEALS, Arena

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="memfd seals are Linux's")


def test_arena_closes_safely_while_a_slice_is_still_in_use() -> None:
    message = hello_message()
    arena = Arena.from_hello(message, memory(specs()[2]))
    piece = arena.state[:4]
    arena.close()
    piece[:] = b"late"
    assert bytes(piece) == b"late"
    piece.release()
    arena.close()


@linux_only
def test_sealed_memory_cannot_be_truncated_under_the_daemon() -> None:
    fd = memory(specs()[2])
    keep = os.dup(fd)
    with Arena.from_hello(hello_message(), fd):
        assert fcntl.fcntl(keep, F_GET_SEALS) & 2
        with pytest.raises(PermissionError):
            os.ftruncate(keep, 0)
    os.close(keep)
