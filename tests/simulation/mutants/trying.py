"""A fault is made in the memory of a process that has everything loaded already, and tests run on it there.

`Bench` imports the tests once; each try is a child (fork) in which the changed function has the code with the fault.
That saves the start of Python and all imports, on which most tries would spend most of their time. What a module
computes while it is imported is not computed again: a fault that shows only there is left to the seeds, which run on a
copy.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from tests.simulation.mutants.reach import PYTEST, ROOT
from tests.simulation.mutants.small_faults import SmallFault

CPU_MAX_S = 300
"""Of one try; several times what it takes without a fault. What needs more does not end: it is caught. Time of the
processor, so that a loaded machine does not look like a fault that was noticed."""
TEST_CPU_MAX_S = 20
"""Of one test in a child: ten times what the longest takes."""
ENDLESS = (-signal.SIGXCPU, -signal.SIGPROF, -signal.SIGKILL)
"""Exit codes of a process that one of these limits ended."""
MEMORY_MAX_BYTES = 6 << 30
"""A fault may fill the memory in a loop."""
WALL_MAX_S = 3600
"""After that nothing is known."""
POLL_S = 0.02
NEAREST = 12
"""Tests that are tried first, by themselves: most faults are noticed by one of them, and hundreds take long to find."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """`status` 0: nothing was noticed; None: the machine did not get through."""

    status: int | None
    told: str


class Bench:
    """Runs tests on faults, one at a time."""

    def __init__(self, test_files: list[str]) -> None:
        with _quiet():
            status = pytest.main([*PYTEST, "--collect-only", *test_files])
        assert status == 0, "the tests cannot be imported"
        self._functions = _functions()

    def try_out(self, fault: SmallFault, tests: list[str]) -> Ended:
        """Pytest on these tests, in a child that has the fault. Raises CannotPatch where its function cannot be
        changed in a process that runs."""
        code = _code_of(fault)
        functions = self._functions.get(_key(fault.path, code), [])
        if {one.__code__.co_freevars for one in functions} != {code.co_freevars}:
            raise CannotPatch(code.co_qualname)

        def run() -> int:
            for one in functions:
                one.__code__ = code
            few, rest = tests[:NEAREST], tests[NEAREST:]
            return _pytest(few) or (_pytest(rest) if rest else 0)

        return in_child(run)


class Limited:
    """Plug-in of pytest: no test takes more than TEST_CPU_MAX_S of the processor, or the process ends by SIGPROF."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        signal.setitimer(signal.ITIMER_PROF, TEST_CPU_MAX_S)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)


def _pytest(tests: list[str]) -> int:
    return int(pytest.main([*PYTEST, *tests], plugins=[Limited()]))


class CannotPatch(Exception):
    """The function is not there, or uses other variables of those around it."""


def in_child(action: Callable[[], int]) -> Ended:
    """Its status, and what it printed."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                limit()
                for stream in (1, 2):
                    os.dup2(output.fileno(), stream)
                sys.stdout = sys.stderr = os.fdopen(output.fileno(), "w", closefd=False)
                os.chdir(ROOT)
                status = action()
                sys.stdout.flush()
            finally:
                os._exit(status)
        status = _wait(child)
        output.seek(0)
        return Ended(status=status, told=output.read().decode(errors="replace"))


def limit() -> None:
    """Of this process: the time of the processor and the memory that a try may take."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_MAX_S, CPU_MAX_S + 10))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))


def _wait(child: int) -> int | None:
    end_s = time.monotonic() + WALL_MAX_S
    while time.monotonic() < end_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(POLL_S)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _key(path: Path, code: CodeType) -> tuple[str, str, int]:
    return str(path), code.co_qualname, code.co_firstlineno


def _functions() -> dict[tuple[str, str, int], list[FunctionType]]:
    """All functions that are there, by where their code comes from."""
    found = defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, FunctionType):
            found[_key(Path(one.__code__.co_filename), one.__code__)].append(one)
    return found


def _code_of(fault: SmallFault) -> CodeType:
    """Of its outermost function, with the fault."""
    (line,) = {code.co_firstlineno for code in _codes(fault.path.read_bytes(), fault)}
    (code,) = [one for one in _codes(fault.source(), fault) if one.co_firstlineno == line]
    return code


def _codes(source: bytes, fault: SmallFault) -> list[CodeType]:
    """All that bear the name of its function and begin above it: the last of them is meant."""
    todo = [compile(source, str(fault.path), "exec", dont_inherit=True)]
    found = []
    while todo:
        for one in todo.pop().co_consts:
            if isinstance(one, CodeType):
                todo.append(one)
                if one.co_qualname == fault.function and one.co_firstlineno <= fault.lines.start:
                    found.append(one)
    return sorted(found, key=lambda one: one.co_firstlineno)[-1:]


@contextlib.contextmanager
def _quiet():  # type: ignore[no-untyped-def]
    """What pytest prints goes nowhere."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
