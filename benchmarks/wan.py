"""Real daemons and training processes in an emulated WAN, for the benchmarks of state transfer: network namespaces with
shaped links (needs root; says what is missing), or plain loopback without links.

Every site is a `chaosd` process and a `sized_worker`; a newcomer's daemon is up and linked before its worker starts, so
that what is measured begins with its request to join.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chaos_lab.children import free_port
from chaos_lab.errors import LabError
from chaos_lab.namespaces import NamespaceNetwork
from chaos_lab.running import RunningSite, trains
from chaos_lab.scenario import LinkSpec
from chaosd.api.status import EventRecord

ROOT = Path(__file__).parents[1]
PORT = 7400
WAIT_S = 120.0
GOODPUT_SHARE = 0.956
"""Of a link's rate at an MTU of 1500: the rest is headers of Ethernet, IP and TCP."""


class BenchmarkError(RuntimeError):
    """What was to be measured did not happen; the text has the ends of the logs."""


class Network(Protocol):
    """Where the sites live."""

    def address(self, site: str) -> str: ...
    def command(self, site: str, command: Sequence[str]) -> list[str]: ...


class Loopback:
    """All sites on 127.0.0.1, each with a port of its own."""

    def __init__(self) -> None:
        self._ports: dict[str, int] = {}

    def address(self, site: str) -> str:
        if site not in self._ports:
            self._ports[site] = free_port()
        return f"127.0.0.1:{self._ports[site]}"

    def command(self, site: str, command: Sequence[str]) -> list[str]:
        return list(command)


class Namespaces:
    """The sites of a `NamespaceNetwork`."""

    def __init__(self, network: NamespaceNetwork) -> None:
        self._network = network

    def address(self, site: str) -> str:
        return f"{self._network.address(site)}:{PORT}"

    def command(self, site: str, command: Sequence[str]) -> list[str]:
        return self._network.command(site, command)


class Site(RunningSite):
    """One site's processes and files."""

    def events(self, kind: str) -> list[EventRecord]:
        return [event for event in self.client.last_events(500) if event.kind == kind]

    def trains_now(self) -> bool:
        return trains(self.ask())


class WanCluster:
    """Sites with the same settings. `extra`: further lines of every configuration file."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        neighbours: dict[str, tuple[str, ...]],
        *,
        state_bytes: int,
        pace_s: float,
        min_sites: int,
        extra: str = "",
        tensors: int = 1,
    ) -> None:
        self.network, self.state_bytes, self.pace_s, self.tensors = network, state_bytes, pace_s, tensors
        self.sites: dict[str, Site] = {}
        for name in neighbours:
            self.sites[name] = Site(name, folder / name, network.address(name))
        for number, (name, near) in enumerate(neighbours.items()):
            self.sites[name].configure(
                "benchmark",
                bootstrap=number == 0,
                trust=self.sites.values(),
                peers=[self.sites[far] for far in near],
                start_sites=min_sites,
                extra=[extra],
            )

    def start_daemon(self, name: str) -> None:
        site = self.sites[name]
        site.spawn_daemon(self.network.command(name, site.daemon_command()), folder=ROOT)

    def start_worker(self, name: str, *, blank: bool = False, load: bool = False) -> None:
        site = self.sites[name]
        arguments = ["--socket", str(site.worker_socket), "--state-bytes", str(self.state_bytes)]
        arguments += ["--pace", str(self.pace_s), "--tensors", str(self.tensors), *(["--blank"] if blank else [])]
        arguments += ["--digests", str(site.folder / "digests"), "--checkpoint", str(site.folder / "checkpoint")]
        arguments += ["--load"] if load else []
        command = [sys.executable, "-m", "benchmarks.sized_worker", *arguments]
        site.spawn_worker(self.network.command(name, command), folder=ROOT)

    def answers(self, name: str) -> bool:
        """Raises BenchmarkError when the daemon has ended."""
        try:
            return self.sites[name].daemon_answers()
        except LabError as error:
            raise BenchmarkError(str(error)) from error

    def linked(self, name: str, count: int) -> bool:
        status = self.sites[name].ask()
        return status is not None and sum(bool(link.up) for link in status.links) >= count

    def wait(self, condition: Callable[[], bool], what: str, *, limit_s: float = WAIT_S) -> None:
        """Raises BenchmarkError when it does not come true."""
        end_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end_s:
                tails = "\n".join(site.tail() for site in self.sites.values())
                raise BenchmarkError(f"not within {limit_s:g} s: {what}\n{tails}")
            time.sleep(0.02)

    def train(self, names: Sequence[str], *, load: bool = False) -> None:
        """These sites are up, members and training; with `load` from the checkpoints in their folders."""
        for name in names:
            self.start_daemon(name)
        self.wait(lambda: all(self.answers(name) for name in names), "all daemons answer")
        for name in names:
            self.start_worker(name, load=load)
        self.wait(lambda: all(self.sites[name].trains_now() for name in names), "all sites train")

    def states_equal(self, names: Sequence[str]) -> bool:
        """Whether the models of these sites are the same, byte for byte, at the end of a common round."""
        for name in names:
            worker = self.sites[name].worker
            assert worker is not None
            worker.send_signal(signal.SIGUSR1)
        self.wait(lambda: bool(self._common(names)), "digests of a common round")
        return all(len(digests) == 1 for digests in self._common(names).values())

    def _common(self, names: Sequence[str]) -> dict[str, set[str]]:
        """By round: the digests, where all of these sites told one."""
        told: dict[str, list[str]] = {}
        for name in names:
            path = self.sites[name].folder / "digests"
            for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
                number, _, digest = line.partition(" ")
                told.setdefault(number, []).append(digest)
        return {number: set(digests) for number, digests in told.items() if len(digests) == len(names)}

    def end(self) -> None:
        for site in self.sites.values():
            site.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Times in seconds since the epoch: the newcomer's request, the state's last verified byte, its promotion."""

    asked_s: float
    state_s: float
    promoted_s: float

    @property
    def delay_s(self) -> float:
        return self.state_s - self.asked_s


def join(cluster: WanCluster, name: str, links: int, *, during: Callable[[], None] | None = None) -> Join:
    """A newcomer with a blank model comes in; `during` is called when its transfer has begun."""
    cluster.start_daemon(name)
    cluster.wait(lambda: cluster.answers(name) and cluster.linked(name, links), f"{name} has its {links} links")
    site = cluster.sites[name]
    cluster.start_worker(name, blank=True)
    if during is not None:
        cluster.wait(lambda: _half_way(site), f"half of the state is at {name}")
        during()
    cluster.wait(lambda: bool(site.events("transfer")), f"{name} has the state")
    cluster.wait(site.trains_now, f"{name} trains")
    hello = next(event for event in site.events("worker") if event.cause == "said hello")
    state = site.events("transfer")[-1]
    return Join(asked_s=hello.at_unix_s, state_s=state.at_unix_s, promoted_s=time.time())


def _half_way(site: Site) -> bool:
    status = site.ask()
    transfer = status.transfer if status is not None else None
    if site.events("transfer"):
        raise BenchmarkError(f"the transfer to {site.name} was over before half of it was seen")
    return transfer is not None and transfer.verified_bytes * 2 >= transfer.total_bytes


@contextmanager
def wan_cluster(
    folder: Path,
    links: Sequence[LinkSpec],
    names: Sequence[str],
    *,
    scale: float,
    routed: bool = False,
    state_bytes: int,
    pace_s: float,
    min_sites: int,
    extra: str = "",
    seed: int = 0,
) -> Iterator[tuple[WanCluster, NamespaceNetwork]]:
    """Every site dials its neighbours among those before it. The links are open until `shape`, so that the members are
    there soon. Killed at the end; raises NetworkUnavailableError."""
    near: dict[str, tuple[str, ...]] = {}
    for number, name in enumerate(names):
        before = set(names[:number])
        far = [link.between[1 - link.between.index(name)] for link in links if name in link.between]
        near[name] = tuple(one for one in far if one in before)
    open_links = [LinkSpec(between=link.between) for link in links]
    with NamespaceNetwork(names, open_links, scale=scale, seed=seed, routed=routed) as network:
        cluster = WanCluster(
            folder, Namespaces(network), near, state_bytes=state_bytes, pace_s=pace_s, min_sites=min_sites, extra=extra
        )
        try:
            yield cluster, network
        finally:
            cluster.end()


def shape(network: NamespaceNetwork, links: Sequence[LinkSpec]) -> None:
    """From now on the links are as slow as they are meant to be."""
    for link in links:
        network.set_link(*link.between, rate_mbit=link.rate_mbit, latency_ms=link.latency_ms, loss=link.loss)


def bound_s(links: Sequence[LinkSpec], state_bytes: int, scale: float) -> float:
    """No transfer over these links can be shorter: propagation, and all links full to the end."""
    rate = sum((link.rate_mbit or 0.0) * scale * GOODPUT_SHARE * 125_000 for link in links)
    return max(link.latency_ms for link in links) / 1000 + state_bytes / rate
