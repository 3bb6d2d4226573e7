"""`chaosd link add SITE` and `chaosd link remove SITE`: the primitives connect-link and disconnect-link, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chaosd.cli.options import ApiSocketOption, ConfigOption, DataDirOption, JsonOption, daemon, tell

SiteArgument = Annotated[str, typer.Argument(help="id, unique beginning of the id, or name of the other site")]

link_app = typer.Typer(no_args_is_help=True, help="Add or remove a link of this site while training runs.")


def register(app: typer.Typer) -> None:
    app.add_typer(link_app, name="link")


@link_app.command()
def add(
    site: SiteArgument,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Connect this site to another site of the run.

    Both ends connect, a new plan uses the link from a coming round on; training does not pause.

      $ chaosd link add hungary
      $ chaosd link add 3f9a --config cleveland/chaosd.toml
    """
    _change(site, config, data_dir, api_socket, add=True, as_json=json)


@link_app.command()
def remove(
    site: SiteArgument,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Remove the link between this site and another one; both stay in the run.

    A removal that would split the overlay is refused.

      $ chaosd link remove hungary
    """
    _change(site, config, data_dir, api_socket, add=False, as_json=json)


def _change(
    site: str, config: Path | None, data_dir: Path | None, api_socket: Path | None, *, add: bool, as_json: bool
) -> None:
    with daemon(config, data_dir, api_socket) as client:
        outcome = client.change_link(site, add=add)
    tell(outcome, f"link {'add' if add else 'remove'} {site}", as_json=as_json)
