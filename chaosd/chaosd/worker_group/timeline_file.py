"""`chaosd run --timeline`: the picture of the last undisturbed step and of the last recovery, in a file that is
replaced as a whole: after each recovery, and at the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from chaos_planner.pipelines.estimates.timeline import Timeline
from chaos_planner.pipelines.streams.instructions import Backward, Forward, Instruction, ReduceLayer
from chaos_protocols.worker_group.messages import DoneSpan
from chaos_protocols.worker_group.suspicion import Work
from chaosd.worker_group.history import Happened
from chaosd.worker_group.planning import SitePlanner
from chaosd.worker_group.timed_steps import ExecutedPlan, RecoveryDone, StepDone, TimedSteps
from chaosd.worker_group.timeline_picture import Bar, Panel, Row, picture

SUFFIX = ".svg"
NONE = "none"
DONE_KINDS = {
    Work.FORWARD: "forward",
    Work.BACKWARD: "backward",
    Work.SUMMING: "reduce",
    Work.UPDATE: "update",
    Work.WAITING: "waiting",
    Work.BUILDING: "building",
}


class UnusableFile(ValueError):
    """Nothing can be drawn into this file; the text says why, and what would help."""


def check_file(path: Path) -> None:
    """Raises `UnusableFile`; tries to write beside it, and leaves nothing behind."""
    if path.suffix.lower() != SUFFIX:
        named = path.with_suffix(SUFFIX) if path.name else f"timeline{SUFFIX}"
        raise UnusableFile(f"{path}: the timeline is an SVG picture; name the file {named}")
    if path.is_dir():
        raise UnusableFile(f"{path} is a folder; name a file in it, such as {path / 'timeline.svg'}")
    new = _new(path)
    try:
        new.touch()
        new.unlink()
    except OSError as error:
        raise UnusableFile(f"{path} cannot be written: {error.strerror}; name a file in a folder of yours") from None


class TimelineFile:
    """`timed`: what the workers did; `name`: of the training, for the title."""

    def __init__(self, path: Path, timed: TimedSteps, planner: SitePlanner, name: str) -> None:
        self._path, self._timed, self._planner, self._name = path, timed, planner, name
        self._drawn: RecoveryDone | None = None
        self._drawing: asyncio.Task[None] | None = None
        self.outcome = "no step was done, so nothing is drawn"
        """What came of it, in words."""

    def take(self, entry: Happened) -> None:
        """Follow the history: a recovery that is complete is drawn, on a thread."""
        recovery = self._timed.recovery
        free = self._drawing is None or self._drawing.done()
        if entry.kind == "step" and recovery is not self._drawn and free:
            self._drawn = recovery
            draw = self._work(self._timed.undisturbed(), recovery)
            self._drawing = asyncio.get_running_loop().create_task(asyncio.to_thread(draw))

    async def close(self) -> None:
        """Draw for the last time."""
        if self._drawing is not None:
            await asyncio.gather(self._drawing, return_exceptions=True)
        await asyncio.to_thread(self._work(self._timed.undisturbed(), self._timed.recovery))

    def _work(self, step: StepDone | None, recovery: RecoveryDone | None) -> Callable[[], None]:
        def draw() -> None:
            panels = [] if step is None else [_of_step(step, self._expected(step.plan))]
            if recovery is not None:
                before, after = self._expected(recovery.before), self._expected(recovery.after)
                panels.append(_of_recovery(recovery, before, after))
            if panels:
                self._replace(picture(f"What the workers of {self._name} did", panels))

        return draw

    def _expected(self, plan: ExecutedPlan) -> Timeline:
        return self._planner.expected(plan.planned, plan.hello)

    def _replace(self, text: str) -> None:
        new = _new(self._path)
        try:
            new.write_text(text, encoding="utf-8")
            new.replace(self._path)
            self.outcome = f"drawn into {self._path}"
        except OSError as error:
            self.outcome = f"{self._path} could not be written: {error.strerror or error}"
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)


def _new(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.new")


def _of_step(step: StepDone, expected: Timeline) -> Panel:
    """An undisturbed one."""
    every = [span for spans in step.spans.values() for span in spans]
    start_s, end_s = min(span.start_s for span in every), max(span.end_s for span in every)
    rows = [
        Row(
            name=f"worker {worker}",
            layers=_layers(step.plan.layers[worker]),
            expected=_expected_bars(expected, worker),
            done=_done_bars(step.spans.get(worker, ()), start_s, end_s),
        )
        for worker in sorted(step.plan.layers)
    ]
    took_s = end_s - start_s
    lines = (
        f"plan {step.plan.generation} ({step.plan.policy}): {step.plan.shape}",
        f"done in {_ms(took_s)}, expected {_ms(expected.step_s)}",
    )
    title = f"Step {step.step}, undisturbed"
    return Panel(title=title, lines=lines, length_s=max(took_s, expected.step_s), rows=rows)


def _of_recovery(found: RecoveryDone, before: Timeline, after: Timeline) -> Panel:
    """The step in which a worker was lost, and what followed until the first step was done."""
    start_s, end_s = found.start_s, found.end_s
    stop_s = next((mark.at_s for mark in found.marks if mark.kind == "stop"), found.ready_s)
    lost = {mark.worker: mark.at_s for mark in found.marks if mark.kind == "worker-lost"}
    rows = []
    for worker in sorted(found.before.layers.keys() | found.after.layers.keys()):
        expected = _clipped(_shown(found.before, before, worker, 0.0), stop_s - start_s)
        expected += _clipped(_shown(found.after, after, worker, found.ready_s - start_s), end_s - start_s)
        one, other = (_layers(plan.layers.get(worker, range(0))) for plan in (found.before, found.after))
        if one == other or worker in lost:
            layers = one
        else:
            layers = other if one == NONE else f"{one}, then {other.split(' ')[-1]}"
        rows.append(
            Row(
                name=f"worker {worker}",
                layers=layers,
                expected=expected,
                done=_done_bars(found.spans.get(worker, ()), start_s, end_s),
                lost_s=lost[worker] - start_s if worker in lost else None,
            )
        )
    marks = [(mark.at_s - start_s, f"{mark.at_s - start_s:.3f} s  {mark.text}") for mark in found.marks]
    seen_s = min(lost.values(), default=start_s)
    lines = (
        f"plan {found.before.generation}: {found.before.shape}; then plan {found.after.generation} "
        f"({found.after.policy}): {found.after.shape}",
        f"from the loss seen until all are ready {_ms(found.ready_s - seen_s)}, until the next step is done "
        f"{_ms(end_s - seen_s)}; expected of a step {_ms(before.step_s)}, then {_ms(after.step_s)}",
    )
    title = f"The last recovery: step {found.step}, in which a worker was lost, and what followed"
    return Panel(title=title, lines=lines, length_s=end_s - start_s, rows=rows, marks=marks)


def _shown(plan: ExecutedPlan, expected: Timeline, worker: int, from_s: float) -> list[Bar]:
    return _expected_bars(expected, worker, from_s) if worker in plan.layers else []


def _expected_bars(expected: Timeline, worker: int, from_s: float = 0.0) -> list[Bar]:
    spans = expected.spans.get(worker, ())
    return [Bar(_kind(span.instruction), from_s + span.start_s, from_s + span.end_s) for span in spans]


def _kind(instruction: Instruction) -> str:
    match instruction:
        case Forward():
            return "forward"
        case Backward():
            return "backward"
        case ReduceLayer():
            return "reduce"
        case _:
            return "update"


def _done_bars(spans: Iterable[DoneSpan], start_s: float, end_s: float) -> list[Bar]:
    """Those within."""
    found = []
    for span in spans:
        label = str(span.micro_batch) if span.micro_batch >= 0 else ""
        kind = DONE_KINDS.get(span.work, "waiting")
        found.append(Bar(kind, max(span.start_s, start_s) - start_s, min(span.end_s, end_s) - start_s, label))
    return found


def _clipped(bars: Iterable[Bar], until_s: float) -> list[Bar]:
    return [Bar(bar.kind, bar.start_s, min(bar.end_s, until_s)) for bar in bars if bar.start_s < until_s]


def _layers(layers: range) -> str:
    if not layers:
        return NONE
    return f"layer {layers.start}" if len(layers) == 1 else f"layers {layers.start}-{layers.stop - 1}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"
