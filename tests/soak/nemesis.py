"""What is done to the sites, and when: drawn in advance from a seed, so that the seed replays it.

Pure: `draw_faults` knows names and a generator, no process and no clock. Whether a fault can be carried out at its time
(its site may still be on its way back from the last one) is for fire.py to see.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import Enum

FIRST_AT_S = 2.0
GAP_S = (0.5, 2.5)
DOWN_S = (0.3, 3.0)
HELD = (0.3, 4.0)
"""In failure timeouts: some are noticed, some are over before."""
FULL_S = (5.0, 9.0)
HUNG_S = (1.0, 20.0)
"""Round the ten failure timeouts for which a round waits for a script."""
HOUR_S = 3600.0
SCHEDULER = "scheduler"
"""In place of a site's name: whoever has that role when the fault strikes."""
SCHEDULER_CHANCE = 0.3


class Kind(Enum):
    KILL = "kill"
    STOP = "stop"
    PARTITION = "partition"
    UNPLUG = "unplug"
    ONE_WAY = "one-way cut"
    LOSS = "packet loss"
    NARROW = "large packets lost"
    RESET = "reset"
    SLOW = "slow link"
    CORRUPT = "corrupt bulk bytes"
    SPOIL = "spoil a transfer"
    BREAK = "break a TLS record"
    UNLINK = "link remove"
    LINK = "link add"
    LEAVE = "leave"
    DISK = "full disk"
    CLOCK = "clock jump"
    NAN = "gradients not finite"
    HANG = "hung script"
    MODEL = "script with another model"
    DRIFT = "state changed by hand"


WEIGHTS = {
    Kind.KILL: 10,
    Kind.STOP: 8,
    Kind.PARTITION: 6,
    Kind.UNPLUG: 2,
    Kind.ONE_WAY: 3,
    Kind.LOSS: 3,
    Kind.NARROW: 3,
    Kind.RESET: 3,
    Kind.SLOW: 4,
    Kind.CORRUPT: 3,
    Kind.SPOIL: 5,
    Kind.BREAK: 5,
    Kind.UNLINK: 4,
    Kind.LINK: 4,
    Kind.LEAVE: 4,
    Kind.DISK: 4,
    Kind.CLOCK: 4,
    Kind.NAN: 3,
    Kind.HANG: 2,
    Kind.MODEL: 3,
    Kind.DRIFT: 1,
}
MISTAKES = frozenset({Kind.NAN, Kind.HANG, Kind.MODEL, Kind.DRIFT})
"""Of a script, which reads in a file that it is to make one (`train.py`)."""
PACKETS, LAB = "packets", "lab"
"""How a cut is made: by the kernel's packet filter, or by the daemons themselves."""
ON_SITES = MISTAKES | {Kind.KILL, Kind.STOP, Kind.PARTITION, Kind.UNPLUG, Kind.SPOIL, Kind.LEAVE, Kind.DISK}
"""These make the named sites useless for a while; all others strike a link, or a clock."""
ON_DAEMONS = frozenset({Kind.LEAVE, Kind.DISK})
"""These always end the daemon; KILL does unless it strikes a worker."""
NEED_NAMESPACES = frozenset({Kind.UNPLUG, Kind.LOSS, Kind.NARROW, Kind.RESET})


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
    probability: float = 0.0
    jump_s: float = 0.0

    def ends_daemon(self) -> bool:
        return self.kind in ON_DAEMONS or (self.kind is Kind.KILL and self.what != "worker")

    def __str__(self) -> str:
        told = [self.kind.value, self.what, " - ".join(self.sites)]
        if self.rate_mbit is not None:
            told.append(f"({self.rate_mbit:.1f} Mbit/s, {self.latency_ms:.0f} ms)")
        if self.probability:
            told.append(f"(probability {self.probability:.3f})")
        if self.jump_s:
            told.append(f"({self.jump_s / HOUR_S:+.1f} h)")
        return " ".join(word for word in told if word) + f", for {self.lasts_s:.1f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What can be struck: sites, links that stand at the beginning, and pairs without one."""

    sites: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    spare_links: tuple[tuple[str, str], ...]
    timeout_s: float
    namespaces: bool
    full_disks: bool

    def kinds(self) -> dict[Kind, int]:
        missing = set() if self.namespaces else set(NEED_NAMESPACES)
        missing |= set() if self.full_disks else {Kind.DISK}
        return {kind: weight for kind, weight in WEIGHTS.items() if kind not in missing}


def draw_faults(random_: random.Random, ground: Ground, *, seconds: float) -> list[Fault]:
    """Faults by time, from FIRST_AT_S to `seconds`. Every kind comes once before any is drawn by weight."""
    weights = ground.kinds()
    first = random_.sample(list(weights), len(weights))
    faults: list[Fault] = []
    at_s = FIRST_AT_S
    while at_s < seconds:
        kind = first.pop() if first else random_.choices(list(weights), list(weights.values()))[0]
        faults.append(replace(_draw(random_, kind, ground), at_s=at_s))
        at_s += random_.uniform(*GAP_S)
    return faults


def _draw(random_: random.Random, kind: Kind, ground: Ground) -> Fault:
    if kind in ON_SITES or kind is Kind.CLOCK:
        return _on_sites(random_, kind, ground)
    held_s = ground.timeout_s * random_.uniform(*HELD)
    one, other = random_.choice(ground.spare_links if kind is Kind.LINK else ground.links)
    ends = (one, other) if random_.random() < 0.5 else (other, one)
    fault = Fault(at_s=0.0, kind=kind, sites=ends, lasts_s=held_s)
    match kind:
        case Kind.ONE_WAY:
            return replace(fault, what=_means(random_, ground))
        case Kind.LOSS:
            return replace(fault, lasts_s=2 * held_s, probability=random_.choice((0.02, 0.1, 0.3)))
        case Kind.NARROW:
            return replace(fault, lasts_s=2 * held_s)
        case Kind.SLOW:
            rate_mbit, latency_ms = random_.uniform(0.5, 5), random_.uniform(5, 80)
            return replace(fault, lasts_s=2 * held_s, rate_mbit=rate_mbit, latency_ms=latency_ms)
        case Kind.CORRUPT:
            return replace(fault, probability=random_.choice((0.01, 0.1, 0.5)))
        case Kind.BREAK:
            return replace(fault, what=random_.choice(("control", "0", "1")), lasts_s=0.1)
        case Kind.RESET:
            return replace(fault, lasts_s=random_.uniform(0.2, 1.0))
        case _:
            return fault


def _on_sites(random_: random.Random, kind: Kind, ground: Ground) -> Fault:
    held_s, down_s = ground.timeout_s * random_.uniform(*HELD), random_.uniform(*DOWN_S)
    aim = SCHEDULER if random_.random() < SCHEDULER_CHANCE else random_.choice(ground.sites)
    fault = Fault(at_s=0.0, kind=kind, sites=(aim,), lasts_s=held_s)
    match kind:
        case Kind.KILL:
            return replace(fault, what=random_.choice(("daemon", "worker", "both")), lasts_s=down_s)
        case Kind.STOP:
            return replace(fault, what=random_.choice(("daemon", "worker", "both")))
        case Kind.PARTITION:
            count = random_.choice((1, 1, 2))
            return replace(fault, sites=tuple(random_.sample(ground.sites, count)), what=_means(random_, ground))
        case Kind.LEAVE:
            return replace(fault, what=random_.choice(("worker", "daemon", "command")), lasts_s=down_s)
        case Kind.SPOIL:
            return replace(fault, sites=tuple(random_.sample(ground.sites, 2)), probability=0.5, lasts_s=2 + down_s)
        case Kind.DISK:
            return replace(fault, lasts_s=random_.uniform(*FULL_S))
        case Kind.HANG:
            return replace(fault, lasts_s=random_.uniform(*HUNG_S))
        case Kind.CLOCK:
            jump_s = random_.choice((-1, 1)) * random_.choice((0.01, 1, 24, 24 * 365)) * HOUR_S
            return replace(fault, sites=(random_.choice(ground.sites),), jump_s=jump_s, lasts_s=3 * held_s)
        case _:
            return fault


def _means(random_: random.Random, ground: Ground) -> str:
    return random_.choice((PACKETS, LAB)) if ground.namespaces else LAB
