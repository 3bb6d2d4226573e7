"""A wide-area network on this machine: each site in its own network namespace, each link a veth pair of its own.

Each site has one fixed address (10.99.N.1) on its loopback interface, and routes over its links; sites without a link
have no way to each other unless `routed`. Rates are limited where packets leave (tc tbf), latency, loss and cuts are
made where they arrive, or by netem where the kernel has it. Driven by the lab or by a benchmark; needs root.

    with NamespaceNetwork(["a", "b"], [LinkSpec(between=("a", "b"), rate_mbit=100, latency_ms=10)]) as network:
        subprocess.Popen(network.command("a", ["iperf3", "-s"]))
        network.set_link("a", "b", rate_mbit=50)
        network.cut("a", "b")

Source of the ranges that `redraw` is for: Chaos paper, section VI-A (100 to 1000 Mbit/s, 10 to 20 ms, every 3 minutes).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from chaos_lab import rules
from chaos_lab.children import uninterrupted
from chaos_lab.cleaning import clean, namespace_prefix, remove_namespace
from chaos_lab.delay_client import DelayClient
from chaos_lab.errors import LabError
from chaos_lab.facilities import RUN_NETNS, Facilities, ToolError, inside, probe, tool
from chaos_lab.network import LabNetwork, Pair
from chaos_lab.routes import next_hops
from chaos_lab.scenario import LinkSpec, doubtful_link

SITES_MAX = 200
SEGMENTS_MAX = 65_535
"""Of segmentation offload: the kernel's own value."""
PORT = 7400
"""Of every daemon; each has an address of its own."""


@dataclass(slots=True)
class WayState:
    """One direction of a link. `rate_mbit`: inf for no limit, before scaling; `queued`: the delay line has a queue
    for it; `single`: packets go out one by one, without segmentation offload; `limited_mbit`: the scaled rate
    under which what waits now was let in."""

    rate_mbit: float
    latency_ms: float
    loss: float
    cut: bool = False
    limited_mbit: float = 0.0
    queued: bool = False
    single: bool = False


class NamespaceNetwork(LabNetwork):
    """See the module. A context manager; safe to use from several threads.

    `scale` is a factor on all rates; `uplinks_mbit` limits what a site sends over all its links together; `routed`
    makes every site forward, by fewest links, what is for a site that is no neighbour of the sender; `sysctls` are set
    in every namespace (below /proc/sys, with dots). Raises NetworkUnavailableError on entering.
    """

    kind = "namespaces"

    def __init__(
        self,
        sites: Sequence[str],
        links: Iterable[LinkSpec],
        *,
        scale: float = 1.0,
        seed: int = 0,
        routed: bool = False,
        uplinks_mbit: Mapping[str, float] | None = None,
        sysctls: Mapping[str, str] | None = None,
    ) -> None:
        if len(set(sites)) != len(sites) or not 0 < len(sites) <= SITES_MAX:
            raise LabError(f"a network has 1 to {SITES_MAX} sites of different names, not {list(sites)}")
        if not scale > 0:
            raise LabError(f"the factor for rates must be above 0, not {scale}")
        super().__init__(scale=scale, seed=seed)
        self._number = {site: number for number, site in enumerate(sites, start=1)}
        self._links = list(links)
        self._routed = routed
        self._uplinks_mbit, self._sysctls = dict(uplinks_mbit or {}), dict(sysctls or {})
        for name in [*(name for link in self._links for name in link.between), *self._uplinks_mbit]:
            self._check_site(name)
        if doubt := doubtful_link(self._links):
            raise LabError(doubt)
        self._ways: dict[Pair, WayState] = {}
        self._namespace: dict[str, str] = {}
        self._rules: dict[str, list[rules.Arriving]] = {}
        self._facilities = Facilities(netem=False, iptables=True)
        self._delay: DelayClient | None = None
        self._lock = threading.RLock()

    # -- life

    def __enter__(self) -> NamespaceNetwork:
        prefix = namespace_prefix()
        self._facilities = probe(f"{prefix}-probe")
        clean()
        try:
            if not self._facilities.netem:
                self._delay = DelayClient()
            for site in self._number:
                tool("ip", "netns", "add", f"{prefix}-{self._number[site]}")
                self._namespace[site] = f"{prefix}-{self._number[site]}"
                self._set_up_site(site)
            for link in self._links:
                self._make_link(link)
            self._set_routes()
            for site in self._number:
                self._set_rules(site)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with uninterrupted():  # a second Ctrl+C finds all of it gone
            self._remove()

    def _remove(self) -> None:
        refused = []
        for site in list(self._namespace):
            try:
                remove_namespace(self._namespace.pop(site))
            except ToolError as error:
                refused.append(str(error))
        self._ways.clear()
        self._rules.clear()
        if self._delay is not None:
            self._delay.close()
            self._delay = None
        if refused:
            raise LabError("not everything could be removed (`chaosd lab clean` tries again):\n" + "\n".join(refused))

    def check(self) -> None:
        """Raises LabError when the delay line has ended: from then on no link would carry anything."""
        if self._delay is not None:
            self._delay.check()

    # -- what the sites need

    @property
    def described(self) -> str:
        """For people: what this network is made of."""
        scale = "" if self._scale == 1 else f", rates times {self._scale:g}"
        return f"network namespaces, rates by tc, {self._facilities.described}{scale}"

    @property
    def links(self) -> list[Pair]:
        return [way for way in self._ways if self._number[way[0]] < self._number[way[1]]]

    @property
    def pairs(self) -> list[Pair]:
        return self.links

    def endpoint(self, site: str) -> str:
        return f"{self.address(site)}:{PORT}"

    def address(self, site: str) -> str:
        """The site's fixed address, without a port."""
        self._check_site(site)
        return f"10.99.{self._number[site]}.1"

    def namespace(self, site: str) -> str:
        """The name of the site's network namespace, for `ip netns`."""
        self._check_site(site)
        return self._namespace[site]

    def command(self, site: str, command: Sequence[str]) -> list[str]:
        """The command that runs `command` in the site's namespace; the process that is started becomes it."""
        return inside(self.namespace(site), *command)

    def state(self, source: str, target: str) -> WayState:
        """What holds from `source` to `target`; rates are those before scaling."""
        try:
            return self._ways[source, target]
        except KeyError:
            raise LabError(f"there is no link {source} - {target}") from None

    # -- changes while it runs

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
        if not (rate_mbit is None or rate_mbit > 0) or not 0 <= (latency_ms or 0) <= 60_000 or not 0 <= (loss or 0) < 1:
            raise LabError(f"a link cannot have {rate_mbit=}, {latency_ms=}, {loss=}")
        with self._lock:
            for source, target in _ways(one, other, one_way):
                state = self.state(source, target)
                state.rate_mbit = state.rate_mbit if rate_mbit is None else rate_mbit
                state.latency_ms = state.latency_ms if latency_ms is None else latency_ms
                state.loss = state.loss if loss is None else loss
                self._shape(source, target)
                self._set_rules(target)

    def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        self._set_cut(one, other, one_way, cut=True)

    def heal(self, one: str, other: str, *, one_way: bool = False) -> None:
        self._set_cut(one, other, one_way, cut=False)

    def add_link(self, link: LinkSpec) -> None:
        for name in link.between:
            self._check_site(name)
        with self._lock:
            if link.between in self._ways:
                rate_mbit = math.inf if link.rate_mbit is None else link.rate_mbit
                self.set_link(*link.between, rate_mbit=rate_mbit, latency_ms=link.latency_ms, loss=link.loss)
                return
            self._make_link(link)
            self._set_routes()
            for site in link.between:
                self._set_rules(site)

    def remove_link(self, one: str, other: str) -> None:
        """Take the link away: what is sent finds no route from now on."""
        with self._lock:
            self.state(one, other)
            tool("ip", "-n", self._namespace[one], "link", "del", self._device(other))
            for source, target in _ways(one, other, False):
                state = self._ways.pop((source, target))
                if state.queued and self._delay is not None:
                    self._delay.end_queue(self._path(target), self._number[source])
            self._set_routes()
            for site in (one, other):
                self._set_rules(site)

    def redraw(self, *, rate_mbit: tuple[float, float], latency_ms: tuple[float, float] | None = None) -> None:
        with self._lock:
            super().redraw(rate_mbit=rate_mbit, latency_ms=latency_ms)

    def _set_cut(self, one: str, other: str, one_way: bool, *, cut: bool) -> None:
        with self._lock:
            for source, target in _ways(one, other, one_way):
                self.state(source, target).cut = cut
                self._set_rules(target)

    # -- how it is made

    def _check_site(self, site: str) -> None:
        if site not in self._number:
            raise LabError(f"there is no site '{site}'; there are {', '.join(self._number)}")

    def _device(self, far: str) -> str:
        """The interface of the link to `far`, in every namespace that has one."""
        return f"to{self._number[far]}"

    def _path(self, site: str) -> str:
        return f"{RUN_NETNS}/{self._namespace[site]}"

    def _set_up_site(self, site: str) -> None:
        """Before any link is made: new interfaces inherit the defaults."""
        settings = {"net.ipv4.conf.all.rp_filter": "0", "net.ipv4.conf.default.rp_filter": "0", **self._sysctls}
        if self._routed:
            settings["net.ipv4.ip_forward"] = "1"
        writes = [f"echo '{value}' > /proc/sys/{name.replace('.', '/')}" for name, value in settings.items()]
        tool(*self.command(site, ["sh", "-ec", "\n".join(writes)]))
        text = f"link set lo up\naddr add {self.address(site)}/32 dev lo\n"
        tool("ip", "-n", self._namespace[site], "-batch", "-", text=text)
        if site in self._uplinks_mbit:
            tool("ip", "-n", self._namespace[site], "link", "add", "uplink", "type", "ifb")
            tool("ip", "-n", self._namespace[site], "link", "set", "uplink", "up")
            rate_mbit = self._uplinks_mbit[site] * self._scale
            tool("tc", "-n", self._namespace[site], "-batch", "-", text=rules.limit("uplink", rate_mbit))

    def _make_link(self, link: LinkSpec) -> None:
        one, other = link.between
        tool("ip", "link", "add", self._device(other), "netns", self._namespace[one],
             "type", "veth", "peer", "name", self._device(one), "netns", self._namespace[other])  # fmt: skip
        for near, far in _ways(one, other, False):
            rate_mbit = math.inf if link.rate_mbit is None else link.rate_mbit
            self._ways[near, far] = WayState(rate_mbit=rate_mbit, latency_ms=link.latency_ms, loss=link.loss)
            device, namespace = self._device(far), self._namespace[near]
            route = f"route replace {self.address(far)}/32 dev {device} src {self.address(near)}\n"
            tool("ip", "-n", namespace, "-batch", "-", text=f"link set {device} up\n{route}")
            if near in self._uplinks_mbit:
                tool("tc", "-n", namespace, "-batch", "-", text=rules.redirect(device, "uplink"))
            self._shape(near, far)

    def _shape(self, source: str, target: str) -> None:
        """Rate, latency and loss of one direction; `_set_rules` of `target` must follow."""
        state, device = self._ways[source, target], self._device(target)
        rate_mbit = state.rate_mbit * self._scale
        if bool(state.loss) != state.single:
            # losses hit packets as on the wire, not super-packets of 64 KiB
            state.single = bool(state.loss)
            segments = "1" if state.single else str(SEGMENTS_MAX)
            tool("ip", "-n", self._namespace[source], "link", "set", device, "gso_max_segs", segments)
        emptied = rules.blocks(state.limited_mbit, rate_mbit)
        if self._facilities.netem:
            text = rules.netem(device, rate_mbit, state.latency_ms, state.loss, emptied=emptied)
        else:
            text = rules.limit(device, rate_mbit, emptied=emptied)
            if state.latency_ms or state.queued:
                assert self._delay is not None
                self._delay.hold(self._path(target), self._number[source], state.latency_ms / 1000)
                state.queued = True
        tool("tc", "-n", self._namespace[source], "-batch", "-", text=text)
        state.limited_mbit = rate_mbit

    def _set_rules(self, site: str) -> None:
        """What happens to packets that arrive at a site, by link."""
        arriving = [
            rules.Arriving(
                device=self._device(source),
                cut=state.cut,
                loss=0.0 if self._facilities.netem else state.loss,
                queue=self._number[source] if state.queued else None,
            )
            for (source, target), state in self._ways.items()
            if target == site
        ]
        if self._rules.get(site) == arriving:
            return
        self._rules[site] = arriving
        if self._facilities.iptables:
            command, text = ["iptables-restore", "--noflush"], rules.iptables(arriving)
        else:
            command, text = ["nft", "-f", "-"], rules.nft(arriving)
        tool(*self.command(site, command), text=text)

    def _set_routes(self) -> None:
        """Routes to sites that are no neighbours, over neighbours."""
        if not self._routed:
            return
        for site in self._number:
            hops = next_hops(site, list(self._number), self._ways)
            lines = []
            for far in self._number:
                hop = hops.get(far)
                if hop is not None and hop != far:
                    via = f"via {self.address(hop)} dev {self._device(hop)} onlink src {self.address(site)}"
                    lines.append(f"route replace {self.address(far)}/32 {via}\n")
                elif hop is None and far != site:
                    lines.append(f"route flush {self.address(far)}/32\n")
            try:
                tool("ip", "-n", self._namespace[site], "-batch", "-", text="".join(lines))
            except ToolError as error:
                raise LabError(f"the routes of {site} cannot be set: {error}") from error


def _ways(one: str, other: str, one_way: bool) -> list[Pair]:
    return [(one, other)] if one_way else [(one, other), (other, one)]
