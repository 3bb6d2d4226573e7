"""What failures cost a long run with checkpoints and without: FlashRecovery's equations, tables, and their simulation.

Driven by `chaosd simulate recovery`, by `policies` (optimal checkpoint interval) and by its tests. With m failures
in a period of d seconds, a recovery overhead of s0 and k0 seconds for each checkpoint every t seconds, failures cost
m (s0 + t/2) + d/t k0 (1); the best interval is sqrt(2 d k0 / m) (3), which leaves m s0 + sqrt(2 d k0 m) (4). Recovery
from live replicas needs no checkpoint: m (s0' + s1') (5), s1' one step at most, half a step in the mean (table III).
`simulate_recovery` plays the same run event by event, where failures strike during recoveries, during checkpoints and
during repeated work too, which the equations leave out.

The equations count t in steps and add it to seconds (s1 = t/2): here t is seconds of training.

Source: FlashRecovery sections II (1-4), III-F (5), IV-C (tables II, III); simulation: this project.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

RUNS_MAX = 1_000_000
"""Ceiling on simulated runs."""

EVENTS_MAX = 300_000
"""Ceiling on the events of one simulated run: settings that never finish are refused, not simulated for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VanillaRow:
    """Table II, seconds: recovery by the framework's time-out (PyTorch's default of 1,800 s) and a full restart."""

    parameters: str
    devices: int
    detection_s: float
    restart_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashRow:
    """Table III, seconds: FlashRecovery; `step_s` is one training step, `printed_total_s` the paper's sum."""

    parameters: str
    devices: int
    detection_s: float
    restart_s: float
    step_s: float
    printed_total_s: float

    @property
    def total_s(self) -> float:
        """Detection, restart, and half a step trained again (IV-C)."""
        return self.detection_s + self.restart_s + self.step_s / 2


def _flash(name: str, devices: int, detection_s: float, restart_s: float, step_s: float, total_s: float) -> FlashRow:
    return FlashRow(
        parameters=name,
        devices=devices,
        detection_s=detection_s,
        restart_s=restart_s,
        step_s=step_s,
        printed_total_s=total_s,
    )


TABLE_II = tuple(
    VanillaRow(parameters="175B", devices=devices, detection_s=1800.0, restart_s=restart_s)
    for devices, restart_s in ((1824, 231.0), (3936, 801.0), (5472, 1115.0))
)
"""FlashRecovery table II."""

TABLE_III = (
    _flash("7B", 32, 6, 88, 6, 97),
    _flash("7B", 960, 6, 92, 6, 101),
    _flash("70B", 80, 4, 84, 4, 90),
    _flash("70B", 800, 9, 92, 20, 111),
    _flash("70B", 960, 8, 78, 24, 98),
    _flash("70B", 2880, 11, 90, 39, 120.5),
    _flash("175B", 2880, 10, 90, 79, 139.5),
    _flash("175B", 4800, 7, 116, 49, 147.5),
)
"""FlashRecovery table III."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryCosts:
    """The letters of section II, seconds: `period_s` d, `failures` m in d, `overhead_s` s0, `checkpoint_s` k0."""

    period_s: float
    failures: float
    overhead_s: float
    checkpoint_s: float

    def __post_init__(self) -> None:
        for name, low_open in (("period_s", True), ("failures", False), ("overhead_s", False), ("checkpoint_s", False)):
            value = getattr(self, name)
            if not (0 < value < math.inf if low_open else 0 <= value < math.inf):
                raise ValueError(f"{name} must be {'above 0' if low_open else '0 or more'} and finite, not {value}")


def total_cost_s(costs: RecoveryCosts, interval_s: float) -> float:
    """Equation 1: seconds lost in the period with a checkpoint every `interval_s` seconds. `ValueError` if not > 0."""
    if not interval_s > 0:
        raise ValueError(f"the checkpoint interval must be above 0 seconds, not {interval_s}")
    redone_s = 0.0 if costs.failures == 0 else interval_s / 2
    return costs.failures * (costs.overhead_s + redone_s) + costs.period_s / interval_s * costs.checkpoint_s


def cost_slope(costs: RecoveryCosts, interval_s: float) -> float:
    """Equation 2: derivative of equation 1 by the interval; 0 at the optimum."""
    return costs.failures / 2 - costs.period_s * costs.checkpoint_s / interval_s**2


def optimal_interval_s(costs: RecoveryCosts) -> float:
    """Equation 3; inf without failures (never save), 0 where saving is free (save always)."""
    if costs.failures == 0:
        return math.inf
    return math.sqrt(2 * costs.period_s * costs.checkpoint_s / costs.failures)


def minimal_cost_s(costs: RecoveryCosts) -> float:
    """Equation 4: seconds lost in the period at the optimal interval."""
    root_s = math.sqrt(2 * costs.period_s * costs.checkpoint_s * costs.failures)
    return costs.failures * costs.overhead_s + root_s


def checkpoint_free_cost_s(failures: float, overhead_s: float, redone_s: float) -> float:
    """Equation 5: seconds lost in the period; `redone_s` is at most one step, half of one in the mean."""
    return failures * (overhead_s + redone_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Least-squares line `intercept_s` + `slope_s_per_device` * devices."""

    intercept_s: float
    slope_s_per_device: float

    def at(self, devices: float) -> float:
        """Seconds at this many devices, never below 0."""
        return max(0.0, self.intercept_s + self.slope_s_per_device * devices)


def fit(points: Sequence[tuple[float, float]]) -> Line:
    """Line through (devices, seconds). `ValueError` with fewer than two different numbers of devices."""
    if len({x for x, _ in points}) < 2:
        raise ValueError("a line needs at least two different numbers of devices")
    slope, intercept = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
    return Line(intercept_s=intercept, slope_s_per_device=slope)


def vanilla_restart() -> Line:
    """Restart time of table II by devices."""
    return fit([(row.devices, row.restart_s) for row in TABLE_II])


def flash_restart() -> Line:
    """Restart time of table III by devices."""
    return fit([(row.devices, row.restart_s) for row in TABLE_III])


class NeverFinishes(ValueError):
    """A run whose failures leave it hardly any work; the text says which times stand against each other."""


class _Kind(Enum):
    FAILURE = 1
    SEGMENT_DONE = 2
    CHECKPOINT_DONE = 3
    RECOVERED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """One long run. `interval_s` None means checkpoint-free: a failure costs the overhead and the step under way."""

    work_s: float
    mtbf_s: float
    overhead_s: float
    step_s: float
    checkpoint_s: float = 0.0
    interval_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("work_s", "mtbf_s", "step_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0 seconds and finite, not {getattr(self, name)}")
        if not (0 <= self.overhead_s < math.inf and 0 <= self.checkpoint_s < math.inf):
            raise ValueError("overhead_s and checkpoint_s must be 0 or more seconds and finite")
        if self.interval_s is not None and not self.interval_s > 0:
            raise ValueError(f"interval_s must be above 0 seconds, not {self.interval_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Wall-clock seconds that `work_s` took, and what happened meanwhile."""

    wall_s: float
    failures: int
    checkpoints: int
    redone_s: float

    def lost_s(self, work_s: float) -> float:
        """Wall-clock seconds beyond the work itself."""
        return self.wall_s - work_s


@dataclass(slots=True)
class _Run:
    """State of one run while it is played: `saved_s` is safe work, `segment_start_s` when new work began."""

    now_s: float = 0.0
    saved_s: float = 0.0
    segment_start_s: float = 0.0
    working: bool = True
    reached_s: float = 0.0
    failures: int = 0
    checkpoints: int = 0
    redone_s: float = 0.0
    generation: int = 0


def simulate_recovery(settings: RunSettings, rng: random.Random) -> RunResult:
    """Play one run until its work is done. `NeverFinishes` when EVENTS_MAX events do not suffice."""
    run = _Run()
    events: list[tuple[float, int, _Kind]] = []
    heapq.heappush(events, (rng.expovariate(1 / settings.mtbf_s), -1, _Kind.FAILURE))
    _start_segment(settings, run, events)
    for _ in range(EVENTS_MAX):
        run.now_s, generation, kind = heapq.heappop(events)
        if kind is _Kind.FAILURE:
            heapq.heappush(events, (run.now_s + rng.expovariate(1 / settings.mtbf_s), -1, _Kind.FAILURE))
            _fail(settings, run)
            heapq.heappush(events, (run.now_s + settings.overhead_s, run.generation, _Kind.RECOVERED))
        elif generation != run.generation:
            continue
        elif kind is _Kind.SEGMENT_DONE:
            run.reached_s = run.saved_s + run.now_s - run.segment_start_s
            if run.reached_s >= settings.work_s * (1 - 1e-12):
                return RunResult(
                    wall_s=run.now_s, failures=run.failures, checkpoints=run.checkpoints, redone_s=run.redone_s
                )
            run.working = False
            heapq.heappush(events, (run.now_s + settings.checkpoint_s, run.generation, _Kind.CHECKPOINT_DONE))
        else:
            if kind is _Kind.CHECKPOINT_DONE:
                run.saved_s = run.reached_s
                run.checkpoints += 1
            _start_segment(settings, run, events)
    raise NeverFinishes(
        f"the run does not finish: with a failure every {settings.mtbf_s:g} s, {settings.overhead_s:g} s to recover "
        f"and {settings.interval_s} s between checkpoints hardly any work survives; save more often or recover faster"
    )


def _start_segment(settings: RunSettings, run: _Run, events: list[tuple[float, int, _Kind]]) -> None:
    left_s = settings.work_s - run.saved_s
    length_s = left_s if settings.interval_s is None else min(left_s, settings.interval_s)
    run.segment_start_s, run.working = run.now_s, True
    heapq.heappush(events, (run.now_s + length_s, run.generation, _Kind.SEGMENT_DONE))


def _fail(settings: RunSettings, run: _Run) -> None:
    """Roll back to the last checkpoint, or without checkpoints to the start of the step under way."""
    run.failures += 1
    run.generation += 1
    if run.working:
        done_s = run.now_s - run.segment_start_s
        if settings.interval_s is None:
            kept_s = math.floor(done_s / settings.step_s) * settings.step_s
            run.saved_s += kept_s
            done_s -= kept_s
        run.redone_s += done_s
    elif run.reached_s > run.saved_s:
        run.redone_s += run.reached_s - run.saved_s
    run.working, run.reached_s = False, run.saved_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleComparison:
    """Seconds lost over the period at one scale: the equations, and the median of the simulated runs.

    A simulated value is infinite where the run never finishes, which the equations cannot tell.
    """

    devices: int
    failures: float
    interval_s: float
    checkpoint_equation_s: float
    checkpoint_simulated_s: float
    free_equation_s: float
    free_simulated_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSettings:
    """Failures by scale: 466 interruptions in 54 days on 16,384 devices (Llama 3, cited by FlashRecovery)."""

    period_s: float = 54 * 86400.0
    failures_per_device_s: float = 466 / (54 * 86400.0 * 16384)
    checkpoint_s: float = 30.0
    step_s: float = 49.0
    detection_vanilla_s: float = 1800.0
    detection_flash_s: float = 7.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, not {getattr(self, name)}")


def compare(
    scale: ScaleSettings,
    devices: Sequence[int],
    *,
    runs: int,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> tuple[ScaleComparison, ...]:
    """Checkpoints at their optimal interval against recovery from replicas, by scale, with restarts from the tables."""
    if not 1 <= runs <= RUNS_MAX:
        raise ValueError(f"the number of runs must be between 1 and {RUNS_MAX}, not {runs}")
    found: list[ScaleComparison] = []
    done = 0
    for count in devices:
        if count < 1:
            raise ValueError(f"the number of devices must be at least 1, not {count}")
        failures = scale.failures_per_device_s * count * scale.period_s
        vanilla_s = scale.detection_vanilla_s + vanilla_restart().at(count)
        flash_s = scale.detection_flash_s + flash_restart().at(count)
        costs = RecoveryCosts(
            period_s=scale.period_s, failures=failures, overhead_s=vanilla_s, checkpoint_s=scale.checkpoint_s
        )
        interval_s = optimal_interval_s(costs)
        simulated: dict[bool, list[float]] = {True: [], False: []}
        for run in range(runs):
            for with_checkpoints, losses in simulated.items():
                settings = RunSettings(
                    work_s=scale.period_s,
                    mtbf_s=scale.period_s / failures,
                    overhead_s=vanilla_s if with_checkpoints else flash_s,
                    step_s=scale.step_s,
                    checkpoint_s=scale.checkpoint_s if with_checkpoints else 0.0,
                    interval_s=interval_s if with_checkpoints else None,
                )
                losses.append(_lost_s(settings, random.Random(f"{seed}/{count}/{run}")))
            done += 1
            if progress is not None:
                progress(done)
        found.append(
            ScaleComparison(
                devices=count,
                failures=failures,
                interval_s=interval_s,
                checkpoint_equation_s=minimal_cost_s(costs),
                checkpoint_simulated_s=statistics.median(simulated[True]),
                free_equation_s=checkpoint_free_cost_s(failures, flash_s, scale.step_s / 2),
                free_simulated_s=statistics.median(simulated[False]),
            )
        )
    return tuple(found)


def _lost_s(settings: RunSettings, rng: random.Random) -> float:
    try:
        return simulate_recovery(settings, rng).lost_s(settings.work_s)
    except NeverFinishes:
        return math.inf
