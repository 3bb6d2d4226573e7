"""`chaosd doctor`: looks at everything that commonly keeps a site from working, and says the remedy."""

from __future__ import annotations

from typing import Annotated

import typer

from chaosd.cli.options import EXIT_FAILED, ConfigOption, DataDirOption, JsonOption, config_path

LABEL_WIDTH = 14


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    timeout_s: Annotated[float, typer.Option(help="how long to wait for each peer", min=0.1, max=60.0)] = 3.0,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    json: JsonOption = False,
) -> None:
    """Check this site: versions, key, folder, disk, sockets, ports, clock, shared memory, limits, iperf3, every peer.

    Each line is ok, warn or fail, with what to do. Changes nothing. Exit code 1 if a line is fail.

      $ chaosd doctor --config cleveland/chaosd.toml
    """
    from chaosd.doctor import Level, examine

    failed = False
    for check in examine(config_path(config), data_dir, peer_timeout_s=timeout_s):
        failed = failed or check.level is Level.FAIL
        if json:
            import msgspec

            typer.echo(msgspec.json.encode(check).decode())
            continue
        colour = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}[check.level]
        typer.echo(f"{typer.style(f'{check.level.value:<5s}', fg=colour)}{check.name:<{LABEL_WIDTH}s}{check.found}")
        if check.remedy:
            typer.echo(f"{'':<{LABEL_WIDTH + 5}s}-> {check.remedy}")
    if failed:
        raise typer.Exit(EXIT_FAILED)
