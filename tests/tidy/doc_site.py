"""The documentation site: gathers the pages, makes the reference out of the code, and has mkdocs build and check it.

python -m tests.tidy.doc_site            # what `make docs` runs: build/site/index.html
python -m tests.tidy.doc_site --gather   # the pages alone, in build/docs

The pages keep the places that they have in the repository, so one relative link works in a checkout, in a source
distribution and on the site. The reference is made here and nowhere committed: it cannot be out of date. Nothing is
fetched from the network; a link that leads nowhere, to a page or a heading, fails the build.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import chaos
from chaosd.api import server
from chaosd.cli.app import app
from chaosd.config.file import FIELD_TEXTS, FORMER_NAMES, flag_name
from chaosd.config.model import PeerConfig, SiteConfig

ROOT = Path(__file__).resolve().parents[2]
GATHERED = ROOT / "build" / "docs"
KINDS = ("md", "svg", "png", "ipynb")
REFERENCE = GATHERED / "docs" / "reference"
COPIED = ("*.md", *(f"{folder}/**/*.{kind}" for folder in ("docs", "examples") for kind in KINDS))
LICENCE = ROOT / "LICENSE"


def main(words: list[str]) -> int:
    """The exit code of mkdocs."""
    gather()
    if "--gather" in words:
        return 0
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.call([sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"], cwd=ROOT, env=variables)


def gather() -> None:
    """All pages under build/docs."""
    shutil.rmtree(GATHERED, ignore_errors=True)
    pages = {path for pattern in COPIED for path in ROOT.glob(pattern)}
    for path in sorted(pages | {LICENCE}):
        place = GATHERED / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    for name, text in reference().items():
        REFERENCE.mkdir(parents=True, exist_ok=True)
        (REFERENCE / f"{name}.md").write_text(text, encoding="utf-8")


def reference() -> dict[str, str]:
    """Name of the page to its text."""
    return {
        "commands": commands(),
        "configuration": configuration(),
        "python": python(),
        "local-api": local_api(),
    }


# -- commands


def commands() -> str:
    """Every command with its help, arguments and options, as the program itself has them."""
    lines = ["# Commands", "", f"Made from `chaosd --help`, release {_release()}.", ""]
    for path, command in _walk("chaosd", typer.main.get_command(app)):
        lines += [f"## {path}", "", _prose(command.help or ""), ""]
        rows = [row for parameter in command.params if (row := _option(parameter))]
        if rows and not hasattr(command, "commands"):
            lines += ["| argument, option | meaning | default |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


def _walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    if command.hidden:
        return
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _walk(f"{path} {name}", inner)


def _option(parameter: Any) -> str:
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return ""
    option = parameter.param_type_name == "option"
    name = ", ".join([*parameter.opts, *parameter.secondary_opts]) if option else str(parameter.name).upper()
    text = re.sub(r"\[/?dim\]|\[/\]", "", getattr(parameter, "help", None) or "")
    default = parameter.default
    shown = "" if default is None or callable(default) or default is False else f"`{default}`"
    return f"| `{name}` | {_cell(text)} | {'required' if parameter.required else shown} |"


def _prose(text: str) -> str:
    """Help as Markdown: lines that begin with `$` are examples."""
    found: list[str] = []
    example = False
    for line in inspect.cleandoc(text).replace("\b", "").splitlines():
        is_example = line.strip().startswith("$ ")
        if is_example != example:
            found += ["", "```console"] if is_example else ["```", ""]
            example = is_example
        found.append(line.strip() if is_example else _escaped(line))
    return "\n".join([*found, "```"] if example else found)


# -- configuration


def configuration() -> str:
    """Every field: name, kind, default, flag, meaning."""
    lines = [
        "# Configuration",
        "",
        "Made from the code. A field of `chaosd.toml` is a flag of `chaosd start` of the same name; the flag wins.",
        "What `chaosd peer`, `chaosd trust` and `chaosd accept` change is kept in the data directory and wins.",
        "More words on each: [operating](../operating.md#configuration).",
        "",
        "| field | flag | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for name, field in SiteConfig.model_fields.items():
        default = "worked out" if field.default_factory is not None else f"`{_value(field.default)}`"
        lines.append(f"| `{name}` | `{flag_name(name)}` | {default} | {_cell(FIELD_TEXTS[name])} |")
    lines += ["", "## A peer", "", "| field | meaning |", "| --- | --- |"]
    lines += [f"| `{name}` | {_cell(field.description or '')} |" for name, field in PeerConfig.model_fields.items()]
    former = ", ".join(f"`{old}` (now `{new}`)" for old, new in FORMER_NAMES.items())
    return "\n".join([*lines, "", "## Former names", "", f"Still read: {former}.", ""])


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "[]" if value == () else str(value) if not isinstance(value, str) else f'"{value}"'


# -- Python


def python() -> str:
    """What `import chaos` gives, with signatures and docstrings."""
    lines = ["# Python", "", f"What `import chaos` gives, release {_release()}. Made from the code.", ""]
    for name in chaos.__all__:
        found = getattr(chaos, name)
        if inspect.isclass(found):
            lines += [f"## {name}", "", *_signature(name, found), _text(found), ""]
            for method, function in _methods(found):
                lines += [f"### {name}.{method}", "", *_signature(method, function), _text(function), ""]
        elif callable(found):
            lines += [f"## {name}", "", *_signature(name, found), _text(found), ""]
    return "\n".join(lines)


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    if issubclass(kind, Exception):
        return
    for name in dir(kind):
        function = inspect.getattr_static(kind, name)
        if not name.startswith("_") and (inspect.isfunction(function) or isinstance(function, property)):
            yield name, function


def _signature(name: str, found: Any) -> list[str]:
    if isinstance(found, property) or (inspect.isclass(found) and issubclass(found, Exception)):
        return []
    try:
        return ["```python", f"{name}{inspect.signature(found)}", "```", ""]
    except (TypeError, ValueError):
        return []


def _text(found: Any) -> str:
    return _escaped(inspect.getdoc(found) or "")


# -- the local API


def local_api() -> str:
    """The head of the server's module, which is what it serves."""
    return f"# Local API\n\n{inspect.cleandoc(server.__doc__ or '')}\n"


# -- text


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|").replace("\n", " ")


def _escaped(text: str) -> str:
    """No word of a docstring becomes markup by accident."""
    return re.sub(r"(?<!`)<(?=[a-zA-Z/])", "&lt;", text)


def _release() -> str:
    from importlib.metadata import version

    return version("chaos-train")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
