"""How a worker group is run; limits."""

from __future__ import annotations

from dataclasses import dataclass

BROKEN_MAX = 5
"""Generations in a row that broke without a death and without a step done: something between the workers is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """`workers`: started at once and expected in the first plan together with `spares`. `restarts`: how many that die
    are started anew, within an hour. `audit`: replicas' digests are compared after every step."""

    token: str
    workers: int
    spares: int = 0
    restarts: int = 3
    failure_timeout_s: float = 1.0
    stop_timeout_s: float = 30.0
    audit: bool = False
