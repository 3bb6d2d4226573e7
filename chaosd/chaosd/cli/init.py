"""`chaosd init`: the site's key and a commented configuration; `chaosd id` and `chaosd version`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chaosd.cli.options import EXIT_USAGE, ConfigOption, DataDirOption, fail, selected
from chaosd.config.file import CONFIG_FILE_NAME, DEFAULT_LISTEN, DEFAULT_RUN, FIELD_TEXTS, ConfigError

if TYPE_CHECKING:
    from chaosd.config.model import SiteConfig

DATA_FOLDER = "data"

TEMPLATE = """\
# One site of a Chaos run. Start it with:  chaosd start --config {file}
# This site's id is {site}
# Every field can also be given as a flag (failure_timeout_s is --failure-timeout-s); a flag wins over this file.
# Lines with a # show the default. Relative paths are relative to this file.

# {texts[name]}
name = {name}
# {texts[run]}
run = {run}
# {texts[data_dir]}
data_dir = "{data}"

# {texts[listen]}
listen = {listen}
# {texts[advertise]}
{mark}advertise = {advertise}

# {texts[bootstrap]}
bootstrap = {bootstrap}
# {texts[min_sites]}
# min_sites = 1
# {texts[admission]}
# admission = "pinned"
# {texts[trust]}
# trust = ["0123456789abcdef0123456789abcdef"]

# {texts[failure_timeout_s]}
# failure_timeout_s = 1.0
# {texts[heartbeat_interval_s]}
# heartbeat_interval_s = 0.25
# {texts[bulk_streams]}
# bulk_streams = 0
# {texts[congestion]}
# congestion = "auto"
# {texts[verify]}
# verify = "hash"
# {texts[probe]}
# probe = "builtin"
# {texts[replication]}
# replication = "chaos"

# {texts[memory_checkpoint_every_rounds]}
# memory_checkpoint_every_rounds = 0
# {texts[checkpoint]}
# checkpoint = "off"
# {texts[checkpoint_every_rounds]}
# checkpoint_every_rounds = 0
# {texts[checkpoint_every_s]}
# checkpoint_every_s = 600.0
# {texts[mean_time_between_failures_s]}
# mean_time_between_failures_s = 86400.0
# {texts[checkpoint_dir]}
# checkpoint_dir = "{data}/checkpoints"
# {texts[checkpoints_kept]}
# checkpoints_kept = 3

# {texts[worker_socket]}
# worker_socket = "{data}/worker.sock"
# {texts[api_socket]}
# api_socket = "{data}/api.sock"
# {texts[page]}
# page = ""
# {texts[metrics_token_file]}
# metrics_token_file = "metrics.token"
# {texts[straggler_timeout]}
# straggler_timeout = 10.0
# {texts[on_hang]}
# on_hang = ""
# {texts[exit_with_worker]}
# exit_with_worker = false
# {texts[log_level]}
# log_level = "info"
# {texts[log_format]}
# log_format = "text"

# {texts[peers]}: one such table each, at the end of the file.
# [[peers]]
# site = "0123456789abcdef0123456789abcdef"
# address = "host.example:7400"
"""

NEXT = """\
This site is {site}.
Its key is {key} (keep it secret and keep a copy), its configuration {file}.

To link it with a neighbour, put this into the neighbour's {file_name}:

[[peers]]
site = "{site}"
address = "{address}"

and the neighbour's id and address into this one's. Then:

  chaosd doctor --config {file}
  chaosd start --config {file}
"""


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
    bootstrap: Annotated[bool, typer.Option("--bootstrap", help=FIELD_TEXTS["bootstrap"])] = False,
    found: Annotated[bool, typer.Option("--found", hidden=True)] = False,
) -> None:
    """Make a site: its key and a commented TOML file. Overwrites neither; a key that is there is kept.

    $ chaosd init                                    # in the working directory
    $ chaosd init cleveland --name Cleveland --run heart --bootstrap
    """
    from chaosd.config.model import load_config
    from chaosd.identity import KEY_FILE, Identity, IdentityError

    path = directory / CONFIG_FILE_NAME
    overrides = {
        "name": name,
        "run": run,
        "listen": listen,
        "advertise": advertise,
        "bootstrap": bootstrap or None,
        "found": found or None,
        "data_dir": directory / DATA_FOLDER,
    }
    given = {field: value for field, value in overrides.items() if value is not None}
    try:
        config = load_config(None, given)
        if path.exists():
            raise ConfigError(f"{path} exists already; this site is made. Remove the file to have it written anew.")
        data_dir = directory / DATA_FOLDER
        identity = Identity.load(data_dir) if (data_dir / KEY_FILE).exists() else Identity.create(data_dir)
        with path.open("x", encoding="utf-8") as file:
            file.write(_text(path, identity.site, config))
    except (ConfigError, IdentityError) as error:
        fail(str(error), EXIT_USAGE)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}", EXIT_USAGE)
    key = directory / DATA_FOLDER / KEY_FILE
    typer.echo(
        NEXT.format(site=identity.site, key=key, file=path, file_name=CONFIG_FILE_NAME, address=config.advertise)
    )


def identify(config: ConfigOption = None, data_dir: DataDirOption = None) -> None:
    """Print this site's id, for the configuration of the others.

    $ chaosd id --config cleveland/chaosd.toml
    """
    from chaosd.identity import Identity, IdentityError

    try:
        typer.echo(Identity.load(selected(config, data_dir, None)[0]).site)
    except (ConfigError, IdentityError) as error:
        fail(str(error), EXIT_USAGE)


def version() -> None:
    """Print the versions of the program and of its protocol.

    $ chaosd version
    """
    from importlib.metadata import version as installed

    from chaos_protocols.wire.versions import SPOKEN

    typer.echo(f"chaos-train {installed('chaos-train')}, protocol {SPOKEN}")


def _text(path: Path, site: str, config: SiteConfig) -> str:
    shown = ("name", "run", "listen", "advertise", "bootstrap")
    fields = {field: json.dumps(getattr(config, field), ensure_ascii=False) for field in shown}
    mark = "# " if config.advertise == config.listen else ""
    return TEMPLATE.format(file=path, site=site, data=DATA_FOLDER, texts=FIELD_TEXTS, mark=mark, **fields)
