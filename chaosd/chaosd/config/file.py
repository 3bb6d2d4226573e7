"""The light half of config/model.py: what the fields mean, where the file lies, how it is read; no pydantic.

Decides nothing. Driven by config/model.py, which checks the values, and by commands that only need to find a running
daemon or print help and shall not wait 0.15 s for the checking machinery to be imported.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, NoReturn

CONFIG_FILE_NAME = "chaosd.toml"
CONFIG_BYTES_MAX = 1 << 20
"""4096 peers of 100 bytes each are 400 kB."""

AT_LINE = re.compile(r"\(at line (\d+), ")
LINE_CHARACTERS_SHOWN = 80
NO_VALUE = ("Invalid value", "Expected newline or end of document after a statement")
"""What TOML says of `bootstrap = yes`, `name = Hungary`, and `send_limit_mbit = 20 Mbit`."""

DEFAULT_LISTEN = "127.0.0.1:7400"
"""Loopback, so that a first try opens no port to the world; a site that others dial names its own address."""

DEFAULT_PAGE = "127.0.0.1:7480"
"""Where `chaosd page` opens the page when the configuration names no place."""

DEFAULT_RUN = "default"
FOUNDER_WAITS_FOR = 2
"""`start_sites` of a founder that is made by command: one that begins alone trains a model of its own until the others
come."""
API_SOCKET_NAME = "api.sock"
WORKER_SOCKET_NAME = "worker.sock"
CHECKPOINT_DIR_NAME = "checkpoints"

FIELD_TEXTS = {
    "name": "label of this site for people; default: host name",
    "run": "name of the run; sites of different runs refuse each other",
    "data_dir": "folder of key, journal, events and sockets",
    "listen": "host:port to listen on; the default is loopback and reachable from this machine only",
    "advertise": "host:port at which the others reach this site; default: the value of listen",
    "bootstrap": "this site founds the run; exactly one site of a run does",
    "peers": "neighbours to connect to at the start",
    "trust": "ids of sites that may join, besides the peers",
    "admission": "who may join: pinned (peers and trust only) or open (anyone who reaches this site)",
    "min_sites": "rounds wait while fewer members are there; what the founder says counts, for good",
    "start_sites": "training starts when so many members are there; what the founder says counts; default: min_sites",
    "failure_timeout_s": "silence longer than this is a failure; every other timeout is derived from it",
    "heartbeat_interval_s": "time between two heartbeats; default: a quarter of failure_timeout_s",
    "proxy": "HTTP proxy through which this site dials the others (host:port); empty: straight",
    "no_proxy": "hosts, domains, addresses and networks that are dialled without the proxy; this machine always is",
    "proxy_auth_file": "file with user:password for the proxy; default: it asks for none",
    "send_limit_mbit": "Mbit/s that this site sends at most, over all its links; 0: as fast as they take it",
    "bulk_streams": "connections for bulk data on a link that this site dials; 0: as many as its round trip asks for",
    "congestion": "congestion control of bulk connections: auto, or a name as the kernel has it",
    "verify": "what a joiner's state is checked by: hash, or witness (a second source names the same hash)",
    "probe": "how the rate of a new link is measured: builtin, iperf3 or off",
    "join_hold_s": "rounds wait so long at most for a joiner whose links cannot follow them while it fetches the state",
    "replication": "how a joiner's state is spread over its sources; all but chaos are baselines for experiments",
    "averaging": "along which trees the sites average: trees (as fast as the links allow), tree (one), ring, star, or "
    "module:function, a policy of your own",
    "memory_checkpoint_every_rounds": "keep a copy of the worker's state of every so many rounds in memory; 0: none",
    "checkpoint": "write the state to disk: auto (as often as costs at most 1 % of the time), fixed (the two intervals "
    "below), optimum (computed) or off",
    "checkpoint_every_rounds": "fixed: rounds between two checkpoints; 0: only time counts",
    "checkpoint_every_s": "fixed: time between two checkpoints; 0: only rounds count",
    "mean_time_between_failures_s": "auto, optimum: how often all sites are expected to lose the state at once",
    "checkpoint_dir": f"folder of checkpoints; default: {CHECKPOINT_DIR_NAME} in data_dir",
    "checkpoints_kept": "how many checkpoints stay",
    "restore_wait_s": "after a power cut: how long a worker may take to come back to its daemon; then people are told "
    "what they can decide",
    "worker_socket": f"unix socket for training scripts; default: {WORKER_SOCKET_NAME} in data_dir",
    "api_socket": f"unix socket for the chaosd commands; default: {API_SOCKET_NAME} in data_dir",
    "page": f"loopback host:port of the operator's page, for example {DEFAULT_PAGE}; empty: off until `chaosd page`",
    "metrics_token_file": "file with a token that Prometheus must show at /metrics of the page; default: none needed",
    "straggler_timeout": "a round waits for a site at most so many usual rounds (or 10 failure timeouts); 0: for ever",
    "norm_max": "the founder's counts: L2 norm to which each site's gradient is clipped, and beyond which nothing is "
    "taken from others; 0: off",
    "weight_max": "the founder's counts: weight (samples) with which a site counts at most in a round; 0: off",
    "aggregate": "the founder's counts: mean, or clipped: each gradient is drawn in towards the last result first",
    "clip_radius": "with aggregate = clipped: how far from the last result (L2 norm) a site's gradient may be",
    "on_hang": "command to run when the run has waited too long for this site's script, for example to start it again",
    "exit_with_worker": "the daemon ends when its script has left the run, instead of waiting for the next script",
    "log_level": "how much is logged: debug, info, warning or error",
    "log_format": "text for people, or json: one object a line, for programs",
}
"""One sentence a field, used by errors, by `chaosd start --help` and by the file that `chaosd init` writes."""

FORMER_NAMES = {"found": "bootstrap", "mirror_every_rounds": "memory_checkpoint_every_rounds"}
"""Fields by the names that they had before: files and flags that were written then are still read."""


class ConfigError(ValueError):
    """The configuration cannot be used; the text names every problem and is meant for the user as it stands."""


def flag_name(field: str) -> str:
    """The option of `chaosd start` for a field; the list of peers is given one at a time."""
    return "--" + {"peers": "peer"}.get(field, field).replace("_", "-")


def default_data_dir() -> Path:
    """Where a daemon keeps its key, journal and sockets when nobody says otherwise."""
    import platformdirs

    return Path(platformdirs.user_data_dir("chaosd", appauthor=False))


def read_config_file(path: Path) -> dict[str, Any]:
    """The file's values, unchecked but for TOML itself; relative paths are made absolute from the file's folder.

    Raises ConfigError."""

    def refuse(text: str) -> NoReturn:
        raise ConfigError(f"{path}: {text}")

    try:
        with path.open("rb") as file:
            data = file.read(CONFIG_BYTES_MAX + 1)
    except FileNotFoundError:
        refuse("there is no such file; `chaosd init` writes one")
    except OSError as error:
        refuse(f"cannot be read: {error.strerror}")
    if len(data) > CONFIG_BYTES_MAX:
        refuse(f"is longer than {CONFIG_BYTES_MAX} bytes: this is no configuration of a site")
    try:
        values = tomllib.loads(data.decode("utf-8-sig"))  # editors of Windows begin a text with a mark
    except UnicodeDecodeError:
        refuse("is not UTF-8 text, as TOML must be")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        refuse(f"is not valid TOML: {error}{_line_of(str(error), data)}")
    for field in ("data_dir", "worker_socket", "api_socket", "checkpoint_dir", "metrics_token_file", "proxy_auth_file"):
        text = values.get(field)
        if isinstance(text, str) and text:
            try:
                values[field] = path.absolute().parent / Path(text).expanduser()
            except RuntimeError:
                refuse(f"{field} = {text!r}: there is no such user, so no home folder")
    return values


def _line_of(problem: str, data: bytes) -> str:
    """The line that a problem of TOML names, as it stands there: most often a text without quotes."""
    named, lines = AT_LINE.search(problem), data.decode("utf-8-sig").split("\n")
    if named is None or not 1 <= int(named[1]) <= len(lines) or not (line := lines[int(named[1]) - 1].strip()):
        return ""
    shown = "".join(one if one.isprintable() else "?" for one in line[:LINE_CHARACTERS_SHOWN])
    rule = (
        ". Texts stand in quotes; true, false and numbers do not, and have no unit"
        if problem.startswith(NO_VALUE)
        else ""
    )
    return f": `{shown}`{rule}"
