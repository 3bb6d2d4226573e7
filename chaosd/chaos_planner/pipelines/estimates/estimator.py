"""What a plan costs: time of a step and peak memory of each worker.

Driven by the benchmark `estimator`; the reference that the planner's quicker `evaluate` must equal. Exact under the
model of `timeline` (links, waits, rerouted passes, coloured reduces, optimizer step); `formulas` holds the papers'
closed forms for comparison.

Source: Chameleon IV-C.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.estimates.memory import peak_bytes
from chaos_planner.pipelines.estimates.timeline import Timeline, timeline
from chaos_planner.pipelines.facts.site import ClusterFacts, ModelProfile
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.streams.compile import Compiled, compile_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """`step_s`: seconds of one step; `peak_bytes` per worker; `over_memory`: workers that exceed their memory."""

    step_s: float
    samples_per_s: float
    peak_bytes: Mapping[int, int]
    over_memory: tuple[int, ...]
    timeline: Timeline


def estimate(plan: ExecutionPlan, model: ModelProfile, cluster: ClusterFacts) -> Estimate:
    """Compile, prove, and estimate. `InvalidPlan` if plan and facts do not fit each other."""
    return estimate_compiled(compile_plan(plan, model, cluster), model, cluster)


def estimate_compiled(compiled: Compiled, model: ModelProfile, cluster: ClusterFacts) -> Estimate:
    """Estimate streams that were compiled before."""
    costs = Costs(model, cluster)
    line = timeline(compiled.streams, costs)
    peaks = peak_bytes(compiled.streams, costs)
    over = tuple(sorted(worker for worker, peak in peaks.items() if peak > cluster.device(worker).memory_bytes))
    samples = compiled.plan.micro_batches * model.micro_batch_size
    return Estimate(
        step_s=line.step_s,
        samples_per_s=samples / line.step_s,
        peak_bytes=peaks,
        over_memory=over,
        timeline=line,
    )
