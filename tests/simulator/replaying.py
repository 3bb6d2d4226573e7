"""What was delivered to a site before comes to it once more: it must change nothing (invariant 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from chaos_protocols import events
from tests.simulator.outbox import Frame

if TYPE_CHECKING:
    from chaos_protocols.names import SiteId
    from tests.simulator.node import Node

Seen = TypeVar("Seen")
LOOKS_MAX = 8
"""A scheduler looks for what is over once an event, and may then take several steps: what it does of itself ends after
two or three events. Any other site does after one event all that it would do after several."""


def at_rest(node: Node, look: Callable[[Node], Seen]) -> Seen | None:
    """What `look` sees when the site has done all that any event would have it do; None: it has ended over that."""
    generation, before = node._generation, None
    for _ in range(LOOKS_MAX):
        node.handle(events.LinkProgressed(site=node.site, connections=()))  # type: ignore[arg-type]
        if generation != node._generation or node.machine is None:
            return None
        now = look(node)
        if now == before or not node.machine.scheduler.leading:
            return now
        before = now
    return before


def replay(node: Node, event: Any) -> None:
    """An old message once more, from a connection that lives."""
    if not node.alive or node.stopped or node.machine is None:
        return
    generation, world = node._generation, node.world
    world.oracles.delivered(node, event.neighbour)
    before = at_rest(node, world.oracles.before_replay)
    if before is None:
        return
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


def shuts_out(node: Node, envelope: Any) -> bool:
    """Since it was heard, somebody has come over a link with a former key of its source: a word that is said with the
    later one shuts that one out (spec 20.9), this one as well as any other."""
    assert node.machine is not None
    keys, source, said_with = node.machine.link_keys, envelope.source, envelope.public_key
    linked = keys.key_of(source)
    chain = keys._ring.chain_of(source, said_with) if linked and said_with not in (b"", linked) else None
    return chain is not None and chain.replaces(linked)


def is_refused_each_time(node: Node, neighbour: SiteId, envelope: Any) -> bool:
    """A request to join with a release that the run takes no more: it is answered, and nothing else of it counts, not
    even that it has come before (spec 4.19)."""
    assert node.machine is not None
    naming = node.machine.network.naming
    outside = node.machine.roster.record(envelope.source) is None
    return outside and not naming.takes(neighbour, envelope) and naming.can_only_be_refused(envelope)


def replay_bulk(node: Node, source: str, frame: Frame) -> None:
    """An old frame once more: what it is about is over."""
    if node.alive and not node.stopped and node.bulk is not None and node.bulk.is_over(source, frame):
        before = node.world.oracles.before_replay(node, bulk=True)
        frame.begun = False
        node.bulk.received(source, frame)  # type: ignore[arg-type]
        node.world.oracles.bulk_replayed(node, before)
