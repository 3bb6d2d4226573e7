"""A small file that is replaced as a whole: what the daemon keeps of its key, of whom it trusts."""

from __future__ import annotations

import os
from pathlib import Path

from chaosd.storage.journal.files import sync_folder


def write_durably(path: Path, data: bytes, mode: int) -> None:
    """The whole file or the former one, at any moment of a crash; durable when this returns. Raises OSError; then the
    former one is there."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    sync_folder(path.parent)
