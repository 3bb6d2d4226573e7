"""Averaging between real daemons on loopback, TLS on, over the same averaging by torch's gloo without TLS.

Sites with a daemon and a worker each (`averaging_worker`: it does nothing but rounds), 2 and 4 of them, over vectors of
4 KiB, 64 MiB and 256 MiB (short: without the last), in fp32; 64 MiB in bf16 and int8 as well. Only rounds with the
weight of all sites count, and of those only such as follow another one; all other rounds are told apart
(`other_rounds`), since a site that averages alone is fast.
Gloo runs in the same processes' stead before and after, in the same run.

Per vector and number of sites: seconds of a round and its ratio to gloo's median; `worst_over_median`; processor
seconds of all daemons and workers together, a round, and over gloo's; pages that the processes touched for the first
time, a round (`faults`, Linux); the longest time for which a daemon's loop was late; links that were called silent.

Per vector there are also the bytes that all sites send in a round, over those of fp32 (`bytes_over_vector`: of each
site but one, up and down once). On loopback an encoding costs processor time and saves little; over a WAN the bytes
decide.

Bars: with TLS at most 2.5 times gloo's seconds and 2.3 times its processor seconds; the worst round of 50 at most twice
the median; no link called silent.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil
from tests.rigs.counters import counted, samples

from benchmarks.gloo_ring import GlooRounds, gloo_rounds
from benchmarks.measure import Figures, spread
from benchmarks.wan import ROOT, Loopback, WanCluster
from chaos_protocols.wire.encodings import FP32

NAMES = ("cleveland", "hungary", "swiss", "va")
KIB, MIB = 1 << 10, 1 << 20
ROUNDS_SMALL, ROUNDS_LARGE, ROUNDS_SHORT = 2000, 50, 12
"""Whole rounds wanted: of 4 KiB, of larger vectors, of those in the short form."""
WINDOW_MAX_S = 240.0
WARM_UP_ROUNDS = 3
SILENT = "silent"
"""In the text of a link that went down because nothing was heard of it."""


def run(*, short: bool, seed: int) -> Figures:
    """See the module; the seed is not used: nothing is drawn."""
    cases = [(2, 4 * KIB), (4, 4 * KIB), (2, 64 * MIB), (4, 64 * MIB)]
    if not short:
        cases += [(2, 256 * MIB), (4, 256 * MIB)]
    figures: Figures = {}
    for sites, vector_bytes in cases:
        rounds = ROUNDS_SMALL if vector_bytes < MIB else ROUNDS_SHORT if short else ROUNDS_LARGE
        encodings = (FP32, "bf16", "int8") if vector_bytes == 64 * MIB else (FP32,)
        figures |= _case(sites, vector_bytes, rounds, encodings)
    return figures


def _case(sites: int, vector_bytes: int, rounds: int, encodings: tuple[str, ...]) -> Figures:
    gloo_each = max(3, min(rounds, 50) // 4)
    gloo = [gloo_rounds(sites, vector_bytes, gloo_each)]
    measured = {encoding: daemons_measured(sites, vector_bytes, rounds, encoding) for encoding in encodings}
    gloo.append(gloo_rounds(sites, vector_bytes, gloo_each))
    figures: Figures = {}
    for encoding, one in measured.items():
        figures |= figures_of(sites, vector_bytes, one, gloo, "" if encoding == FP32 else f"_{encoding}")
    return figures


@dataclass(frozen=True, kw_only=True)
class Measured:
    """`seconds`: of the whole rounds; per round: `cpu_s`, `faults`, `sent_bytes` of all sites together."""

    seconds: list[float]
    other_rounds: int
    cpu_s: float
    faults: float
    sent_bytes: float
    longest_turn_s: float
    silent_links: int


class AveragingCluster(WanCluster):
    """Sites whose workers only average, in `encoding`: each gives its number, counted from 1."""

    encoding = FP32

    def start_worker(self, name: str, *, blank: bool = False, load: bool = False) -> None:
        site, number = self.sites[name], list(self.sites).index(name) + 1
        arguments = ["--socket", str(site.worker_socket), "--vector-bytes", str(self.state_bytes)]
        arguments += ["--part", str(number), "--parts-max", str(len(self.sites)), "--encoding", self.encoding]
        command = [sys.executable, "-m", "benchmarks.averaging_worker", *arguments]
        site.spawn_worker(self.network.command(name, command), folder=ROOT)

    def train_one(self, name: str, *, links: int) -> None:
        """Start one more site; returns when it is a member with a worker, so that it has measured its links."""
        self.start_daemon(name)
        self.wait(lambda: self.answers(name) and self.linked(name, links), f"{name} has its {links} links")
        self.start_worker(name)
        self.wait(lambda: self._is_member(name), f"{name} is a member and its worker is there")

    def _is_member(self, name: str) -> bool:
        status = self.sites[name].ask()
        return status is not None and status.state == "member" and status.worker.connected


def whole_rounds(entries: list[dict[str, object]], sites: int, *, after_s: float) -> tuple[list[float], int]:
    """Of a site's log of rounds: seconds of each round with the weight of all sites that follows another such round,
    and the number of all other rounds. Only those that ended after `after_s` (unix time)."""
    whole, other = [], 0
    for before, entry in pairwise(entries):
        if float(str(entry["at_unix_s"])) <= after_s:
            continue
        follows = int(str(entry["round"])) == int(str(before["round"])) + 1
        if follows and _is_whole(before, sites) and _is_whole(entry, sites):
            whole.append(float(str(entry["at_unix_s"])) - float(str(before["at_unix_s"])))
        else:
            other += 1
    return whole, other


def _is_whole(entry: dict[str, object], sites: int) -> bool:
    weights = entry["weights"]
    assert isinstance(weights, dict)
    return len(weights) == sites and all(weight > 0 for weight in weights.values())


def daemons_measured(
    sites: int,
    vector_bytes: int,
    rounds: int,
    encoding: str,
    extra: str = "",
    *,
    cluster_type: type[AveragingCluster] = AveragingCluster,
) -> Measured:
    """Rounds of so many sites. `extra`: lines of every site's configuration."""
    names = NAMES[:sites]
    near = {name: names[:number] for number, name in enumerate(names)}
    with tempfile.TemporaryDirectory(prefix="chaos-bench-") as folder:
        cluster = cluster_type(
            Path(folder), Loopback(), near, state_bytes=vector_bytes, pace_s=0.0, min_sites=sites, extra=extra
        )
        cluster.encoding = encoding
        try:
            cluster.train(names)
            first = cluster.sites[names[0]]
            cluster.wait(
                lambda: len(whole_rounds(first.rounds(), sites, after_s=0.0)[0]) >= WARM_UP_ROUNDS,
                f"rounds with the weight of all {sites} sites",
            )
            return _window(cluster, sites, rounds)
        finally:
            cluster.end()


def _window(cluster: WanCluster, sites: int, rounds: int) -> Measured:
    first = next(iter(cluster.sites.values()))
    pids = [process.pid for site in cluster.sites.values() for process in (site.daemon, site.worker) if process]
    began_s, used_s, faults, sent_bytes = time.time(), _cpu_s(pids), _faults(pids), _sent_bytes(cluster)
    end_s = time.monotonic() + WINDOW_MAX_S
    while len(whole_rounds(first.rounds(), sites, after_s=began_s)[0]) < rounds and time.monotonic() < end_s:
        time.sleep(0.5)
        for name in cluster.sites:
            cluster.answers(name)
    used_s, faults, sent_bytes = _cpu_s(pids) - used_s, _faults(pids) - faults, _sent_bytes(cluster) - sent_bytes
    seconds, other = whole_rounds(first.rounds(), sites, after_s=began_s)
    done = max(len(seconds) + other, 1)
    turns = [
        sample.value
        for site in cluster.sites.values()
        for sample in samples(site.client.metrics(), "chaosd_loop_lag_longest_seconds")
    ]
    silent = [event for site in cluster.sites.values() for event in site.events("link-down") if SILENT in event.cause]
    return Measured(
        seconds=seconds,
        other_rounds=other,
        cpu_s=used_s / done,
        faults=faults / done,
        sent_bytes=sent_bytes / done,
        longest_turn_s=max(turns),
        silent_links=len(silent),
    )


def _cpu_s(pids: list[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(float(one.user + one.system) for one in times)


def _sent_bytes(cluster: WanCluster) -> float:
    """By all sites, in rounds."""
    told = [site.client.metrics() for site in cluster.sites.values()]
    return sum(counted(one, "chaosd_bulk_bytes_total", kind="averaging", direction="sent") for one in told)


def _faults(pids: list[int]) -> int:
    """Pages touched for the first time, so far (`minflt` of proc(5)); 0 where the system does not tell."""
    total = 0
    for pid in pids:
        path = Path(f"/proc/{pid}/stat")
        if path.exists():
            total += int(path.read_text(encoding="ascii").rpartition(")")[2].split()[7])
    return total


def figures_of(sites: int, vector_bytes: int, measured: Measured, gloo: list[GlooRounds], form: str) -> Figures:
    """By the names of the module. `form`: what is added to the name of the case."""
    size = f"{vector_bytes // KIB}kib" if vector_bytes < MIB else f"{vector_bytes // MIB}mib"
    case = f"{sites}_sites_{size}{form}"
    gloo_s = statistics.median([second for one in gloo for second in one.seconds])
    gloo_cpu_s = statistics.mean([one.cpu_s for one in gloo])
    seconds = spread(measured.seconds)
    return {
        f"{case}_seconds": seconds,
        f"{case}_over_gloo": {key: value / gloo_s for key, value in seconds.items()},
        f"{case}_worst_over_median": seconds["max"] / seconds["median"],
        f"{case}_cpu_s": measured.cpu_s,
        f"{case}_cpu_over_gloo": measured.cpu_s / gloo_cpu_s,
        f"{case}_gloo_seconds": gloo_s,
        f"{case}_bytes_over_vector": measured.sent_bytes / (2 * (sites - 1) * vector_bytes),
        f"{case}_faults": measured.faults,
        f"{case}_longest_turn_s": measured.longest_turn_s,
        f"{case}_rounds": len(measured.seconds),
        f"{case}_other_rounds": measured.other_rounds,
        f"{case}_links_called_silent": measured.silent_links,
    }
