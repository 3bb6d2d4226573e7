"""`chaosd metrics`: the counters of the selected daemon, and the files with which Prometheus and Grafana watch it."""

from __future__ import annotations

from importlib import resources
from typing import Annotated

import typer

from chaosd.cli.options import EXIT_USAGE, ApiSocketOption, ConfigOption, DataDirOption, daemon, fail

FILES = {"dashboard": "dashboard.json", "alarms": "alarms.yml", "scrape": "scrape.yml"}


def register(app: typer.Typer) -> None:
    app.command()(metrics)


def metrics(
    dashboard: Annotated[bool, typer.Option("--dashboard", help="print a dashboard for Grafana instead")] = False,
    alarms: Annotated[bool, typer.Option("--alarms", help="print alarm rules for Prometheus instead")] = False,
    scrape: Annotated[bool, typer.Option("--scrape", help="print what prometheus.yml needs instead")] = False,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
) -> None:
    """Print every counter of the daemon, in Prometheus' text format; or a file for those who watch it.

    Prometheus itself reads them at /metrics of the page: `page = "127.0.0.1:7480"` in the configuration.

      $ chaosd metrics | grep rounds
      $ chaosd metrics --alarms > chaosd-alarms.yml
      $ chaosd metrics --dashboard > chaosd-dashboard.json
    """
    wanted = [name for name, asked in (("dashboard", dashboard), ("alarms", alarms), ("scrape", scrape)) if asked]
    if len(wanted) > 1:
        fail(f"choose one of {', '.join(f'--{name}' for name in wanted)}", EXIT_USAGE)
    if wanted:
        typer.echo(shipped(FILES[wanted[0]]), nl=False)
        return
    with daemon(config, data_dir, api_socket) as client:
        typer.echo(client.metrics(), nl=False)


def shipped(name: str) -> str:
    """A file of those that come with the daemon."""
    return resources.files("chaosd.monitor").joinpath("files", name).read_text(encoding="utf-8")
