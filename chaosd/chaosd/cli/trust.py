"""`chaosd pending`, `chaosd accept ID`, `chaosd trust`: who may connect, changed while the daemon runs."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from chaosd.cli.options import (
    EXIT_USAGE,
    ApiSocketOption,
    ConfigOption,
    DataDirOption,
    JsonOption,
    daemon,
    echo_list,
    fail,
    selected,
    tell,
)
from chaosd.config.contexts import choose, remembered
from chaosd.config.file import ConfigError

if TYPE_CHECKING:
    from chaosd.api.status import PendingSite


class FormerForm(TyperGroup):
    """`chaosd trust SITE` is the former form of `chaosd trust add SITE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not {*args} & {*self.commands, "--help", "-h"}:
            args = ["add", *args]
        return super().parse_args(ctx, args)


trust_app = typer.Typer(
    cls=FormerForm, no_args_is_help=True, help="Add to, take off or list the sites that may connect to this one."
)


def register(app: typer.Typer) -> None:
    app.command()(pending)
    app.command()(accept)
    app.add_typer(trust_app, name="trust")


def pending(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Show the sites that knocked at this one and are not trusted: their ids, proven by their keys, in words, and when.

    $ chaosd pending
    """
    with daemon(config, data_dir, api_socket) as client:
        found = client.pending()
    echo_list(found, _knock, "nobody knocks that is not trusted", as_json=json)
    if json:
        return
    if found:
        typer.echo("Does that institution read out the same words? Then: chaosd accept ID")
    elif choose(config).guessed and data_dir is None and api_socket is None:
        for path, count in _knocks_elsewhere():
            who = "one does" if count == 1 else f"{count} do"
            typer.echo(f"but at another site of this machine {who}: chaosd pending --config {shlex.quote(str(path))}")


def _knocks_elsewhere() -> Iterator[tuple[Path, int]]:
    """Other sites that were made here and run, and how many wait at each: several sites on one machine are how most
    people begin, and the one made last is seldom the one that is knocked at."""
    from chaosd.api.client import LocalClient, NoDaemonError, RequestRefusedError, SocketUnusableError

    for path in remembered():
        with contextlib.suppress(ConfigError, NoDaemonError, RequestRefusedError, SocketUnusableError, OSError):
            if path.is_file() and (found := LocalClient(selected(path, None, None)[1]).pending()):
                yield path, len(found)


def _beginning(text: str) -> str:
    """An id or the beginning of one, as it was typed or pasted. Ends the command for anything else: a name, words."""
    found = text.strip().lower()
    if not re.fullmatch("[0-9a-f]{4,32}", found):
        fail(
            f"'{text}' is no id: 32 characters 0-9 a-f, of which the first 4 or more will do where `chaosd pending` or "
            "`chaosd trust list` shows it",
            EXIT_USAGE,
        )
    return found


def _knock(one: PendingSite) -> str:
    from chaosd.cli.render import moment

    first, last = moment(one.first_unix_s), moment(one.last_unix_s)
    return f"{one.site}  knocked {one.times} times, first {first}, last {last}\n    {one.words}"


def accept(
    site: Annotated[str, typer.Argument(help="its id as `chaosd pending` shows it, or the beginning of it")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Let a site in that waits, from now on: no restart, nothing to type but the beginning of its id.

    Call that institution first and have them read out the words of its id (`chaosd pending` shows them here,
    `chaosd status` there): they are all that tells it from an impostor. A member that it can connect to admits it to
    the run.

      $ chaosd accept c428fe34
    """
    site = _beginning(site)
    with daemon(config, data_dir, api_socket) as client:
        outcome = client.trust(site, pending=True)
    tell(outcome, f"accept {site}", as_json=json)


@trust_app.command()
def add(
    site: Annotated[str, typer.Argument(help="its id, or the beginning of an id that `chaosd pending` shows")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Let a site connect to this one from now on, whether it has knocked already or not.

    $ chaosd trust add c428fe341c9c7edd59ab5b2ebc29859d
    """
    site = _beginning(site)
    with daemon(config, data_dir, api_socket) as client:
        outcome = client.trust(site)
    tell(outcome, f"trust add {site}", as_json=json)


@trust_app.command()
def remove(
    site: Annotated[str, typer.Argument(help="its id, the beginning of it, or its name")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Take a site off the list of those that may connect. A peer, and a site of the run, may connect all the same.

    $ chaosd trust remove Hungary
    """
    with daemon(config, data_dir, api_socket) as client:
        outcome = client.trust(site, add=False)
    tell(outcome, f"trust remove {site}", as_json=json)


@trust_app.command("list")
def list_trusted(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Show who may connect to this site, and what lets them: a command, the configuration, the run.

    $ chaosd trust list
    """
    from chaosd.cli.render import printable

    with daemon(config, data_dir, api_socket) as client:
        found = client.trusted()
    echo_list(
        found,
        lambda one: f"{one.site}  {printable(one.called)}, by {one.by}\n    {one.words}",
        "nobody: `chaosd pending` shows who knocks",
        as_json=json,
    )
