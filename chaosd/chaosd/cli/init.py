"""`chaosd init`: the site's key and a commented configuration; `chaosd id` and `chaosd version`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from chaosd.cli.options import EXIT_USAGE, ConfigOption, DataDirOption, fail, selected
from chaosd.config.file import (
    CONFIG_FILE_NAME,
    DEFAULT_LISTEN,
    DEFAULT_RUN,
    FIELD_TEXTS,
    FOUNDER_WAITS_FOR,
    ConfigError,
)
from chaosd.config.making import make_site

NEXT = """\
This site is {site}.
Its key is {key} (keep it secret and keep a copy), its configuration {file}.

To start it:

  chaosd start --config {typed}

To link it with a neighbour, at the neighbour, which dials this site from then on:

  chaosd peer add {peer}

and here, when that neighbour knocks: `chaosd accept ID --config {typed}`. Or the other way round, with the neighbour's
id and address. Where something does not work: chaosd doctor --config {typed}"""


def register(app: typer.Typer) -> None:
    app.command()(init)
    app.command("id")(identify)
    app.command()(version)


def init(
    directory: Annotated[Path, typer.Argument(help="where to put the configuration and the data folder")] = Path("."),
    name: Annotated[str | None, typer.Option(help=FIELD_TEXTS["name"])] = None,
    run: Annotated[str, typer.Option(help=FIELD_TEXTS["run"])] = DEFAULT_RUN,
    listen: Annotated[str, typer.Option(help="host:port to listen on")] = DEFAULT_LISTEN,
    advertise: Annotated[str | None, typer.Option(help=FIELD_TEXTS["advertise"])] = None,
    proxy: Annotated[str | None, typer.Option(help=FIELD_TEXTS["proxy"])] = None,
    bootstrap: Annotated[bool, typer.Option("--bootstrap", help=FIELD_TEXTS["bootstrap"])] = False,
    alone: Annotated[bool, typer.Option("--alone", help="a founder that begins without waiting for others")] = False,
    found: Annotated[bool, typer.Option("--found", hidden=True)] = False,
) -> None:
    """Make a site: its key and a commented TOML file. Overwrites neither: one that is there is kept.

    A founder (--bootstrap) waits for a second site before it trains, unless --alone.

    $ chaosd init                                    # in the working directory
    $ chaosd init cleveland --name Cleveland --run heart --bootstrap
    """
    from chaosd.identity import KEY_FILE, IdentityError

    fields = {
        "name": name,
        "run": run,
        "listen": listen,
        "advertise": advertise,
        "proxy": proxy,
        "bootstrap": bootstrap or None,
        "found": found or None,
        "start_sites": FOUNDER_WAITS_FOR if (bootstrap or found) and not alone else None,
    }
    given = {field: value for field, value in fields.items() if value is not None}
    try:
        path, site, config = make_site(directory, given)
    except (ConfigError, IdentityError) as error:
        fail(str(error), EXIT_USAGE)
    except OSError as error:
        fail(f"cannot write {directory / CONFIG_FILE_NAME}: {error.strerror}", EXIT_USAGE)
    key = config.data_dir / KEY_FILE
    peer = shlex.quote(f"{config.name}={site}@{config.advertise}")
    typer.echo(NEXT.format(site=site, key=key, file=path, typed=shlex.quote(str(path)), peer=peer))


def identify(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    words: Annotated[bool, typer.Option("--words", help="in words, to be read out on the telephone")] = False,
) -> None:
    """Print this site's id, for the configuration of the others.

    $ chaosd id --config cleveland/chaosd.toml
    $ chaosd id --words
    """
    from chaos_protocols.fingerprint import words_of
    from chaosd.identity import Identity, IdentityError

    try:
        site = Identity.load(selected(config, data_dir, None)[0]).site
        typer.echo(words_of(site) if words else site)
    except (ConfigError, IdentityError) as error:
        fail(str(error), EXIT_USAGE)


def version() -> None:
    """Print the versions of the program and of its protocol.

    $ chaosd version
    """
    from importlib.metadata import version as installed

    from chaos_protocols.wire.versions import SPOKEN

    typer.echo(f"chaos-train {installed('chaos-train')}, protocol {SPOKEN}")
