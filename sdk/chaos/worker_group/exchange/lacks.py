"""What the system refuses a worker, threads, memory or open files, told with what to do about it."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Callable
from typing import Any

from chaos.errors import TooFewFiles, TooFewThreads

NO_MEMORY = ("can't allocate memory", "out of memory")
"""What torch's errors say of it, on the CPU and on a device."""

LESS_MEMORY = (
    "too little memory for this worker: a smaller micro_batch, more stages (--pp) or fewer workers on this machine "
    "(--nproc) need less; `ulimit -v` and a container's limit can be raised"
)

FEWER_FILES = (
    "this process has as many files and sockets open as it may, {allowed}: close what the script opens in each step "
    "(files, DataLoaders that are made anew), or raise the limit (`ulimit -n`)"
)
NO_FILES = (errno.EMFILE, errno.ENFILE)


def lacks_files(error: BaseException) -> bool:
    """Whether nothing more can be opened; libraries (torch's shared tensors) say it in errors of their own."""
    if isinstance(error, OSError):
        return error.errno in NO_FILES
    return isinstance(error, Exception) and any(os.strerror(number) in str(error) for number in NO_FILES)


def too_few_files() -> TooFewFiles:
    """Where a process has met its limit."""
    return TooFewFiles(FEWER_FILES.format(allowed=resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def begin(work: Callable[..., None], name: str, *given: Any) -> threading.Thread:
    """A thread of the worker's own, started. Raises `TooFewThreads`."""
    thread = threading.Thread(target=work, args=given, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise TooFewThreads(
            f"a worker has some threads of its own, and the system gives this process no further one ({error}): "
            "`ulimit -u` and a container's limit of processes say how many there may be, and under `ulimit -v` one "
            "finds no room for its stack; raise that, or start fewer workers (--nproc)"
        ) from error
    return thread


def told(error: BaseException) -> str:
    """An error of the script, for those who did not see it: its kind, its text, and what it may lack."""
    kind = "SystemExit" if isinstance(error, SystemExit) else type(error).__name__
    text = f"{kind}: {error}" if str(error) else kind
    text = text.encode("utf-8", "backslashreplace").decode()  # a name of a file may be no UTF-8, and a message is
    if isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY):
        return f"{text[:3000]}; {LESS_MEMORY}"
    if lacks_files(error):
        return f"{text[:3000]}; {too_few_files()}"
    return text[:4000]
