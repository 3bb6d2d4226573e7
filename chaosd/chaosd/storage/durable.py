"""A small file that is made or replaced as a whole: a site's key and configuration, whom it trusts."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaosd.storage.journal.files import sync_folder


@contextmanager
def told_of(path: Path) -> Iterator[None]:
    """What the operating system refuses in here is told of this file, once. By itself a write names none, making names
    the file that is written in its place, and moving that names both."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        del error.filename2  # None would be told as a second name
        raise


def write_durably(path: Path, data: bytes, mode: int) -> None:
    """The whole file or the former one, at any moment of a crash; durable when this returns. Raises OSError; then the
    former one is there."""
    fresh = path.with_name(f"{path.name}.new")
    with told_of(path):
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
        sync_folder(path.parent)


def write_new(path: Path, data: bytes, mode: int) -> None:
    """The whole file or none, so that half of it is not taken for a site's; durable when this returns. Never over one
    that is there: raises FileExistsError, or another OSError."""
    with told_of(path):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        sync_folder(path.parent)


def read_at_once(path: Path, bytes_max: int) -> bytes:
    """The beginning of a file that the configuration names. Raises OSError, also where it is a pipe: that would hold
    whoever reads it until somebody writes."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no ordinary file (but a pipe, a folder or a device)", str(path))
        return file.read(bytes_max)
