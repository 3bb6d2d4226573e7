"""What the tests of the worker socket share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def socket_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cw") as folder:  # short: a socket's path may have 103 bytes
        yield Path(folder) / "w"
