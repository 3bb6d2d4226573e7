"""The network of a lab without root: all sites on the loopback interface, links shaped by the daemons themselves.

Rates, latencies and cuts are told to the two daemons of a link over their local API; what is configured before a daemon
starts stands in its file of shapes. No packet loss, no limit for a site's links together: `unmet` says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from chaos_lab.children import free_port
from chaos_lab.errors import LabError
from chaos_lab.network import LabNetwork, Pair
from chaos_lab.scenario import LinkSpec, Scenario
from chaos_lab.site import LabSite
from chaosd.api.client import NoDaemonError, RequestRefusedError

MBIT_BYTES_PER_S = 125_000


@dataclass(slots=True)
class _Shape:
    """One direction. `rate_mbit`: inf for no limit, before scaling."""

    rate_mbit: float = math.inf
    latency_ms: float = 0.0
    cut: bool = False


class ShapedNetwork(LabNetwork):
    """See the module. `because`: why it is this network and no other, for people."""

    kind = "shaped"

    def __init__(
        self, links: Sequence[LinkSpec], *, scale: float = 1.0, seed: int = 0, because: str = "", unmet: str = ""
    ) -> None:
        super().__init__(scale=scale, seed=seed)
        self._because, self._unmet = because, unmet
        self._sites: Mapping[str, LabSite] = {}
        self._shapes: dict[Pair, _Shape] = {}
        self._untold: set[Pair] = set()
        self._links: list[Pair] = []
        for link in links:
            self.add_link(link)

    @classmethod
    def of(cls, scenario: Scenario, *, scale: float = 1.0, because: str = "") -> ShapedNetwork:
        """The network of a scenario."""
        seed = scenario.redraw.seed if scenario.redraw is not None else 0
        return cls(scenario.links, scale=scale, seed=seed, because=because, unmet=unmet(scenario))

    @property
    def described(self) -> str:
        scale = "" if self._scale == 1 else f", rates times {self._scale:g}"
        because = f" ({self._because})" if self._because else ""
        return f"links shaped by the daemons{scale}{because}{self._unmet}"

    @property
    def links(self) -> list[Pair]:
        return list(self._links)

    @property
    def pairs(self) -> list[Pair]:
        return list(combinations(self._sites, 2))

    def endpoint(self, site: str) -> str:
        return f"127.0.0.1:{free_port()}"

    def command(self, site: str, command: Sequence[str]) -> list[str]:
        return list(command)

    def attach(self, sites: Mapping[str, LabSite]) -> None:
        self._sites = sites

    def shapes(self, site: str) -> list[str]:
        lines = []
        for (near, far), shape in self._shapes.items():
            if near == site and far in self._sites and (shape.latency_ms or not math.isinf(shape.rate_mbit)):
                lines += ["[[shapes]]", f'site = "{self._sites[far].identity.site}"']
                lines += [f"latency_ms = {float(shape.latency_ms)}"]
                lines += [] if math.isinf(shape.rate_mbit) else [f"rate_mbit = {shape.rate_mbit * self._scale}"]
        return lines

    def refresh(self, site: LabSite) -> None:
        for far in self._sites:
            if (site.name, far) in self._shapes or (far, site.name) in self._shapes:
                self._tell(site.name, far)

    def check(self) -> None:
        untold, self._untold = self._untold, set()
        for near, far in untold:
            self._tell(near, far)

    def set_link(
        self,
        one: str,
        other: str,
        *,
        rate_mbit: float | None = None,
        latency_ms: float | None = None,
        loss: float | None = None,
        one_way: bool = False,
    ) -> None:
        for near, far in [(one, other)] if one_way else [(one, other), (other, one)]:
            shape = self._shape(near, far)
            shape.rate_mbit = shape.rate_mbit if rate_mbit is None else rate_mbit
            shape.latency_ms = shape.latency_ms if latency_ms is None else latency_ms
            self._tell(near, far)

    def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        self._set_cut(one, other, one_way, cut=True)

    def heal(self, one: str, other: str, *, one_way: bool = False) -> None:
        self._set_cut(one, other, one_way, cut=False)

    def add_link(self, link: LinkSpec) -> None:
        one, other = link.between
        if link.between not in self._links and (other, one) not in self._links:
            self._links.append(link.between)
        rate_mbit = math.inf if link.rate_mbit is None else link.rate_mbit
        self.set_link(one, other, rate_mbit=rate_mbit, latency_ms=link.latency_ms)

    def remove_link(self, one: str, other: str) -> None:
        self._links = [pair for pair in self._links if set(pair) != {one, other}]

    def _shape(self, near: str, far: str) -> _Shape:
        return self._shapes.setdefault((near, far), _Shape())

    def _set_cut(self, one: str, other: str, one_way: bool, *, cut: bool) -> None:
        self._shape(one, other).cut = cut
        if not one_way:
            self._shape(other, one).cut = cut
        self._tell(one, other)  # each end drops both what it would send and what arrives
        self._tell(other, one)

    def _tell(self, near: str, far: str) -> None:
        """Give the daemon of `near` the whole shape of its link to `far`; one that does not answer gets it later."""
        site = self._sites.get(near)
        if site is None or not site.daemon_runs():
            return  # it will begin with its file of shapes, and `refresh`
        if site.status is None or "daemon" in site.stopped:
            self._untold.add((near, far))
            return
        shape, back = self._shape(near, far), self._shape(far, near)
        rate = None if math.isinf(shape.rate_mbit) else shape.rate_mbit * self._scale * MBIT_BYTES_PER_S
        try:
            site.client.shape(
                self._sites[far].identity.site,
                rate_bytes_per_s=rate,
                latency_s=shape.latency_ms / 1000,
                cut_in=back.cut,
                cut_out=shape.cut,
            )
        except NoDaemonError:
            self._untold.add((near, far))
        except RequestRefusedError as error:
            raise LabError(f"the link {near} - {far} cannot be shaped: {error}") from error


def unmet(scenario: Scenario) -> str:
    """What a scenario asks for that this network does not have; empty if it has everything."""
    lacking = []
    if any(link.loss for link in scenario.links) or any(action.loss for action in scenario.actions):
        lacking.append("packet loss")
    if any(site.uplink_mbit is not None for site in scenario.sites):
        lacking.append("shared uplinks")
    if scenario.routed:
        lacking.append("routes over several links")
    return f"; WITHOUT {', '.join(lacking)}, for which network namespaces are needed" if lacking else ""
