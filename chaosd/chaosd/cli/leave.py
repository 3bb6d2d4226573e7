"""`chaosd leave`: the site leaves the run gracefully, then its daemon stops."""

from __future__ import annotations

from typing import Annotated

import typer

from chaosd.cli.options import ApiSocketOption, ConfigOption, DataDirOption, JsonOption, daemon, tell


def register(app: typer.Typer) -> None:
    app.command()(leave)


def leave(
    reason: Annotated[str, typer.Option(help="why, for the event history of all sites")] = "asked for by the operator",
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Leave the run: the round is finished, the others go on, this daemon stops.

    The same as one Ctrl+C in the daemon's terminal. A site that left can come back with `chaosd start`.

      $ chaosd leave --reason "maintenance window"
    """
    with daemon(config, data_dir, api_socket) as client:
        outcome = client.leave(reason)
    tell(outcome, "leave", as_json=json)
