"""`chaosd key`: the keys of this site; `chaosd key rotate`, `approve`, `cancel`: a site gets another key, and keeps its
id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from chaosd.cli.options import (
    ApiSocketOption,
    ConfigOption,
    DataDirOption,
    JsonOption,
    daemon,
    echo_lines,
    leaves_to_subcommand,
    tell,
)

if TYPE_CHECKING:
    from chaosd.api.status import KeyStatus

key_app = typer.Typer(invoke_without_command=True, help="Show or change the key of this site; its id stays.")


def register(app: typer.Typer) -> None:
    app.add_typer(key_app, name="key")


@key_app.callback()
def show(
    context: typer.Context,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Show which key this site uses, which is to follow, and what was approved here for other sites.

    A key that is old, or that somebody may have copied, is changed while the run goes on, in three steps:

      $ chaosd key rotate                     # here: makes the next key, and shows its id in words
      $ chaosd key approve Hungary c428...    # at another member, whose operator has heard them
      $ chaosd leave; chaosd start            # here, when it suits: the daemon takes the new key

    The site keeps its id, its place in the run and its name. The former key counts nowhere as soon as the site uses
    the new one; who has a copy of it is refused.
    """
    if leaves_to_subcommand(context, config, data_dir, api_socket, json):
        return
    with daemon(config, data_dir, api_socket) as client:
        found = client.key()
    echo_lines(found, _lines, as_json=json)


def _lines(found: KeyStatus) -> list[str]:
    from chaosd.cli.render import printable

    changed = (
        f"changed {found.number} times" if found.number > 1 else "changed once" if found.number else "never changed"
    )
    lines = [f"site {found.site}", f"key  {found.key}, {changed}"]
    if not found.settled and not found.next_key:
        lines.append("the former key still counts: the run is about to agree that this site uses the new one")
    if found.next_key:
        waits = "the run has agreed on it: the next start of this daemon takes it"
        if not found.next_agreed:
            waits = "it waits for the operator of another member: `chaosd key approve` there, with the id or the words"
        lines += [f"next {found.next_key}", f"     {found.next_words}", f"     {waits}"]
    for one in found.approved:
        lines.append(f"approved here: {printable(one.called)} may change its key to {one.key}; not agreed yet")
    return lines


@key_app.command()
def rotate(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Make the next key of this site (file `site.key.new`), and ask the run to agree on it.

    Another member's operator has to approve it: read him the words, on the telephone, not by mail. Whoever has a copy
    of the present key could ask for this, too; so nobody changes a key alone. Nothing else changes until then. When the
    run has agreed both keys count, and the next start of this daemon takes the new one; from then on the former one is
    refused everywhere. Said again, it shows the same next key.

      $ chaosd key rotate
    """
    with daemon(config, data_dir, api_socket) as client:
        tell(client.change_key("rotate"), "key rotate", as_json=json)


@key_app.command()
def approve(
    site: Annotated[str, typer.Argument(help="the site that changes its key: its name, or the beginning of its id")],
    key: Annotated[list[str], typer.Argument(help="the id of its next key, or the 16 words of it")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Say that another site's next key is the one that its operator has read out to you.

    Type what you have heard from him, whom you know: nothing of what his daemon asks for is shown here, so that nothing
    can be confirmed unread. It counts as long as this daemon runs, for that key alone.

      $ chaosd key approve Hungary c428fe34a1b2c3d4e5f60718293a4b5c
      $ chaosd key approve Hungary "acorn actor agent alarm, album amber anchor angle, ankle apple apron arrow, ..."
    """
    with daemon(config, data_dir, api_socket) as client:
        tell(client.change_key("approve", site, " ".join(key)), f"key approve {site}", as_json=json)


@key_app.command()
def cancel(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    api_socket: ApiSocketOption = None,
    json: JsonOption = False,
) -> None:
    """Drop the next key of this site, as long as the run has not agreed on it. The present one stays.

    $ chaosd key cancel
    """
    with daemon(config, data_dir, api_socket) as client:
        tell(client.change_key("cancel"), "key cancel", as_json=json)
