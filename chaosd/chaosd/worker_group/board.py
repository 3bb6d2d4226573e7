"""Who works on what in a worker group, for people: a file beside the group's socket that `chaosd workers` reads.

Written by the controller once a second and when something changed; gone with it. Nothing is decided from it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from chaos_protocols.worker_group.machine import WorkerGroupMachine
from chaos_protocols.worker_group.suspicion import Reading
from chaosd.api.status import LoggedFigure
from chaosd.os_errors import SOCKET_PATH_BYTES_MAX
from chaosd.worker_group.history import GroupHistory, Happened

FOLDER_PREFIX = "chaos-workers-"
BOARD_NAME = "workers.json"
LONGEST_SOCKET_NAME = "group.sock.12345"
"""Of those beside it: a device group's, with the number of its worker."""
BOARD_BYTES_MAX = 16 << 20
WRITE_INTERVAL_S = 1.0

STARTING, TRAINS, WAITS = "starting", "trains", "waits for a place"
TO_BE_DRAINED, DRAINED, STANDS_STILL = "is to be drained", "drained", "stands still"
"""States of a worker."""

Text = Annotated[str, msgspec.Meta(max_length=4096)]


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """One worker. `stage`: its layers, empty without; `state`: what it is there for, since `since`
    (seconds since 1970); `doing`: its word of progress when the board was written; `said`: of one that stands still,
    what was seen of it; `speed`: at which it computes, if the plan was looked at for it; 1: that of the others;
    `tried_again`: of one that was slow and computes nothing, or alone has its layers: when it is (seconds since 1970);
    0: of another."""

    worker: int
    pid: int
    device: Text
    stage: Text
    state: Text
    since: float
    doing: Text
    said: Text = ""
    speed: float = 1.0
    tried_again: float = 0.0


class LostView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that was lost, at `at` (seconds since 1970), and how."""

    worker: int
    at: float
    reason: Text


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker group. `run`: where its site stands in a run of institutions, empty without one. `lost`: the newest of
    the `lost_total` workers that were lost so far, the oldest of them first. `figures`: what the script logs."""

    pid: int
    command: Text
    phase: Text
    generation: int
    step: int
    shape: Text
    run: Text
    written: float
    workers: tuple[WorkerView, ...]
    expected_step_s: float = 0.0
    measured_step_s: float = 0.0
    """Of the plan in force: by the planner, and the median of the last steps; 0: not known."""
    lost: tuple[LostView, ...] = ()
    lost_total: int = 0
    figures: tuple[LoggedFigure, ...] = ()
    folder: Text = ""
    """In which `chaosd run` was started."""


def _here() -> str:
    """The working directory; empty where it was removed."""
    try:
        return _shown(os.getcwd())
    except OSError:
        return ""


def _shown(text: str) -> str:
    """A name of a file may be no UTF-8, and the board is."""
    return os.fsencode(text).decode(errors="replace")[:4096]


class Board:
    """`folder`: that of the group's socket; `figures`: what the script logs (`LoggedFigures.newest`)."""

    def __init__(
        self, folder: Path, command: str, figures: Mapping[str, tuple[int, float | None]] | None = None
    ) -> None:
        self._figures = {} if figures is None else figures
        self._path, self._command, self._started_in = folder / BOARD_NAME, _shown(command), _here()
        self._states: dict[int, tuple[str, float]] = {}

    def write(
        self,
        machine: WorkerGroupMachine,
        pids: Mapping[int, int],
        readings: Mapping[int, Reading],
        history: GroupHistory,
        devices: Mapping[int, str],
    ) -> None:
        """Replace the file. A disk that is full keeps nobody from training."""
        now, now_s, plan, member = time.time(), time.monotonic(), machine.plan, machine.member
        workers, present, still = [], machine.present, history.troubles.still
        shift_s, tried_s = now - now_s, machine.places.tried_s
        for worker, pid in sorted(pids.items()):
            share = None if plan is None else plan.shares.get(worker)
            layers = (
                ""
                if share is None or share.last_layer <= share.first_layer
                else _layers(share.first_layer, share.last_layer)
            )
            here = worker in present
            state = STARTING if not here else TRAINS if layers else WAITS
            if worker in machine.places.without:
                state = TO_BE_DRAINED if layers else DRAINED
            if worker in still:
                state = STANDS_STILL
            before = self._states.get(worker, ("", now_s))
            since_s = before[1] if before[0] == state else now_s
            self._states[worker] = (state, since_s)
            doing = readings[worker].work.name.lower() if worker in readings else ""
            device = devices.get(worker, "cpu")
            view = WorkerView(
                worker=worker, pid=pid, device=device, stage=layers, state=state, since=since_s + shift_s, doing=doing,
                said=still.get(worker, "")[:4096], speed=machine.places.speeds.get(worker, 1.0),
                tried_again=tried_s[worker] + shift_s if worker in tried_s else 0.0,
            )  # fmt: skip
            workers.append(view)
        group = GroupView(
            pid=os.getpid(),
            command=self._command,
            folder=self._started_in,
            phase=machine.phase.value,
            generation=machine.generation,
            step=machine.step,
            shape="" if plan is None else plan.shape[:4096],
            run="" if member is None else member.phase.value,
            written=now,
            workers=tuple(workers),
            expected_step_s=history.paces.expected_s,
            measured_step_s=history.paces.measured_s,
            lost=tuple(_lost(entry, shift_s) for entry in history.troubles.lost),
            figures=tuple(
                LoggedFigure(name=name, round=number, value=value)
                for name, (number, value) in sorted(self._figures.items())
            ),
            lost_total=history.troubles.lost_total,
        )
        new = self._path.with_suffix(".new")
        with suppress(OSError):
            new.write_bytes(msgspec.json.encode(group))
            new.replace(self._path)


def _lost(entry: Happened, shift_s: float) -> LostView:
    return LostView(
        worker=int(str(entry.fields["worker"])), at=round(entry.at_s + shift_s, 3), reason=entry.reason[:4096]
    )


def _layers(first: int, last: int) -> str:
    if last <= first:
        return ""
    return str(first) if last == first + 1 else f"{first} to {last - 1}"


def folder_problem() -> str:
    """Why a worker group cannot have its folder in that for temporary files, and what to do; else empty."""
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        return f"{error.strerror}: free space in one of them, or set TMPDIR to a folder that can be written"
    longest = len(os.fsencode(folder)) + len(f"/{FOLDER_PREFIX}12345678/{LONGEST_SOCKET_NAME}")
    if longest <= SOCKET_PATH_BYTES_MAX:
        return ""
    return (
        f"the folder for temporary files, {folder}, is too long for sockets ({longest} bytes with their names, "
        f"{SOCKET_PATH_BYTES_MAX} at most): set TMPDIR to a shorter one, such as /tmp"
    )


def boards() -> Iterator[GroupView]:
    """Of the worker groups of this user whose controller runs, the oldest first."""
    yield from (view for _, view in groups())


def groups() -> Iterator[tuple[Path, GroupView]]:
    """The same, each with its folder."""
    found = []
    for path in (path for place in _places() for path in place.glob(f"{FOLDER_PREFIX}*/{BOARD_NAME}")):
        with suppress(OSError, msgspec.DecodeError):
            owners = {path.lstat().st_uid, path.parent.lstat().st_uid}
            if owners != {os.getuid()} or path.lstat().st_size > BOARD_BYTES_MAX:
                continue
            view = msgspec.json.decode(path.read_bytes(), type=GroupView)
            os.kill(view.pid, 0)  # raises if that process is gone
            found.append((path.parent.stat().st_ctime, path.parent, view))
    yield from ((folder, view) for _, folder, view in sorted(found, key=lambda each: each[0]))


def _places() -> list[Path]:
    """Where a controller may have its folder: in the folder for temporary files, as it is named; and in the one that is
    taken now, since the library passes by those that are full."""
    named = next((os.environ[name] for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)), None)
    found = ["/tmp", "/var/tmp", "/usr/tmp"] if named is None else [named]  # noqa: S108 - what is there is looked at
    with suppress(FileNotFoundError):
        found.append(tempfile.gettempdir())
    return list({os.path.realpath(one): Path(one) for one in reversed(found)}.values())
