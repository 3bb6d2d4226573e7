"""Random models, clusters and plans, with random losses rerouted: inputs for the tests and for benchmarks.estimator."""

from __future__ import annotations

import itertools
import random

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.facts.checks import InvalidPlan
from chaos_planner.pipelines.facts.site import ClusterFacts, DeviceFacts, LayerFacts, ModelProfile, PairRate
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Pipeline, Policy, Stage
from chaos_planner.pipelines.search.reroute import route_around


def random_model(rng: random.Random, layers: int, micro_batches: int, *, uneven: bool = True) -> ModelProfile:
    """Layers of a transformer's look; uneven ones differ by up to four times."""

    def layer(index: int) -> LayerFacts:
        scale = rng.uniform(0.5, 2.0) if uneven else 1.0
        return LayerFacts(
            name=f"layer {index}",
            forward_s=0.01 * scale,
            backward_s=0.01 * scale * (rng.uniform(1.0, 2.5) if uneven else 2.0),
            parameter_bytes=rng.randrange(1, 1000) if uneven else 100,
            optimizer_bytes=rng.randrange(1, 1000) if uneven else 200,
            gradient_bytes=rng.randrange(0, 1000) if uneven else 100,
            activation_bytes=rng.randrange(1, 500) if uneven else 50,
            output_bytes=rng.randrange(0, 100) if uneven else 10,
            optimizer_step_s=rng.uniform(0.0, 0.01) if uneven else 0.002,
        )

    return ModelProfile(name="random", layers=tuple(map(layer, range(layers))), global_micro_batches=micro_batches)


def random_cluster(rng: random.Random, workers: int, *, uniform: bool = False) -> ClusterFacts:
    """Devices of random speed (or 1.0), a default rate from free to dear, some pair rates."""
    speeds = [1.0 if uniform else rng.choice((0.5, 1.0, 1.0, 1.5)) for _ in range(workers)]
    pairs = {
        (rng.randrange(workers), rng.randrange(workers)): rng.uniform(1e3, 1e5)
        for _ in range(0 if uniform else rng.randrange(4))
    }
    return ClusterFacts(
        devices=tuple(DeviceFacts(worker=w, memory_bytes=10**9, speed=s) for w, s in enumerate(speeds)),
        rate_bytes_per_s=10 ** rng.uniform(3, 6),
        pair_rates=tuple(PairRate(source=a, target=b, rate_bytes_per_s=r) for (a, b), r in pairs.items() if a != b),
        latency_s=rng.choice((0.0, 0.0005, 0.003)),
    )


def random_plan(rng: random.Random, workers: int, layers: int, micro_batches: int) -> ExecutionPlan:
    """Pipelines of random lengths, splits and micro-batches; some workers may stay idle."""
    ids = list(range(workers))
    rng.shuffle(ids)
    pipelines: list[Pipeline] = []
    count = rng.randint(1, min(workers, micro_batches))
    for left in range(count, 0, -1):
        length = rng.randint(1, min(layers, len(ids) - left + 1))
        cuts = [0, *sorted(rng.sample(range(1, layers), length - 1)), layers]
        stages = tuple(
            Stage(worker=ids.pop(), first_layer=first, last_layer=last) for first, last in itertools.pairwise(cuts)
        )
        given = rng.randint(1, micro_batches - left + 1) if left > 1 else micro_batches
        micro_batches -= given
        pipelines.append(Pipeline(stages=stages, micro_batches=given))
    return ExecutionPlan.build(policy=Policy.DYNAMIC, pipelines=pipelines)


def random_case(rng: random.Random) -> tuple[ModelProfile, ClusterFacts, ExecutionPlan]:
    """A model, a cluster, and a plan in which up to three workers are lost and rerouted where that is possible."""
    workers, layers, micro_batches = rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 12)
    model = random_model(rng, layers, micro_batches)
    cluster = random_cluster(rng, workers)
    plan = random_plan(rng, workers, layers, micro_batches)
    costs = Costs(model, cluster)
    for _ in range(rng.randint(0, 3)):
        lost = rng.choice(sorted(plan.workers))
        try:
            plan = route_around(plan, [lost], costs)
        except InvalidPlan:
            continue
    return model, cluster, plan
