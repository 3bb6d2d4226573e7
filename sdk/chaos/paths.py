"""Where the daemon beside this script listens."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

SOCKET_VARIABLE = "CHAOS_SOCKET"
SOCKET_NAME = "worker.sock"


def socket_path(argument: str | os.PathLike[str] | None = None) -> Path:
    """The argument, else CHAOS_SOCKET, else `worker.sock` in the daemon's default data directory."""
    if argument is not None:
        return Path(argument).expanduser()
    named = os.environ.get(SOCKET_VARIABLE)
    if named:
        return Path(named).expanduser()
    return Path(platformdirs.user_data_dir("chaosd")) / SOCKET_NAME
