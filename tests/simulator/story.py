"""What went wrong, told for people: strikes and decisions that led there, where every site stands, the last events."""

from __future__ import annotations

from typing import Any

from chaos_protocols import events
from tests.simulator.violation import Violation
from tests.simulator.world import World

STORY_LINES = 60
EVENT_CHARACTERS = 150


def tell(world: World, error: Exception) -> str:
    """The invariant first; then the story, oldest first."""
    invariant = f"invariant {error.invariant}: " if isinstance(error, Violation) else f"{type(error).__name__}: "
    text = error.text if isinstance(error, Violation) else str(error)
    left_out = max(0, len(world.story) - STORY_LINES)
    before = [f"({left_out} lines before)"] if left_out else []
    return "\n".join(
        [
            f"{invariant}{text}",
            f"seed {world.seed}, at {world.now_s:.3f} s",
            "-- what happened",
            *before,
            *world.story[-STORY_LINES:],
            "-- the last events",
            *(_event(*one) for one in world.trail),
            "-- where everybody stands",
            *standings(world),
        ]
    )


def standings(world: World) -> list[str]:
    """A line for each site: what it knows, and which state its worker has."""
    lines = []
    for node in world.nodes.values():
        machine, worker = node.machine, node.worker
        state = "no worker" if worker is None else f"its worker has the state of round {worker.round}"
        if machine is None:
            lines.append(f"{node.name}: dead; {state}")
            continue
        waits = machine.participation.pause.reason()
        role = "scheduler, " if machine.scheduler.leading else ""
        lines.append(
            f"{node.name}: {role}{machine.membership.state.value}, term {machine.term}, epoch {machine.roster.epoch}, "
            f"round {machine.rounds.completed_round} done{', stopped' if node.stopped else ''}; {state}"
            f"{f'; waits: {waits}' if waits else ''}"
        )
    return lines


def _event(at_s: float, name: str, number: int, event: Any) -> str:
    head = f"{at_s:9.3f} {name}-{number}"
    if isinstance(event, events.EnvelopeReceived):
        envelope = event.envelope
        text = f"{event.envelope.message!r} of {envelope.source[2:]}, caused by {envelope.event_id}"
    else:
        text = repr(event)
    return f"{head} {text[:EVENT_CHARACTERS]}"
