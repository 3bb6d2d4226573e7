"""Whether what the configuration names besides the data folder can be used: sockets, checkpoints, page, token."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from chaosd.config.model import SiteConfig
from chaosd.doctor.check import Check, fail, ok, warn
from chaosd.doctor.listening import why_not
from chaosd.os_errors import brief
from chaosd.storage.durable import read_at_once

WITHOUT = "the daemon starts and trains, but writes no checkpoint: make it a folder of yours, or choose another one"
REFUSED = "until then /metrics refuses everybody: write the token into it (`chmod 600`), or take the setting out"


def check_sockets(config: SiteConfig) -> Check:
    """Where the two are to lie. The data folder is made at the first start, no other."""
    for field in ("worker_socket", "api_socket"):
        path: Path = getattr(config, field)
        folder, another = path.parent, f"choose another {field}"
        if folder == config.data_dir and not folder.exists():
            continue
        if not folder.is_dir():
            return fail("sockets", f"{field} {path}: no folder {folder}", f"`mkdir -p -m 700 {folder}`, or {another}")
        if not os.access(folder, os.W_OK | os.X_OK):
            return fail(
                "sockets", f"{field} {path}: no right to make it", f"make {folder} yours, or choose another one"
            )
        if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
            return fail(
                "sockets", f"{field} {path}: something else is there", f"move it away, or choose another {field}"
            )
    return ok("sockets", f"can be made: {config.worker_socket}, {config.api_socket}")


def check_checkpoints(config: SiteConfig) -> Check:
    """Where they are to lie: a daemon starts all the same, and the first one fails."""
    if config.checkpoint == "off":
        return ok("checkpoints", "none are written (checkpoint = off)")
    folder = config.checkpoint_dir
    there = next((place for place in (folder, *folder.parents) if os.path.lexists(place)), Path("/"))
    if not there.is_dir():
        return warn("checkpoints", f"{folder}: {there} is no folder", WITHOUT)
    if not os.access(there, os.W_OK | os.X_OK):
        return warn("checkpoints", f"{folder}: {there} cannot be written by this user", WITHOUT)
    try:
        free_bytes = shutil.disk_usage(there).free
    except OSError as error:
        return warn("checkpoints", f"{folder}: {brief(error)}", WITHOUT)
    return ok("checkpoints", f"{folder}, {free_bytes / 2**30:.1f} GiB free")


def check_page(config: SiteConfig, running_pid: int | None) -> Check:
    """A daemon whose configuration names a page does not start without it."""
    if not config.page:
        return ok("page", "off until `chaosd page` asks for it")
    if running_pid is not None:
        return ok("page", f"{config.page}, not tried while the daemon runs")
    if problem := why_not(config.page):
        return fail(
            "page", f"{config.page}: {problem}", "`ss -ltnp` shows what holds it: choose another port for `page`"
        )
    return ok("page", f"{config.page} is free")


def check_token(config: SiteConfig) -> Check:
    """What Prometheus has to show at the page."""
    file = config.metrics_token_file
    if file is None:
        return ok("metrics", "whoever is on this machine may read them at the page (no metrics_token_file)")
    try:
        empty = not read_at_once(file, 4096).strip()
        shared = file.stat().st_mode & 0o007
    except OSError as error:
        return warn("metrics", f"metrics_token_file {file}: {brief(error)}", REFUSED)
    if empty:
        return warn("metrics", f"metrics_token_file {file} is empty", REFUSED)
    if shared:
        return warn("metrics", f"other users can read {file}", f"chmod 600 {file}")
    return ok("metrics", f"with the token of {file}")
