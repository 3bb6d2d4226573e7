"""State that moves when pipelines are formed anew, against filling the new places in order from one replica each.

Chameleon V-C: 8 devices, DP 4 x PP 2, one lost, new pipelines of 2, 2 and 3 stages: transfer time 32.35 % shorter at 16
layers, no gain at 4 and 8. Here every one of the 8 devices is lost in turn, for 4 to 64 equal layers of Llama-2 7B's
size, and random losses and plans beside it. `naive` leaves whole pipelines as they are, gives the other places to the
other survivors in order, and takes every missing layer from its first live replica; `ordered` gives all places to the
survivors in order; `matching_alone` is Kuhn-Munkres with the first replica as source.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measure import Figures, spread
from chaos_planner.pipelines.facts.models import LLAMA2_7B, decoder_facts, uniform_cluster
from chaos_planner.pipelines.facts.site import ClusterFacts, LayerFacts, ModelProfile
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Pipeline, Policy, Stage
from chaos_planner.pipelines.transfers.restorer import holdings, relabel, restore

LAYERS = (4, 8, 16, 32, 64)


def run(*, short: bool, seed: int) -> Figures:
    """Reductions as fractions of the naive time or bytes: 0.3 is 30 % less."""
    figures: Figures = {}
    for layers in LAYERS:
        model = _model(layers)
        old = _plan([_even(layers, 2)] * 4, range(8))
        runs = []
        for failed in range(8):
            survivors = [worker for worker in range(8) if worker != failed]
            new = _plan([_even(layers, 2), _even(layers, 2), _even(layers, 3)], survivors)
            runs.append(_measure(model, uniform_cluster(8), old, [failed], new))
        figures[f"time_reduction_{layers}"] = spread([_less(r.chaos_s, r.naive_s) for r in runs])
        figures[f"bytes_reduction_{layers}"] = spread([_less(r.chaos_bytes, r.naive_bytes) for r in runs])
        if layers == 16:
            figures["time_reduction_16_ordered"] = spread([_less(r.chaos_s, r.ordered_s) for r in runs])
            figures["time_reduction_16_matching_alone"] = spread([_less(r.matched_s, r.naive_s) for r in runs])
    drawn = [_random_case(random.Random(f"{seed}/{case}")) for case in range(20 if short else 200)]
    figures["random_time_reduction"] = spread([_less(r.chaos_s, r.naive_s) for r in drawn])
    figures["random_bytes_reduction"] = spread([_less(r.chaos_bytes, r.naive_bytes) for r in drawn])
    figures["never_more_bytes"] = all(r.chaos_bytes <= min(r.naive_bytes, r.ordered_bytes) for r in drawn)
    figures["never_slower"] = all(r.chaos_s <= min(r.naive_s, r.ordered_s) * (1 + 1e-9) for r in drawn)
    return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Seconds and bytes of one re-partition."""

    chaos_s: float
    matched_s: float
    naive_s: float
    ordered_s: float
    chaos_bytes: int
    naive_bytes: int
    ordered_bytes: int


def _less(ours: float, naive: float) -> float:
    """Fraction saved; 0 where there was nothing to move."""
    return 1 - ours / naive if naive else 0.0


def _measure(
    model: ModelProfile, cluster: ClusterFacts, old: ExecutionPlan, failed: Sequence[int], new: ExecutionPlan
) -> Run:
    found = restore(model, cluster, holdings(model, old, failed=failed), new)
    ordered_s, ordered_bytes = _one_source(model, cluster, old, failed, new)
    naive_s, naive_bytes = _one_source(model, cluster, old, failed, relabel(new, _kept_pipelines(old, failed, new)))
    matched_s, _ = _one_source(model, cluster, old, failed, relabel(new, found.ways))
    return Run(
        chaos_s=found.time_s,
        matched_s=matched_s,
        naive_s=naive_s,
        ordered_s=ordered_s,
        chaos_bytes=found.moved_bytes,
        naive_bytes=naive_bytes,
        ordered_bytes=ordered_bytes,
    )


def _kept_pipelines(old: ExecutionPlan, failed: Sequence[int], new: ExecutionPlan) -> dict[int, int]:
    """Places to workers: pipelines that lost nobody go on where the new plan has one of their split."""
    whole = [p for p in old.pipelines if not {stage.worker for stage in p.stages} & set(failed)]
    ways: dict[int, int] = {}
    for pipeline in new.pipelines:
        cuts = [stage.last_layer for stage in pipeline.stages]
        same = next((p for p in whole if [stage.last_layer for stage in p.stages] == cuts), None)
        if same is not None:
            whole.remove(same)
            ways.update({n.worker: o.worker for n, o in zip(pipeline.stages, same.stages, strict=True)})
    left = iter(sorted(old.workers - set(failed) - set(ways.values())))
    places = [stage.worker for pipeline in new.pipelines for stage in pipeline.stages if stage.worker not in ways]
    return {**ways, **{place: next(left) for place in places}}


def _one_source(
    model: ModelProfile, cluster: ClusterFacts, old: ExecutionPlan, failed: Sequence[int], new: ExecutionPlan
) -> tuple[float, int]:
    """Every missing layer from its first live replica, without a look at who else pulls from it."""
    busy_s: dict[tuple[str, int], float] = {}
    moved = 0
    gone = set(failed)
    for worker in sorted(new.workers):
        stage = new.stage(worker)
        for layer in range(stage.first_layer, stage.last_layer):
            if worker in old.holders[layer]:
                continue
            source = next(holder for holder in old.holders[layer] if holder not in gone)
            size = model.layers[layer].parameter_bytes + model.layers[layer].optimizer_bytes
            for key in (("up", source), ("down", worker)):
                busy_s[key] = busy_s.get(key, 0.0) + size / cluster.rate(source, worker)
            moved += size
    return max(busy_s.values(), default=0.0) + (cluster.latency_s if moved else 0.0), moved


def _random_case(rng: random.Random) -> Run:
    """8 to 32 workers in 2 to 4 stages, a random loss that leaves a replica of every layer, even new pipelines."""
    layers, stages = rng.choice((16, 32)), rng.choice((2, 4))
    pipelines = rng.randrange(3, 9)
    old = _plan([_even(layers, stages)] * pipelines, range(stages * pipelines))
    failed = rng.sample(range(stages * pipelines), rng.randrange(1, pipelines - 1))
    survivors = [worker for worker in range(stages * pipelines) if worker not in failed]
    count = len(survivors) // (stages + rng.randrange(0, 2))
    short, longer = divmod(len(survivors), max(count, 1))
    sizes = [short + 1] * longer + [short] * (max(count, 1) - longer)
    new = _plan([_even(layers, min(size, layers)) for size in sizes], survivors)
    return _measure(_model(layers), uniform_cluster(stages * pipelines), old, failed, new)


def _model(layers: int) -> ModelProfile:
    """Equal layers of Llama-2 7B's size; without embedding and head, as the paper counts layers."""
    layer: LayerFacts = decoder_facts(LLAMA2_7B).layers[1]
    return ModelProfile(name=f"{layers} layers", layers=(layer,) * layers, global_micro_batches=16)


def _even(layers: int, stages: int) -> list[int]:
    short, longer = divmod(layers, stages)
    return [short + 1] * longer + [short] * (stages - longer)


def _plan(splits: Sequence[Sequence[int]], workers: Sequence[int]) -> ExecutionPlan:
    names = iter(workers)
    pipelines = []
    for split in splits:
        edges = itertools.pairwise(itertools.accumulate(split, initial=0))
        stages = tuple(Stage(worker=next(names), first_layer=low, last_layer=high) for low, high in edges)
        pipelines.append(Pipeline(stages=stages, micro_batches=2))
    return ExecutionPlan.build(policy=Policy.DYNAMIC, pipelines=pipelines)
