"""Which way every link is shaped now, as the faults that act on it demand; told to the daemons that do not have it yet.

A daemon that was killed and started again begins with the shapes of its configuration, so each is told anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaosd.client import NoDaemonError, RequestRefusedError
from chaosd.lab.processes import LabSite, Processes
from tests.soak.nemesis import Fault, Kind

MBIT_BYTES_PER_S = 125_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What one daemon does with its link to one other."""

    rate_bytes_per_s: float | None = None
    latency_s: float = 0.0
    cut_in: bool = False
    cut_out: bool = False
    corrupt_probability: float = 0.0


class Shapes:
    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._told: dict[tuple[int, str], Shape] = {}
        self.acting: list[Fault] = []

    def wanted(self, near: str, far: str) -> Shape:
        """What `near` is to do with its link to `far`."""
        known = next((link for link in self._processes.scenario.links if set(link.between) == {near, far}), None)
        rate = None if known is None or known.rate_mbit is None else known.rate_mbit * MBIT_BYTES_PER_S
        latency_s = 0.0 if known is None else known.latency_ms / 1000
        cut_in = cut_out = False
        corrupt = 0.0
        for fault in self.acting:
            both = {near, far} == set(fault.sites)
            match fault.kind:
                case Kind.PARTITION:
                    parted = (near in fault.sites) != (far in fault.sites)
                    cut_in, cut_out = cut_in or parted, cut_out or parted
                case Kind.ONE_WAY if both:
                    cut_out = cut_out or near == fault.sites[0]
                    cut_in = cut_in or far == fault.sites[0]
                case Kind.SLOW if both:
                    assert fault.rate_mbit is not None
                    rate, latency_s = fault.rate_mbit * MBIT_BYTES_PER_S, fault.latency_ms / 1000
                case Kind.CORRUPT if both:
                    corrupt = max(corrupt, fault.corrupt_probability)
                case _:
                    pass
        return Shape(
            rate_bytes_per_s=rate, latency_s=latency_s, cut_in=cut_in, cut_out=cut_out, corrupt_probability=corrupt
        )

    def apply(self) -> None:
        """Tell every daemon that answers what it does not know yet; the others are told at a later call."""
        for site in self._processes.sites.values():
            if site.daemon is None or site.status is None or not site.daemon_runs() or "daemon" in site.stopped:
                continue
            for far in self._processes.sites.values():
                if far is not site:
                    self._tell(site, site.daemon.pid, far)

    def _tell(self, site: LabSite, pid: int, far: LabSite) -> None:
        wanted = self.wanted(site.name, far.name)
        if self._told.get((pid, far.name)) == wanted:
            return
        try:
            site.client.shape(
                far.identity.site,
                rate_bytes_per_s=wanted.rate_bytes_per_s,
                latency_s=wanted.latency_s,
                cut_in=wanted.cut_in,
                cut_out=wanted.cut_out,
                corrupt_probability=wanted.corrupt_probability,
            )
        except NoDaemonError:
            return  # it was struck in this moment: told again when it answers
        except RequestRefusedError as error:
            raise AssertionError(f"{site.name} refused a shape: {error}") from error
        self._told[pid, far.name] = wanted
