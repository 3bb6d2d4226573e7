"""A source that fails half-way through a transfer: killed, stopped, slowed to a fifth, or sending wrong bytes.

As `replication`, with three neighbours. The delay counts from the fault to the last verified byte, over the least
possible for what was left, on the links that were left. At the end the newcomer's model is compared with a member's,
byte for byte.
"""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Figures, spread
from benchmarks.replication import LATENCIES_MS, NEWCOMER, PACE_S, RATES_MBIT, SCALE
from benchmarks.wan import BenchmarkError, WanCluster, bound_s, join, shape, wan_cluster
from chaos_lab.namespaces import NamespaceNetwork
from chaos_lab.scenario import LinkSpec
from chaos_protocols.wire.bulk import BLOCK_BYTES_MAX

MEMBERS = ("a", "b", "c", "d")
SOURCES = ("b", "c", "d")
STATE_BYTES = 178 << 20
KINDS = ("killed", "stopped", "slowed", "corrupt")
RUNS, RUNS_SHORT = 5, 1
SLOWED = 5
QUEUE_S = 0.05
"""That the shaper of a link holds at most, as the lab sets it."""

CORRUPT_PROBABILITY = 0.2
"""Of a frame, from the fault on: a few blocks are wrong before the source is given up."""


def run(*, short: bool, seed: int) -> Figures:
    """`completed`: share of the joins that came to their end; `unverified_bytes_loaded`: 0 unless a newcomer's state
    differs from the members'."""
    over: dict[str, list[float]] = {kind: [] for kind in KINDS}
    completed = wrong_bytes = 0
    runs = RUNS_SHORT if short else RUNS
    for number in range(runs):
        for kind in KINDS:
            try:
                found, equal = one_fault(kind, random.Random(f"faults/{seed}/{number}"))
            except BenchmarkError as error:
                print(f"{kind}, run {number}: not completed\n{error}", flush=True)
                continue
            completed += 1
            wrong_bytes += 0 if equal else STATE_BYTES
            over[kind].append(found)
            print(f"{kind}, run {number}: {found:.2f} of the bound for what was left", flush=True)
    values = [value for found_values in over.values() for value in found_values]
    figures: Figures = {
        "completed": completed / (runs * len(KINDS)),
        "unverified_bytes_loaded": wrong_bytes,
        "over_bound": spread(values),
    }
    return figures | {f"{kind}_over_bound": spread(found) for kind, found in over.items() if found}


def one_fault(kind: str, rng: random.Random) -> tuple[float, bool]:
    """Delay from the fault on over its bound; whether all digests of common rounds are equal afterwards."""
    links = [LinkSpec(between=("a", name)) for name in SOURCES] + [
        LinkSpec(between=(name, NEWCOMER), rate_mbit=rng.uniform(*RATES_MBIT), latency_ms=rng.uniform(*LATENCIES_MS))
        for name in SOURCES
    ]
    with (
        tempfile.TemporaryDirectory(prefix="chaos-faults-") as folder,
        wan_cluster(
            Path(folder),
            links,
            [*MEMBERS, NEWCOMER],
            scale=SCALE,
            state_bytes=STATE_BYTES,
            pace_s=PACE_S,
            min_sites=len(MEMBERS),
        ) as (cluster, network),
    ):
        cluster.train(MEMBERS)
        own = [link for link in links if NEWCOMER in link.between]
        shape(network, own)
        fault = Fault(kind, cluster, network, own)
        joined = join(cluster, NEWCOMER, len(SOURCES), during=fault.strike)
        equal = cluster.states_equal(["a", NEWCOMER])
    return (joined.state_s - fault.at_s) / bound_s(fault.left, fault.bytes_left, SCALE), equal


class Fault:
    """Strikes the source with the best link. `left`: the links that can still carry; `bytes_left`: of the state."""

    def __init__(self, kind: str, cluster: WanCluster, network: NamespaceNetwork, links: list[LinkSpec]) -> None:
        self._kind, self._cluster, self._network = kind, cluster, network
        self._best = max(links, key=lambda link: link.rate_mbit or 0.0)
        others = [link for link in links if link is not self._best]
        slowed = LinkSpec(
            between=self._best.between,
            rate_mbit=(self._best.rate_mbit or 0.0) / SLOWED,
            latency_ms=self._best.latency_ms,
        )
        self.left = [*others, slowed] if kind == "slowed" else others
        self.at_s, self.bytes_left = 0.0, 0

    def _under_way(self) -> int:
        """Bytes that have left a good source and are not verified yet: a block of each, and what its link holds."""
        seconds = [(link, link.latency_ms / 1000 + QUEUE_S) for link in self.left]
        held = sum((link.rate_mbit or 0.0) * SCALE * 125_000 * held_s for link, held_s in seconds)
        return int(held) + len(self.left) * BLOCK_BYTES_MAX

    def strike(self) -> None:
        source = self._cluster.sites[self._best.between[0]]
        strikes: dict[str, Callable[[], object]] = {
            "killed": source.kill,
            "stopped": lambda: source.signal("both", signal.SIGSTOP),
            "slowed": lambda: shape(self._network, [self.left[-1]]),
            "corrupt": lambda: source.client.shape(
                self._cluster.sites[NEWCOMER].identity.site, corrupt_probability=CORRUPT_PROBABILITY
            ),
        }
        status = self._cluster.sites[NEWCOMER].ask()
        assert status is not None and status.transfer is not None
        self.bytes_left = status.transfer.total_bytes - status.transfer.verified_bytes - self._under_way()
        self.at_s = time.time()
        strikes[self._kind]()
