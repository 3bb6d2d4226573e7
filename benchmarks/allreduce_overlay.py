"""Averaging over shaped overlays, by each policy for its trees, over the least time that any all-reduce can take there.

Random overlays of 4 to 8 sites (real daemons and workers in network namespaces, the links shaped by the kernel; needs
root), 100 to 1000 Mbit/s and 2 to 10 ms one way, `SCALE` smaller alike so that two cores are not the limit. The same
overlay for each policy in turn, in the same run: `trees` (the default), `tree`, `ring`, `star`. The daemons measure the
links themselves, as they do when sites join. Only rounds with the weight of all sites count, from the plan on that is
made when the run has agreed on the newest rules (spec 9.7), half a minute after the last site came in.

Told beside each policy's rounds: `processor_share`, the part of the machine's cores that daemons, workers and the delay
line used while the rounds were measured (near 1 the cores are the limit, not the links); `links_used`, the part of
what all links could carry in that time, both ways, that they carried; `rate_told`, the rates of the links that the plan
was made from over the true ones.

The bound is the vector over the packing number of the overlay, with the true rates less headers (Tutte 1961,
Nash-Williams 1961): a round cannot be faster, whatever the trees. Bar: `trees_over_bound` at most 1.15.

`lossy_P_percent`: one more overlay, whose fastest link that is no bridge loses so many packets of each direction. What
TCP carries over it is up to its congestion control, which is printed: bbr goes on at nearly the rate at 2 %, cubic
falls to about a segment over the round trip and the root of the loss (Mathis et al. 1997). Its bound is that of the
overlay without this link: to leave it out costs that much, to believe in its rate more. `..._rate_told`: what the run
took the link for, over its rate. Bar: `..._trees_over_bound` at most 1.15.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

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
LOSSY = (5, 3.0)
LOSSES, LOSSES_SHORT = (0.02, 0.1), (0.1,)
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
    shares: list[float] = []
    figures: Figures = {}
    vector_bytes, rounds = (VECTOR_BYTES_SHORT, ROUNDS_SHORT) if short else (VECTOR_BYTES, ROUNDS)
    for number, (sites, degree) in enumerate(OVERLAYS[:OVERLAYS_SHORT] if short else OVERLAYS):
        links = overlay(random.Random(f"allreduce/{seed}/{number}"), sites, degree)
        bound_s = vector_bytes / bound_bytes_per_s(SITES[:sites], links)
        case = f"{sites}_sites_{len(links)}_links"
        figures[f"{case}_bound_s"] = bound_s
        for policy, measured in by_policy(SITES[:sites], links, vector_bytes, rounds):
            figures[f"{case}_{policy}_s"] = seconds = spread(measured.seconds)
            figures[f"{case}_{policy}_links_used"] = measured.links_used
            figures[f"{case}_{policy}_rate_told"] = spread(measured.rates_told)
            over[policy].append(seconds["median"] / bound_s)
            shares.append(measured.processor_share)
            print(f"{case}, bound {bound_s:.2f} s: {policy} {over[policy][-1]:.2f} times, {measured}", flush=True)
    figures |= {f"{policy}_over_bound": spread(values) for policy, values in over.items() if values}
    for loss in LOSSES_SHORT if short else LOSSES:
        figures |= _lossy(seed, loss, vector_bytes, rounds)
    return figures | {"processor_share": spread(shares)}


def _lossy(seed: int, loss: float, vector_bytes: int, rounds: int) -> Figures:
    """The overlay with a lossy link, see the module."""
    sites = SITES[: LOSSY[0]]
    links, lossy, bound = with_loss(sites, overlay(random.Random(f"allreduce/{seed}/lossy"), *LOSSY), loss)
    bound_s, case = vector_bytes / bound, f"lossy_{100 * loss:.0f}_percent"
    figures: Figures = {f"{case}_bound_s": bound_s}
    for policy, measured in by_policy(sites, links, vector_bytes, rounds):
        figures[f"{case}_{policy}_s"] = seconds = spread(measured.seconds)
        figures[f"{case}_{policy}_rate_told"] = told = measured.rates_told[links.index(lossy)]
        figures[f"{case}_{policy}_over_bound"] = over = seconds["median"] / bound_s
        print(f"{case}, bound {bound_s:.2f} s: {policy} {over:.2f} times, {measured}, of it {told:.2f}", flush=True)
    return figures


@dataclass(frozen=True, kw_only=True)
class Measured:
    """See the module. `rates_told`: of each link; `congestion`: control of the first site's connections."""

    seconds: list[float]
    processor_share: float
    links_used: float
    rates_told: list[float]
    congestion: str

    def __str__(self) -> str:
        told = f"rates told {min(self.rates_told):.2f} to {max(self.rates_told):.2f}"
        used = f"{self.processor_share:.0%} of the cores, {self.links_used:.0%} of the links"
        return f"{used}, {told}, {self.congestion}"


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


def with_loss(sites: tuple[str, ...], links: list[LinkSpec], loss: float) -> tuple[list[LinkSpec], LinkSpec, float]:
    """The same, but the fastest link that is no bridge loses packets; that link; the bound without it."""
    for link in sorted(links, key=lambda one: -(one.rate_mbit or 0.0)):
        lossy = link.model_copy(update={"loss": loss})
        with contextlib.suppress(NoTree):
            bound = bound_bytes_per_s(sites, [one for one in links if one is not link])
            return [lossy if one is link else one for one in links], lossy, bound
    raise BenchmarkError("every link of this overlay is a bridge")


def facts_of(links: list[LinkSpec], scale: float = SCALE) -> dict[tuple[str, str], LinkFacts]:
    """As the planner sees them, with the rates that a vector's bytes can have."""
    return {
        link.between: LinkFacts(
            rate_bytes_per_s=(link.rate_mbit or 0.0) * scale * GOODPUT_SHARE * MBIT_BYTES_PER_S,
            latency_s=link.latency_ms / 1000,
        )
        for link in links
    }


def bound_bytes_per_s(sites: tuple[str, ...], links: list[LinkSpec], scale: float = SCALE) -> float:
    return pack(sites, facts_of(links, scale), num_trees_max=None).bound_bytes_per_s


def has_ring(sites: tuple[str, ...], links: list[LinkSpec]) -> bool:
    try:
        ring(sites, facts_of(links))
    except NoTree:
        return False
    return True


def by_policy(
    sites: tuple[str, ...], links: list[LinkSpec], vector_bytes: int, rounds: int
) -> Iterator[tuple[str, Measured]]:
    """Rounds on this overlay under each policy that has trees there, one after the other."""
    for policy in POLICIES:
        if policy != "ring" or has_ring(sites, links):
            yield policy, rounds_over(sites, links, policy, vector_bytes, rounds)


def rounds_over(sites: tuple[str, ...], links: list[LinkSpec], policy: str, vector_bytes: int, rounds: int) -> Measured:
    """Whole rounds on this overlay under one policy. Raises BenchmarkError, NetworkUnavailableError."""
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
            return _measured(cluster, links, rounds)
        finally:
            cluster.end()


def _cut_finely(site: Site) -> bool:
    """Whether this site, as the scheduler, has planned so (`scheduler.replanning`)."""
    return any("more chunks" in event.cause for event in site.events("plan"))


def _measured(cluster: AveragingCluster, links: list[LinkSpec], rounds: int) -> Measured:
    first, sites = next(iter(cluster.sites.values())), len(cluster.sites)
    cluster.wait(lambda: bool(whole_rounds(first.rounds(), sites, after_s=0.0)[0]), "a round of all sites")
    cluster.wait(lambda: any(_cut_finely(site) for site in cluster.sites.values()), "the plan that cuts finely")
    first_whole = len(first.rounds())
    cluster.wait(lambda: len(first.rounds()) > first_whole + 4, "rounds along it")
    began_s, used_s, carried = time.time(), _used_s(), _carried_bytes(cluster)
    seconds: list[float] = []
    while len(seconds) < rounds and time.time() < began_s + WINDOW_MAX_S:
        time.sleep(0.5)
        seconds, _ = whole_rounds(first.rounds(), sites, after_s=began_s)
    if not seconds:
        raise BenchmarkError(f"no two rounds of all sites within {WINDOW_MAX_S:g} s")
    took_s = time.time() - began_s
    possible = 2 * took_s * sum((link.rate_mbit or 0.0) * SCALE * MBIT_BYTES_PER_S for link in links)
    return Measured(
        seconds=seconds,
        processor_share=(_used_s() - used_s) / took_s / (psutil.cpu_count() or 1),
        links_used=(_carried_bytes(cluster) - carried) / possible,
        rates_told=_rates_told(first, links),
        congestion=" and ".join(sorted({link.congestion for link in first.client.status().links if link.congestion})),
    )


def _used_s() -> float:
    """Processor seconds of everything that this benchmark has started."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += float(times.user + times.system)
    return total


def _carried_bytes(cluster: AveragingCluster) -> int:
    """What all sites have sent over their links, headers included (`/proc/PID/net/dev`)."""
    total = 0
    for site in cluster.sites.values():
        assert site.daemon is not None
        lines = Path(f"/proc/{site.daemon.pid}/net/dev").read_text(encoding="ascii").splitlines()[2:]
        devices = {name.strip(): counts.split() for name, _, counts in (line.partition(":") for line in lines)}
        total += sum(int(counts[8]) for name, counts in devices.items() if name != "lo")
    return total


def _rates_told(site: Site, links: list[LinkSpec]) -> list[float]:
    """Of each link, what the roster has over what is true."""
    status = site.client.status()
    names = {one.site: one.name for one in status.sites}
    told = {frozenset((names[link.one], names[link.other])): link.rate_bytes_per_s or 0.0 for link in status.links}
    true = {frozenset(pair): facts.rate_bytes_per_s for pair, facts in facts_of(links).items()}
    return [told[pair] / rate for pair, rate in true.items()]
