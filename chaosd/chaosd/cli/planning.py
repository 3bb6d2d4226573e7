"""What the commands that calculate (`plan`, `simulate`) share: how they read facts, print, draw and fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from chaos_planner.solvers import SolverMissing, optimize
from chaosd.cli.options import EXIT_FAILED, EXIT_USAGE, fail, without_nan

PlotOption = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="draw into FILE (png, pdf, svg)")]

DIGITS_MAX = 15
"""Of a whole number in an option: more devices than a float tells apart are nobody's."""


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """A wrong value becomes one line on stderr and exit code 2, a missing solver one and exit code 1."""
    try:
        yield
    except SolverMissing as error:
        fail(f"error: {error}", EXIT_FAILED)
    except ValueError as error:
        fail(f"error: {' '.join(str(error).split())}", EXIT_USAGE)


def require_solver() -> None:
    """Raises `SolverMissing` before any work is done where the plans need scipy and it is not installed."""
    optimize()


def whole_numbers(option: str, text: str) -> list[int]:
    """ "3,17" as numbers; `ValueError` naming the option."""
    found: list[int] = []
    for word in text.replace(" ", "").split(","):
        if word:
            if not word.isdecimal():
                raise ValueError(f"{option} {text!r}: {word!r} is no whole number; write for example {option} 3,17")
            if len(word) > DIGITS_MAX:
                raise ValueError(f"{option}: a number of {len(word)} digits; allowed: at most {DIGITS_MAX}")
            found.append(int(word))
    return found


def read_text(path: Path, what: str) -> str:
    """The file's text; `ValueError` that names it where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ValueError(f"cannot read {what} {path}: {reason}") from None


def read_model(name: str, profile: Path | None, micro_batches: int | None) -> Any:
    """Facts of the built-in model, or of the profile file; `micro_batches` replaces the number in the file."""
    from dataclasses import replace

    from chaos_planner.pipelines.facts import models
    from chaos_planner.pipelines.facts.site import ModelProfile

    if profile is None:
        return models.built_in(name, global_micro_batches=64 if micro_batches is None else micro_batches)
    facts = ModelProfile.from_json(read_text(profile, "profile"))
    return facts if micro_batches is None else replace(facts, global_micro_batches=micro_batches)


def load_pyplot() -> Any:
    """matplotlib without a display; explains itself where it is not installed."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        fail("error: --plot needs matplotlib, which is not installed: pip install 'chaos-train[plot]'", EXIT_FAILED)
    return plt


def save(figure: Any, path: Path) -> None:
    """Write a figure; one line where it cannot be written."""
    try:
        figure.savefig(path, dpi=130, bbox_inches="tight")
    except (OSError, ValueError) as error:
        fail(f"error: cannot write the plot {path}: {error}", EXIT_FAILED)
    typer.echo(f"plot written to {path}", err=True)


@contextlib.contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; yields what takes the number done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)


def print_json(value: object) -> None:
    """One JSON document on stdout; infinities and nan become null."""
    import json

    typer.echo(json.dumps(without_nan(value), indent=2))


def show(*parts: Any) -> None:
    """Print rich parts to stdout."""
    from rich.console import Console

    console = Console()
    for part in parts:
        console.print(part)


def table_of(*columns: str, title: str) -> Any:
    """An empty table in the house's style."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(*columns, title=title, box=SIMPLE_HEAD, pad_edge=False)
