"""Which fault-tolerance policy trains most samples while devices fail: event-driven simulation of the papers' setting.

Driven by `chaosd simulate policies` and by the benchmark. Every policy meets the same failures (drawn once a seed) on
the same devices, and every step is measured by the same ruler. Adaptive asks the planner at every failure; the others
follow their own rules (`baselines`). A failure stops the step under way; a transition interrupted by another
failure starts again from the new state.

The papers' setting: 32 devices, each failing at 10 % an hour, 9 hours, Llama-2 7B, micro-batch 1, DP 8 x PP 4; devices
do not return. What the papers leave open, and what is taken here: 64 micro-batches a step (the largest of their 16 to
64), samples of 2048 tokens, links of 25 GB/s, and 1.93 s to rebuild groups (from Chameleon's own recovery times).

Source: Chameleon V-B (figure 9), Odyssey III (objective 8), table I.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from chaos_planner.pipelines.simulators.adaptive import Adaptive
from chaos_planner.pipelines.simulators.baselines import (
    Change,
    Checkpointing,
    DynamicOnly,
    FreeTemplates,
    Redundant,
    RerouteBound,
    RerouteDecoupled,
    RerouteOnly,
    ReroutePrinted,
    Setting,
    Static,
    Strategy,
    checkpoint_interval_s,
)

SEEDS_MAX = 100_000
"""Ceiling on runs: a day of computing."""

HOUR_S = 3600.0

STRATEGIES: tuple[Callable[[Setting], Strategy], ...] = (
    Static,
    Adaptive,
    DynamicOnly,
    FreeTemplates,
    RerouteOnly,
    RerouteBound,
    RerouteDecoupled,
    ReroutePrinted,
    Checkpointing,
    Redundant,
)
"""In the order of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """One policy, one seed. `points`: (seconds, samples a second) at each change, for the plot."""

    name: str
    samples: float
    mean_samples_per_s: float
    longest_transition_s: float
    transitions: int
    stopped_at_s: float | None
    points: tuple[tuple[float, float], ...]


class _Kind(Enum):
    FAILURE = 1
    READY = 2
    END = 3


@dataclass(slots=True)
class _State:
    """Accounts of a run. `up_since_s` None while nothing trains."""

    up_since_s: float | None
    step_s: float
    samples: float = 0.0
    generation: int = 0
    transitions: int = 0
    longest_s: float = 0.0
    stopped_at_s: float | None = None


def draw_failures(
    workers: Sequence[int], failures_per_device_hour: float, duration_s: float, rng: random.Random
) -> tuple[tuple[float, int], ...]:
    """(seconds, worker) of each loss within the duration, ascending; each worker fails once at most."""
    if failures_per_device_hour < 0 or not math.isfinite(failures_per_device_hour):
        raise ValueError(f"failures_per_device_hour must be 0 or more and finite, not {failures_per_device_hour}")
    if failures_per_device_hour == 0:
        return ()
    drawn = [(rng.expovariate(failures_per_device_hour / HOUR_S), worker) for worker in workers]
    return tuple(sorted((time_s, worker) for time_s, worker in drawn if time_s < duration_s))


def play(
    strategy: Strategy,
    failures: Sequence[tuple[float, int]],
    *,
    batch_samples: int,
    num_workers: int,
    failures_per_device_hour: float,
    duration_s: float,
) -> PolicyRun:
    """One run, event by event. Whole steps count; with checkpoints whole intervals are what survives a failure."""
    events: list[tuple[float, int, int, _Kind]] = [(duration_s, 0, -1, _Kind.END)]
    events += [(time_s, 1, worker, _Kind.FAILURE) for time_s, worker in failures]
    heapq.heapify(events)
    state = _State(up_since_s=0.0, step_s=strategy.step_s)
    points: list[tuple[float, float]] = [(0.0, batch_samples / strategy.step_s)]
    live = num_workers
    while events:
        now_s, _, subject, kind = heapq.heappop(events)
        if kind is _Kind.END:
            _book(state, strategy, now_s, batch_samples, live, failures_per_device_hour, rollback=False)
            points.append((now_s, points[-1][1]))
            break
        if kind is _Kind.READY:
            if subject == state.generation:
                state.up_since_s = now_s
                points.append((now_s, batch_samples / state.step_s))
            continue
        live -= 1
        rate_per_h = failures_per_device_hour * live
        mtbf_s = HOUR_S / rate_per_h if rate_per_h else math.inf
        change = strategy.fail(subject, mtbf_s) if state.stopped_at_s is None else None
        if change is not None and change.unaffected:
            continue
        rollback = change is not None and change.rollback
        _book(state, strategy, now_s, batch_samples, live + 1, failures_per_device_hour, rollback=rollback)
        _interrupt(state, change, now_s, events, points)
    return PolicyRun(
        name=strategy.name,
        samples=state.samples,
        mean_samples_per_s=state.samples / duration_s,
        longest_transition_s=state.longest_s,
        transitions=state.transitions,
        stopped_at_s=state.stopped_at_s,
        points=tuple(points),
    )


def _interrupt(
    state: _State,
    change: Change | None,
    now_s: float,
    events: list[tuple[float, int, int, _Kind]],
    points: list[tuple[float, float]],
) -> None:
    """Stop what runs, and schedule what the strategy decided."""
    state.generation += 1
    state.up_since_s = None
    points.append((now_s, 0.0))
    if change is None:
        if state.stopped_at_s is None:
            state.stopped_at_s = now_s
        return
    state.step_s = change.step_s
    if change.transition_s > 0:
        state.transitions += 1
        state.longest_s = max(state.longest_s, change.transition_s)
    heapq.heappush(events, (now_s + change.transition_s, 2, state.generation, _Kind.READY))


def _book(
    state: _State,
    strategy: Strategy,
    now_s: float,
    batch_samples: int,
    live: int,
    failures_per_device_hour: float,
    *,
    rollback: bool,
) -> None:
    """Count the whole steps since training began again; with checkpoints, what they keep and what they cost."""
    if state.up_since_s is None:
        return
    elapsed_s = now_s - state.up_since_s
    pause_s: float = getattr(strategy, "checkpoint_s", 0.0)
    if pause_s and failures_per_device_hour:
        interval_s = checkpoint_interval_s(pause_s, HOUR_S / (failures_per_device_hour * max(live, 1)))
        rounds, rest_s = divmod(elapsed_s, interval_s + pause_s)
        elapsed_s = rounds * interval_s + (0.0 if rollback else min(rest_s, interval_s))
    state.samples += math.floor(elapsed_s / state.step_s + 1e-9) * batch_samples
    state.up_since_s = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureScenario:
    """What is simulated. Defaults are the papers' (V-B)."""

    setting: Setting
    failures_per_device_hour: float = 0.1
    duration_h: float = 9.0

    def __post_init__(self) -> None:
        if not 0 < self.duration_h < math.inf:
            raise ValueError(f"duration_h must be above 0 and finite, not {self.duration_h}")
        if not 0 <= self.failures_per_device_hour < math.inf:
            raise ValueError(f"failures_per_device_hour must be 0 or more, not {self.failures_per_device_hour}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """All policies under one seed's failures."""

    seed: int
    failures: int
    runs: Mapping[str, PolicyRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """`relative[name]`: per seed, throughput over fault-free. `over[name]`: mean throughput of adaptive over it."""

    seeds: tuple[SeedResult, ...]
    relative: Mapping[str, tuple[float, ...]]
    over: Mapping[str, float]
    assumptions: Mapping[str, tuple[str, ...]]
    worst_shortfall_s: float
    worst_allowance_s: float

    @property
    def never_below_better(self) -> bool:
        """Adaptive never trained less than the better of dynamic-only and reroute-only by more than one transition."""
        return self.worst_shortfall_s <= self.worst_allowance_s


def simulate_policies(
    scenario: FailureScenario,
    seeds: Sequence[int],
    *,
    strategies: Sequence[Callable[[Setting], Strategy]] = STRATEGIES,
    progress: Callable[[int], None] | None = None,
) -> PolicyReport:
    """Every policy under every seed. `ValueError` for settings in which the model does not fit or without adaptive."""
    if not 1 <= len(seeds) <= SEEDS_MAX:
        raise ValueError(f"the number of seeds must be between 1 and {SEEDS_MAX}, not {len(seeds)}")
    ruler = scenario.setting.ruler
    workers = sorted(scenario.setting.first_plan().workers)
    duration_s = scenario.duration_h * HOUR_S
    run = partial(
        play,
        batch_samples=ruler.model.global_batch_samples,
        num_workers=len(workers),
        failures_per_device_hour=scenario.failures_per_device_hour,
        duration_s=duration_s,
    )
    results: list[SeedResult] = []
    assumptions: dict[str, tuple[str, ...]] = {}
    for seed in seeds:
        failures = draw_failures(
            workers, scenario.failures_per_device_hour, duration_s, random.Random(f"policies/{seed}")
        )
        runs: dict[str, PolicyRun] = {}
        for make in strategies:
            strategy = make(scenario.setting)
            assumptions[strategy.name] = strategy.assumptions
            runs[strategy.name] = run(strategy, failures)
        results.append(SeedResult(seed=seed, failures=len(failures), runs=runs))
        if progress is not None:
            progress(len(results))
    return _report(results, assumptions)


def _report(results: Sequence[SeedResult], assumptions: Mapping[str, tuple[str, ...]]) -> PolicyReport:
    names = [name for name in assumptions if name in results[0].runs]
    if Adaptive.name not in names or Static.name not in names:
        raise ValueError(f"a comparison needs the policies {Adaptive.name!r} and {Static.name!r} among its strategies")
    if any(not result.runs[Static.name].samples for result in results):
        raise ValueError("not one step ends within duration_h, so there is nothing to compare: lengthen it")
    means = {name: statistics.fmean(r.runs[name].mean_samples_per_s for r in results) for name in names}
    relative = {name: tuple(r.runs[name].samples / r.runs[Static.name].samples for r in results) for name in names}
    shortfall_s, allowance_s = -math.inf, 0.0
    for result in results:
        adaptive = result.runs[Adaptive.name]
        rivals = [result.runs[name] for name in (DynamicOnly.name, RerouteOnly.name) if name in result.runs]
        ceiling = result.runs[Static.name].mean_samples_per_s
        for rival in rivals:
            missing_s = (rival.samples - adaptive.samples) / ceiling
            allowed_s = max(run.longest_transition_s for run in (*rivals, adaptive))
            if missing_s - allowed_s > shortfall_s - allowance_s:
                shortfall_s, allowance_s = missing_s, allowed_s
    return PolicyReport(
        seeds=tuple(results),
        relative=relative,
        over={name: means[Adaptive.name] / means[name] if means[name] else math.inf for name in names},
        assumptions=dict(assumptions),
        worst_shortfall_s=shortfall_s,
        worst_allowance_s=allowance_s,
    )
