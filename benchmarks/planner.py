"""How long the planner takes to decide, and whether its answer is the optimum where every plan can be tried.

Time: the built-in Llama-2 7B (32 decoder layers, embedding, head) on 32 to 2,048 devices in pipelines of eight stages
(four on 32), eight micro-batches a pipeline, one device lost; each run with a planner that has seen nothing. Cached:
the same loss, and a loss of another worker of the same kind, looked up in a `PlanCache` filled ahead.

Optimum: `tests.unit.planner.pipelines.exhaustive` times every plan of every size up to 8 workers and 8 layers (short
form: 6 by 6, and single larger ones), for even and uneven layers, free and dear links, ample and scarce memory.

Measured against Chameleon IV (40.5 s for 2,048 devices, 19.3 s for 1,024).
"""

from __future__ import annotations

import math
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tests.unit.planner.pipelines.exhaustive import Exhaustive
from tests.unit.planner.pipelines.random_plans import random_cluster, random_model, random_plan

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.facts.models import built_in, uniform_cluster
from chaos_planner.pipelines.facts.site import ClusterFacts, ModelProfile
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Pipeline, Policy, Stage
from chaos_planner.pipelines.search.cache import PlanCache
from chaos_planner.pipelines.search.planner import NoPlan, Settings, plan

Figure = float | bool | dict[str, float]

MTBF_S = 3600.0
RUNS = 5
SIZES = ((32, 8), (256, 32), (1024, 128), (2048, 256))
"""(devices, pipelines)."""


def run(*, short: bool, seed: int) -> dict[str, Figure]:
    """The figures; `over_exhaustive_max` is the worst planner's step time over the optimum, 1 where all are equal."""
    figures: dict[str, Figure] = {}
    rng = random.Random(seed)
    for devices, pipelines in SIZES:
        model, cluster, current = _site(devices, pipelines)
        lost = [frozenset({rng.randrange(devices)}) for _ in range(RUNS)]
        figures[f"seconds_{devices}"] = _spread(
            [_timed(partial(plan, model, cluster, current, failed)) for failed in lost]
        )
        if devices == SIZES[-1][0]:
            figures.update(_cached(model, cluster, current, rng))
    figures["memory_peak_gib"] = _peak_gib()
    figures.update(_against_every_plan(short=short, seed=seed))
    return figures


def _site(devices: int, pipelines: int) -> tuple[ModelProfile, ClusterFacts, ExecutionPlan]:
    model = built_in("llama2-7b", global_micro_batches=8 * pipelines)
    cluster = replace(uniform_cluster(devices), mtbf_s=MTBF_S)
    layers, stages = len(model.layers), devices // pipelines
    cuts = [round(s * layers / stages) for s in range(stages + 1)]
    named = [
        Pipeline(
            stages=tuple(
                Stage(worker=p * stages + s, first_layer=cuts[s], last_layer=cuts[s + 1]) for s in range(stages)
            ),
            micro_batches=8,
        )
        for p in range(pipelines)
    ]
    return model, cluster, ExecutionPlan.build(policy=Policy.DYNAMIC, pipelines=named)


def _cached(
    model: ModelProfile, cluster: ClusterFacts, current: ExecutionPlan, rng: random.Random
) -> dict[str, Figure]:
    known = PlanCache(model, cluster, current)
    ahead_s = _timed(lambda: list(known.ahead()))
    workers = rng.sample(sorted(cluster.workers), 20 * RUNS)
    alike = [_timed(partial(known.decide, frozenset({worker}))) for worker in workers]
    first = [_timed(partial(known.decide, frozenset({worker}))) for worker in range(8)]
    assert known.misses == 0, "a single loss was not in the cache"
    return {
        "seconds_cached": _spread(alike),
        "seconds_cached_same_worker": _spread(first),
        "seconds_ahead_2048": ahead_s,
    }


def _against_every_plan(*, short: bool, seed: int) -> dict[str, Figure]:
    largest, repeats = (6, 2) if short else (8, 2)
    cases = [(w, n, 3 + (w + n) % 6) for w in range(1, largest + 1) for n in range(1, largest + 1)] * repeats
    if short:
        cases += [(8, 3, 9), (7, 4, 8), (4, 8, 12), (3, 8, 24)]
    worst, incomplete, plans, examined, refused = 1.0, 0, 0, 0, 0
    for index, (workers, layers, micro_batches) in enumerate(cases):
        rng = random.Random(f"{seed} {index}")
        model = random_model(rng, layers, micro_batches, uneven=index % 3 > 0)
        memory = rng.choice((10**9, 10**9, int(3000 * layers * rng.uniform(0.2, 0.8))))
        cluster = random_cluster(rng, workers + 1, uniform=True)
        cluster = replace(cluster, devices=tuple(replace(each, memory_bytes=memory) for each in cluster.devices))
        current = random_plan(rng, workers + 1, layers, micro_batches)
        lost = frozenset({rng.choice(sorted(cluster.workers))})
        every = Exhaustive(Costs(model, cluster), workers, memory)
        best = every.optimum_s()
        plans += every.plans
        settings = Settings(policies=frozenset({Policy.DYNAMIC}), external_rate_bytes_per_s=1e9)
        try:
            decision = plan(model, cluster, current, lost, settings)
        except NoPlan:
            worst = worst if math.isinf(best) else math.inf
            refused += 1
            continue
        worst = max(worst, decision.step_s / best)
        incomplete += not decision.complete
        examined += decision.examined
    return {
        "over_exhaustive_max": worst,
        "exhaustive_cases": len(cases),
        "exhaustive_cases_without_plan": refused,
        "exhaustive_plans": plans,
        "planner_plans": examined,
        "planner_incomplete": incomplete,
    }


def _timed(action: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    action()
    return time.perf_counter() - start_s


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _peak_gib() -> float:
    """Of this process with everything that it has imported; macOS counts bytes, Linux kibibytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20
