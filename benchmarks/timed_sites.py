"""Two sites over one shaped link whose workers tell when each step was done (`timed_worker`): what the benchmarks of
modes that use the link while they compute have in common.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.wan import GOODPUT_SHARE, ROOT, Namespaces, WanCluster
from chaos_lab.namespaces import NamespaceNetwork
from chaos_lab.scenario import LinkSpec

SITES = ("site0", "site1")
LATENCY_MS = 5.0
MBIT_BYTES = 125_000


def link_mbit(bytes_per_s: float) -> float:
    """The rate of a link that carries so many bytes of payload in a second."""
    return bytes_per_s / MBIT_BYTES / GOODPUT_SHARE


class TimedCluster(WanCluster):
    """Sites whose workers are `command`: a module of the benchmarks and its arguments. The socket and the file of
    times are added to it."""

    command: Sequence[str] = ()

    def start_worker(self, name: str, *, blank: bool = False, load: bool = False) -> None:
        site = self.sites[name]
        command = [sys.executable, "-m", *self.command]
        command += ["--socket", str(site.worker_socket), "--times", str(self._times(name))]
        site.spawn_worker(self.network.command(name, command), folder=ROOT)

    def steps(self, name: str) -> list[tuple[float, int]]:
        """Unix time and number of each step that the worker has made."""
        path = self._times(name)
        lines = path.read_text().splitlines() if path.exists() else []
        return [(float(at), int(number)) for at, number, _ in (line.split() for line in lines if line.count(" ") == 2)]

    def _times(self, name: str) -> Path:
        return self.sites[name].folder / "times"


@contextmanager
def two_sites(command: Sequence[str], *, rate_mbit: float, state_bytes: int) -> Iterator[TimedCluster]:
    """Both train, each in a namespace of its own. Killed at the end. Raises BenchmarkError, NetworkUnavailableError."""
    link = LinkSpec(between=SITES, rate_mbit=rate_mbit, latency_ms=LATENCY_MS)
    with (
        tempfile.TemporaryDirectory(prefix="chaos-timed-") as folder,
        NamespaceNetwork(SITES, [link], scale=1.0) as network,
    ):
        near: dict[str, tuple[str, ...]] = {SITES[0]: (), SITES[1]: SITES[:1]}
        cluster = TimedCluster(
            Path(folder), Namespaces(network), near, state_bytes=state_bytes, pace_s=0.0, min_sites=2
        )
        cluster.command = command
        try:
            cluster.train(SITES)
            yield cluster
        finally:
            cluster.end()
