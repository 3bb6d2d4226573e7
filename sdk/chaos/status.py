"""What a script can ask of its own place in the run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatus:
    """`round`: the last one applied here. `phase`: `unregistered`, `standalone`, or one of the phases of the
    conversation. `sites` and `weight`: behind the last result. `paused`: why the run waits, or empty."""

    site: str
    run: str
    round: int
    phase: str
    sites: int
    weight: float
    paused: str
    exit_requested: bool
    left_reason: str
