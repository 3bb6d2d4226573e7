"""`chaosd pending` and `chaosd trust SITE`: who knocked at this site, and letting it in while the daemon runs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from chaosd.cli.options import ApiSocketOption, ConfigOption, DataDirOption, JsonOption, daemon, tell


def register(app: typer.Typer) -> None:
    app.command()(pending)
    app.command()(trust)


def pending(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Show the sites that knocked at this one and are not trusted: their ids, proven by their keys, and when.

    $ chaosd pending
    """
    with daemon(config, data_dir, api_socket) as client:
        found = client.pending()
    if json:
        import msgspec

        typer.echo(msgspec.json.encode(found).decode())
        return
    for one in found:
        first, last = (datetime.fromtimestamp(at).strftime("%H:%M:%S") for at in (one.first_unix_s, one.last_unix_s))
        typer.echo(f"{one.site}  knocked {one.times} times, first {first}, last {last}")
    if not found:
        typer.echo("nobody knocks that is not trusted")


def trust(
    site: Annotated[str, typer.Argument(help="its id, or the beginning of an id that `chaosd pending` shows")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Let a site connect to this one, from now on: no restart. A member that it can connect to admits it to the run.

    Compare the id with what that institution tells you by another way: it is all that tells it from an impostor.

      $ chaosd trust c428fe34
    """
    with daemon(config, data_dir, api_socket) as client:
        outcome = client.trust(site)
    tell(outcome, f"trust {site}", as_json=json)
