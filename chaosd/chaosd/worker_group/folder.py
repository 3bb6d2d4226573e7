"""The folder of a worker group's sockets: made for as long as its controller lives, and whoever comes next removes what
killed controllers have left.

A process id says nothing here: it is given again, and another container may see this folder. So its controller holds a
lock on a file in it, which the kernel takes back with the process, however that ends. The file gets its name when it is
locked, so that it never stands there without a lock while its controller lives.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chaosd.worker_group.board import FOLDER_PREFIX

LOCK_NAME = "controller.lock"


@contextmanager
def group_folder() -> Iterator[Path]:
    """A new one, in the folder for temporary files."""
    remove_left_behind(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as name:
        folder = Path(name)
        new = folder / f"{LOCK_NAME}.new"
        lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with suppress(OSError):  # a file system without locks: whoever cannot lock it removes nothing either
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                new.rename(folder / LOCK_NAME)
            yield folder
        finally:
            os.close(lock)


def remove_left_behind(place: Path) -> None:
    """The folders of this user whose controllers are gone. What cannot be removed stays; nobody waits for it."""
    for folder in place.glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):
            about = folder.lstat()
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid():
                _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    """Raises `OSError` where its controller lives, or where it cannot be known."""
    lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
