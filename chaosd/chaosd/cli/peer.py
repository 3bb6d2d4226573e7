"""`chaosd peer add|remove|list`: whom this site dials, changed while the daemon runs."""

from __future__ import annotations

from typing import Annotated

import typer

from chaosd.cli.options import (
    EXIT_USAGE,
    ApiSocketOption,
    ConfigOption,
    DataDirOption,
    JsonOption,
    daemon,
    echo_list,
    fail,
    tell,
)
from chaosd.config.file import ConfigError

peer_app = typer.Typer(no_args_is_help=True, help="Add, remove or list the neighbours that this site dials.")


def register(app: typer.Typer) -> None:
    app.add_typer(peer_app, name="peer")


@peer_app.command()
def add(
    peer: Annotated[str, typer.Argument(help="SITE@HOST:PORT or NAME=SITE@HOST:PORT, as `chaosd up` prints it there")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Dial a neighbour from now on, and after a restart. Who is dialled may connect, too.

    $ chaosd peer add c428fe341c9c7edd59ab5b2ebc29859d@hospital.example:7400
    $ chaosd peer add Hungary=c428fe341c9c7edd59ab5b2ebc29859d@hospital.example:7400
    """
    from chaosd.cli.start import peer_of

    try:
        fields = peer_of(peer, "PEER")
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)
    with daemon(config, data_dir, api_socket) as client:
        outcome = client.add_peer(fields["site"], fields["address"], fields.get("name", ""))
    tell(outcome, f"peer add {peer}", as_json=json)


@peer_app.command()
def remove(
    site: Annotated[str, typer.Argument(help="its id, the beginning of it, or the name that it was given here")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Do not dial a neighbour any more. A link that the run has agreed on stays until `chaosd link remove`.

    $ chaosd peer remove c428fe34
    """
    with daemon(config, data_dir, api_socket) as client:
        outcome = client.remove_peer(site)
    tell(outcome, f"peer remove {site}", as_json=json)


@peer_app.command("list")
def list_peers(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Show whom this site dials, by configuration or command, and whether there is a link.

    $ chaosd peer list
    """
    from chaosd.cli.render import printable

    with daemon(config, data_dir, api_socket) as client:
        found = client.peers()
    echo_list(
        found,
        lambda one: (
            f"{one.site}@{one.address}  {printable(one.called)}, by {one.by}, {'linked' if one.up else 'no link'}"
        ),
        "no peers: this site waits until others dial it",
        as_json=json,
    )
