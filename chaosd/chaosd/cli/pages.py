"""`chaosd help TOPIC`: the pages of the documentation in the terminal, as this release has them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from chaosd.cli.options import EXIT_USAGE, fail

FOLDER = "pages"
"""Beside the package's modules, in what is installed; in a checkout the pages are where they are written."""


def register(app: typer.Typer) -> None:
    app.command("help")(show)


def show(
    topic: Annotated[str | None, typer.Argument(help="a page, or the beginning of its name; none: list them")] = None,
) -> None:
    """Show a page of the documentation. What a single command does: `chaosd COMMAND --help`.

    $ chaosd help                # which pages there are
    $ chaosd help quick-start
    """
    known = pages()
    if topic is None:
        width = max(map(len, known))
        for name, path in known.items():
            typer.echo(f"{name:<{width}}  {_title(path)}")
        return
    wanted = topic.lower().removesuffix(".md")
    found = [wanted] if wanted in known else [name for name in known if name.startswith(wanted)]
    if len(found) != 1:
        choice = ", ".join(found or known)
        fail(f"{'more than one page begins' if found else 'no page begins'} with '{topic}': {choice}", EXIT_USAGE)
    _show(known[found[0]].read_text(encoding="utf-8"))


def pages() -> dict[str, Path]:
    """Name to file, in the order of names; those of decisions by their numbers last."""
    package = Path(__file__).resolve().parents[1]
    folder = package / FOLDER if (package / FOLDER).is_dir() else package.parents[1] / "docs"
    found = {path.stem: path for path in sorted(folder.rglob("*.md"))}
    if not found:
        fail(f"no pages in {folder}: this installation is incomplete", EXIT_USAGE)
    return dict(sorted(found.items(), key=lambda one: (one[0][0].isdigit(), one[0])))


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().lstrip("# ").strip()


def _show(text: str) -> None:
    if not sys.stdout.isatty():
        typer.echo(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    with console.pager(styles=True, links=False):
        console.print(Markdown(text))
