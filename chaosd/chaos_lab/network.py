"""What a lab asks of its network, whichever carries the links: namespaces of the kernel, or the daemons' own shaper."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from chaos_lab.scenario import LinkSpec, RedrawSpec
from chaos_lab.site import LabSite

Pair = tuple[str, str]


class LabNetwork(ABC):
    """Links between named sites, whose rate, latency and cuts can be changed while they run. Rates are in Mbit/s
    before `scale`, a factor on all of them; latencies in ms for one direction. Methods raise LabError."""

    kind: str

    def __init__(self, *, scale: float, seed: int) -> None:
        self._scale, self._random = scale, random.Random(seed)

    def __enter__(self) -> LabNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @property
    @abstractmethod
    def described(self) -> str:
        """For people: what this network is made of."""

    @property
    @abstractmethod
    def links(self) -> list[Pair]:
        """Every link once."""

    @property
    @abstractmethod
    def pairs(self) -> list[Pair]:
        """Every two sites between which a cut changes something, once."""

    @abstractmethod
    def endpoint(self, site: str) -> str:
        """Where the site's daemon listens: HOST:PORT."""

    @abstractmethod
    def command(self, site: str, command: Sequence[str]) -> list[str]:
        """The command that runs `command` at the site; the process that is started becomes it."""

    @abstractmethod
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
        """Change a link, in both directions or (`one_way`) from `one` to `other` only; None: as it is. `rate_mbit` inf
        lifts the limit; a round trip has twice `latency_ms`; `loss` is 0 to 1."""

    @abstractmethod
    def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Drop silently everything between two neighbours, or from `one` to `other` only; nothing is closed."""

    @abstractmethod
    def heal(self, one: str, other: str, *, one_way: bool = False) -> None:
        """End a cut."""

    @abstractmethod
    def add_link(self, link: LinkSpec) -> None:
        """A new link; one that exists gets the rate, latency and loss of `link`."""

    @abstractmethod
    def remove_link(self, one: str, other: str) -> None:
        """Take a link away."""

    def attach(self, sites: Mapping[str, LabSite]) -> None:
        """The sites that use this network, before the first of them starts."""
        return

    def shapes(self, site: str) -> list[str]:
        """What the file of shapes of a site's daemon must hold for this network: lines of TOML."""
        return []

    def refresh(self, site: LabSite) -> None:
        """A daemon has been started, or goes on: it may not know what was changed meanwhile."""
        return

    def check(self) -> None:
        """Raises LabError when the network no longer works."""
        return

    def redraw(self, *, rate_mbit: tuple[float, float], latency_ms: tuple[float, float] | None = None) -> None:
        """Give every link a fresh rate (the same both ways) and latency within these bounds, from the seed."""
        for one, other in self.links:
            rate = self._random.uniform(*rate_mbit)
            latency = None if latency_ms is None else self._random.uniform(*latency_ms)
            self.set_link(one, other, rate_mbit=rate, latency_ms=latency)


class Redraws:
    """Redraws all links at once and every so many seconds, as a scenario asks (Chaos paper, section VI-A)."""

    def __init__(self, network: LabNetwork, spec: RedrawSpec | None) -> None:
        self._network, self._spec = network, spec
        self._next_s = -math.inf
        self.done = 0

    def step(self, now_s: float) -> None:
        """Call often; `now_s` of any clock."""
        if self._spec is None or now_s < self._next_s:
            return
        self._next_s = now_s + self._spec.every_s
        self._network.redraw(rate_mbit=self._spec.rate_mbit, latency_ms=self._spec.latency_ms)
        self.done += 1
