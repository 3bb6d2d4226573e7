"""`chaosd events`: the history of the run as the selected daemon recorded it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chaosd.cli.options import ApiSocketOption, ConfigOption, DataDirOption, JsonOption, daemon, echo_json, selected

if TYPE_CHECKING:
    from chaosd.api.status import EventRecord

LAST_MAX = 10_000
"""As many as one answer of the API holds (api.EVENTS_MAX)."""


def register(app: typer.Typer) -> None:
    app.command()(events)


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on with new events, until Ctrl+C")] = False,
    last: Annotated[int, typer.Option("--last", "-n", min=0, max=LAST_MAX, help="how many past events to show")] = 20,
    export: Annotated[
        Path | None, typer.Option("--export", help="write the whole history to FILE (.csv, .jsonl, .json) instead")
    ] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Show what happened: joins, leaves, failures, links, elections, each with cause, outcome, duration and reason.

    $ chaosd events --last 50
    $ chaosd events --follow --json | jq 'select(.kind == "scale-in")'
    $ chaosd events --export incident.csv      # also without a running daemon
    """
    with daemon(config, data_dir, api_socket) as client:
        if export is not None:
            from chaosd.cli.export import export as write_all

            count, source = write_all(export, client, selected(config, data_dir, api_socket)[0])
            typer.echo(f"{count} events written to {export}, from {source}")
            return
        past = client.last_events(last) if last else []
        for record in past:
            _show(record, as_json=json)
        if not follow:
            return
        try:
            for record in client.follow_events(after_id=past[-1].id if past else None):
                _show(record, as_json=json)
        except KeyboardInterrupt:
            return
        typer.echo("the daemon stopped: no more events", err=True)


def _show(record: EventRecord, *, as_json: bool) -> None:
    if as_json:
        echo_json(record)
    else:
        from chaosd.cli.render import event_line

        typer.echo(event_line(record))
