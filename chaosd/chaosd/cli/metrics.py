"""`chaosd metrics`: the counters of the selected daemon, and the files with which Prometheus and Grafana watch it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from chaosd.cli.options import EXIT_USAGE, ApiSocketOption, ConfigOption, DataDirOption, config_path, daemon, fail, say
from chaosd.config.file import DEFAULT_PAGE, ConfigError, read_config_file

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
        text = shipped(FILES[wanted[0]])
        typer.echo(text.replace(DEFAULT_PAGE, _page(config)) if scrape else text, nl=False)
        return
    with daemon(config, data_dir, api_socket) as client:
        typer.echo(client.metrics(), nl=False)


def _page(config: Path | None) -> str:
    """Where this site's page is to be, as its configuration has it; else where it is without a word there."""
    try:
        path = config_path(config)
        page = read_config_file(path).get("page") if path is not None else None
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)
    if isinstance(page, str) and page:
        return page
    where = f"{path} names no page" if path is not None else "there is no configuration"
    say(f'{where}: write page = "{DEFAULT_PAGE}" into it, since one that was opened otherwise ends with its daemon')
    return DEFAULT_PAGE


def shipped(name: str) -> str:
    """A file of those that come with the daemon."""
    return resources.files("chaosd.monitor").joinpath("files", name).read_text(encoding="utf-8")
