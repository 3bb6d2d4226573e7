"""`chaosd block SITE`, `chaosd unblock SITE`: no link with a site, here and at once."""

from __future__ import annotations

from typing import Annotated

import typer

from chaosd.cli.options import ApiSocketOption, ConfigOption, DataDirOption, JsonOption, daemon, tell


def register(app: typer.Typer) -> None:
    app.command()(block)
    app.command()(unblock)


def block(
    site: Annotated[str, typer.Argument(help="its id, or the beginning or the name of a site known here")] = "",
    reason: Annotated[str, typer.Option(help="why, for the events of this site")] = "",
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Have no link with a site any more, at once and after a restart, whatever else lets it connect. Without a site:
    show who is blocked.

    It holds here alone: a member of the run stays one as long as another member has a link with it. The members agree
    among themselves to block a site at each of them; with its last link it is removed as failed.

      $ chaosd block c428fe34 --reason "key stolen"
    """
    from chaosd.cli.render import printable

    with daemon(config, data_dir, api_socket) as client:
        if site:
            tell(client.block(site, reason=reason), f"block {site}", as_json=json)
            return
        found = client.blocked()
    if json:
        import msgspec

        typer.echo(msgspec.json.encode(found).decode())
        return
    for one in found:
        typer.echo(f"{one.site}  {printable(one.called)}")
    if not found:
        typer.echo("nobody is blocked")


def unblock(
    site: Annotated[str, typer.Argument(help="its id, or the beginning of it")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Undo `chaosd block`: the site may connect again, if it is trusted, a peer, or a site of the run.

    $ chaosd unblock c428fe34
    """
    with daemon(config, data_dir, api_socket) as client:
        outcome = client.block(site, add=False)
    tell(outcome, f"unblock {site}", as_json=json)
