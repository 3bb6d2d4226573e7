"""The few file operations that the journal needs, as an interface, and the disk behind it.

Driven by `storage/journal/journal.py`. The interface exists so that tests can put a disk under the journal that writes
short, fills up, or loses at a crash whatever was not synced. Decides nothing; every failure is an `OSError` of the
operating system.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Protocol

FILE_MODE = 0o600
FOLDER_MODE = 0o700


class DataFile(Protocol):
    """A file open for writing at its end."""

    def write(self, data: bytes) -> int:
        """Appends some of the data, and says how many bytes: as `os.write`, it may be fewer than all."""

    def sync(self) -> None:
        """Returns once everything written would survive a loss of power."""

    def truncate(self, size_bytes: int) -> None:
        """Cuts the file; the next write goes to the new end."""

    def close(self) -> None: ...


class Folder(Protocol):
    """A directory with the journal's files."""

    def describe(self, name: str) -> str:
        """The file's name for people."""

    def lock(self, name: str) -> None:
        """Holds this directory until `unlock`; `BlockingIOError` with the holder's pid if another process does."""

    def unlock(self) -> None: ...

    def read(self, name: str) -> bytes | None:
        """The whole file; None where there is none."""

    def create(self, name: str) -> DataFile:
        """A new, empty file of mode 0600 in place of any of this name."""

    def append(self, name: str) -> DataFile:
        """An existing file, open at its end."""

    def replace(self, name: str, by: str) -> None:
        """Renames `by` to `name`, atomically, over what is there."""

    def remove(self, name: str) -> None:
        """Removes the file if it is there."""

    def sync(self) -> None:
        """Returns once names created, replaced and removed would survive a loss of power."""


class DiskFile:
    """A `DataFile` on the operating system's disk."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> int:
        return os.write(self._descriptor, data)

    def sync(self) -> None:
        sync_data(self._descriptor)

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._descriptor, size_bytes)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class DiskFolder:
    """A `Folder` on the operating system's disk; created with mode 0700 if it is not there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = -1
        make_durable_folder(path)

    def describe(self, name: str) -> str:
        return str(self._path / name)

    def lock(self, name: str) -> None:
        descriptor = os.open(self._path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise BlockingIOError(holder or "unknown") from None
        except OSError:
            os.close(descriptor)
            raise
        self._lock = descriptor
        with contextlib.suppress(
            OSError
        ):  # the pid only helps people; a full disk must not keep the daemon from starting
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())

    def unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str) -> DataFile:
        self.remove(name)  # a file of an older mode or owner is not taken over
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        return DiskFile(os.open(self._path / name, flags, FILE_MODE))

    def append(self, name: str) -> DataFile:
        return DiskFile(os.open(self._path / name, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))

    def replace(self, name: str, by: str) -> None:
        os.replace(self._path / by, self._path / name)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path / name)

    def sync(self) -> None:
        sync_folder(self._path)


def make_durable_folder(path: Path) -> None:
    """Makes the folder and its missing parents such that a loss of power does not take them, and all in them, away."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        sync_folder(folder.parent)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(path))


def sync_folder(path: Path) -> None:
    """Returns once names created, replaced and removed in this folder would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_data(descriptor: int) -> None:
    """File data on the disk itself: fdatasync; on macOS F_FULLFSYNC, since fsync there stops at the drive's cache."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        fcntl.fcntl(descriptor, full)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)
