"""A script that just ends must still leave the run, wherever it made its coordinator; and one that fails says so at
once to those that would fail alike."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Protocol


class Closable(Protocol):
    """What has to be closed when the script ends."""

    def close(self, *, graceful: bool = True) -> None: ...

    def _script_failed(self, error: BaseException | None) -> None: ...


_open: dict[int, tuple[Closable, int]] = {}
"""By identity: with the process in which it was made."""


def close_at_exit(thing: Closable) -> None:
    """Unless `is_closed` comes first."""
    _open[id(thing)] = (thing, os.getpid())


def is_closed(thing: Closable) -> None:
    """It needs nothing any more."""
    _open.pop(id(thing), None)


def script_failed(error: BaseException) -> None:
    """Nobody has caught it: before anything else is done, since the end of the interpreter may take seconds."""
    for thing, pid in list(_open.values()):
        if pid == os.getpid():
            thing._script_failed(error)


def _close_all() -> None:
    failed = hasattr(sys, "last_value") or hasattr(sys, "last_exc")  # set by the interpreter for an unhandled error
    for thing, pid in list(_open.values()):
        if pid == os.getpid():  # a forked child must not leave in its parent's name
            thing.close(graceful=not failed)


atexit.register(_close_all)
