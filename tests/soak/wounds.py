"""How long each fault hurt: until rounds went on, and until everybody whom it struck trained again."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

from tests.soak.nemesis import Fault, Kind
from tests.soak.sites import Site

HEAL_LIMIT_S = 150.0
"""Correctness, not speed: on a loaded machine too, a site is back by then."""

SLOW_HEAL_S = 8.0
"""No violation, but worth a line."""


@dataclass
class Wound:
    """One fault. `round`: the last one when it struck; `undone_round`: when it was undone."""

    fault: Fault
    round: int
    struck_s: float = field(default_factory=time.monotonic)
    went_on_s: float | None = None
    undone_s: float | None = None
    undone_round: int = 0
    healed_s: float | None = None

    @property
    def pause_s(self) -> float | None:
        """From the fault to the end of the second round after it: one that was begun when it had struck."""
        return None if self.went_on_s is None else self.went_on_s - self.struck_s

    @property
    def heal_s(self) -> float | None:
        """From the end of the fault until its sites had all done a new round as training members."""
        return None if self.healed_s is None or self.undone_s is None else self.healed_s - self.undone_s


class Wounds:
    """`look` some times a second, with the sites as they are."""

    def __init__(self, sites: dict[str, Site]) -> None:
        self._sites = sites
        self.all: list[Wound] = []
        self.slow: list[Wound] = []
        """Healed since `slow` was last emptied, but only after SLOW_HEAL_S."""
        self._open: list[Wound] = []

    def struck(self, fault: Fault, round: int) -> None:
        wound = Wound(fault=fault, round=round)
        self.all.append(wound)
        self._open.append(wound)

    def undone(self, fault: Fault, round: int) -> None:
        for wound in self._open:
            if wound.fault is fault and wound.undone_s is None:
                wound.undone_s, wound.undone_round = time.monotonic(), round

    def look(self, round: int) -> Wound | None:
        """A wound that did not heal in time, if there is one."""
        now_s = time.monotonic()
        for wound in list(self._open):
            if wound.went_on_s is None and round >= wound.round + 2:
                wound.went_on_s = now_s
            if wound.undone_s is None:
                continue
            sites = (self._sites[name] for name in wound.fault.sites)
            if wound.healed_s is None and all(site.trains(beyond_round=wound.undone_round) for site in sites):
                wound.healed_s = now_s
                if now_s - wound.undone_s > SLOW_HEAL_S:
                    self.slow.append(wound)
            if wound.healed_s is not None and wound.went_on_s is not None:
                self._open.remove(wound)
            elif now_s - wound.undone_s > HEAL_LIMIT_S:
                return wound
        return None

    @property
    def are_closed(self) -> bool:
        return not self._open

    def figures(self) -> dict[str, dict[str, float]]:
        """Per kind: how many, and medians and maxima of both times in seconds."""
        found: dict[str, dict[str, float]] = {}
        for kind in Kind:
            wounds = [wound for wound in self.all if wound.fault.kind is kind]
            if not wounds:
                continue
            heals = [wound.heal_s for wound in wounds if wound.heal_s is not None]
            pauses = [wound.pause_s for wound in wounds if wound.pause_s is not None]
            found[kind.value] = {"count": len(wounds), **_spread("heal", heals), **_spread("pause", pauses)}
        return found

    def all_heals(self) -> dict[str, float]:
        return _spread("heal", [wound.heal_s for wound in self.all if wound.heal_s is not None])


def _spread(name: str, values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {f"{name}_median_s": statistics.median(values), f"{name}_max_s": max(values)}
