"""Where a newcomer's time goes between "the whole state is here and verified" and "it trains as a member".

Two members train on this machine, unshaped loopback; a newcomer joins with a state of 256 MiB (short) or 1 GiB.
Its daemon takes the times itself (`chaosd_state_phase_seconds`, docs/operating.md): `fetch` until the last block is
verified, `load` until its worker has taken the state over, `catch_up` until it has applied every result since,
`promote` until it is told to train. `promoted_after_verified_s` is the sum of the last three: the target is at most 1.0
s at 1 GiB.

A first join, whose figures do not count, comes before: a virtual machine pays for memory that was never touched,
several seconds for a GiB, and that is neither the program's time nor a real machine's.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.rigs.counters import samples

from benchmarks.measure import REPEATS_MIN, Figures, spread
from benchmarks.wan import BenchmarkError, Loopback, WanCluster, join

MEMBERS = ("a", "b")
NEWCOMER = "c"
PACE_S = 0.25
PHASES = ("fetch", "load", "catch_up", "promote")


def run(*, short: bool, seed: int) -> Figures:
    """`seed` is not used: nothing is drawn. Seconds; `promoted_s` from the newcomer's hello on, seen from outside."""
    del seed
    state_bytes = (256 << 20) if short else (1 << 30)
    one_join(state_bytes)
    found = [one_join(state_bytes) for _ in range(2 if short else REPEATS_MIN)]
    figures: Figures = {name: spread([one[name] for one in found]) for name in found[0]}
    return {"state_bytes": state_bytes, **figures}


def one_join(state_bytes: int) -> dict[str, float]:
    """The phases of one join, in seconds."""
    near = {name: MEMBERS[:number] for number, name in enumerate(MEMBERS)}
    with tempfile.TemporaryDirectory(prefix="chaos-promotion-") as folder:
        cluster = WanCluster(
            Path(folder),
            Loopback(),
            {**near, NEWCOMER: MEMBERS},
            state_bytes=state_bytes,
            pace_s=PACE_S,
            min_sites=len(MEMBERS),
        )
        try:
            cluster.train(MEMBERS)
            joined = join(cluster, NEWCOMER, len(MEMBERS))
            phases = state_phases(cluster.sites[NEWCOMER].client.metrics())
        finally:
            cluster.end()
    told = {f"{name}_s": phases[name] for name in PHASES}
    return {
        **told,
        "promoted_after_verified_s": sum(phases[name] for name in PHASES[1:]),
        "verified_s": joined.delay_s,
        "promoted_s": joined.promoted_s - joined.asked_s,
    }


def state_phases(metrics: str) -> dict[str, float]:
    """Seconds by phase of the last state that a worker got, out of what its daemon counts. Raises BenchmarkError."""
    found = {sample.labels["phase"]: sample.value for sample in samples(metrics, "chaosd_state_phase_seconds")}
    if missing := [name for name in PHASES if name not in found]:
        raise BenchmarkError(f"the newcomer's daemon timed no {', '.join(missing)}")
    return found
