"""Averaging over shaped overlays, by each policy for its trees, over the least time that any all-reduce can take there.

Random overlays of 4 to 8 sites (real daemons and workers in network namespaces, the links shaped by the kernel; needs
root), 100 to 1000 Mbit/s and 2 to 10 ms one way, `SCALE` smaller alike so that two cores are not the limit. The same
overlay for each policy in turn, in the same run: `trees` (the default), `tree`, `ring`, `star`. The daemons measure the
links themselves, as they do when sites join. Only rounds with the weight of all sites count, from the plan on that is
made when the run has agreed on the newest rules (spec 9.7), half a minute after the last site came in.

The bound is the vector over the packing number of the overlay, with the true rates less headers (Tutte 1961,
Nash-Williams 1961): a round cannot be faster, whatever the trees. Bar: `trees_over_bound` at most 1.15.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

from benchmarks.allreduce import AveragingCluster, whole_rounds
from benchmarks.measure import Figures, spread
from benchmarks.wan import GOODPUT_SHARE, BenchmarkError, Namespaces, Site
from chaos_lab.namespaces import NamespaceNetwork
from chaos_lab.scenario import LinkSpec
from chaos_planner.overlay.trees import LinkFacts, NoTree, pack, ring

POLICIES = ("trees", "tree", "ring", "star")
SITES = ("site0", "site1", "site2", "site3", "site4", "site5", "site6", "site7")
OVERLAYS = ((4, 3.0), (5, 3.0), (6, 3.0), (8, 3.0), (6, 5.0))
"""Sites and mean degree."""

OVERLAYS_SHORT = 1
RATES_MBIT, LATENCIES_MS = (100.0, 1000.0), (2.0, 10.0)
SCALE = 0.1
VECTOR_BYTES, ROUNDS = 32 << 20, 8
VECTOR_BYTES_SHORT, ROUNDS_SHORT = 12 << 20, 4
WINDOW_MAX_S = 180.0
MBIT_BYTES_PER_S = 125_000


def run(*, short: bool, seed: int) -> Figures:
    """`POLICY_over_bound`: medians of the rounds on each overlay, over its bound; a policy that has no trees on an
    overlay (`ring`) is not counted there."""
    over: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    figures: Figures = {}
    vector_bytes, rounds = (VECTOR_BYTES_SHORT, ROUNDS_SHORT) if short else (VECTOR_BYTES, ROUNDS)
    for number, (sites, degree) in enumerate(OVERLAYS[:OVERLAYS_SHORT] if short else OVERLAYS):
        links = overlay(random.Random(f"allreduce/{seed}/{number}"), sites, degree)
        bound_s = vector_bytes / bound_bytes_per_s(SITES[:sites], links)
        case = f"{sites}_sites_{len(links)}_links"
        figures[f"{case}_bound_s"] = bound_s
        for policy in POLICIES:
            if policy == "ring" and not has_ring(SITES[:sites], links):
                continue
            seconds = rounds_over(SITES[:sites], links, policy, vector_bytes, rounds)
            figures[f"{case}_{policy}_s"] = spread(seconds)
            over[policy].append(spread(seconds)["median"] / bound_s)
            print(f"{case}, bound {bound_s:.2f} s: {policy} {over[policy][-1]:.2f} times", flush=True)
    return figures | {f"{policy}_over_bound": spread(values) for policy, values in over.items() if values}


def overlay(rng: random.Random, sites: int, degree: float) -> list[LinkSpec]:
    """A random tree, and links between random pairs until the mean degree is reached."""
    names = SITES[:sites]
    pairs = {(names[rng.randrange(number)], names[number]) for number in range(1, sites)}
    others = [(one, other) for at, one in enumerate(names) for other in names[at + 1 :] if (one, other) not in pairs]
    rng.shuffle(others)
    pairs.update(others[: max(0, round(sites * degree / 2) - len(pairs))])
    return [
        LinkSpec(between=pair, rate_mbit=rng.uniform(*RATES_MBIT), latency_ms=rng.uniform(*LATENCIES_MS))
        for pair in sorted(pairs)
    ]


def facts_of(links: list[LinkSpec]) -> dict[tuple[str, str], LinkFacts]:
    """As the planner sees them, with the rates that a vector's bytes can have."""
    return {
        link.between: LinkFacts(
            rate_bytes_per_s=(link.rate_mbit or 0.0) * SCALE * GOODPUT_SHARE * MBIT_BYTES_PER_S,
            latency_s=link.latency_ms / 1000,
        )
        for link in links
    }


def bound_bytes_per_s(sites: tuple[str, ...], links: list[LinkSpec]) -> float:
    return pack(sites, facts_of(links), num_trees_max=None).bound_bytes_per_s


def has_ring(sites: tuple[str, ...], links: list[LinkSpec]) -> bool:
    try:
        ring(sites, facts_of(links))
    except NoTree:
        return False
    return True


def rounds_over(
    sites: tuple[str, ...], links: list[LinkSpec], policy: str, vector_bytes: int, rounds: int
) -> list[float]:
    """Seconds of whole rounds on this overlay under one policy. Raises BenchmarkError, NetworkUnavailableError."""
    near: dict[str, tuple[str, ...]] = {}
    for number, name in enumerate(sites):
        far = [link.between[1 - link.between.index(name)] for link in links if name in link.between]
        near[name] = tuple(one for one in far if one in sites[:number])
    with (
        tempfile.TemporaryDirectory(prefix="chaos-overlay-") as folder,
        NamespaceNetwork(sites, links, scale=SCALE) as network,
    ):
        cluster = AveragingCluster(
            Path(folder),
            Namespaces(network),
            near,
            state_bytes=vector_bytes,
            pace_s=0.0,
            min_sites=len(sites),
            extra=f'averaging = "{policy}"',
        )
        try:
            for name in sites:  # one after the other, so that each measures its links to those before it
                cluster.train_one(name, links=len(near[name]))
            return _rounds(cluster, len(sites), rounds)
        finally:
            cluster.end()


def _cut_finely(site: Site) -> bool:
    """Whether this site, as the scheduler, has planned so (`scheduler.replanning`)."""
    return any("more chunks" in event.cause for event in site.events("plan"))


def _rounds(cluster: AveragingCluster, sites: int, rounds: int) -> list[float]:
    first = next(iter(cluster.sites.values()))
    cluster.wait(lambda: bool(whole_rounds(first.rounds(), sites, after_s=0.0)[0]), "a round of all sites")
    cluster.wait(lambda: any(_cut_finely(site) for site in cluster.sites.values()), "the plan that cuts finely")
    first_whole = len(first.rounds())
    cluster.wait(lambda: len(first.rounds()) > first_whole + 4, "rounds along it")
    began_s, end_s = time.time(), time.monotonic() + WINDOW_MAX_S
    seconds: list[float] = []
    while len(seconds) < rounds and time.monotonic() < end_s:
        time.sleep(0.5)
        seconds, _ = whole_rounds(first.rounds(), sites, after_s=began_s)
    if not seconds:
        raise BenchmarkError(f"no two rounds of all sites within {WINDOW_MAX_S:g} s")
    return seconds
