"""Metrics that are not counted but looked up, at the moment at which somebody asks: the run as this site sees it, its
links, its process, its disk.

A collector in the daemon's one registry (`metrics.py`); decides nothing, and costs nothing while nobody asks. A site is
named by its id, never by what it calls itself. What cannot be found out here is left out, not told as 0.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chaosd.config.model import SiteConfig
from chaosd.doctor.site import clock_is_unsynchronised
from chaosd.driver import Driver
from chaosd.identity import KEY_FILE
from chaosd.monitor.encoding_errors import errors_over_sites

LINKS_TOLD_MAX = 256
"""Neighbours that get lines of their own; a site with more is told about those with the lowest ids."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A family of samples. `counter`: it only grows."""

    text: str
    labels: tuple[str, ...] = ()
    counter: bool = False


KINDS = {
    "build": Figure("Always 1; the release of this daemon", ("release",)),
    "uptime_seconds": Figure("Since this daemon started"),
    "round": Figure("The last round whose result is here"),
    "paused": Figure("1 while no rounds are made, whatever the reason (`chaosd status` says it)"),
    "member": Figure("1 while this site is a member of the run"),
    "scheduler": Figure("1 while this site schedules"),
    "sites": Figure("Sites of the roster, by state: member, learner, leaving", ("state",)),
    "voters": Figure("Sites that vote"),
    "worker_connected": Figure("1 while a training script is connected"),
    "worker_rounds_behind": Figure("Results that the worker has yet to apply; absent without a worker with the state"),
    "encoding_error": Figure(
        "What the encoding lost here in the last round, over what was encoded (norms); absent in fp32", ("encoding",)
    ),
    "encoding_error_mean": Figure("The same, the mean of the members that say theirs", ("encoding",)),
    "encoding_error_worst": Figure("The same, the worst of the members that say theirs", ("encoding",)),
    "script_figure": Figure("What the script has logged last, by the name that it gave", ("figure",)),
    "site_rounds_behind": Figure("How many rounds a site of the roster is behind this one, as it says", ("site",)),
    "site_phase": Figure("1 for the phase that a site of the roster is in, as it says", ("site", "phase")),
    "link_rtt_seconds": Figure("Round trip of a heartbeat on each link of this site", ("neighbour",)),
    "link_rate_bytes_per_second": Figure("Rate of each link of this site, as measured when it came", ("neighbour",)),
    "link_bulk_bytes": Figure("Bulk bytes over each link of this site", ("neighbour", "direction"), counter=True),
    "link_retransmitted_segments": Figure(
        "TCP segments sent again on each link, as seen when somebody asks", ("neighbour",), counter=True
    ),
    "link_queued_bytes": Figure("Waiting to be sent on each link of this site", ("neighbour",)),
    "send_limit_bytes_per_second": Figure(
        "What this site sends in bulk at most, over all its links; absent without a limit"
    ),
    "transfer_verified_bytes": Figure("Of the state that comes to this site; absent while none does"),
    "transfer_size_bytes": Figure("The whole of it"),
    "checkpoint_failing": Figure("1 while the newest checkpoint could not be written"),
    "resident_memory_bytes": Figure("Memory of the daemon, the shared arena as far as it was touched included"),
    "cpu_seconds": Figure("Processor time of the daemon", counter=True),
    "open_files": Figure("File descriptors of the daemon"),
    "disk_free_bytes": Figure("Free for this user on the disk of data_dir"),
    "disk_size_bytes": Figure("Size of that disk"),
    "key_created_timestamp_seconds": Figure("When this site's key was written, as its file says"),
    "clock_synchronised": Figure("0 where the system says that its clock follows no time server"),
}
"""Names without `chaosd_`, and for counters without `_total`."""


class Growing:
    """Sums over connections, of which each begins at 0 and ends: told without the falls. To Prometheus a counter that
    falls began anew at 0, so that all that is left of it counts as growth."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        """By name: the sum, and what it had more before it fell."""

    def told(self, sums: Mapping[str, int]) -> dict[str, int]:
        """The counters of those that are there now; of all others nothing is kept."""
        seen = {}
        for name, now in sums.items():
            last, ended = self._seen.get(name, (0, 0))
            seen[name] = now, ended + max(0, last - now)
        self._seen = seen
        return {name: now + ended for name, (now, ended) in seen.items()}


class Gauges(Collector):
    """See the module."""

    def __init__(self, driver: Driver, config: SiteConfig, release: str) -> None:
        self._driver, self._config, self._release = driver, config, release
        self._process = psutil.Process()
        self._retransmitted = Growing()

    def describe(self) -> Iterable[Metric]:
        """All families, empty: what the registry asks at the beginning."""
        return [_family(name) for name in KINDS]

    def collect(self) -> Iterator[Metric]:
        """What is so now."""
        found = {name: _family(name) for name in KINDS}
        for part in (self._run, self._sites, self._links, self._transfer, self._system):
            for name, labels, value in part():
                found[name].add_metric(labels, value)
        yield from found.values()

    def _run(self) -> Iterator[Sample]:
        driver, machine = self._driver, self._driver.machine
        driver.phase_clock.count(driver.now_s())
        yield "build", [self._release], 1
        yield "uptime_seconds", [], driver.now_s() - driver.started_s
        yield "round", [], machine.rounds.completed_round
        yield "paused", [], bool(machine.participation.pause.reason())
        yield "member", [], machine.membership.state.value == "member"
        yield "scheduler", [], machine.scheduler_site() == machine.site
        yield "worker_connected", [], driver.workers.connected
        yield "checkpoint_failing", [], bool(machine.state.files.failure)
        if (applied := machine.rounds.worker_round) is not None:
            yield "worker_rounds_behind", [], max(0, machine.rounds.completed_round - applied)
        vectors = driver.bulk.reduce.vectors
        if vectors is not None and vectors.coded.error is not None:
            yield "encoding_error", [vectors.coded.name], vectors.coded.error
        if vectors is not None and (errors := errors_over_sites(machine.network.encoding_errors())) is not None:
            yield "encoding_error_mean", [vectors.coded.name], errors.mean
            yield "encoding_error_worst", [vectors.coded.name], errors.worst
        for name, (_, value) in driver.workers.figures.items():
            yield "script_figure", [name], math.nan if value is None else value

    def _sites(self) -> Iterator[Sample]:
        machine = self._driver.machine
        states = [record.state for record in machine.roster.sites]
        for state in ("member", "learner", "leaving"):
            yield "sites", [state], states.count(state)
        yield "voters", [], len(machine.configuration.voters)
        for site in sorted(machine.roster.site_ids())[:LINKS_TOLD_MAX]:
            if site == machine.site:
                yield "site_phase", [site, machine.rounds.phase.value], 1
            elif (heard := machine.network.steps.of(site)) is not None:
                yield "site_rounds_behind", [site], max(0, machine.rounds.completed_round - heard.round)
                yield "site_phase", [site, heard.phase], 1

    def _links(self) -> Iterator[Sample]:
        machine = self._driver.machine
        links = self._driver.transport.links()[:LINKS_TOLD_MAX]
        retransmitted = self._retransmitted.told({str(link.site): link.retransmitted_segments for link in links})
        for link in links:
            site = str(link.site)
            neighbour = machine.links.neighbours.get(link.site)
            if neighbour is not None and neighbour.rtt_s is not None:
                yield "link_rtt_seconds", [site], neighbour.rtt_s
            yield "link_bulk_bytes", [site, "sent"], link.bulk_bytes_sent
            yield "link_bulk_bytes", [site, "received"], link.bulk_bytes_received
            yield "link_retransmitted_segments", [site], retransmitted[site]
            yield "link_queued_bytes", [site], link.queued_bytes
        if limit := self._driver.transport.send_limit.rate_bytes_per_s:
            yield "send_limit_bytes_per_second", [], limit
        for agreed in machine.roster.links:
            if machine.site in agreed.key and agreed.rate_bytes_per_s:
                far = agreed.other if agreed.one == machine.site else agreed.one
                yield "link_rate_bytes_per_second", [far], agreed.rate_bytes_per_s

    def _transfer(self) -> Iterator[Sample]:
        fetch = self._driver.machine.state.fetch
        if fetch.plan is not None:
            yield "transfer_verified_bytes", [], fetch.verified_bytes
            yield "transfer_size_bytes", [], fetch.plan.state_bytes

    def _system(self) -> Iterator[Sample]:
        with contextlib.suppress(psutil.Error, OSError), self._process.oneshot():
            times = self._process.cpu_times()
            yield "resident_memory_bytes", [], self._process.memory_info().rss
            yield "cpu_seconds", [], times.user + times.system
            yield "open_files", [], self._process.num_fds()
        with contextlib.suppress(OSError):
            disk = shutil.disk_usage(self._config.data_dir)
            yield "disk_free_bytes", [], disk.free
            yield "disk_size_bytes", [], disk.total
        with contextlib.suppress(OSError):
            yield "key_created_timestamp_seconds", [], (self._config.data_dir / KEY_FILE).stat().st_mtime
        yield "clock_synchronised", [], not clock_is_unsynchronised()


Sample = tuple[str, list[str], float]


def _family(name: str) -> CounterMetricFamily | GaugeMetricFamily:
    kind = KINDS[name]
    make = CounterMetricFamily if kind.counter else GaugeMetricFamily
    return make(f"chaosd_{name}", kind.text, labels=kind.labels)
