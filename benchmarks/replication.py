"""Scale-out over an emulated WAN: the newcomer's delay over the least possible, for Chaos and the paper's baselines.

A newcomer with 1 to 6 neighbours at 100 to 1000 Mbit/s and 10 to 20 ms joins a training cluster (Chaos VI-A); links are
drawn anew in each run, and every policy gets the same ones. The delay counts from the request to join to the last
verified byte; the bound is propagation and all links of the newcomer full to the end. `scale` takes the two cores of a
small machine out of the way: it makes all rates smaller alike.

Source: Chaos VI-B (figure 8) and VI-F (figure 16); measures.md `replication`.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from benchmarks.measure import Figures, spread
from benchmarks.wan import bound_s, join, shape, wan_cluster
from chaosd.lab.scenario import LinkSpec

POLICIES = ("chaos", "single", "equal", "multi_source")
MEMBERS = 6
NEWCOMER = "newcomer"
NEIGHBOURS = (3, 1, 6, 2, 4, 5)
"""Of the newcomer, run by run."""

STATES_MIB = {"resnet101": 178, "gpt2": 468, "vgg11": 528}
RATES_MBIT = (100.0, 1000.0)
LATENCIES_MS = (10.0, 20.0)
SCALE = 0.15
PACE_S = 0.5


def run(*, short: bool, seed: int) -> Figures:
    """`POLICY_over_bound` over all runs; `speedup_over_best_baseline` in each run."""
    over: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    speedups: list[float] = []
    figures: Figures = {}
    plan = [("resnet101", count) for count in NEIGHBOURS[: 2 if short else 6]]
    if not short:
        plan += [("gpt2", 3), ("vgg11", 4)]
    for number, (model, count) in enumerate(plan):
        links = overlay(random.Random(f"replication/{seed}/{number}"), count)
        own = [link for link in links if NEWCOMER in link.between]
        state_bytes = STATES_MIB[model] << 20
        least_s = bound_s(own, state_bytes, SCALE)
        delays = {policy: one_join(policy, links, count, state_bytes, number) for policy in POLICIES}
        for policy, delay_s in delays.items():
            over[policy].append(delay_s / least_s)
            figures[f"{model}_{number}_{count}_neighbours_{policy}_s"] = delay_s
        if count > 1:
            best_s = min(delay_s for policy, delay_s in delays.items() if policy != "chaos")
            speedups.append(best_s / delays["chaos"])
        told = ", ".join(f"{policy} {delay_s / least_s:.2f}" for policy, delay_s in delays.items())
        print(f"{model}, {count} neighbours, bound {least_s:.2f} s: {told}", flush=True)
    figures |= {f"{policy}_over_bound": spread(values) for policy, values in over.items()}
    figures["speedup_over_best_baseline"] = spread(speedups)
    return figures


def overlay(rng: random.Random, neighbours: int) -> list[LinkSpec]:
    """Six members, each linked with one or two of those before it; the newcomer with `neighbours` of them."""
    names = [f"site{number}" for number in range(MEMBERS)]
    pairs = [(names[before], names[number]) for number in range(1, MEMBERS)
             for before in rng.sample(range(number), min(number, rng.choice((1, 2))))]  # fmt: skip
    pairs += [(name, NEWCOMER) for name in rng.sample(names, neighbours)]
    return [
        LinkSpec(between=pair, rate_mbit=rng.uniform(*RATES_MBIT), latency_ms=rng.uniform(*LATENCIES_MS))
        for pair in pairs
    ]


def one_join(policy: str, links: list[LinkSpec], neighbours: int, state_bytes: int, seed: int) -> float:
    """Seconds from the request to the last verified byte, under `policy`."""
    names = [f"site{number}" for number in range(MEMBERS)]
    with (
        tempfile.TemporaryDirectory(prefix="chaos-wan-") as folder,
        wan_cluster(
            Path(folder),
            links,
            [*names, NEWCOMER],
            scale=SCALE,
            routed=policy == "multi_source",
            state_bytes=state_bytes,
            pace_s=PACE_S,
            min_sites=MEMBERS,
            extra=f'replication = "{policy}"',
            seed=seed,
        ) as (cluster, network),
    ):
        cluster.train(names)
        shape(network, links)
        return join(cluster, NEWCOMER, neighbours).delay_s
