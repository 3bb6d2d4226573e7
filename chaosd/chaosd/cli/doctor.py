"""`chaosd doctor`: looks at everything that commonly keeps a site from working, and says the remedy."""

from __future__ import annotations

from typing import Annotated

import typer

from chaosd.cli.options import (
    EXIT_FAILED,
    EXIT_USAGE,
    ConfigOption,
    DataDirOption,
    JsonOption,
    config_path,
    echo_json,
    fail,
    selected,
)
from chaosd.config.file import ConfigError

LABEL_WIDTH = 14


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    timeout_s: Annotated[float, typer.Option(help="how long to wait for each peer", min=0.1, max=60.0)] = 3.0,
    peer: Annotated[
        str | None, typer.Option(help="ask this neighbour (id, beginning of it, or name) how it sees this site")
    ] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    json: JsonOption = False,
) -> None:
    """Check this site: versions, key, folders, disk, sockets, ports, clock, shared memory, limits, iperf3, every peer.

    Each line is ok, warn or fail, with what to do. Changes nothing. Exit code 1 if a line is fail.

    With --peer the running daemon asks that neighbour over their link: what lets this site connect there, what the
    roster there says of it, and whether it can be dialled from there.

      $ chaosd doctor --config cleveland/chaosd.toml
      $ chaosd doctor --peer hungary
    """
    from chaosd.doctor.check import Level
    from chaosd.doctor.site import examine

    if peer is None:
        checks = examine(config_path(config), data_dir, peer_timeout_s=timeout_s)
    else:
        from chaosd.api.client import LocalClient
        from chaosd.doctor.asked import examine_peer

        try:
            checks = examine_peer(LocalClient(selected(config, data_dir, None)[1]), peer)
        except ConfigError as error:
            fail(str(error), EXIT_USAGE)
    failed = False
    for check in checks:
        failed = failed or check.level is Level.FAIL
        if json:
            echo_json(check)
            continue
        colour = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}[check.level]
        typer.echo(
            f"{typer.style(f'{check.level.value:<5s}', fg=colour)}{check.name:<{LABEL_WIDTH - 1}s} {check.found}"
        )
        if check.remedy:
            typer.echo(f"{'':<{LABEL_WIDTH + 5}s}-> {check.remedy}")
    if failed:
        raise typer.Exit(EXIT_FAILED)
