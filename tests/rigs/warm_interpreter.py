"""The process that `tests.rigs.warm` forks from: it imports the modules named on its command line, once, and each of
its children then runs a program as a new interpreter would.

    python -m tests.rigs.warm_interpreter DESCRIPTOR MODULE...

It reads requests from the socket of that descriptor until its other end is closed, and kills then what still runs.
Nothing imported here may have started a thread: only the one that forks lives on in a child.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from typing import Any, NoReturn

REQUEST_BYTES_MAX = 100_000
DESCRIPTORS = 3
"""With a request: of its output, of its errors, and of the pipe for the code that the child ends with."""


def serve(line: socket.socket) -> dict[str, Any] | None:
    """Fork for every request. Returns in a child, with what it is to run; in the parent None, at the end."""
    awake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    codes: dict[int, int] = {}
    while True:
        readable, _, _ = select.select([line, awake], [], [])
        if awake in readable:
            os.read(awake, 4096)
            _reap(codes)
        if line in readable:
            message, descriptors, _, _ = socket.recv_fds(line, REQUEST_BYTES_MAX, DESCRIPTORS)
            if not message:
                for child in codes:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child, signal.SIGKILL)
                return None
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()
                line.send(str(os.getpid()).encode())  # by itself: who is told may kill the group
            output, errors, code = descriptors
            if child == 0:
                for descriptor, copy in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (errors, 2)):
                    os.dup2(descriptor, copy)
                    os.close(descriptor)
                for own in (awake, wake, code, *codes.values()):
                    os.close(own)
                line.close()
                return dict(json.loads(message))
            os.close(output)
            os.close(errors)
            codes[child] = code


def _reap(codes: dict[int, int]) -> None:
    """Tell of the children that have ended."""
    while codes:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            return
        code = codes.pop(child)
        with contextlib.suppress(BrokenPipeError):
            os.write(code, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(code)


def become(request: dict[str, Any]) -> None:
    """Run the program of a request as `python PROGRAM...` does."""
    os.environ.clear()
    os.environ.update(request["environment"])
    for variable, path in request["shared"].items():
        os.environ[variable] = str(os.open(path, os.O_RDWR))
    os.chdir(request["folder"])
    first, *words = request["words"]
    if first == "-m":
        module, *words = words
        sys.path[0] = os.getcwd()
        sys.argv = [module, *words]
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        sys.argv = [first, *words]
        runpy.run_path(first, run_name="__main__")


def end_after(request: dict[str, Any]) -> NoReturn:
    """Run it, and end as an interpreter does, but for taking apart what was imported: that copies every page."""
    code: object = None
    try:
        become(request)
    except SystemExit as ended:
        code = ended.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code or 0))


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, threading.enumerate()
    gc.collect()
    gc.freeze()
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        end_after(asked)
