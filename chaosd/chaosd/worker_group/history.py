"""What happened in a worker group, entry by entry, and how long each part of a recovery took."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

PACES_KEPT = 20
"""Steps of which the median is shown."""

LOST_KEPT = 100
"""Of the workers that were lost, the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """One entry of the history; `at_s` on the machine's monotonic clock, which all of its processes share."""

    at_s: float
    kind: str
    reason: str
    fields: Mapping[str, object] = field(default_factory=dict)


class ToRecord(NamedTuple):
    """What is to be recorded, before its time is known."""

    kind: str
    reason: str
    fields: Mapping[str, object]


class StepPaces:
    """How long steps take under the plan in force, beside what the planner expects: `expected_s`, `measured_s` (the
    median of the last `PACES_KEPT`), 0 where it is not known yet."""

    def __init__(self) -> None:
        self.expected_s = 0.0
        self._took_s: deque[float] = deque(maxlen=PACES_KEPT)
        self._last_s: float | None = None

    def take(self, entry: Happened) -> None:
        """Follow the history."""
        match entry.kind:
            case "plan" | "measured":
                self.expected_s = float(str(entry.fields["step_s"]))
                if entry.kind == "plan":
                    self._took_s.clear()
                    self._last_s = None
            case "step":
                if self._last_s is not None:
                    self._took_s.append(entry.at_s - self._last_s)
                self._last_s = entry.at_s

    @property
    def measured_s(self) -> float:
        return statistics.median(self._took_s) if self._took_s else 0.0


class Troubles:
    """Which workers stand still, and which were lost: `still`, what was said of each; `lost`, the entries of the last
    `LOST_KEPT`, and of how many in all."""

    def __init__(self) -> None:
        self.still: dict[int, str] = {}
        self.lost: deque[Happened] = deque(maxlen=LOST_KEPT)
        self.lost_total = 0

    def take(self, entry: Happened) -> None:
        """Follow the history."""
        worker = int(str(entry.fields.get("worker", -1)))
        match entry.kind:
            case "worker-awaited" | "worker-suspected":
                self.still[worker] = entry.reason
            case "worker-goes-on":
                self.still.pop(worker, None)
            case "worker-lost":
                self.still.pop(worker, None)
                self.lost.append(entry)
                self.lost_total += 1


class Takes(Protocol):
    """Follows the history."""

    def take(self, entry: Happened) -> object: ...


class GroupHistory:
    """Of one worker group: every entry goes to `told`, and to who follows it here."""

    def __init__(self, told: Callable[[Happened], None], followers: Sequence[Takes] = ()) -> None:
        self.paces, self.troubles = StepPaces(), Troubles()
        self._told = told
        self._followers: Sequence[Takes] = (self.paces, self.troubles, *followers)
        self._recovery = RecoveryTimes()

    def record(self, at_s: float, kind: str, reason: str, fields: Mapping[str, object]) -> None:
        """One more entry; where it ends a recovery, a second one sums that up."""
        entry = Happened(at_s=at_s, kind=kind, reason=reason, fields=fields)
        for follower in self._followers:
            follower.take(entry)
        self._told(entry)
        recovered = self._recovery.take(entry)
        if recovered is not None:
            self._told(recovered)


class RecoveryTimes:
    """Follows the history from the end of a generation to the beginning of the next."""

    def __init__(self) -> None:
        self._seen_s: float | None = None
        self._reason = ""
        self._marks_s: dict[str, float] = {}

    def take(self, entry: Happened) -> Happened | None:
        """The entry that sums a recovery up, when this one ends it. Its seconds: from the loss seen (or the stop
        wanted) to the order to stop, until all survivors had stopped, until there was a plan, until everybody was
        ready; of several plans in one recovery, the last one's."""
        match entry.kind:
            case "worker-lost" if "stop" not in self._marks_s:  # the newest: a spare is lost without a stop
                self._seen_s = entry.at_s
            case "step" if "stop" not in self._marks_s:
                self._seen_s = None
            case "stop" if "stop" not in self._marks_s:
                self._marks_s["stop"], self._reason = entry.at_s, entry.reason
            case "stopped" | "plan" if self._marks_s:
                self._marks_s[entry.kind] = entry.at_s
            case "training":
                return self._ready(entry)
        return None

    def _ready(self, entry: Happened) -> Happened | None:
        marks, seen_s = self._marks_s, self._seen_s
        self._marks_s, self._seen_s = {}, None
        if not marks.keys() >= {"stop", "stopped", "plan"}:
            return None
        began_s = marks["stop"] if seen_s is None else min(seen_s, marks["stop"])
        edges = [began_s, marks["stop"], marks["stopped"], marks["plan"], entry.at_s]
        names = ("noticing", "stopping", "deciding", "building")
        seconds = {name: round(b - a, 6) for name, a, b in zip(names, edges[:-1], edges[1:], strict=True)}
        total_s = round(entry.at_s - began_s, 6)
        fields = {"generation": entry.fields.get("generation"), "step": entry.fields.get("step"), "seconds": seconds}
        parts = ", ".join(f"{name} {1e3 * value:.0f}" for name, value in seconds.items())
        reason = f"{self._reason}; ready again after {1e3 * total_s:.0f} ms ({parts})"
        return Happened(at_s=entry.at_s, kind="recovered", reason=reason, fields={**fields, "total_s": total_s})
