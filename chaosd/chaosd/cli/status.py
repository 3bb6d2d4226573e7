"""`chaosd status`: what the selected daemon sees of the run, once or live."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from chaosd.cli.options import ApiSocketOption, ConfigOption, DataDirOption, JsonOption, daemon

WATCH_INTERVAL_S = 0.5
"""Twice a second looks live and costs the daemon some tens of microseconds a second."""


def register(app: typer.Typer) -> None:
    app.command()(status)


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="keep showing it, until Ctrl+C")] = False,
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
        if json:
            import msgspec

            while True:
                text = msgspec.json.encode(client.status())
                typer.echo((text if watch else msgspec.json.format(text, indent=2)).decode())
                if not watch:
                    return
                time.sleep(WATCH_INTERVAL_S)
        from rich.console import Console

        from chaosd.cli.render import render_status

        console = Console()
        if not watch:
            console.print(render_status(client.status()))
            return
        from rich.live import Live

        with Live(render_status(client.status()), console=console, auto_refresh=False) as live:
            try:
                while True:
                    time.sleep(WATCH_INTERVAL_S)
                    live.update(render_status(client.status()), refresh=True)
            except KeyboardInterrupt:
                return
