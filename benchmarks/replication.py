"""Scale-out over an emulated WAN: the newcomer's delay over the least possible, for Chaos and the paper's baselines.

A newcomer with 1 to 6 neighbours at 100 to 1000 Mbit/s and 10 to 20 ms joins a training cluster (Chaos VI-A); links are
drawn anew in each run, and every policy gets the same ones. The delay counts from the request to join to the last
verified byte (`restart`: until the newcomer trains); the bound is propagation and all links of the newcomer full to the
end. `SCALE` makes all rates smaller alike, to take the two cores of a small machine out of the way.

Source: Chaos VI-B (figure 8) and VI-F (figure 16).
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from benchmarks.measure import Figures, spread
from benchmarks.restart import join_by_restart
from benchmarks.wan import bound_s, join, shape, wan_cluster
from chaos_lab.scenario import LinkSpec

POLICIES = ("chaos", "single", "equal", "multi_source", "restart")
NEWCOMER = "newcomer"
RUNS = (
    ("resnet101", 6, 3),
    ("resnet101", 6, 1),
    ("resnet101", 8, 4),
    ("resnet101", 10, 5),
    ("resnet101", 12, 6),
    ("resnet101", 6, 2),
    ("resnet101", 6, 6),
    ("gpt2", 6, 3),
    ("vgg11", 6, 4),
)
"""Model, members, neighbours of the newcomer. The second to fifth are figure 8's "6 to 7" ... "12 to 13"."""

RUNS_SHORT = 2
STATES_MIB = {"resnet101": 178, "gpt2": 468, "vgg11": 528}
RATES_MBIT = (100.0, 1000.0)
LATENCIES_MS = (10.0, 20.0)
SCALE = 0.15
PACE_S = 0.2


def run(*, short: bool, seed: int) -> Figures:
    """`POLICY_over_bound` over all runs; `speedup_over_best_baseline` in each run."""
    over: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    speedups: list[float] = []
    figures: Figures = {}
    for number, (model, members, count) in enumerate(RUNS[:RUNS_SHORT] if short else RUNS):
        links = overlay(random.Random(f"replication/{seed}/{number}"), members, count)
        own = [link for link in links if NEWCOMER in link.between]
        state_bytes = STATES_MIB[model] << 20
        least_s = bound_s(own, state_bytes, SCALE)
        delays = {policy: one_join(policy, links, members, count, state_bytes) for policy in POLICIES}
        for policy, delay_s in delays.items():
            over[policy].append(delay_s / least_s)
            figures[f"{model}_{members}_members_{count}_neighbours_{policy}_s"] = delay_s
        figures[f"{model}_{members}_members_{count}_neighbours_bound_s"] = least_s
        if count > 1:
            best_s = min(delay_s for policy, delay_s in delays.items() if policy != "chaos")
            speedups.append(best_s / delays["chaos"])
        told = ", ".join(f"{policy} {delay_s / least_s:.2f}" for policy, delay_s in delays.items())
        print(f"{model}, {members} members, {count} neighbours, bound {least_s:.2f} s: {told}", flush=True)
    figures |= {f"{policy}_over_bound": spread(values) for policy, values in over.items()}
    figures["speedup_over_best_baseline"] = spread(speedups)
    return figures


def overlay(rng: random.Random, members: int, neighbours: int) -> list[LinkSpec]:
    """Each member is linked with one or two of those before it; the newcomer with `neighbours` of them."""
    names = [f"site{number}" for number in range(members)]
    pairs = [(names[before], names[number]) for number in range(1, members)
             for before in rng.sample(range(number), min(number, rng.choice((1, 2))))]  # fmt: skip
    pairs += [(name, NEWCOMER) for name in rng.sample(names, neighbours)]
    return [
        LinkSpec(between=pair, rate_mbit=rng.uniform(*RATES_MBIT), latency_ms=rng.uniform(*LATENCIES_MS))
        for pair in pairs
    ]


def one_join(policy: str, links: list[LinkSpec], members: int, neighbours: int, state_bytes: int) -> float:
    """Seconds from the request to the last verified byte, under `policy`."""
    names = [f"site{number}" for number in range(members)]
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
            min_sites=members,
            extra="" if policy == "restart" else f'replication = "{policy}"',
        ) as (cluster, network),
    ):
        cluster.train(names)
        shape(network, links)
        if policy == "restart":
            return join_by_restart(cluster, network, names, NEWCOMER, links)
        return join(cluster, NEWCOMER, neighbours).delay_s
