"""Several `ReduceMachine`s joined in memory: links that come and go, chunks of float32, in any order that a seed picks.

Each direction of a connection is a queue; what was sent over a connection that is gone is lost; either end notices the
loss, and the new connection, when its own queue gets there. The arithmetic is the engine's, on arrays of one dtype.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from chaos_protocols.names import SiteId
from chaos_protocols.rounds.reduce import (
    ChildRef,
    Combine,
    Finalise,
    GoOn,
    PartialRef,
    ReduceEffect,
    ReduceMachine,
    ReleasePartials,
    ResultLost,
    ResultRef,
    RoundEmpty,
    RoundReduced,
    SendBulk,
)
from chaos_protocols.wire.bulk import (
    CHECK_BYTES,
    ChunkDown,
    ChunkUp,
    ReduceHeader,
    decode_bulk_header,
    encode_bulk_header,
)
from chaos_protocols.wire.plans import SyncPlan, Tag, Tree
from chaosd.bulk.vector import divide, weighted_sum

CHUNK_NUMBERS = 3
Vector = npt.NDArray[np.float32]


def site(number: int) -> SiteId:
    return SiteId(f"{number:032x}")


def check_of(name: SiteId) -> bytes:
    """What a site says of its state."""
    return name.encode()[-CHECK_BYTES:]


def random_plan(rng: random.Random, members: list[SiteId], listeners: list[SiteId], trees: int) -> SyncPlan:
    """Random spanning trees, each with its own root; listeners are leaves."""
    made = []
    for _ in range(trees):
        order = rng.sample(members, len(members))
        parent = {child: rng.choice(order[:index]) for index, child in enumerate(order) if index}
        parent |= {listener: rng.choice(members) for listener in listeners}
        made.append(Tree(weight=1 / trees, root=order[0], parent=tuple(sorted(parent.items()))))
    return SyncPlan(trees=tuple(made), reason="random")


@dataclass
class Round:
    """What one site holds of one tag. `own[tree]`: its part; `result[tree][chunk]`."""

    own: dict[int, list[Vector]] = field(default_factory=dict)
    partials: dict[tuple[int, int], Vector] = field(default_factory=dict)
    scratch: dict[tuple[int, int, SiteId], Vector] = field(default_factory=dict)
    result: dict[tuple[int, int], Vector] = field(default_factory=dict)


class Site:
    """A machine and its memory."""

    def __init__(self, name: SiteId, overlay: Overlay, in_flight: int) -> None:
        self.name, self.overlay, self.in_flight = name, overlay, in_flight
        self.machine = ReduceMachine(name, chunks_in_flight_max=in_flight, chunks_a_turn_max=1 + in_flight % 3)
        self.rounds: dict[Tag, Round] = {}
        self.finished: dict[Tag, tuple[tuple[SiteId, float], ...]] = {}
        self.checks: dict[Tag, tuple[tuple[SiteId, bytes], ...]] = {}
        self.stalled: list[Tag] = []
        self.lost: list[Tag] = []
        self.partials_held_max = 0

    def open(self, tag: Tag, plan: SyncPlan, counts: list[int], listeners: frozenset[SiteId]) -> None:
        self.rounds[tag] = Round()
        member = self.name not in listeners
        self.run(self.machine.open(tag, plan, chunk_counts=counts, listeners=listeners, member=member))

    def contribute(self, tag: Tag, weight: float, own: dict[int, list[Vector]] | None) -> None:
        if own is not None and tag in self.rounds:
            self.rounds[tag].own = own
        self.run(self.machine.contribute(tag, weight, has_bytes=own is not None, check=check_of(self.name)))

    def run(self, effects: list[ReduceEffect]) -> None:
        for effect in effects:
            match effect:
                case SendBulk(site=to, header=header, payload=payload):
                    data = None
                    if isinstance(payload, PartialRef):
                        data = self.rounds[payload.tag].partials[payload.tree, payload.chunk].copy()
                    elif isinstance(payload, ResultRef):
                        data = self.rounds[payload.tag].result[payload.tree, payload.chunk].copy()
                    self.overlay.send(self.name, to, header, data)
                case Combine():
                    self._combine(effect)
                case Finalise(tag=tag, tree=tree, chunk=chunk, total=total):
                    held = self.rounds[tag]
                    out = np.empty(CHUNK_NUMBERS, dtype=np.float32)
                    divide(out, held.partials.pop((tree, chunk)), total)
                    held.result[tree, chunk] = out
                case GoOn():
                    self.run(self.machine.go_on(effect))
                case ReleasePartials(tag=tag, tree=tree, below=below):
                    partials = self.rounds[tag].partials
                    for key in [key for key in partials if key[0] == tree and key[1] < below]:
                        del partials[key]
                case RoundReduced(tag=tag, weights=weights, checks=checks):
                    assert tag not in self.finished, "a round is finished once"
                    self.finished[tag] = weights
                    self.checks[tag] = checks
                case RoundEmpty(tag=tag):
                    self.stalled.append(tag)
                case ResultLost(tag=tag):
                    self.lost.append(tag)

    def _combine(self, effect: Combine) -> None:
        held = self.rounds[effect.tag]
        out = np.empty(CHUNK_NUMBERS, dtype=np.float32)
        children = [held.scratch.pop((effect.tree, effect.chunk, child)) for child in effect.children]
        own = held.own[effect.tree][effect.chunk] if effect.weight is not None else None
        weighted_sum(out, own, effect.weight, children)
        held.partials[effect.tree, effect.chunk] = out
        in_tree = sum(key[0] == effect.tree for key in held.partials)
        self.partials_held_max = max(self.partials_held_max, in_tree)

    def receive(self, source: SiteId, header: ReduceHeader, data: Vector | None) -> None:
        assert not isinstance(header, msgspec.Raw)
        if isinstance(header, ChunkUp | ChunkDown) and data is not None:
            place = self.machine.place(source, header)
            if place is None:
                return
            held = self.rounds[header.tag]
            if isinstance(place, ChildRef):
                held.scratch[place.tree, place.chunk, place.child] = data
                assert len(held.scratch) <= self.in_flight * 64, "scratch is bounded by the grants"
            else:
                assert (place.tree, place.chunk) not in held.result, "a chunk of the result comes once"
                held.result[place.tree, place.chunk] = data
        self.run(self.machine.received(source, header))  # type: ignore[arg-type]


class Overlay:
    """All sites, and the links between them."""

    def __init__(self, names: list[SiteId], rng: random.Random, *, in_flight: int = 2) -> None:
        self.rng = rng
        self.sites = {name: Site(name, self, in_flight) for name in names}
        self._queues: dict[tuple[SiteId, SiteId], deque[Any]] = {}
        self._up: dict[tuple[SiteId, SiteId], int] = {}
        """The connection that an end (first) has towards the other (second), as far as it knows."""
        self._connection: dict[tuple[SiteId, SiteId], int] = {}
        self._connections = 0
        self.sent = 0

    def connect_all(self) -> None:
        for one in self.sites:
            for other in self.sites:
                if one < other:
                    self.connect(one, other)

    def connect(self, one: SiteId, other: SiteId) -> None:
        """A new connection; the one before is gone."""
        self.cut(one, other)
        self._connections += 1
        self._connection[min(one, other), max(one, other)] = self._connections
        for end, far in ((one, other), (other, one)):
            self._queue(far, end).append(("up", self._connections))

    def cut(self, one: SiteId, other: SiteId) -> None:
        if self._connection.pop((min(one, other), max(one, other)), None) is None:
            return
        for end, far in ((one, other), (other, one)):
            queue = self._queue(far, end)
            kept = [item for item in queue if item[0] != "frame"]
            queue.clear()
            queue.extend([*kept, ("lost",)])

    def send(self, source: SiteId, to: SiteId, header: ReduceHeader, data: Vector | None) -> None:
        self.sent += 1
        now = self._connection.get((min(source, to), max(source, to)))
        if now is None or self._up.get((source, to)) != now:
            return
        self._queue(source, to).append(("frame", encode_bulk_header(header), data))

    def step(self) -> bool:
        """Deliver one thing, if there is any."""
        ready = [pair for pair, queue in sorted(self._queues.items()) if queue]
        if not ready:
            return False
        source, to = self.rng.choice(ready)
        item = self._queues[source, to].popleft()
        end = self.sites[to]
        match item:
            case ("up", connection):
                self._up[to, source] = connection
                end.run(end.machine.link_up(source))
            case ("lost",):
                self._up.pop((to, source), None)
                end.machine.link_lost(source)
            case ("frame", header, data):
                end.receive(source, decode_bulk_header(header), data)  # type: ignore[arg-type]
        return True

    def resolve(self) -> None:
        """Deliver everything; bounded, so that two sites which answer each other for ever fail the test."""
        for _ in range(200_000):
            if not self.step():
                return
        raise AssertionError("the sites do not come to rest")

    def _queue(self, source: SiteId, to: SiteId) -> deque[Any]:
        return self._queues.setdefault((source, to), deque())


def random_part(rng: np.random.Generator, counts: list[int]) -> dict[int, list[Vector]]:
    return {
        tree: [rng.standard_normal(CHUNK_NUMBERS).astype(np.float32) for _ in range(count)]
        for tree, count in enumerate(counts)
    }


def reference(
    tree: Tree, index: int, chunk: int, weights: dict[SiteId, float], parts: dict[SiteId, dict[int, list[Vector]]]
) -> Vector:
    """The weighted average as a single process computes it, walking the tree."""
    children: dict[SiteId, list[SiteId]] = {}
    for child, parent in tree.parent:
        children.setdefault(parent, []).append(child)

    def summed(at: SiteId) -> Vector | None:
        total = np.float32(weights[at]) * parts[at][index][chunk] if weights.get(at) else None
        for child in sorted(children.get(at, ())):
            part = summed(child)
            if part is not None:
                total = part if total is None else total + part
        return total

    whole = summed(tree.root)
    assert whole is not None
    return np.asarray(whole / np.float32(sum(weights.values())), dtype=np.float32)
