"""`chaosd page`: the address of the live page of the selected daemon, and a browser that opens it."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from chaosd.cli.options import ApiSocketOption, ConfigOption, DataDirOption, JsonOption, daemon, echo_json
from chaosd.config.file import DEFAULT_PAGE


def register(app: typer.Typer) -> None:
    app.command()(page)


def page(
    address: Annotated[
        str, typer.Option(help=f"where to open it, if it is not open yet; default: {DEFAULT_PAGE}", show_default=False)
    ] = "",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open a browser on this screen")] = True,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Open the live page of this daemon: overlay, rounds, who is slow, joins, events, metrics.

    Prints an address that lets one browser of this machine in, once, within two minutes. The page is open from then on
    until the daemon ends; `page` in the configuration opens it at every start. From another machine, forward the port
    first: ssh -L 7480:127.0.0.1:7480 THIS-MACHINE

      $ chaosd page
      $ chaosd page --no-browser --config cleveland/chaosd.toml
    """
    with daemon(config, data_dir, api_socket) as client:
        found = client.page(address)
    if json:
        echo_json(found)
        return
    if address not in ("", found.address):
        typer.echo(f"(it is open at {found.address} already, and not at {address})", err=True)
    typer.echo(found.url)
    if browser and _has_screen():
        import webbrowser

        webbrowser.open(found.url)


def _has_screen() -> bool:
    """Whether a browser would show itself: one in the terminal would hide what was printed."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
