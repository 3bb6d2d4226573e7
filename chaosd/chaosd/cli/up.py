"""`chaosd up`: make this machine's site where there is none, then start it. Asks nothing that can be found out."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from chaosd.cli.options import EXIT_USAGE, fail
from chaosd.cli.start import become, overrides_of
from chaosd.config.contexts import choose
from chaosd.config.file import (
    CONFIG_FILE_NAME,
    DEFAULT_LISTEN,
    DEFAULT_RUN,
    FIELD_TEXTS,
    FOUNDER_WAITS_FOR,
    ConfigError,
    default_data_dir,
)

if TYPE_CHECKING:
    from chaos_protocols.names import SiteId
    from chaosd.config.model import SiteConfig

COMMAND = "chaosd.up.command"
"""Where the command line leaves what follows `--`."""

JOIN = """\
site {site} of run {run}, at {address}
its words, for the telephone: {words}
Another site joins with (on this machine: chaosd up FOLDER, and so on):
  chaosd up --run {run} --peer {peer}
and is let in here with `chaosd accept` and its id, which `chaosd pending` shows with its words.
"""

PEER_TEXT = "a site of the run, SITE@HOST:PORT or NAME=SITE@HOST:PORT; without one, this site founds the run"


def register(app: typer.Typer) -> None:
    app.command(cls=EndsWithCommand)(up)


class EndsWithCommand(TyperCommand):
    """What follows `--` is a command of its own, and no directory."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[COMMAND] = args[at + 1 :]
        try:
            return super().parse_args(ctx, args[:at])
        except Exception as error:
            if "unexpected extra argument" not in str(error):
                raise
            fail(f"{error}. What runs a training script follows `--`: chaosd up FOLDER -- python train.py", EXIT_USAGE)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND]"]


def up(
    context: typer.Context,
    directory: Annotated[
        Path | None, typer.Argument(help="where the site lies, or is made; default: the site made last, else a new one")
    ] = None,
    name: Annotated[str | None, typer.Option(help=FIELD_TEXTS["name"])] = None,
    run: Annotated[str | None, typer.Option(help=FIELD_TEXTS["run"])] = None,
    listen: Annotated[
        str | None, typer.Option(help=f"host:port to listen on; default: {DEFAULT_LISTEN} or the next free port")
    ] = None,
    advertise: Annotated[str | None, typer.Option(help=FIELD_TEXTS["advertise"])] = None,
    peer: Annotated[list[str] | None, typer.Option(help=PEER_TEXT)] = None,
    trust: Annotated[list[str] | None, typer.Option(help=FIELD_TEXTS["trust"])] = None,
    proxy: Annotated[str | None, typer.Option(help=FIELD_TEXTS["proxy"])] = None,
    page: Annotated[str | None, typer.Option(help=FIELD_TEXTS["page"])] = None,
    alone: Annotated[bool, typer.Option("--alone", help="begin without waiting for a second site")] = False,
) -> None:
    """Make a site if there is none, and run its daemon in the foreground: init and start in one.

    With -- COMMAND the training script is run beside it: both end together, and Ctrl+C has both leave the run.

    Without --peer a new site founds a run and waits until a second site is there. For a site that is made already the
    flags count for this start alone; its file keeps what it says.

      $ chaosd up                                               # the founder
      $ chaosd up --peer c428fe341c9c7edd59ab5b2ebc29859d@hospital.example:7400
      $ chaosd up cleveland -- python train.py                  # daemon and script
      $ chaosd up hungary --name Hungary                        # a further site on this machine
    """
    from chaosd.cli.beside import ScriptBeside, demand_there
    from chaosd.config.model import load_config
    from chaosd.identity import Identity, IdentityError
    from chaosd.os_errors import explain

    command = demand_there(context.meta.get(COMMAND, []))
    fields = {"name": name, "run": run, "listen": listen, "advertise": advertise, "proxy": proxy}
    given = dict(overrides_of_up({**fields, "peer": peer, "trust": trust, "page": page}))
    if directory is not None and directory.is_file():
        fail(f"{directory} is a file, no folder of a site; a script beside it: chaosd up FOLDER -- COMMAND", EXIT_USAGE)
    path = choose(None).path if directory is None else directory / CONFIG_FILE_NAME
    new = path is None or not path.exists()
    listening: socket.socket | None = None
    try:
        if path is None or not path.exists():
            place = default_data_dir() if path is None else path.parent
            path, listening = _make(context, place, {**given}, founds="peers" not in given, alone=alone)
            given = {"page": page} if page is not None else {}
        if command:
            given["exit_with_worker"] = True
        config = load_config(path, given)
        site = Identity.load(config.data_dir).site
    except (ConfigError, IdentityError) as error:
        fail(str(error), EXIT_USAGE)
    except OSError as error:
        fail(f"cannot make a site: {explain(error)}", EXIT_USAGE)
    if directory is None and not new:
        typer.echo(f"this is the site of {path}; a further one on this machine: chaosd up FOLDER")
    from chaosd.daemon import run_daemon

    def daemon() -> int:
        return run_daemon(
            config,
            reload=lambda: load_config(path, given),
            listening=listening,
            greeting=lambda: _tell_how_to_join(config, site),  # no word of it where the site cannot start
        )

    become(daemon if not command else lambda: ScriptBeside(command, config).run(daemon))


def _tell_how_to_join(config: SiteConfig, site: SiteId) -> None:
    from chaos_protocols.fingerprint import words_of

    run, peer = shlex.quote(config.run), shlex.quote(f"{config.name}={site}@{config.advertise}")
    typer.echo(JOIN.format(site=site, run=run, peer=peer, address=config.advertise, words=words_of(site)), nl=False)


def overrides_of_up(given: dict[str, Any]) -> dict[str, object]:
    """The flags as fields. Ends the command where one cannot be read."""
    try:
        return overrides_of(given)
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)


def _make(
    context: typer.Context, place: Path, given: dict[str, object], *, founds: bool, alone: bool
) -> tuple[Path, socket.socket | None]:
    """The configuration file of a new site, and the socket that listens at its address, where that was chosen here."""
    from chaosd.config.making import demand_free, listen_at, make_site
    from chaosd.config.model import load_config

    load_config(None, {**given, "data_dir": place})  # what is wrong with a flag is said before anything is made
    given.pop("page", None)  # counts for this start
    listening: socket.socket | None = None
    if "listen" in given:
        demand_free(str(given["listen"]))
    else:
        given["listen"], listening = listen_at(DEFAULT_LISTEN)
    if listening is not None:
        context.call_on_close(listening.close)
    fields = {"run": DEFAULT_RUN, **given}
    if founds:
        fields |= {"bootstrap": True, "start_sites": 1 if alone else FOUNDER_WAITS_FOR}
    path, _, _ = make_site(place, fields)
    typer.echo(f"made a site: {path} says everything about it, {place} holds its key")
    return path, listening
