"""`chaosd help TOPIC`: the pages of the documentation in the terminal, as this release has them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from chaosd.cli.options import EXIT_USAGE, fail

FOLDER, EXAMPLES = "pages", "examples"
"""Beside the package's modules, in what is installed; in a checkout the pages are where they are written."""


def register(app: typer.Typer) -> None:
    app.command("help")(show)


def show(
    topic: Annotated[str | None, typer.Argument(help="a page, or the beginning of its name; none: list them")] = None,
) -> None:
    """Show a page of the documentation. What a single command does: `chaosd COMMAND --help`.

    $ chaosd help                # which pages there are
    $ chaosd help quick-start
    $ chaosd help example-heart
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
    """Name to file, in the order of names; those of decisions by their numbers last. An example's page is called
    `example-` and the name of its folder."""
    package = Path(__file__).resolve().parents[1]
    if (package / FOLDER).is_dir():
        folder, examples = package / FOLDER, {path.stem: path for path in (package / FOLDER / EXAMPLES).glob("*.md")}
    else:
        folder = package.parents[1] / "docs"
        examples = {path.parent.name: path for path in (package.parents[1] / EXAMPLES).glob("*/README.md")}
    found = {path.stem: path for path in folder.rglob("*.md") if path.parent.name != EXAMPLES}
    found |= {f"example-{name.replace('_', '-')}": path for name, path in examples.items()}
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
