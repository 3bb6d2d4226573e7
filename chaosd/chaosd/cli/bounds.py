"""`chaosd bounds`: what the run allows a site to give; `chaosd bounds set`, `chaosd bounds withdraw`: another wish."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer

from chaosd.cli.options import (
    EXIT_USAGE,
    ApiSocketOption,
    ConfigOption,
    DataDirOption,
    JsonOption,
    daemon,
    echo_lines,
    fail,
    leaves_to_subcommand,
    tell,
)

if TYPE_CHECKING:
    from chaosd.api.status import RunBounds

NAMES = ("norm_max", "weight_max", "clip_radius")

bounds_app = typer.Typer(
    invoke_without_command=True, help="Show or change what the run allows a site to give to a round."
)


def register(app: typer.Typer) -> None:
    app.add_typer(bounds_app, name="bounds")


@bounds_app.callback()
def show(
    context: typer.Context,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Show what the run allows a site to give to a round: the norm of its gradient, its weight, how far from the last
    result it may be.

      $ chaosd bounds
      $ chaosd bounds set norm_max=5 weight_max=off
    """
    if leaves_to_subcommand(context, config, data_dir, api_socket, json):
        return
    with daemon(config, data_dir, api_socket) as client:
        found = client.bounds()
    echo_lines(found, _lines, as_json=json)


def _lines(found: RunBounds) -> list[str]:
    lines = [f"a site gives: {found.holds}"]
    if found.agreed is not None:
        lines.append(f"from round {found.from_round} on: {found.agreed}")
    if found.wanted is not None:
        need = found.members // 2 + 1
        lines.append(f"wanted here: {found.wanted}; it needs {need} of {found.members} members' operators")
    return lines


@bounds_app.command("set")
def change(
    bounds: Annotated[
        list[str],
        typer.Argument(help="NAME: norm_max, weight_max, clip_radius; NUMBER may be off", metavar="NAME=NUMBER"),
    ],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Want other bounds for the run, from a coming round on; what is not named stays.

    Nobody changes them alone: they change as soon as the operators of more than half of the members want exactly the
    same, each at their own site. A wish ends when the run gets other bounds, when it is withdrawn, and with the daemon.

      $ chaosd bounds set norm_max=5 weight_max=1000
      $ chaosd bounds set clip_radius=off
    """
    wanted = dict(_read(text) for text in bounds)
    with daemon(config, data_dir, api_socket) as client:
        tell(client.want_bounds(wanted), "bounds set", as_json=json)


@bounds_app.command()
def withdraw(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Take back what `chaosd bounds set` has asked for here, as long as it is not agreed.

    $ chaosd bounds withdraw
    """
    with daemon(config, data_dir, api_socket) as client:
        tell(client.want_bounds({}, withdraw=True), "bounds withdraw", as_json=json)


def _read(text: str) -> tuple[str, float]:
    name, _, said = text.partition("=")
    try:
        number = 0.0 if said == "off" else float(said)
    except ValueError:
        number = -1.0
    if name not in NAMES or not isfinite(number) or number < 0:
        names = ", ".join(NAMES)
        fail(f"{text!r}: must be NAME=NUMBER (not negative) or NAME=off, with NAME one of {names}", EXIT_USAGE)
    return name, number
