"""Which worker stands still, seen from words in shared memory: no message, no help of the worker.

Each worker writes what it does before it does it (`Reading`): a count that grows, what kind of work it is, and whom it
waits for. A second thread of it, which only ever waits, counts as well (the beat). A worker that computes must change
its word within the limit of that kind of work; one that waits for a peer may wait for as long as the peer takes, but
its beat must go on: waiting releases the interpreter's lock, so nothing but a stopped process can starve that thread.
A process that the system itself calls stopped (SIGSTOP) has the failure timeout, whatever it was at.

Driven by the controller, which reads the words every `READ_INTERVAL_S`, with thousands of workers more rarely. What is
suspected is made certain: the suspect is killed, unless it alone has a part of the state (`suspects`). Source:
FlashRecovery III-D (hangs); words instead of heartbeats are this project's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum

READ_INTERVAL_S = 0.05
READ_INTERVAL_MAX_S = 0.5
"""However many workers there are: a worker that stands still is found by so much later."""

READ_SHARE = 0.1
"""Of its time a controller reads words at most, up to `READ_INTERVAL_MAX_S`; the rest is for those who speak."""

BEAT_INTERVAL_S = 0.1

FIRST_LIMIT_S = 60.0
"""For a kind of work that no worker has finished yet, and for the script's own code: between two steps, and where its
data set gives the samples of a micro-batch."""

LONGER_THAN_EVER = 4.0
"""Work may take so many times as long as the longest of its kind so far."""

STILL_SHARE = 0.5
"""Of the failure timeout: after so much without a new word the system is asked about a worker's process."""

TELL_AGAIN_S = 5.0
"""A worker that goes on standing still is named so often."""

IN_VAIN_S = 5.0
"""A peer that has ended gives nothing any more: who has waited for it for so long waits in vain. What it gave before
its end is there by then, also where others use the machine."""

WAIT_TOGETHER_LIMIT_S = 60.0
"""All workers waiting for so long without a change: a defect of ours, not of a worker."""


class Work(IntEnum):
    """What a worker is at; the number is what stands in its word."""

    STARTING = 0
    OUTSIDE = 1
    FORWARD = 2
    BACKWARD = 3
    WAITING = 4
    SUMMING = 5
    UPDATE = 6
    BUILDING = 7
    ENDED = 8
    READING = 9


UNTIMED = frozenset({Work.STARTING, Work.ENDED})
"""Before its hello and after its end a worker owes nobody progress: the process itself is watched."""

RARE = frozenset({Work.OUTSIDE, Work.BUILDING, Work.READING})
"""Kinds whose duration says nothing about the next one: they always have at least `FIRST_LIMIT_S`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading of a worker's words. `peer`: whom it waits for, -1 for the controller or nobody."""

    count: int
    work: Work
    peer: int
    beat: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A worker that stands still, and why that is thought; `over_s`: how much longer than it may. `in_vain`: it
    has ended, and another one waits for it."""

    worker: int
    reason: str
    over_s: float = 0.0
    in_vain: bool = False


@dataclass(slots=True)
class _Seen:
    progress: Reading
    since_s: float
    beat_since_s: float
    stopped_since_s: float | None = None
    told_s: float | None = None
    """When it was named last; None: it has gone on since."""


def next_interval_s(reading_s: float) -> float:
    """Until the next reading, after one that took so long."""
    return min(READ_INTERVAL_MAX_S, max(READ_INTERVAL_S, reading_s / READ_SHARE))


class Suspicion:
    """Compares readings with the ones before."""

    def __init__(self, failure_timeout_s: float) -> None:
        self._timeout_s = failure_timeout_s
        self._seen: dict[int, _Seen] = {}
        self._longest_s: dict[Work, float] = {}
        self._read_s: float | None = None

    def observe(
        self,
        now_s: float,
        readings: Mapping[int, Reading],
        *,
        stopped: Collection[int] = (),
        interval_s: float = READ_INTERVAL_S,
    ) -> list[Suspect]:
        """The suspects of this reading, which was to follow the one before after `interval_s`. `stopped`: of those that
        were `still`, whose process the system calls stopped. A pause of the reader itself (a stopped machine) is no
        reason for suspicion."""
        late_s = 0.0 if self._read_s is None else max(0.0, now_s - self._read_s - 2 * interval_s)
        self._read_s = now_s
        self._seen = {worker: seen for worker, seen in self._seen.items() if worker in readings}
        found: list[Suspect] = []
        awaited = self._awaited(now_s, readings)
        for worker, progress in sorted(readings.items()):
            seen = self._seen.get(worker)
            if seen is None:
                self._seen[worker] = _Seen(progress, now_s, now_s)
                continue
            seen.since_s += late_s
            seen.beat_since_s += late_s
            if worker not in stopped:
                seen.stopped_since_s = None
            elif seen.stopped_since_s is None:
                seen.stopped_since_s = now_s
            else:
                seen.stopped_since_s += late_s
            self._note(seen, progress, now_s)
            over_s, reason = self._judge(seen, now_s, awaited.get(worker))
            if not over_s:
                seen.told_s = None
            elif seen.told_s is None or now_s - seen.told_s >= TELL_AGAIN_S:
                seen.told_s = now_s
                vain = progress.work is Work.ENDED and worker not in stopped
                found.append(Suspect(worker=worker, reason=reason, over_s=over_s, in_vain=vain))
        return found

    def still(self, now_s: float) -> list[int]:
        """Workers without a new word for so long that a look at their process is worth its time. One that waits for a
        peer is told by its beats."""
        return [
            worker
            for worker, seen in self._seen.items()
            if seen.progress.work is not Work.WAITING and now_s - seen.since_s > STILL_SHARE * self._timeout_s
        ]

    def waiting_s(self, now_s: float) -> float:
        """For how long all workers together have been waiting without a change; 0 while one works."""
        if not self._seen or any(seen.progress.work is not Work.WAITING for seen in self._seen.values()):
            return 0.0
        return now_s - max(seen.since_s for seen in self._seen.values())

    def limit_s(self, work: Work) -> float:
        """How long work of this kind may take now."""
        longest_s = self._longest_s.get(work)
        if longest_s is None or work in RARE:
            return max(FIRST_LIMIT_S, self._timeout_s, LONGER_THAN_EVER * (longest_s or 0.0))
        return max(self._timeout_s, LONGER_THAN_EVER * longest_s)

    def _note(self, seen: _Seen, progress: Reading, now_s: float) -> None:
        if progress.beat != seen.progress.beat or seen.progress.work in UNTIMED:
            seen.beat_since_s = now_s
        if progress.count != seen.progress.count or progress.work is not seen.progress.work:
            work = seen.progress.work
            self._longest_s[work] = max(self._longest_s.get(work, 0.0), now_s - seen.since_s)
            seen.since_s = now_s
        seen.progress = progress

    def _awaited(self, now_s: float, readings: Mapping[int, Reading]) -> dict[int, tuple[float, int]]:
        """Who has been waited for for how long, and by whom; of nobody as long as none has ended."""
        if not any(reading.work is Work.ENDED for reading in readings.values()):
            return {}
        found: dict[int, tuple[float, int]] = {}
        for worker, seen in self._seen.items():
            if seen.progress.work is Work.WAITING and seen.progress.count == readings[worker].count:
                peer = seen.progress.peer
                found[peer] = max((now_s - seen.since_s, worker), found.get(peer, (0.0, 0)))
        return found

    def _judge(self, seen: _Seen, now_s: float, awaited: tuple[float, int] | None) -> tuple[float, str]:
        """By how much it has passed its limit, and what it does; 0: it has not. `awaited`: for how long, by whom."""
        work, still_s = seen.progress.work, now_s - seen.since_s
        stopped = "" if seen.stopped_since_s is None else "its process is stopped, and has done nothing"
        if seen.stopped_since_s is not None:
            over_s = now_s - seen.stopped_since_s - (1 - STILL_SHARE) * self._timeout_s
            if over_s > 0:
                return over_s, f"{stopped} for {still_s:.1f} s"
        if work is Work.ENDED and awaited is not None and awaited[0] > IN_VAIN_S:
            awaited_s, by = awaited
            return awaited_s - IN_VAIN_S, f"it has ended, and worker {by} has waited for it for {awaited_s:.1f} s"
        if work in UNTIMED:
            return 0.0, ""
        if work is Work.WAITING:
            silent_s = now_s - seen.beat_since_s
            if silent_s <= self._timeout_s:
                return 0.0, ""
            return silent_s - self._timeout_s, f"it waits, but its process has not run for {silent_s:.1f} s (stopped?)"
        limit_s = self.limit_s(work)
        if still_s <= limit_s:
            return 0.0, ""
        if work is Work.OUTSIDE and not stopped:
            return still_s - limit_s, (
                f"its script has begun no further step for {still_s:.1f} s (limit {limit_s:.1f} s; for what takes "
                "longer between two steps give chaosd run a larger --failure-timeout-s)"
            )
        doing = stopped or f"no progress in {work.name.lower()}"
        return still_s - limit_s, f"{doing} for {still_s:.1f} s (limit {limit_s:.1f} s)"
