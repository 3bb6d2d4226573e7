"""How every link behaves now, as the faults that act on it demand: told to the daemons that do not have it yet (lab
API), and to the packet filters.

A daemon that was killed and started again begins with the shapes of its configuration, so each is told anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaosd.api.client import NoDaemonError, RequestRefusedError
from tests.soak.nemesis import PACKETS, Fault, Kind
from tests.soak.network import Rule
from tests.soak.sites import LINKS, Site, Sites

STREAM_TRANSFERS = 1
"""Bytes are spoilt from this bulk stream on: state transfers have a hash for each block, the averaging has none."""
MBIT_BYTES_PER_S = 125_000
LARGE_BYTES = 1000
"""Packets above it vanish where large ones do; heartbeats are smaller."""
SHAPED = frozenset(
    {Kind.PARTITION, Kind.ONE_WAY, Kind.LOSS, Kind.NARROW, Kind.RESET, Kind.SLOW, Kind.CORRUPT, Kind.SPOIL}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What one daemon does with its link to one other."""

    rate_bytes_per_s: float | None = None
    latency_s: float = 0.0
    cut_in: bool = False
    cut_out: bool = False
    corrupt_probability: float = 0.0


class Shapes:
    """`acting`: the faults of SHAPED that are in force."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._told: dict[tuple[int, str], Shape] = {}
        self.acting: list[Fault] = []

    def apply(self) -> None:
        """Tell every daemon that answers what it does not know yet; the others are told at a later call."""
        if self._sites.network is not None:
            self._sites.network.filter(tuple(self.rules()))
        for site in self._sites.sites.values():
            if site.daemon is None or site.status is None or not site.daemon_runs() or "daemon" in site.stopped:
                continue
            for far in self._sites.sites.values():
                if far is not site:
                    self._tell(site, site.daemon.pid, far)

    def rules(self) -> list[Rule]:
        """What the packet filters are to do."""
        found: list[Rule] = []
        names = tuple(self._sites.sites)
        for fault in self.acting:
            one, other = fault.sites[0], fault.sites[-1]
            match fault.kind:
                case Kind.PARTITION if fault.what == PACKETS:
                    inside = set(fault.sites)
                    found += [Rule(near=a, far=b) for a in names for b in names if (a in inside) != (b in inside)]
                case Kind.ONE_WAY if fault.what == PACKETS:
                    found.append(Rule(near=other, far=one))
                case Kind.LOSS:
                    found += [Rule(near=a, far=b, probability=fault.probability) for a, b in _ways(one, other)]
                case Kind.NARROW:
                    found += [Rule(near=a, far=b, larger_than_bytes=LARGE_BYTES) for a, b in _ways(one, other)]
                case Kind.RESET:
                    found += [Rule(near=a, far=b, reset=True) for a, b in _ways(one, other)]
                case _:
                    pass
        return found

    def wanted(self, near: str, far: str) -> Shape:
        """What `near` is to do with its link to `far`."""
        known = next((link for link in LINKS if {link[0], link[1]} == {near, far}), None)
        rate = None if known is None else float(known[2] * MBIT_BYTES_PER_S)
        latency_s = 0.0 if known is None else known[3] / 1000
        cut_in = cut_out = False
        corrupt = 0.0
        for fault in self.acting:
            both = {near, far} == set(fault.sites)
            match fault.kind:
                case Kind.PARTITION if fault.what != PACKETS:
                    parted = (near in fault.sites) != (far in fault.sites)
                    cut_in, cut_out = cut_in or parted, cut_out or parted
                case Kind.ONE_WAY if both and fault.what != PACKETS:
                    cut_out = cut_out or near == fault.sites[0]
                    cut_in = cut_in or far == fault.sites[0]
                case Kind.SLOW if both:
                    assert fault.rate_mbit is not None
                    rate, latency_s = fault.rate_mbit * MBIT_BYTES_PER_S, fault.latency_ms / 1000
                case Kind.CORRUPT if both:
                    corrupt = max(corrupt, fault.probability)
                case Kind.SPOIL if near == fault.sites[1]:
                    corrupt = max(corrupt, fault.probability)
                case _:
                    pass
        return Shape(
            rate_bytes_per_s=rate, latency_s=latency_s, cut_in=cut_in, cut_out=cut_out, corrupt_probability=corrupt
        )

    def _tell(self, site: Site, pid: int, far: Site) -> None:
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
                corrupt_stream_min=STREAM_TRANSFERS,
            )
        except NoDaemonError:
            return  # it was struck in this moment: told again when it answers
        except RequestRefusedError as error:
            raise AssertionError(f"{site.name} refused a shape: {error}") from error
        self._told[pid, far.name] = wanted


def _ways(one: str, other: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (one, other), (other, one)
