"""Which test of the protocols runs which line of them: a fault can be noticed only by a test that runs it.

`python -m tests.simulation.mutants.reach FILE TEST...` runs the tests under coverage, a context for each, and writes
what they ran to FILE; ends with pytest's status. `Reach` calls it for the test files that are new or have changed, and
for all of them when the protocols or what the tests share have changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[3]
TESTS = ROOT / "tests"
PROTOCOLS = ROOT / "protocols" / "chaos_protocols"
UNIT = TESTS / "unit" / "protocols"
"""Its folders are those of `PROTOCOLS`."""
STORIES = TESTS / "simulation"
OF_THE_TOOLS = ("test_mutants.py", "test_undone.py", "test_shrink.py", "test_seeds.py")
"""Tests of what plants faults, and seeds, which are run by themselves."""
KNOWN = ROOT / "build" / "reach.json"
PYTEST = ("-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=0")
"""Without time limits of their own: a loaded machine is not a fault that was noticed."""


class FailsAnyway(Exception):
    """Without any fault."""


class Watch:
    """Plug-in of pytest: what runs from now on is that test's."""

    def __init__(self, watch: coverage.Coverage) -> None:
        self.watch = watch

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.watch.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.watch.switch_context("")


def watched(tests: list[str]) -> tuple[int, dict[str, Any]]:
    """Pytest's status, and for each test file: its tests, and by module and line the positions of those that ran it."""
    watch = coverage.Coverage(source_pkgs=["chaos_protocols"], data_file=None, config_file=False)
    watch.start()
    status = pytest.main([*PYTEST, *tests], plugins=[Watch(watch)])
    watch.stop()
    data, found = watch.get_data(), dict[str, Any]()
    for path in data.measured_files():
        module = str(Path(path).relative_to(PROTOCOLS))
        for line, contexts in data.contexts_by_lineno(path).items():
            for test in filter(None, contexts):
                of_file = found.setdefault(test.partition("::")[0], {"tests": [], "lines": {}, "numbers": {}})
                number = of_file["numbers"].setdefault(test, len(of_file["tests"]))
                if number == len(of_file["tests"]):
                    of_file["tests"].append(test)
                of_file["lines"].setdefault(module, {}).setdefault(str(line), []).append(number)
    for of_file in found.values():
        del of_file["numbers"]
    return int(status), found


class Reach:
    """`tests(...)`, in the order in which they find out soonest."""

    def __init__(self, known: Path = KNOWN) -> None:
        self._path = known
        self._files: dict[str, Any] = {}

    def learn(self, files: Iterable[Path]) -> int:
        """Runs what is not known yet; how many files that were. Raises FailsAnyway."""
        shared = _digest(_shared())
        old = json.loads(self._path.read_text()) if self._path.exists() else {}
        self._files = old["files"] if old.get("shared") == shared else {}
        digests = {str(path.relative_to(ROOT)): _digest([path]) for path in files}
        new = [name for name, digest in digests.items() if self._files.get(name, {}).get("digest") != digest]
        if new:
            with tempfile.TemporaryDirectory(prefix="chaos-reach-") as folder:
                answer = Path(folder) / "reach.json"
                command = [sys.executable, "-m", __name__, str(answer), *new]
                ended = subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
                if ended.returncode:
                    raise FailsAnyway("tests fail without any fault: mend that first")
                found = json.loads(answer.read_text())
            for name in new:
                self._files[name] = {"digest": digests[name], **found.get(name, {"tests": [], "lines": {}})}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps({"shared": shared, "files": self._files}))
        return len(new)

    def tests(self, module: Path, lines: range, below: Path) -> list[str]:
        """Those below `below` that run one of these lines of the module (below `PROTOCOLS`): first those of the folder
        of the module, and of these the ones that run the least."""
        found = []
        for name, of_file in self._files.items():
            if not (ROOT / name).is_relative_to(below):
                continue
            by_line = of_file["lines"].get(str(module), {})
            numbers = {number for line in lines for number in by_line.get(str(line), ())}
            found += [
                (-folders_shared(module, ROOT / name), self._size(name), of_file["tests"][one]) for one in numbers
            ]
        return [test for _, _, test in sorted(found)]

    def _size(self, name: str) -> int:
        return sum(len(lines) for lines in self._files[name]["lines"].values())


def folders_shared(module: Path, test_file: Path) -> int:
    """How many folders a module (below `PROTOCOLS`) has in common with a file of `UNIT`; none with one elsewhere."""
    beside = test_file.relative_to(UNIT).parent.parts if test_file.is_relative_to(UNIT) else ()
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(module.parent.parts, beside, strict=False))))


def unit_tests() -> list[Path]:
    return sorted(UNIT.rglob("test_*.py"))


def stories() -> list[Path]:
    return sorted(path for path in STORIES.glob("test_*.py") if path.name not in OF_THE_TOOLS)


def _shared() -> list[Path]:
    """All that a test may depend on beside its own file."""
    folders = (PROTOCOLS, UNIT, TESTS / "simulator", STORIES)
    paths = (path for folder in folders for pattern in ("*.py", "*.txt") for path in folder.rglob(pattern))
    tools = Path(__file__).parent
    return sorted(path for path in paths if not path.name.startswith("test_") and path.parent != tools)


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(ROOT)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


if __name__ == "__main__":
    status, what = watched(sys.argv[2:])
    Path(sys.argv[1]).write_text(json.dumps(what))
    sys.exit(status)
