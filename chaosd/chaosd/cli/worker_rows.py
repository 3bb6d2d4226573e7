"""The rows of `chaosd workers`: one for each worker, or, at a large site, one for all that are alike.

Workers are alike where they have the same layers, the same state and the same kind of device. Those that are not as
they should be have a row each, before the others, however many there are in all; where even they are too many for a
screen, they are put together as well, and all of their numbers are shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chaosd.worker_group.board import TRAINS, WAITS, GroupView, WorkerView

EACH_MAX = 32
"""So many workers have a row each; and so many of those that are not well at a larger site."""

RANGES_MAX = 6
"""Of the numbers of workers that are well; more are counted."""

DOING_MAX = 3
"""Words of progress of one row; the rest are left out."""

STILL_MAX = 5
"""Workers that stand still, of which is said how."""

STRIDE_MIN = 3
"""Numbers in the same distance from each other that are worth a range; two are named."""

OLD_AFTER_S = 10.0
"""A board is written once a second."""

WELL = frozenset({TRAINS, WAITS})


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """What is shown of one worker, or of several: `worker` is their number, or numbers (`0-996:4`: every fourth from 0
    to 996), `process` the id of its process, or how many they are, as `(250)`."""

    worker: str
    process: str
    device: str
    layers: str
    state: str
    lasts: str
    doing: str


def rows_of(view: GroupView, now: float, *, each: bool = False) -> list[WorkerRow]:
    """The rows of a worker group, in the order in which they are shown. `now`: seconds since 1970; `each`: every worker
    has its own, however many there are."""
    if each or len(view.workers) <= EACH_MAX:
        return [_row([one], now) for one in view.workers]
    ill = [one for one in view.workers if one.state not in WELL]
    well = [one for one in view.workers if one.state in WELL]
    alone = len(ill) <= EACH_MAX
    first = [_row([one], now) for one in ill] if alone else [_row(alike, now, all_ranges=True) for alike in _alike(ill)]
    return [*first, *(_row(alike, now) for alike in _alike(well))]


def counted(view: GroupView) -> str:
    """How many workers there are, and in each state, the most first."""
    found = Counter(one.state for one in view.workers)
    states = ", ".join(f"{state} {count}" for state, count in found.most_common())
    return f"{len(view.workers)} worker{'s' * (len(view.workers) != 1)}: {states or 'none has been started yet'}"


def old(view: GroupView, now: float) -> str:
    """That it is not of now; empty: it is. `now`: seconds since 1970."""
    ago_s = now - view.written
    if ago_s < OLD_AFTER_S:
        return ""
    return (
        f"as it was {ago_s:.0f} s ago: since then `chaosd run` has written nothing for this command, since the disk of "
        "its temporary files is full, or it stands still"
    )


def lost(view: GroupView, now: float) -> str:
    """How many workers were lost, and the last of them; empty: none was. `now`: seconds since 1970."""
    if not view.lost:
        return ""
    last = view.lost[-1]
    ago = f"{max(0.0, now - last.at):.0f} s ago"
    return f"lost so far: {view.lost_total}; the last: worker {last.worker}, {ago} ({last.reason})"


def still(view: GroupView) -> list[str]:
    """A sentence for each worker that stands still, of the first `STILL_MAX`."""
    found = [one for one in view.workers if one.said]
    lines = [f"worker {one.worker} stands still: {one.said}" for one in found[:STILL_MAX]]
    return lines if len(found) <= STILL_MAX else [*lines, f"and {len(found) - STILL_MAX} more stand still"]


def uneven(view: GroupView, now: float) -> list[str]:
    """A sentence for each worker that is not as fast as the others, of the first `STILL_MAX`, the slowest first. `now`:
    seconds since 1970."""
    found = sorted((one.speed, one.worker, one.tried_again) for one in view.workers if one.speed != 1.0)
    lines = []
    for speed, worker, again in found:
        line = f"worker {worker} computes at {speed:.2f} of the speed of the others"
        if again:
            minutes = max(0, math.ceil((again - now) / 60))
            line = f"worker {worker} had {speed:.2f} of the speed of the others; it is tried again in {minutes} min"
        lines.append(line)
    return lines if len(lines) <= STILL_MAX else [*lines[:STILL_MAX], f"and {len(lines) - STILL_MAX} more are uneven"]


def ranges(numbers: Iterable[int]) -> list[str]:
    """Numbers in order, what has equal distances in one range: 0, 1, 2, 3, 7 is `0-3`, `7`; 0, 4, 8 is `0-8:4`."""
    left, found = sorted(set(numbers)), list[str]()
    at = 0
    while at < len(left):
        end = at + 1
        step = left[end] - left[at] if end < len(left) else 0
        while end + 1 < len(left) and left[end + 1] - left[end] == step:
            end += 1
        if end < len(left) and (end - at + 1 >= STRIDE_MIN or step == 1):
            found.append(f"{left[at]}-{left[end]}" if step == 1 else f"{left[at]}-{left[end]}:{step}")
            at = end + 1
        else:
            found.append(str(left[at]))
            at += 1
    return found


def _alike(workers: Iterable[WorkerView]) -> list[list[WorkerView]]:
    groups: dict[tuple[str, str, str], list[WorkerView]] = {}
    for one in workers:
        groups.setdefault((one.state, one.stage, _kind(one.device)), []).append(one)
    return sorted(groups.values(), key=lambda alike: (alike[0].state, _first_layer(alike[0].stage), alike[0].worker))


def _first_layer(stage: str) -> int:
    first = stage.partition(" ")[0]
    return int(first) if first.isdecimal() else -1


def _kind(device: str) -> str:
    return device.partition(":")[0]


def _row(alike: Sequence[WorkerView], now: float, *, all_ranges: bool = False) -> WorkerRow:
    one, several = alike[0], len(alike) > 1
    doing = one.doing
    if several:
        words = Counter(each.doing for each in alike if each.doing).most_common()
        doing = ", ".join(f"{word} {count}" for word, count in words[:DOING_MAX])
        doing += ", ..." if len(words) > DOING_MAX else ""
    return WorkerRow(
        worker=_numbers(alike, all_ranges=all_ranges),
        process=f"({len(alike)})" if several else str(one.pid),
        device=_devices(alike),
        layers=one.stage or "-",
        state=one.state,
        lasts=_lasts([max(0.0, now - each.since) for each in alike]),
        doing=doing,
    )


def _numbers(alike: Sequence[WorkerView], *, all_ranges: bool) -> str:
    found = ranges(each.worker for each in alike)
    if all_ranges or len(found) <= RANGES_MAX:
        return ", ".join(found)
    return ", ".join([*found[: RANGES_MAX - 1], "..."])


def _devices(alike: Sequence[WorkerView]) -> str:
    names = {each.device for each in alike}
    if len(names) == 1:
        return next(iter(names))
    numbers = [number for name in names if (number := name.partition(":")[2]).isdigit()]
    kind = _kind(alike[0].device)
    return f"{kind}:{','.join(ranges(map(int, numbers)))}" if len(numbers) == len(names) else kind


def _lasts(seconds: Sequence[float]) -> str:
    least, most = f"{min(seconds):.0f}", f"{max(seconds):.0f}"
    return f"{least} s" if least == most else f"{least}-{most} s"
