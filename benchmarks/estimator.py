"""Whether the estimator's time of instruction streams is exact, and what placing rerouted work into bubbles gains.

First half of the figures of `estimator`: random plans of up to nine workers on uneven layers, unequal devices and
links, with up to three losses rerouted, are compiled, proved, timed by dynamic programming, and executed by an
independent event simulation (`tests.unit.planner.pipelines.event_simulation`): the two times must be equal in
every bit. The errors against real workers (`error_mean`, `error_max`) are figures of `site_throughput`.
"""

from __future__ import annotations

import random
import statistics

from tests.unit.planner.pipelines.event_simulation import simulate_events
from tests.unit.planner.pipelines.random_plans import random_case

from chaos_planner.pipelines.costs import formulas
from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.estimates.estimator import estimate
from chaos_planner.pipelines.estimates.timeline import timeline
from chaos_planner.pipelines.facts.site import ClusterFacts, DeviceFacts, LayerFacts, ModelProfile
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Pipeline, Policy, Stage
from chaos_planner.pipelines.search.reroute import route_around
from chaos_planner.pipelines.streams.compile import compile_plan

Figure = float | bool | dict[str, float]

PLANS_SHORT = 2_000
PLANS = 10_000


def run(*, short: bool, seed: int) -> dict[str, Figure]:
    """`equals_simulation`: every time equal; a deadlock would fail the compiler's proof or the simulation."""
    plans = PLANS_SHORT if short else PLANS
    unequal = routed = instructions = 0
    for index in range(plans):
        model, cluster, plan = random_case(random.Random(f"{seed} {index}"))
        streams = compile_plan(plan, model, cluster).streams
        costs = Costs(model, cluster)
        unequal += timeline(streams, costs).step_s != simulate_events(streams, costs)
        routed += bool(plan.routes)
        instructions += sum(len(stream) for stream in streams.values())
    return {
        "plans": plans,
        "plans_with_routes": routed,
        "instructions": instructions,
        "equals_simulation": unequal == 0,
        "rerouted_over_formula_13": _over_formula_13(),
    }


def _over_formula_13() -> dict[str, float]:
    """One loss in symmetric 1F1B without communication, each stage in turn: exact time over formula 12's."""
    ratios: list[float] = []
    for dp, pp, m in ((2, 4, 8), (4, 2, 9), (4, 4, 9), (8, 4, 14), (8, 8, 14), (4, 8, 30)):
        layer = LayerFacts(name="block", forward_s=1.0, backward_s=2.0)
        model = ModelProfile(name="even", layers=(layer,) * pp, global_micro_batches=dp * m)
        devices = tuple(DeviceFacts(worker=w, memory_bytes=1) for w in range(dp * pp))
        cluster = ClusterFacts(devices=devices, rate_bytes_per_s=1.0)
        pipelines = [
            Pipeline(
                stages=tuple(Stage(worker=p * pp + s, first_layer=s, last_layer=s + 1) for s in range(pp)),
                micro_batches=m,
            )
            for p in range(dp)
        ]
        plan = ExecutionPlan.build(policy=Policy.DYNAMIC, pipelines=pipelines)
        printed_s = formulas.single_failure_step_s(pp, m, dp, 1.0, 2.0)
        for worker in range(pp):
            around = route_around(plan, [worker], Costs(model, cluster))
            ratios.append(estimate(around, model, cluster).step_s / printed_s)
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
