"""Making a site: its key and a commented TOML file. Used by `chaosd init` and `chaosd up`; overwrites neither."""

from __future__ import annotations

import contextlib
import errno
import json
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from chaosd.addresses import join_address, listening_socket, split_address
from chaosd.config.contexts import remember
from chaosd.config.file import CONFIG_FILE_NAME, FIELD_TEXTS, ConfigError
from chaosd.os_errors import explain_listening
from chaosd.storage.durable import write_new

if TYPE_CHECKING:
    from chaosd.config.model import PeerConfig, SiteConfig

DATA_FOLDER = "data"
FOLDER_MODE, FILE_MODE = 0o755, 0o644
"""At most, whatever the umask: who may write them decides whom the daemon trusts, and which programs it runs."""
PORTS_TRIED_MAX = 100

GIT_IGNORED, GIT_IGNORED_TEXT = (
    ".gitignore",
    b"# the key of this site is secret, and the rest changes all the time\n*\n",
)
"""In the data folder: `git add` in a folder with a site in it would take the key along."""

TEMPLATE = """\
# One site of a Chaos run. Start it with:  chaosd start --config {typed}
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
# {texts[start_sites]}
{start_sites}
# {texts[min_sites]}
{min_sites}
# {texts[admission]}
# admission = "pinned"
# {texts[trust]}
{trust}

# {texts[failure_timeout_s]}
# failure_timeout_s = 1.0
# {texts[heartbeat_interval_s]}
# heartbeat_interval_s = 0.25
# {texts[proxy]}
{proxy}
# {texts[no_proxy]}
# no_proxy = []
# {texts[proxy_auth_file]}
# proxy_auth_file = "proxy.auth"
# {texts[send_limit_mbit]}
# send_limit_mbit = 0.0
# {texts[bulk_streams]}
# bulk_streams = 0
# {texts[congestion]}
# congestion = "auto"
# {texts[verify]}
# verify = "hash"
# {texts[probe]}
# probe = "builtin"
# {texts[join_hold_s]}
# join_hold_s = 60.0
# {texts[replication]}
# replication = "chaos"
# {texts[averaging]}
# averaging = "trees"
# {texts[memory_checkpoint_every_rounds]}
# memory_checkpoint_every_rounds = 0
# {texts[checkpoint]}
# checkpoint = "auto"
# {texts[checkpoint_every_rounds]}
# checkpoint_every_rounds = 0
# {texts[checkpoint_every_s]}
# checkpoint_every_s = 600.0
# {texts[mean_time_between_failures_s]}
# mean_time_between_failures_s = 86400.0
# {texts[checkpoint_dir]}
# checkpoint_dir = "{data}/checkpoints"
# {texts[checkpoints_kept]}
# checkpoints_kept = 2
# {texts[restore_wait_s]}
# restore_wait_s = 120.0

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
# {texts[norm_max]}
# norm_max = 0.0
# {texts[weight_max]}
# weight_max = 0.0
# {texts[aggregate]}
# aggregate = "mean"
# {texts[clip_radius]}
# clip_radius = 0.0
# {texts[on_hang]}
# on_hang = ""
# {texts[exit_with_worker]}
# exit_with_worker = false
# {texts[log_level]}
# log_level = "info"
# {texts[log_format]}
# log_format = "text"

# {texts[peers]}: one such table each, at the end of the file.
{peers}"""

PEER_EXAMPLE = """\
# [[peers]]
# site = "0123456789abcdef0123456789abcdef"
# address = "host.example:7400"
# name = "Example"
"""


def make_site(directory: Path, given: Mapping[str, object]) -> tuple[Path, str, SiteConfig]:
    """(configuration file, site id, configuration) of a new site in `directory`, whose fields are `given` or the
    defaults. A key that is there is kept, and so is a configuration whose site has no key yet. Raises ConfigError,
    IdentityError, OSError."""
    from chaosd.config.model import load_config
    from chaosd.identity import KEY_FILE, Identity

    path = directory / CONFIG_FILE_NAME
    data_dir = directory / DATA_FOLDER
    config = load_config(None, {**given, "data_dir": data_dir})
    if path.exists():
        written = load_config(path)
        if (written.data_dir / KEY_FILE).exists():
            raise ConfigError(f"{path} exists already; this site is made. Remove the file to have it written anew.")
        made = Identity.create(written.data_dir)
        remember(path)
        return path, made.site, written
    with contextlib.suppress(OSError):  # what is wrong with it is said where the key is written
        directory.mkdir(parents=True, mode=FOLDER_MODE)
    identity = Identity.load(data_dir) if (data_dir / KEY_FILE).exists() else Identity.create(data_dir)
    with contextlib.suppress(OSError):  # a help: the site works without it
        write_new(data_dir / GIT_IGNORED, GIT_IGNORED_TEXT, FILE_MODE)
    write_new(path, _text(path, identity.site, config).encode(), FILE_MODE)
    remember(path)
    return path, identity.site, config


def listen_at(address: str) -> tuple[str, socket.socket | None]:
    """`address`, or the same host with the next port that nobody has, and the socket that listens there: several sites
    on one machine need no thought, also where two are made at the same moment. None: no port is free."""
    host, port = split_address(address)
    for candidate in range(port, min(port + PORTS_TRIED_MAX, 65536)):
        try:
            return join_address(host, candidate), listening_socket(host, candidate)
        except OSError:
            continue
    return address, None


def demand_free(address: str) -> None:
    """Raises ConfigError where another program listens, or none can: said before a site is made whose file names it."""
    try:
        host, port = split_address(address)
        with listening_socket(host, port):
            return
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"another program listens on {address} (`ss -ltnp` shows which): name another port with --listen, or "
                "none, and the next free one is taken"
            ) from None
        raise ConfigError(explain_listening(error, address)) from None
    except ValueError:
        return  # what is wrong with it is said where all fields are checked


def _peer_table(peer: PeerConfig) -> str:
    name = f"name = {json.dumps(peer.name, ensure_ascii=False)}\n" if peer.name else ""
    address = json.dumps(peer.address, ensure_ascii=False)
    return f'[[peers]]\nsite = "{peer.site}"\naddress = {address}\n{name}'


def _text(path: Path, site: str, config: SiteConfig) -> str:
    shown = ("name", "run", "listen", "advertise", "bootstrap")
    fields = {field: json.dumps(getattr(config, field), ensure_ascii=False) for field in shown}
    mark = "# " if config.advertise == config.listen else ""
    peers = "".join(_peer_table(one) for one in config.peers)
    trust = json.dumps(list(config.trust)) if config.trust else ""
    return TEMPLATE.format(
        typed=shlex.quote(str(path)),
        site=site,
        data=DATA_FOLDER,
        texts=FIELD_TEXTS,
        mark=mark,
        start_sites=f"start_sites = {config.start_sites}" if config.start_sites != 1 else "# start_sites = 1",
        min_sites=f"min_sites = {config.min_sites}" if config.min_sites != 1 else "# min_sites = 1",
        proxy=f'proxy = "{config.proxy}"' if config.proxy else '# proxy = ""',
        trust=f"trust = {trust}" if trust else '# trust = ["0123456789abcdef0123456789abcdef"]',
        peers=peers or PEER_EXAMPLE,
        **fields,
    )
