"""`chaosd block SITE`: no link with a site, here and at once; `chaosd ban SITE`: and out of the run, if most say so;
`chaosd unblock SITE` takes both back."""

from __future__ import annotations

from typing import Annotated

import typer

from chaosd.cli.options import ApiSocketOption, ConfigOption, DataDirOption, JsonOption, daemon, echo_list, tell


def register(app: typer.Typer) -> None:
    app.command()(block)
    app.command()(ban)
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

    It holds here alone: a member of the run stays one as long as another member has a link with it. To have it out of
    the run: `chaosd ban`.

      $ chaosd block c428fe34 --reason "key stolen"
    """
    from chaosd.cli.render import printable

    with daemon(config, data_dir, api_socket) as client:
        if site:
            tell(client.block(site, reason=reason), f"block {site}", as_json=json)
            return
        found = client.blocked()
    echo_list(found, lambda one: f"{one.site}  {printable(one.called)}", "nobody is blocked", as_json=json)


def ban(
    site: Annotated[str, typer.Argument(help="its id, or the beginning or the name of a site known here")],
    reason: Annotated[str, typer.Option(help="why, for the events of this site")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Want a site out of the run: block it here, and say so to the scheduler. As soon as more than half of the other
    members' operators have said the same, each at their own site, it is removed, and never let in again.

    A member that is banned has no vote on itself: of two members one alone can do that, at once, of three or more none.
    Until the removal `chaosd unblock` takes the word back; the removal itself is for good: its institution would come
    back with a new key.

      $ chaosd ban c428fe34 --reason "key stolen"
    """
    with daemon(config, data_dir, api_socket) as client:
        tell(client.block(site, ban=True, reason=reason), f"ban {site}", as_json=json)


def unblock(
    site: Annotated[str, typer.Argument(help="its id, the beginning of it, or its name if it is known here")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Undo `chaosd block`, and take back `chaosd ban`: the site may connect again, if it is trusted, a peer, or a site
    of the run.

    $ chaosd unblock c428fe34
    """
    with daemon(config, data_dir, api_socket) as client:
        outcome = client.block(site, add=False)
    tell(outcome, f"unblock {site}", as_json=json)
