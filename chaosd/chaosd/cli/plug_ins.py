"""Commands that other packages bring: found by their entry points, and what is said where one is not installed.

Called once, when the commands are put together. An entry point of the group is a function that adds its commands to the
app, as `register` of a module of this package does. The daemon names no package here but in words for people.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, NoReturn

import typer

from chaosd.cli.options import EXIT_USAGE, fail

GROUP = "chaosd.commands"
"""Of entry points (pyproject.toml)."""

EXPECTED = {"lab": "chaos_lab"}
"""Commands that the documents speak of and that a package of its own brings: command to package."""


def installed() -> Iterable[EntryPoint]:
    """Those that this Python has."""
    return entry_points(group=GROUP)


def plug_in(app: typer.Typer, points: Iterable[EntryPoint]) -> None:
    """Add the commands of these entry points; for one that is expected and is not there, or cannot be loaded, a command
    that says so: half an installation must not take the other commands away."""
    missing = dict.fromkeys(EXPECTED, "it is not installed")
    for point in points:
        try:
            point.load()(app)
            missing.pop(point.name, None)
        except (ImportError, AttributeError) as error:
            missing[point.name] = f"it cannot be loaded ({error})"
    for command, why in missing.items():
        _add_stand_in(app, command, why)


def _add_stand_in(app: typer.Typer, command: str, why: str) -> None:
    package = EXPECTED.get(command, command)

    def missing(words: Annotated[list[str] | None, typer.Argument()] = None) -> NoReturn:
        del words
        fail(
            f"`chaosd {command}` is not there: {why}. It is a plug-in of the package {package} (entry point "
            f"'{command}' of the group {GROUP}). Install the project again: python -m pip install chaos-train, "
            "or in a checkout python -m pip install -e .",
            EXIT_USAGE,
        )

    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app.command(command, hidden=True, context_settings=settings)(missing)
