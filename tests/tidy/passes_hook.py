"""What runs inside the processes of `python -m tests.tidy.passes`: a profile function that sees every call.

`begin` is called by a `sitecustomize` before anything of the process: it starts a thread that takes orders from the
command over a unix socket: what to look for, and what has been found. Only while something is looked for is there a
profile function in the main thread, where a signal puts it (before Python 3.12 a thread can do that for itself alone):
nothing is slowed while a process starts. Nothing is written anywhere; when the command ends, so does the process. What
there is to look for: `passes_watch.py`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from types import CodeType, FrameType
from typing import Any

from tests.tidy.passes_watch import GradientWatch, RequestWatch, Watch

VARIABLE = "CHAOS_PASSES"
"""Role, address of the command, and folders of the packages, as JSON; taken out of the environment at once, so that
children of the process are left alone."""

SIGNAL = signal.SIGUSR2
"""Neither the daemon nor the SDK has a use for it."""

SIGNAL_LIMIT_S = 120.0
ERRORS_MAX = 5


class Profiler:
    """The profile function of a process. `folders`: of the packages, absolute; files are named relative to `root`."""

    def __init__(self, root: str, folders: list[str]) -> None:
        self.watch: Watch | None = None
        self.errors: list[str] = []
        """Of our own: an exception that left the profile function would end it, and surface in the program."""
        self._root, self._folders = root, tuple(os.path.join(root, folder) + os.sep for folder in folders)
        self._files: dict[str, str] = {}
        self._signalled = threading.Event()

    def set_watch(self, watch: Watch | None) -> None:
        """From the thread that takes orders; returns when the main thread has heard of it."""
        self.watch = watch
        self._signalled.clear()
        signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
        if not self._signalled.wait(SIGNAL_LIMIT_S):
            self.errors.append("the main thread does not answer a signal")

    def signalled(self, number: int, frame: FrameType | None) -> None:
        """In the main thread."""
        sys.setprofile(self if self.watch is not None else None)
        self._signalled.set()

    def file_of(self, code: CodeType) -> str:
        """Where a function stands, if that is a file of the packages; else empty."""
        name = code.co_filename  # not the code itself: two that read the same are equal, whatever file they are of
        found = self._files.get(name)
        if found is None:
            found = os.path.relpath(name, self._root) if name.startswith(self._folders) else ""
            self._files[name] = found
        return found

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        watch = self.watch
        if watch is None or event not in ("call", "return"):
            return
        try:
            file = self.file_of(frame.f_code)
            if file:
                watch.look(file, frame, event, value if event == "return" else None, self.file_of)
        except Exception as error:
            if len(self.errors) < ERRORS_MAX:
                self.errors.append(f"{frame.f_code.co_qualname}: {error!r}")


def obey(profiler: Profiler, line: socket.socket) -> None:
    """One order a line, one answer a line, until the command is gone."""
    try:
        with line.makefile("rw", encoding="utf-8") as orders:
            for text in orders:
                order = json.loads(text)
                match order["do"]:
                    case "gradient":
                        given = {name: order[name] for name in ("state", "driver", "files")}
                        profiler.set_watch(GradientWatch(**given))
                    case "request":
                        mark = bytes.fromhex(order["key"])
                        profiler.set_watch(RequestWatch(name=order["name"], key=mark, site=order["site"]))
                watch = profiler.watch
                found = watch.found() if watch is not None else {}
                if order["do"] == "end":
                    profiler.set_watch(None)
                orders.write(json.dumps({**found, "errors": profiler.errors}) + "\n")
                orders.flush()
    except OSError:
        pass
    os.kill(os.getpid(), signal.SIGKILL)  # the command has ended, and nobody else would end this process


def begin() -> None:
    """See the module; without the variable, nothing."""
    given = os.environ.pop(VARIABLE, None)
    if given is None:
        return
    settings = json.loads(given)
    profiler = Profiler(settings["root"], settings["folders"])
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(settings["address"])
    line.sendall((json.dumps({"role": settings["role"]}) + "\n").encode())
    signal.signal(SIGNAL, profiler.signalled)
    threading.Thread(target=obey, args=(profiler, line), name="orders", daemon=True).start()
    threading.setprofile(profiler)  # every thread that is started from now on
