"""A script that just ends must still leave the run, wherever it made its coordinator; and one that fails says so at
once to those that would fail alike.

`sys.exit()` and `sys.exit(0)` are an end, any other code is a failure. The interpreter keeps the code to itself: it
asks the exception for it as its last act before it ends. So `sys.exit`, `exit` and `quit` raise a kind of SystemExit
that notices who asks. What a script raises itself (`raise SystemExit(3)`) is seen at the end of a with block alone.

A process of `multiprocessing` ends without asking what was registered for the interpreter's end: it asks its own list,
and from Python 3.13 on both, when what ended it is gone and only its exit code is left.
And in an interactive session an error is the end of a line, or of a cell, and not of the session.
"""

from __future__ import annotations

import atexit
import builtins
import multiprocessing
import multiprocessing.process
import multiprocessing.util
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol


class Closable(Protocol):
    """What has to be closed when the script ends."""

    def close(self, *, graceful: bool = True) -> None: ...

    def _has_failed(self, error: BaseException | None) -> bool: ...

    def _script_failed(self, error: BaseException | None) -> None: ...


_open: dict[int, tuple[Closable, int]] = {}
"""By identity: with the process in which it was made."""

_processes: set[int] = set()
"""Of `multiprocessing`, those whose end is looked for: a child that is forked has its parent's among them."""

_exited: list[SystemExit] = []
"""What ends the interpreter, if anything did; without its frames, which would keep a model in memory."""


def close_at_exit(thing: Closable) -> None:
    """Unless `is_closed` comes first."""
    _open[id(thing)] = (thing, os.getpid())
    if multiprocessing.parent_process() is not None and os.getpid() not in _processes:
        _processes.add(os.getpid())
        multiprocessing.util.Finalize(None, _close_in_process, exitpriority=0)


def is_closed(thing: Closable) -> None:
    """It needs nothing any more."""
    _open.pop(id(thing), None)


def is_failure(error: BaseException | None, *, asked: bool) -> bool:
    """Whether a script that ends with it has failed. `asked` to end (Ctrl+C) it ends, with whatever code."""
    return error is not None and not (isinstance(error, SystemExit) and (asked or error.code in (None, 0)))


def script_failed(error: BaseException) -> None:
    """Nobody has caught it: before anything else is done, since the end of the interpreter may take seconds."""
    for thing, pid in list(_open.values()):
        if pid == os.getpid() and thing._has_failed(error):
            thing._script_failed(error)


_CODE: Any = SystemExit.code

_BOOTSTRAP: Any = multiprocessing.process.BaseProcess._bootstrap.__code__  # type: ignore[attr-defined]
"""What gives a process of `multiprocessing` its exit code."""


class ScriptExit(SystemExit):
    """What `sys.exit` raises: a SystemExit that tells when the interpreter ends by it."""

    @property
    def code(self) -> Any:
        """As of any SystemExit. Nobody has caught it if no code of Python's asks."""
        code = _CODE.__get__(self)
        try:
            sys._getframe(1)
        except ValueError:
            _exited[:] = [SystemExit(code)]
            script_failed(_exited[0])
        return code

    @code.setter
    def code(self, code: Any) -> None:
        _CODE.__set__(self, code)


def _telling(leave: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with a `ScriptExit`."""

    def exit(*arguments: Any, **named: Any) -> None:
        try:
            leave(*arguments, **named)
        except SystemExit as error:
            raise ScriptExit(*error.args) from None

    exit.__doc__ = leave.__doc__
    return exit


def _watch() -> None:
    sys.exit = _telling(sys.exit)
    quitter: Any = type(getattr(builtins, "exit", None))
    if quitter.__module__ == "_sitebuiltins":  # else there is none (python -S), or a shell's own
        quitter.__call__ = _telling(quitter.__call__)


def _close_all() -> None:
    unhandled = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # set by the interpreter
    if hasattr(sys, "ps1"):  # a person has read it, and gone on
        unhandled = None
    _close(unhandled or (_exited[0] if _exited else _process_end()))


def _close_in_process() -> None:
    """Up to Python 3.12 it is asked while whatever ends the process is on its way up."""
    _close(sys.exc_info()[1] or _process_end())


def _process_end() -> SystemExit | None:
    """By which exit code a process of `multiprocessing` ends that asks, which has it in a variable of its first call;
    None: it is none, or that call still waits for the code."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not _BOOTSTRAP:
        code = frame.f_locals.get("code")
        if str(frame.f_globals.get("__name__")).startswith("multiprocessing.") and isinstance(code, int):
            return SystemExit(code)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _close(error: BaseException | None) -> None:
    for thing, pid in list(_open.values()):
        if pid == os.getpid():  # a forked child must not leave in its parent's name
            thing.close(graceful=not thing._has_failed(error))


_watch()
atexit.register(_close_all)
