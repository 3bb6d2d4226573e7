"""`chaosd status`: what the selected daemon sees of the run, once or live."""

from __future__ import annotations

from typing import Annotated

import typer

from chaosd.cli.options import ApiSocketOption, ConfigOption, DataDirOption, JsonOption, daemon, echo_json
from chaosd.cli.watching import watch

WATCH_INTERVAL_S = 0.5
"""Twice a second looks live and costs the daemon some tens of microseconds a second."""


def register(app: typer.Typer) -> None:
    app.command()(status)


def status(
    watching: Annotated[bool, typer.Option("--watch", "-w", help="keep showing it, until Ctrl+C")] = False,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Show the sites, the links, the round, and what keeps training waiting, as this site sees them.

    $ chaosd status --watch
    $ chaosd status --json | jq .round
    """
    with daemon(config, data_dir, api_socket) as client:
        if json and not watching:
            echo_json(client.status(), indent=2)
            return
        from chaosd.cli.render import render_status

        if watching:
            watch(client.status, render_status, every_s=WATCH_INTERVAL_S, as_json=json)
        else:
            from rich.console import Console

            Console().print(render_status(client.status()))
