"""What is done to the sites, and when: drawn in advance from a seed, so that the seed replays it.

Pure: `draw_faults` knows names and a generator, no process and no clock. Whether a fault can be carried out at its time
(its site may still be on its way back from the last one) is for fire.py to see.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

FIRST_AT_S = 11.0
"""The memory of every daemon is first measured at the age of 10 s."""
GAP_S = (0.8, 3.0)
DOWN_S = (0.3, 3.0)
HELD_S = (0.3, 4.0)
"""Around the failure timeout of 1 s: some are noticed, some are over before."""


class Kind(Enum):
    KILL = "kill"
    STOP = "stop"
    PARTITION = "partition"
    ONE_WAY = "one-way cut"
    SLOW = "slow link"
    CORRUPT = "corrupt bulk bytes"
    UNLINK = "link remove"
    LEAVE = "leave"


WEIGHTS = {
    Kind.KILL: 5,
    Kind.STOP: 4,
    Kind.PARTITION: 3,
    Kind.ONE_WAY: 2,
    Kind.SLOW: 2,
    Kind.CORRUPT: 3,
    Kind.UNLINK: 3,
    Kind.LEAVE: 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`lasts_s`: until it is undone (started again, continued, healed, added again)."""

    at_s: float
    kind: Kind
    sites: tuple[str, ...]
    what: str = ""
    lasts_s: float = 0.0
    rate_mbit: float | None = None
    latency_ms: float = 0.0
    corrupt_probability: float = 0.0

    def __str__(self) -> str:
        told = [self.kind.value, self.what, " - ".join(self.sites)]
        if self.rate_mbit is not None:
            told.append(f"({self.rate_mbit:.1f} Mbit/s, {self.latency_ms:.0f} ms)")
        if self.corrupt_probability:
            told.append(f"(probability {self.corrupt_probability:.3f})")
        return " ".join(word for word in told if word) + f", for {self.lasts_s:.1f} s"


def draw_faults(
    random_: random.Random, *, sites: tuple[str, ...], links: tuple[tuple[str, str], ...], seconds: float
) -> list[Fault]:
    """Faults by time, from FIRST_AT_S to `seconds`."""
    faults: list[Fault] = []
    at_s = FIRST_AT_S
    while at_s < seconds:
        kind = random_.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        faults.append(_draw(random_, kind, at_s, sites, links))
        at_s += random_.uniform(*GAP_S)
    return faults


def _draw(
    random_: random.Random, kind: Kind, at_s: float, sites: tuple[str, ...], links: tuple[tuple[str, str], ...]
) -> Fault:
    held_s = random_.uniform(*HELD_S)
    match kind:
        case Kind.KILL:
            what = random_.choice(("daemon", "worker", "both"))
            down_s = random_.uniform(*DOWN_S)
            return Fault(at_s=at_s, kind=kind, sites=(random_.choice(sites),), what=what, lasts_s=down_s)
        case Kind.STOP:
            what = random_.choice(("daemon", "worker", "both"))
            return Fault(at_s=at_s, kind=kind, sites=(random_.choice(sites),), what=what, lasts_s=held_s)
        case Kind.LEAVE:
            return Fault(at_s=at_s, kind=kind, sites=(random_.choice(sites),), lasts_s=random_.uniform(*DOWN_S))
        case Kind.PARTITION:
            count = random_.choice((1, 1, 2))
            return Fault(at_s=at_s, kind=kind, sites=tuple(random_.sample(sites, count)), lasts_s=held_s)
        case Kind.ONE_WAY | Kind.UNLINK:
            one, other = random_.choice(links)
            ends = (one, other) if random_.random() < 0.5 else (other, one)
            return Fault(at_s=at_s, kind=kind, sites=ends, lasts_s=held_s)
        case Kind.SLOW:
            rate, latency = random_.uniform(0.5, 5), random_.uniform(5, 80)
            ends = random_.choice(links)
            return Fault(at_s=at_s, kind=kind, sites=ends, lasts_s=2 * held_s, rate_mbit=rate, latency_ms=latency)
        case Kind.CORRUPT:
            ends, chance = random_.choice(links), random_.choice((0.01, 0.1, 0.5))
            return Fault(at_s=at_s, kind=kind, sites=ends, lasts_s=held_s, corrupt_probability=chance)
