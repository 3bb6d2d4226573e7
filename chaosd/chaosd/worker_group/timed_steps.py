"""What workers did when, of the last steps and of the last recovery: told by the workers, kept for a picture. Pure.

Workers tell it with each update and when they stop (`DoneSpan`); one that dies tells nothing of the step that it dies
in. Driven by the controller; nothing is decided from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_protocols.worker_group.messages import DoneSpan, GroupHello, Stepped, Stopped, WorkerMessage
from chaos_protocols.worker_group.plan import Plan
from chaos_protocols.worker_group.suspicion import Work
from chaosd.worker_group.history import Happened

STEPS_KEPT = 8
"""Of each worker."""

PLANS_KEPT = 8
MARKS_MAX = 14
"""Of a recovery; what happens after so many, until all are ready, is left out."""

MARKED = {
    "worker-suspected": "worker {worker} stands still",
    "worker-lost": "worker {worker} is lost",
    "state-lost": "layers without a holder",
    "stop": "told to stop",
    "stopped": "all have stopped",
    "plan": "plan {generation} ({policy})",
    "state-loaded": "the state is whole again",
    "training": "all are ready",
}
"""Kinds of events to what stands in the picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedPlan:
    """A plan that was executed. `planned`: as the planner knows it; `layers`: of each worker that trained."""

    generation: int
    planned: ExecutionPlan
    hello: GroupHello
    policy: str
    shape: str
    layers: Mapping[int, range]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment of a recovery."""

    at_s: float
    kind: str
    text: str
    worker: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """One undisturbed step: which, under which plan, and who did what."""

    step: int
    plan: ExecutedPlan
    spans: Mapping[int, tuple[DoneSpan, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryDone:
    """From the beginning of the step in which a worker was lost to the end of the first step after it."""

    step: int
    start_s: float
    ready_s: float
    end_s: float
    before: ExecutedPlan
    after: ExecutedPlan
    marks: tuple[Mark, ...]
    spans: Mapping[int, tuple[DoneSpan, ...]]


@dataclass(slots=True)
class _Told:
    generation: int
    step: int
    """That was done; -1 of a step that was broken off."""
    spans: tuple[DoneSpan, ...]


@dataclass(slots=True)
class _Open:
    """A recovery under way."""

    step: int
    start_s: float
    before: ExecutedPlan
    marks: list[Mark] = field(default_factory=list)
    ready_s: float = 0.0


class TimedSteps:
    """Of one worker group. `recovery`: the last one from a loss."""

    def __init__(self) -> None:
        self._told: dict[int, deque[_Told]] = {}
        self._plans: deque[ExecutedPlan] = deque(maxlen=PLANS_KEPT)
        self._under_way_s = 0.0
        self._step = 0
        self._open: _Open | None = None
        self._blow: Mark | None = None
        self.recovery: RecoveryDone | None = None

    @property
    def plan(self) -> ExecutedPlan | None:
        """In force."""
        return self._plans[-1] if self._plans else None

    def struck(self, at_s: float, text: str) -> None:
        """Somebody strikes a worker now, and says so; the loss that follows is shown with it."""
        self._blow = Mark(at_s=at_s, kind="struck", text=text)

    def begin(self, generation: int, plan: Plan, planned: ExecutionPlan, hello: GroupHello) -> None:
        """A plan has come into force."""
        layers = {
            worker: range(share.first_layer, share.last_layer)
            for worker, share in plan.shares.items()
            if share.last_layer > share.first_layer
        }
        self._plans.append(
            ExecutedPlan(
                generation=generation,
                planned=planned,
                hello=hello,
                policy=plan.policy,
                shape=plan.shape,
                layers=layers,
            )
        )

    def hear(self, worker: int, message: WorkerMessage) -> None:
        """Take what a worker says, before it is acted on."""
        if isinstance(message, Stepped | Stopped) and message.spans:
            step = message.step if isinstance(message, Stepped) else -1
            told = self._told.setdefault(worker, deque(maxlen=STEPS_KEPT))
            told.append(_Told(message.generation, step, message.spans))

    def take(self, entry: Happened) -> None:
        """Follow the history."""
        kind = entry.kind
        if kind == "worker-lost" and self._open is None and self._plans:
            self._lost(entry)
        if self._open is not None and kind in MARKED and len(self._open.marks) < MARKS_MAX:
            self._open.marks.append(_mark(entry))
        if kind == "training":
            self._under_way_s = entry.at_s
            if self._open is not None:
                self._open.ready_s = entry.at_s
        elif kind == "step":
            self._step = int(str(entry.fields["step"]))
            if self._open is not None and self._open.ready_s:
                self._complete(self._open, entry.at_s)
                self._open = None
            self._under_way_s = entry.at_s

    def undisturbed(self) -> StepDone | None:
        """The last step of the last plan that all of its workers have told of that tell anything, and in which somebody
        computed: that of a round between local steps has no passes to be shown."""
        for plan in reversed(self._plans):
            mine = {worker: self._steps_of(worker, plan.generation) for worker in plan.layers}
            telling = {worker: each for worker, each in mine.items() if each}
            common = set.intersection(*(set(each) for each in telling.values())) if telling else set()
            computed = [step for step in common if any(_has_a_pass(each[step]) for each in telling.values())]
            if computed:
                step = max(computed)
                spans = {worker: _of_a_step(each[step]) for worker, each in telling.items()}
                return StepDone(step=step, plan=plan, spans=spans)
        return None

    def _steps_of(self, worker: int, generation: int) -> dict[int, tuple[DoneSpan, ...]]:
        told = self._told.get(worker, ())
        return {each.step: each.spans for each in told if each.generation == generation and each.step >= 0}

    def _lost(self, entry: Happened) -> None:
        plan = self._plans[-1]
        if entry.fields.get("worker") in plan.layers:
            blow, self._blow = self._blow, None
            marks = [] if blow is None else [blow]
            self._open = _Open(step=self._step + 1, start_s=self._under_way_s, before=plan, marks=marks)

    def _complete(self, found: _Open, end_s: float) -> None:
        """Keep what lies in between before later steps push it out. The first worker begins a step before the last
        one has told of the step before."""
        broken_off = [
            span.start_s
            for worker in found.before.layers
            for told in self._told.get(worker, ())
            if told.step < 0 and told.generation == found.before.generation
            for span in _of_a_step(told.spans)[:1]
        ]
        start_s = min(found.start_s, found.marks[0].at_s, *broken_off)
        spans = {}
        for worker, told in self._told.items():
            mine = [span for each in told for span in each.spans if span.end_s > start_s and span.start_s < end_s]
            spans[worker] = tuple(mine)
        self.recovery = RecoveryDone(
            step=found.step,
            start_s=start_s,
            ready_s=found.ready_s,
            end_s=end_s,
            before=found.before,
            after=self._plans[-1],
            marks=(*found.marks, Mark(at_s=end_s, kind="step", text=f"step {self._step} is done")),
            spans=spans,
        )


def _mark(entry: Happened) -> Mark:
    text = MARKED[entry.kind].format_map(entry.fields)
    if entry.kind in ("worker-lost", "worker-suspected"):
        text += f": {entry.reason}"
    return Mark(at_s=entry.at_s, kind=entry.kind, text=text, worker=int(str(entry.fields.get("worker", -1))))


def _has_a_pass(spans: tuple[DoneSpan, ...]) -> bool:
    return any(span.work is Work.FORWARD for span in spans)


def _of_a_step(spans: tuple[DoneSpan, ...]) -> tuple[DoneSpan, ...]:
    return tuple(span for span in spans if span.work is not Work.BUILDING)
