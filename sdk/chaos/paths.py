"""Where the daemon beside this script listens: the same daemon as the commands of `chaosd` mean."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import platformdirs

SOCKET_VARIABLE = "CHAOS_SOCKET"
CONFIG_VARIABLE = "CHAOS_CONFIG"
SOCKET_NAME = "worker.sock"
CONFIG_NAME = "chaosd.toml"
CONFIG_BYTES_MAX = 1 << 20
DATA_FOLDER = "data"
"""Beside a configuration that `chaosd init` wrote."""
SITES_NAME = "sites"
"""In the user's configuration folder: the configurations of the sites that were made here, one a line, newest last."""
SITES_BYTES_MAX = 1 << 18


def socket_path(argument: str | os.PathLike[str] | None = None) -> Path:
    """The argument, else CHAOS_SOCKET, else the socket of the site that the commands mean: that of CHAOS_CONFIG, of
    chaosd.toml in the working directory, or of the site made last; else that of the default data directory."""
    if argument is not None:
        return Path(argument).expanduser()
    named = os.environ.get(SOCKET_VARIABLE)
    if named:
        return Path(named).expanduser()
    config = _config_path()
    found = _socket_of(config) if config is not None else None
    return found or Path(platformdirs.user_data_dir("chaosd", appauthor=False)) / SOCKET_NAME


def config_beside(socket: Path) -> Path | None:
    """The configuration that `chaosd init` has put beside the folder in which the socket lies."""
    places = (folder / CONFIG_NAME for folder in (socket.parent, socket.parent.parent))
    return next((place for place in places if place.is_file()), None)


def _config_path() -> Path | None:
    if named := os.environ.get(CONFIG_VARIABLE):
        place = Path(named).expanduser()
        return place / CONFIG_NAME if place.is_dir() else place
    local = Path(CONFIG_NAME)
    if os.path.isfile(local):
        return local
    lines = _read(Path(platformdirs.user_config_dir("chaosd", appauthor=False)) / SITES_NAME, SITES_BYTES_MAX)
    made = [Path(line) for line in lines.splitlines() if line.startswith("/")]
    return next((path for path in reversed(made) if os.path.isfile(path)), None)  # Path.is_file raises without a right


def _socket_of(config: Path) -> Path | None:
    """What the file says; None where it cannot be read. Of one that is not there, where its daemon would have it: then
    nothing answers, and the error names the place; another site's daemon must not do so instead."""
    if not config.exists():
        return config.absolute().parent / DATA_FOLDER / SOCKET_NAME
    try:
        values = tomllib.loads(_read(config, CONFIG_BYTES_MAX))
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
    folder = config.absolute().parent
    for field, name in (("worker_socket", ""), ("data_dir", SOCKET_NAME)):
        if isinstance(text := values.get(field), str) and text:
            return folder / Path(text).expanduser() / name
    return None


def _read(path: Path, bytes_max: int) -> str:
    try:
        with path.open("rb") as file:
            return file.read(bytes_max).decode("utf-8-sig", "replace")  # with the mark of an editor of Windows, or not
    except OSError:
        return ""
