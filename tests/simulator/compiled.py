"""`python -m tests.simulator --compiled ...`: the same command; the protocols and the simulator are compiled by mypyc.

What was compiled lies in `build/simulator-compiled`, in a folder named by all that it depends on. It is made under
another name, compared with the interpreter on some runs, event for event, and renamed then: one that is there is whole.
The sources stay where they are; what is not compiled is loaded from them. Decision 0014 says what was measured.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
BUILDS = ROOT / "build" / "simulator-compiled"
BUILDS_KEPT = 3
ENDING = sysconfig.get_config_var("EXT_SUFFIX") or ".so"

SIMULATOR = (
    *("averaging", "bans", "building", "contents", "drifting", "engines", "guests", "hanging", "keeping"),
    *("lies", "network", "node"),
    *(
        "odd_workers",
        "oracles",
        "oracles_agreement",
        "oracles_boundary",
        "oracles_bounds",
        "oracles_counted",
        "oracles_given",
        "oracles_operators",
        "oracles_recovery",
        "oracles_restore",
    ),
    *(
        "oracles_owed",
        "oracles_rounds",
        "oracles_standing",
        "outbox",
        "piecewise",
        "pipes",
        "planner",
        "replaying",
        "story",
        "strays",
        "transfers",
        "watching",
    ),
    *("worker", "world"),
)
"""Not `faults`: a `Trial` goes to the processes of a batch by pickle, which a compiled frozen class cannot."""
PLANNERS = (
    "chaosd.plan_adapter",
    *(f"chaos_planner.overlay.{name}" for name in ("baselines", "choice", "graph", "shards", "trees")),
)
ANNOTATIONS_ARE_READ = ("chaos_protocols.agreement.raft.effects",)
"""By msgspec, as those of its own structs are: mypyc erases what they say."""


class CannotCompile(Exception):
    """What is wrong, and what to do about it."""


# -- what is compiled


def loaded_sources(modules: Mapping[str, ModuleType]) -> dict[str, Path]:
    """The modules of this repository that are loaded, with their files."""
    found = {}
    for name, module in modules.items():
        path = Path(getattr(module, "__file__", None) or os.devnull)
        if path.suffix == ".py" and path.is_relative_to(ROOT) and "site-packages" not in path.parts:
            found[name] = path
    return dict(sorted(found.items()))


def to_compile(sources: Mapping[str, Path]) -> dict[str, Path]:
    """Those of them that can be compiled, and are worth it."""
    wanted = {f"tests.simulator.{name}" for name in SIMULATOR} | set(PLANNERS)
    return {
        name: path
        for name, path in sources.items()
        if (name in wanted or (name.startswith("chaos_protocols.") and name not in ANNOTATIONS_ARE_READ))
        and path.name != "__init__.py"
        and "msgspec.Struct" not in path.read_text(encoding="utf-8")
    }


def key_of(sources: Mapping[str, Path]) -> str:
    """Names what is made of these sources with this Python and this mypy."""
    from mypy.version import __version__ as mypy_version

    digest = hashlib.sha256(f"{sys.version} {platform.machine()} {mypy_version}".encode())
    for name, path in (*sources.items(), ("pyproject.toml", ROOT / "pyproject.toml")):
        digest.update(f"\n{name} {hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return digest.hexdigest()[:20]


# -- making it


def check_tools() -> None:
    """Raises CannotCompile."""
    for module in ("mypyc", "setuptools"):
        if importlib.util.find_spec(module) is None:
            raise CannotCompile(f"{module} is not installed: pip install -e '.[check]'")
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        raise CannotCompile(
            f"there is no C compiler ({compiler}): install it (Debian, Ubuntu: apt-get install gcc; macOS: "
            "xcode-select --install), or name another one with CC=..."
        )
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        raise CannotCompile(f"Python's headers are missing ({header}): Debian, Ubuntu: apt-get install python3-dev")


def compile_into(folder: Path, modules: Mapping[str, Path]) -> None:
    """Raises CannotCompile."""
    command = [sys.executable, "-m", "tests.simulator.compiling", str(folder)]
    paths = [str(path.relative_to(ROOT)) for path in modules.values()]
    if subprocess.run([*command, *paths], cwd=ROOT).returncode:
        log = folder / "build.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        errors = [line for line in lines if "error" in line.lower()][:10] or lines[-10:]
        raise CannotCompile("\n".join(["it does not compile:", *errors, f"all that was said: {log}"]))
    shutil.rmtree(folder / "scratch")


def told_by(folder: str) -> dict[str, str]:
    """The fingerprints of the runs compared, by the compiled modules in `folder`; `-`: by the interpreter. Raises
    CannotCompile."""
    command = [sys.executable, "-m", "tests.simulator.compiled", folder, "--fingerprints"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True)
    if done.returncode:
        raise CannotCompile(f"a run {'interpreted' if folder == '-' else 'compiled'} ends so:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def compare(folder: Path, *, told: Callable[[str], dict[str, str]] = told_by) -> None:
    """Raises CannotCompile where a run is not the same compiled and interpreted."""
    here, right = told(str(folder)), told("-")
    differ = [name for name in {**right, **here} if here.get(name) != right.get(name)]
    if differ or not right:
        raise CannotCompile(
            f"compiled, these runs are not what they are interpreted: {', '.join(differ)}; the interpreter is right"
        )
    print(f"compiled: {len(right)} runs are the same as interpreted, event for event", file=sys.stderr)


def build(
    sources: Mapping[str, Path],
    *,
    builds: Path = BUILDS,
    make: Callable[[Path, Mapping[str, Path]], None] = compile_into,
    check: Callable[[Path], None] = compare,
) -> Path:
    """The folder of what was compiled of these sources; made if it is not there. Raises CannotCompile."""
    check_tools()
    key = key_of(sources)
    whole = builds / key
    if whole.exists():
        os.utime(whole)
        return whole
    modules = to_compile(sources)
    began_s = time.monotonic()
    print(
        f"compiling {len(modules)} modules (once for these sources; a minute of one core)", file=sys.stderr, flush=True
    )
    part = builds / f"{key}.part-{os.getpid()}"
    shutil.rmtree(part, ignore_errors=True)
    make(part, modules)
    print(f"compiled in {time.monotonic() - began_s:.1f} s", file=sys.stderr, flush=True)
    check(part)
    if key_of(sources) != key:
        raise CannotCompile("the sources were changed meanwhile: start it again")
    try:
        part.rename(whole)
    except OSError:  # somebody else was faster
        if not whole.exists():
            raise
    tidy(builds)
    return whole


def tidy(builds: Path) -> None:
    """Old folders go, and what was interrupted."""
    whole = [one for one in builds.iterdir() if ".part-" not in one.name]
    old = sorted(whole, key=lambda one: one.stat().st_mtime, reverse=True)[BUILDS_KEPT:]
    for one in builds.glob("*.part-*"):
        if not _lives(int(one.name.rpartition("-")[2])):
            old.append(one)
    for one in old:
        shutil.rmtree(one, ignore_errors=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return process != os.getpid()


# -- using it


class Finder:
    """Finds the compiled modules of a folder, before any other finder is asked."""

    def __init__(self, folder: Path) -> None:
        self.paths = {
            str(path.relative_to(folder))[: -len(ENDING)].replace(os.sep, "."): path
            for path in folder.rglob(f"*{ENDING}")
        }

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        found = self.paths.get(name)
        return importlib.util.spec_from_file_location(name, found) if found else None


def check_loaded(names: Iterable[str], modules: Mapping[str, ModuleType]) -> None:
    """Raises CannotCompile unless all of these were loaded, compiled."""
    wrong = [name for name in names if not str(getattr(modules.get(name), "__file__", "")).endswith(ENDING)]
    if wrong:
        raise CannotCompile(f"these modules are loaded interpreted, or not at all: {', '.join(sorted(wrong))}")


def start_again(arguments: Sequence[str]) -> None:
    """The same command in this process, compiled; returns only by CannotCompile. Everything must be loaded."""
    tools = {name: ROOT / "tests" / "simulator" / f"{name}.py" for name in ("compiling", "fingerprint")}
    folder = build(loaded_sources(sys.modules) | tools)
    sys.stdout.flush()
    rest = [one for one in arguments if one != "--compiled"]
    os.execv(sys.executable, [sys.executable, "-m", "tests.simulator.compiled", str(folder), *rest])


def main() -> int:
    folder, arguments = sys.argv[1], sys.argv[2:]
    finder = Finder(Path(folder)) if folder != "-" else None
    if finder is not None:
        sys.meta_path.insert(0, finder)
    simulator = importlib.import_module("tests.simulator.__main__")
    told = importlib.import_module("tests.simulator.fingerprint").fingerprints
    if finder is not None:
        if not finder.paths:
            raise CannotCompile(f"nothing compiled is in {folder}")
        check_loaded(finder.paths, sys.modules)
    if arguments == ["--fingerprints"]:
        print(json.dumps(told()))
        return 0
    sys.argv = ["python -m tests.simulator", *arguments]
    return int(simulator.main())


if __name__ == "__main__":
    sys.exit(main())
