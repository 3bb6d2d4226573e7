"""`python -m benchmarks NAME`: runs a benchmark, prints a table for people and, as its last line, one JSON object.

Each module of this folder with a function `run(*, short: bool, seed: int) -> Figures` is a benchmark. With several
benchmarks each has its own table and its own JSON line. Results are kept as JSON files. Ends with 1 if a benchmark
fails, 2 if the command makes no sense.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.table import Table

import benchmarks
from benchmarks.measure import PROGRESS, Figure, Figures, machine

NO_BENCHMARKS = frozenset({"__main__", "measure"})
"""Modules of this folder that are none: helpers without a function `run`."""

DEFAULT_OUT = Path(__file__).parent / "results"


def names() -> list[str]:
    """All benchmarks: modules of this folder whose source defines `run`. Nothing is imported for that."""
    found = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    return sorted(name for name in found if name not in NO_BENCHMARKS and "\ndef run(" in _source(name))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    options = _parser().parse_args(arguments)
    known = names()
    if options.list:
        for name in known:
            print(f"{name:24} {_summary(name)}")
        return 0
    if options.all == bool(options.names):
        return _complain("name one or more benchmarks, or --all", known)
    unknown = [name for name in options.names if name not in known]
    if unknown:
        return _complain(f"there is no benchmark {unknown[0]!r}", known)
    if options.resume is not None and (len(options.names) != 1 or not _can_resume(options.names[0])):
        can = ", ".join(name for name in known if _can_resume(name))
        return _complain(f"--resume keeps the trainings of one benchmark that is made for it: {can}", known)
    failed = [name for name in options.names or known if not _run(name, options)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures what the project claims.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run, in this order")
    parser.add_argument("--all", action="store_true", help="run every benchmark")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and end")
    parser.add_argument("--short", action="store_true", help="fewer repeats and smaller sizes, for a quick look")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything drawn at random (default 0)")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="keep each finished training there, and do not repeat those that it has: a long benchmark in parts",
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder for the results (default %(default)s)")
    return parser


def _run(name: str, options: argparse.Namespace) -> bool:
    began, short, seed, out = time.perf_counter(), options.short, options.seed, options.out
    kept = {} if options.resume is None else {"resume": options.resume}
    try:
        run = cast(Callable[..., Figures], importlib.import_module(f"benchmarks.{name}").run)
        with PROGRESS.of(name):
            figures = run(short=short, seed=seed, **kept)
        result = {"benchmark": name, "figures": figures, "machine": machine(), "seed": seed, "short": short}
        line = json.dumps(result, allow_nan=False)
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.json").write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except Exception as error:  # one failing benchmark must not hide the figures of the others
        traceback.print_exc()
        print(f"benchmark {name} failed: {error}", file=sys.stderr)
        return False
    _print_table(name, figures, time.perf_counter() - began)
    print(line, flush=True)
    return True


def _print_table(name: str, figures: Figures, seconds: float) -> None:
    table = Table(title=f"{name} ({seconds:.1f} s)", title_justify="left")
    table.add_column("figure")
    for heading in ("value", "min", "max"):
        table.add_column(heading, justify="right")
    for key, figure in figures.items():
        table.add_row(key, *_cells(figure))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _cells(figure: Figure) -> tuple[str, str, str]:
    if isinstance(figure, dict):
        return _text(figure["median"]), _text(figure["min"]), _text(figure["max"])
    return _text(figure), "", ""


def _text(value: float | int | bool | str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _source(name: str) -> str:
    path = Path(__file__).parent / f"{name}.py"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _can_resume(name: str) -> bool:
    return "resume: Path | None" in _source(name)


def _summary(name: str) -> str:
    return _source(name).lstrip('"').partition("\n")[0].rstrip('"')


def _complain(problem: str, known: Sequence[str]) -> int:
    print(f"{problem}; benchmarks: {', '.join(known)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
