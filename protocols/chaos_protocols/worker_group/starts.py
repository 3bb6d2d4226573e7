"""Workers that have been started and do not come: who is waited for is told, and who does nothing at all is ended.

Before its first step a script does what only it knows: it imports, reads data, makes a model, and that may take
minutes. So a worker has all the time for it as long as its processes use the processor. One that uses none waits for
something; while another one starts too, that may be a file which that one is still making. Where nobody else does
anything before the first step, and others wait, nothing will come of it. Owned by the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from chaos_protocols.worker_group.crew import Crew
from chaos_protocols.worker_group.port import Group
from chaos_protocols.worker_group.suspects import Suspects

LOOK_INTERVAL_S = 5.0
"""How often it is looked at what processor time starting workers have used."""

TOLD_AFTER_S = 30.0
"""Of a start that takes so long it is told first; then each time that it has taken twice as long."""

IDLE_TOLD_S = 15.0
"""Without processor time; that is told with it."""

IDLE_MAX_S = 300.0
"""Without processor time, while others wait: a download that stands for so long does not go on."""

NAMED_MAX = 8
"""Workers, in a sentence."""


@dataclass(slots=True)
class _Start:
    since_s: float
    used_s: float
    idle_since_s: float
    tell_at_s: float


class LateStarts:
    """Of a worker group."""

    def __init__(self, group: Group, crew: Crew, suspects: Suspects, failure_timeout_s: float) -> None:
        self._group, self._crew, self._suspects = group, crew, suspects
        self._limit_s = max(IDLE_MAX_S, failure_timeout_s)
        self._starts: dict[int, _Start] = {}
        self._looked_s: float | None = None

    def look(self, processor_s: Mapping[int, float], now_s: float) -> None:
        """What processor time each running worker has used so far, with all that it has started."""
        late_s = 0.0 if self._looked_s is None else max(0.0, now_s - self._looked_s - 2 * LOOK_INTERVAL_S)
        self._looked_s = now_s
        before, self._starts = self._starts, {}
        for worker in sorted(self._crew.starting & processor_s.keys()):
            used_s = processor_s[worker]
            start = before.get(worker) or _Start(now_s, used_s, now_s, now_s + TOLD_AFTER_S)
            start.idle_since_s += late_s  # nobody has looked meanwhile
            if used_s != start.used_s:
                start.used_s, start.idle_since_s = used_s, now_s
            self._starts[worker] = start
        self._tell(now_s)
        if self._crew.present:
            self._end(now_s)

    def _tell(self, now_s: float) -> None:
        due = [worker for worker, start in self._starts.items() if now_s >= start.tell_at_s]
        if not due:
            return
        for start in map(self._starts.__getitem__, due):
            start.tell_at_s = start.since_s + 2 * (now_s - start.since_s)
        least_s = min(now_s - self._starts[worker].since_s for worker in due)
        here = len(self._crew.present)
        others = f"; {here} that are here wait for that" if here and not self._crew.begun else ""
        text = f"{_named(due)}: not at the first step yet, {least_s:.0f} s after the start{others}"
        idle = [worker for worker in due if now_s - self._starts[worker].idle_since_s >= IDLE_TOLD_S]
        if idle:
            idle_s = min(now_s - self._starts[worker].idle_since_s for worker in idle)
            text += (
                f". {_named(idle)}: no processor time used for {idle_s:.0f} s, so something is waited for there, such "
                "as a lock, a file or a host that does not answer"
            )
        self._group.note("workers-start", f"{text} (`chaosd workers` shows their processes)", workers=due)

    def _end(self, now_s: float) -> None:
        """Those that will not come."""
        if any(now_s - start.idle_since_s < self._limit_s for start in self._starts.values()):
            return
        for worker, start in self._starts.items():
            idle_s = now_s - start.idle_since_s
            reason = (
                f"it has not come to its first step {now_s - start.since_s:.0f} s after its start, and its process has "
                f"used no processor time for {idle_s:.0f} s (limit {self._limit_s:.0f} s; a larger "
                "--failure-timeout-s makes it longer)"
            )
            self._suspects.judge(worker, reason, idle_s - self._limit_s, None, frozenset())


def _named(workers: Iterable[int]) -> str:
    found = list(workers)
    more = f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    return f"worker{'s' * (len(found) > 1)} {', '.join(map(str, found[:NAMED_MAX]))}{more}"
