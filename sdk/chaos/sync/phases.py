"""What a site has done by itself in a mode with local steps, between what it gives to two rounds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class PhaseAtHome:
    """What this site has done since it last gave to a round, or was to give."""

    steps: int = 0
    left_out: int = 0
    why: str = ""
    wants_to_end: bool = False
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A round whose result has not come, while this site goes on; `part`: what of the model it gave (None: nothing)."""

    round: int
    part: int | None
