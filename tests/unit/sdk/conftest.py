"""Fixtures of the SDK's tests: a place for a socket, and a look at what is left open."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.sdk.line import ShortFolder

FEEDER_ENDS_S = 30.0
"""A limit for a loaded machine; one whose queue was never closed does not end, and its pipe is named."""


ENDS_S = 10.0
"""For threads of gloo and of a test on a loaded machine."""


@pytest.fixture
def socket_file() -> Iterator[Path]:
    with ShortFolder() as folder:
        yield Path(folder) / "w"


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    """Sockets, descriptors of shared memory, wake-up pairs: whatever a test opened is closed at its end."""
    before = descriptors()
    gc.freeze()  # what was there before is not looked through again after each test: it takes most of a second
    yield
    for thread in threading.enumerate():
        if (
            thread.name == "QueueFeederThread"
        ):  # a loader shuts its workers' queues, and leaves it to these to close them
            thread.join(FEEDER_ENDS_S)
    gc.collect()
    gc.unfreeze()
    end_s = time.monotonic() + ENDS_S
    while (left := descriptors() - before) and time.monotonic() < end_s:  # a thread that ends lets go of them last
        time.sleep(0.02)
        gc.collect()
    assert not left, f"left open: {left}"


def descriptors() -> set[str]:
    if sys.platform != "linux":
        return set()
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            pass  # the descriptor of the listing itself
    return found
