"""Peak memory of every device before and after the loss of one, by the planner's account (Chameleon figure 12).

Llama-2 7B on 8 devices of 64 GB, 4 pipelines of 2 stages; batches of 16, 32 and 64. After the loss of a device the
paper has pipelines of 2, 2 and 3 stages, and no peak rises. Here that plan (`paper`), and what the planner answers to
the loss of each device in turn (`planned`), which is free to choose other pipelines. Peaks in GiB, of the fullest
and the emptiest device: parameters, optimizer, gradients, and the activations that the order of passes keeps at one
time, from the very instruction streams that workers execute. Buffers of kernels and libraries are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.measure import Figures, spread
from chaos_planner.pipelines.estimates.estimator import estimate
from chaos_planner.pipelines.facts.models import ASCEND_910B_MEMORY_BYTES, built_in, uniform_cluster
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.search.decisions import Settings
from chaos_planner.pipelines.search.equal_devices import EqualDevices
from chaos_planner.pipelines.search.planner import RecoveryPlanner

MODEL, DEVICES, DP, PP = "llama2-7b", 8, 4, 2
BATCHES = (16, 32, 64)
AFTER = (2, 2, 3)
"""Stages of the paper's pipelines after the loss."""
GIB = 1024**3


def run(*, short: bool, seed: int) -> Figures:
    """`short` and `seed` change nothing: it is a calculation of seconds."""
    del short, seed
    figures: Figures = {"memory_gib": ASCEND_910B_MEMORY_BYTES / GIB}
    for batch in BATCHES:
        figures |= {f"{name}_{batch}": figure for name, figure in _of(batch).items()}
    return figures


def _of(batch: int) -> Figures:
    layout = EqualDevices(built_in(MODEL, global_micro_batches=batch), uniform_cluster(DEVICES))
    before = layout.symmetric_plan(DP, PP)
    limit = max(_peaks(layout, before).values())
    splits = [split for stages in AFTER if (split := layout.split(stages)) is not None]
    workers = [range(2), range(2, 4), range(4, 7)]
    paper = _peaks(layout, layout.plan(layout.distribute(splits), [list(each) for each in workers]))
    planner = RecoveryPlanner(layout.model, layout.cluster, Settings())
    decisions = [planner.plan(before, frozenset({lost})) for lost in range(DEVICES)]
    planned = [_peaks(layout, decision.plan) for decision in decisions]
    return {
        "before": spread(list(_peaks(layout, before).values())),
        "paper": spread(list(paper.values())),
        "planned": spread([peak for peaks in planned for peak in peaks.values()]),
        "paper_over_before": max(paper.values()) / limit,
        "planned_over_before": max(max(peaks.values()) for peaks in planned) / limit,
        "never_more": max(max(peaks.values()) for peaks in (paper, *planned)) <= limit,
        "policies": ", ".join(sorted({decision.policy.value for decision in decisions})),
    }


def _peaks(layout: EqualDevices, plan: ExecutionPlan) -> Mapping[int, float]:
    """Worker to its peak in GiB."""
    found = estimate(plan, layout.model, layout.cluster).peak_bytes
    return {worker: peak / GIB for worker, peak in found.items()}
