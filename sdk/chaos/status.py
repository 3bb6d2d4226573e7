"""What a script can ask of its own place in the run."""

from __future__ import annotations

from dataclasses import dataclass

from chaos.conversation import Conversation


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


def status_of(talk: Conversation | None, *, registered: bool, round: int, exit_requested: bool) -> CoordinatorStatus:
    """Of a worker with this conversation; None: it trains without a daemon."""
    phase = "unregistered" if not registered else "standalone" if talk is None else talk.phase.value
    return CoordinatorStatus(
        site=talk.site if talk else "",
        run=talk.run if talk else "",
        round=round,
        phase=phase,
        sites=talk.sites if talk else 1,
        weight=talk.weight if talk else 1.0,
        paused=talk.paused if talk else "",
        exit_requested=exit_requested,
        left_reason=talk.left_reason if talk else "",
    )
