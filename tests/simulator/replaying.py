"""What was delivered to a site before comes to it once more: it must change nothing (invariant 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chaos_protocols import events
from tests.simulator.outbox import Frame

if TYPE_CHECKING:
    from tests.simulator.node import Node

LOOKS_MAX = 8
"""What a scheduler does of itself ends after two or three events."""


def replay(node: Node, event: Any) -> None:
    """An old message once more, from a connection that lives."""
    if not node.alive or node.stopped or node.machine is None:
        return
    generation, world = node._generation, node.world
    world.oracles.delivered(node, event.neighbour)
    nothing = events.LinkProgressed(site=node.site, connections=())  # type: ignore[arg-type]
    before, seen = None, world.oracles.before_replay(node)
    for _ in range(LOOKS_MAX):  # a scheduler looks, and may have several steps to do one after the other
        if seen == before:
            break
        before = seen
        node.handle(nothing)
        if generation != node._generation or node.machine is None:  # its disk failed on the way
            return
        seen = world.oracles.before_replay(node)
    before = seen
    out = node.machine.handle(event, now_s=world.now_s + world.drift_s(node.site))
    world.oracles.replayed(node, before, out)
    for effect in out:
        if generation == node._generation:
            node._execute(effect)


def was_taken(node: Node, envelope: Any) -> bool:
    """Whether a site has let this flooded report in. One that it refused (spec 4.15) may be welcome later."""
    assert node.machine is not None
    known = node.machine.network.router.overlay._reports.get((envelope.source, envelope.message.neighbour))
    return known is not None and (known.incarnation, known.sequence) >= (envelope.incarnation, envelope.sequence)


def replay_bulk(node: Node, source: str, frame: Frame) -> None:
    """An old frame once more: what it is about is over."""
    if node.alive and not node.stopped and node.bulk is not None and node.bulk.is_over(source, frame):
        before = node.world.oracles.before_replay(node, bulk=True)
        frame.begun = False
        node.bulk.received(source, frame)  # type: ignore[arg-type]
        node.world.oracles.bulk_replayed(node, before)
