"""The baseline that stops everybody: checkpoint to disk, end all processes, carry the checkpoint to the newcomer over
its best link, start all again from it (Pollux in Chaos VI-A).

Real processes and real files: every member's worker writes its state with fsync, all daemons and workers end, the
newcomer pulls the file over plain TCP, and everybody starts anew with the newcomer among them, over open links (each
has its checkpoint; that daemons which begin a run give the state to each other shall not count against this baseline).
It counts until the newcomer trains. As a program: `serve FILE` on ADDRESS, or `fetch ADDRESS` into FILE.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.wan import BenchmarkError, WanCluster
from chaos_lab.namespaces import NamespaceNetwork
from chaos_lab.scenario import LinkSpec

PIECE_BYTES = 1 << 20
COPY_PORT = 7500
COPY_TIMEOUT_S = 300.0
CONNECT_TIMEOUT_S = 10.0


def join_by_restart(
    cluster: WanCluster, network: NamespaceNetwork, members: Sequence[str], newcomer: str, links: Sequence[LinkSpec]
) -> float:
    """Seconds from the newcomer's request until it trains."""
    begun_s = time.monotonic()
    for name in members:
        worker = cluster.sites[name].worker
        assert worker is not None
        worker.send_signal(signal.SIGUSR2)
    files = {name: cluster.sites[name].folder / "checkpoint" for name in [*members, newcomer]}
    cluster.wait(lambda: all(files[name].exists() for name in members), "every member has written its checkpoint")
    cluster.end()
    best = max((link for link in links if newcomer in link.between), key=lambda link: link.rate_mbit or 0.0)
    source = best.between[1 - best.between.index(newcomer)]
    _carry(cluster, source, newcomer, files[source], files[newcomer])
    for site in cluster.sites.values():
        for path in site.folder.glob("journal*"):
            path.unlink()  # a new run among all of them: nobody waits for the old one's votes
    for link in links:
        network.set_link(*link.between, rate_mbit=math.inf, latency_ms=0.0)
    cluster.train([*members, newcomer], load=True)
    return time.monotonic() - begun_s


def _carry(cluster: WanCluster, source: str, target: str, taken: Path, left: Path) -> None:
    """The file goes from site to site through the network."""
    address = f"{cluster.network.address(source).rpartition(':')[0]}:{COPY_PORT}"
    serving = _copier(cluster, source, "serve", address, taken)
    fetching = _copier(cluster, target, "fetch", address, left)
    try:
        if fetching.wait(COPY_TIMEOUT_S) or serving.wait(CONNECT_TIMEOUT_S):
            raise BenchmarkError(f"the checkpoint could not be carried from {source} to {target}")
    finally:
        for process in (serving, fetching):
            if process.poll() is None:
                process.kill()
                process.wait()


def _copier(cluster: WanCluster, site: str, do: str, address: str, path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.restart", do, address, str(path)]
    return subprocess.Popen(cluster.network.command(site, command), cwd=Path(__file__).parents[1])


def serve(address: tuple[str, int], path: Path) -> None:
    with socket.create_server(address) as listening:
        listening.settimeout(CONNECT_TIMEOUT_S)
        connection, _ = listening.accept()
        with connection, path.open("rb") as file:
            connection.sendfile(file)


def fetch(address: tuple[str, int], path: Path) -> None:
    end_s = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            connection = socket.create_connection(address)
            break
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.02)
    with connection, path.open("wb") as file:
        while piece := connection.recv(PIECE_BYTES):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    host, _, port = sys.argv[2].rpartition(":")
    (serve if sys.argv[1] == "serve" else fetch)((host, int(port)), Path(sys.argv[3]))
