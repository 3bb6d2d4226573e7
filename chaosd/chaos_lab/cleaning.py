"""Whose is what a lab makes on this machine, and the removal of what a lab left that was killed itself.

Names of namespaces, and a file in each lab's folder, carry the owner: its process id and the time at which that process
started (in ticks since boot), so that another process with the same id is not taken for it. What belongs to a process
that no longer runs is removed, and the processes in it are killed: by the next lab, or by `chaosd lab clean`.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil

from chaos_lab.facilities import RUN_NETNS, ToolError, tool

FOLDER_PREFIX = "chaos-lab-"
OWNER_FILE = "owner"
SHARED_FOLDER = "/tmp"  # noqa: S108  # mkdtemp makes them ours alone
"""Where labs make their folders if the path of the user's own is too long for sockets."""
END_TIMEOUT_S = 5.0
NAMESPACE = re.compile(r"chaoslab-(\d+)-(\d+)-\d+-\w+")
_count = itertools.count()


def namespace_prefix() -> str:
    """A fresh beginning for the names of the namespaces of one network of this process."""
    process, started = owner()
    return f"chaoslab-{process}-{started}-{next(_count)}"


def owner() -> tuple[int, int]:
    """This process, for names: its id, and when it started."""
    return os.getpid(), _started(os.getpid()) or 0


def lives(process: int, started: int) -> bool:
    """True while the process runs that made a name."""
    return _started(process) == started


def _started(process: int) -> int | None:
    """Ticks since boot (Linux), microseconds since 1970 elsewhere; None when there is no such process."""
    if sys.platform != "linux":
        try:
            return round(psutil.Process(process).create_time() * 1e6)
        except psutil.Error:
            return None
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    after_name = text.rpartition(")")[2].split()
    return None if after_name[0] == "Z" else int(after_name[19])


def mark(folder: Path) -> None:
    """Note in a lab's folder whose it is."""
    process, started = owner()
    (folder / OWNER_FILE).write_text(f"{process} {started}\n", encoding="ascii")


def is_left(folder: Path) -> bool:
    """It is this user's, and who marked it has ended. Not where there is no mark: it is kept on purpose, or just being
    made; nor where another one was quicker."""
    try:
        process, started = (int(word) for word in (folder / OWNER_FILE).read_text(encoding="ascii").split())
        whose = folder.lstat().st_uid
    except (OSError, ValueError):
        return False
    return whose == os.getuid() and not lives(process, started)


def clean() -> list[str]:
    """Remove what dead labs of this user left: processes, namespaces, folders. Returns a line for each."""
    return [*_clean_namespaces(), *_clean_folders()]


def _clean_namespaces() -> list[str]:
    done: list[str] = []
    if os.geteuid() != 0:  # they are root's, who alone can make and remove them
        return done
    for name in sorted(os.listdir(RUN_NETNS)) if os.path.isdir(RUN_NETNS) else []:
        found = NAMESPACE.fullmatch(name)
        if found is None or lives(int(found[1]), int(found[2])):
            continue
        try:
            killed = remove_namespace(name)
        except ToolError:
            if not os.path.exists(f"{RUN_NETNS}/{name}"):
                continue  # another lab was quicker
            raise
        done.append(f"network namespace {name} of a lab that ended" + (f", {killed} processes in it" if killed else ""))
    return done


def remove_namespace(name: str) -> int:
    """Kill every process in a namespace and remove it; what lies in it goes with it. Returns how many were killed.
    Raises ToolError."""
    killed = {int(word) for word in tool("ip", "netns", "pids", name).split()} - {os.getpid()}
    _kill(killed)
    tool("ip", "netns", "del", name)
    return len(killed)


def _clean_folders() -> list[str]:
    done = []
    for parent in sorted({tempfile.gettempdir(), SHARED_FOLDER}):
        for folder in sorted(Path(parent).glob(f"{FOLDER_PREFIX}*")):
            if not is_left(folder):
                continue
            killed = _working_in(folder)
            _kill(killed)
            shutil.rmtree(folder, ignore_errors=True)
            done.append(f"folder {folder} of a lab that ended" + (f", {len(killed)} processes of it" if killed else ""))
    return done


def _working_in(folder: Path) -> set[int]:
    """This user's processes that have to do with a lab's folder: started with a path in it, or by such a one, which
    hands its folder for temporary files on (`processes.py`). Not who asks for this: the command line of the shell may
    name the folder, too."""
    asking = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return {one.pid for one in psutil.process_iter(["cmdline", "uids"]) if _works_in(one, folder)} - asking


def _works_in(process: psutil.Process, folder: Path) -> bool:
    uids = process.info["uids"]
    if uids is None or uids.real != os.getuid():
        return False
    if any(f"{folder}/" in argument for argument in process.info["cmdline"] or []):
        return True
    try:
        temporary: str = process.environ().get("TMPDIR", "")
    except (psutil.Error, OSError):
        return False
    return temporary.startswith(f"{folder}/")


def _kill(processes: set[int]) -> None:
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    end_s = time.monotonic() + END_TIMEOUT_S
    while any(_started(process) is not None for process in processes) and time.monotonic() < end_s:
        time.sleep(0.01)
