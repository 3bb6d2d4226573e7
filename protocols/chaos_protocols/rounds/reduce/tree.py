"""One tree of one round at one site: chunks of sums go up, chunks of the result come down.

Driven by `ReduceMachine`. Everything is pulled, so that nothing is lost when sites open a round at different times or
a link comes up anew. Up: a child sends a chunk only within its parent's grant, and keeps it until the parent says
that it is there. Down: a child says from which chunk on it wants the result. Whoever finds a link renewed says again
where it stands; a chunk that comes twice is ignored.

What lies in memory here is bounded by the grants: `in_flight_max` chunks for each child, and as many of our own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import fsum

from msgspec import structs

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import WEIGHT_MIN, SiteId, short
from chaos_protocols.rounds.reduce.effects import (
    ChildRef,
    Combine,
    Finalise,
    GoOn,
    PartialRef,
    ReduceEffect,
    ReleasePartials,
    ResultRef,
    RoundEmpty,
    SendBulk,
)
from chaos_protocols.rounds.reduce.topology import TreePlace
from chaos_protocols.wire.bulk import CHECK_SIZES, CHECKED_SITES_MAX, ChunkDown, ChunkGrant, ChunkUp, ChunkWant
from chaos_protocols.wire.plans import Tag

SENSIBLE = f"a weight is 0 or at least {WEIGHT_MIN:g}"

Note = Callable[[tuple[SiteId, ...], tuple[float, ...]], None]
"""Remember whose weight is what; raises RemoteProtocolError where somebody has said otherwise."""


@dataclass(slots=True)
class _Child:
    """A contributing child: the next chunk it will send, and how far it may go."""

    members: tuple[SiteId, ...]
    received: int = 0
    limit: int = 0
    empty: bool = False


class TreeFlow:
    """See the module. `combined`: chunks summed here; `finished`: chunks of the result that are here."""

    def __init__(
        self,
        site: SiteId,
        tag: Tag,
        tree: int,
        place: TreePlace,
        *,
        count: int,
        in_flight_max: int,
        turn_max: int,
        note: Note,
    ) -> None:
        """`turn_max`: chunks summed in one go at most; then a `GoOn` asks for the next."""
        self.site, self.tag, self.tree, self.place, self.count = site, tag, tree, place, count
        self.combined = 0
        self.finished = 0
        self.weights: tuple[float, ...] | None = None
        """Of all members; known with the first chunk of the result."""
        self.checks: tuple[bytes, ...] = ()
        """Of the states of all members, in their order; none: nobody said something, or it is not known yet."""
        self.came_up_empty = False
        self._in_flight_max = in_flight_max
        self._grant_step = max(1, in_flight_max // 2)
        self._turn_max = turn_max
        self._goes_on = False
        self._note = note
        self._children = {child: _Child(members=members) for child, members in place.children}
        self._own: float | None = None
        self._own_ready = 0
        """Chunks of our own part that are there."""
        self._known: dict[SiteId, float] = {}
        self._checks: dict[SiteId, bytes] = {}
        self._limit: int | None = None
        self._released = 0
        self._wants: dict[SiteId, int] = {}
        self._sum: Combine | None = None
        """Of chunk 0; those after it differ in their number alone."""

    # -- opening, links

    def opened(self) -> list[ReduceEffect]:
        """Tell the parent where we stand, and the children how far they may go."""
        effects: list[ReduceEffect] = []
        if self.place.parent is not None:
            effects.append(self._want())
        for child in self._children:
            effects += self._grant_to(child)
        return effects

    def link_lost(self, site: SiteId) -> None:
        self._wants.pop(site, None)
        if site == self.place.parent:
            self._limit = None

    def link_up(self, site: SiteId) -> list[ReduceEffect]:
        if site == self.place.parent and self.finished < self.count:
            return [self._want()]
        return self._grant_to(site) if site in self._children else []

    # -- up

    def check(self, check: bytes) -> None:
        """What this site says of its state, before it contributes."""
        self._checks[self.site] = check

    def contribute(self, weight: float, ready: int | None = None) -> list[ReduceEffect]:
        """Our own part is there, or its first `ready` chunks; weight 0: nothing."""
        self._own = weight
        self._known[self.site] = weight
        return self.goes_on(ready)

    def goes_on(self, ready: int | None) -> list[ReduceEffect]:
        """So many chunks of our own part are there; None: all."""
        self._own_ready = self.count if ready is None else max(ready, self._own_ready)
        return self.advance()

    def granted(self, site: SiteId, message: ChunkGrant) -> list[ReduceEffect]:
        """The parent says which chunks it has and how many more it takes. The first grant on a connection says where
        to start."""
        self._require(site == self.place.parent, site, "only a parent grants chunks")
        fits = message.next <= self.combined and message.next <= message.limit <= self.count
        self._require(fits and message.next >= self._released, site, "a grant must fit what was sent")
        effects: list[ReduceEffect] = []
        if message.next > self._released:
            self._released = message.next
            effects.append(ReleasePartials(tag=self.tag, tree=self.tree, below=message.next))
        renewed, self._limit = self._limit is None, message.limit
        if renewed:
            effects += self._send_again(message.next)
        return effects + self.advance()

    def _send_again(self, start: int) -> list[ReduceEffect]:
        if start < self.combined and not any(self._known.values()):
            return [self._send_empty()]
        return [self._send_up(chunk) for chunk in range(start, self.combined)]

    def takes_up(self, site: SiteId, message: ChunkUp) -> ChildRef | None:
        """Where the child's chunk goes; None: it is here already, or has no bytes."""
        child = self._children.get(site)
        self._require(child is not None, site, "only a child that contributes sends sums")
        assert child is not None
        if message.chunk < child.received:
            return None
        self._require(message.chunk == child.received, site, "chunks must come in order")
        self._require(message.chunk < child.limit, site, "a chunk must lie within its grant")
        self._require((message.chunk == 0) == bool(message.weights), site, "chunk 0, and no other, has the weights")
        if message.weights:
            self._require(len(message.weights) == len(child.members), site, "one weight for each site of the subtree")
            self._require_sensible(message.weights, site)
            self._require(any(message.weights) != message.empty, site, "a subtree is empty if it has no weight")
        self._require(message.chunk == 0 or not message.empty, site, "only chunk 0 says that a subtree is empty")
        self._require_checks(site, message.chunk, message.checks, child.members)
        return None if message.empty else ChildRef(tag=self.tag, tree=self.tree, chunk=message.chunk, child=site)

    def received_up(self, site: SiteId, message: ChunkUp) -> list[ReduceEffect]:
        """The child's chunk lies in its scratch."""
        self.takes_up(site, message)
        child = self._children[site]
        if message.chunk < child.received:
            return []
        if message.weights:
            self._note(child.members, message.weights)
            self._known.update(zip(child.members, message.weights, strict=True))
        self._checks.update(zip(child.members, message.checks, strict=False))
        child.empty = message.empty
        child.received = self.count if message.empty else message.chunk + 1
        return self.advance()

    def advance(self) -> list[ReduceEffect]:
        """Sum whatever can be summed, send it on, let the children go on."""
        effects: list[ReduceEffect] = []
        before, turn_is_over = self.combined, False
        while self._may_combine():
            if self.combined == before + self._turn_max:
                turn_is_over = True
                break
            if self.combined == 0 and not any(self._known.values()):
                effects += self._nothing_to_sum()
                break
            effects += self._combine()
        if self.combined > before:
            for site, child in self._children.items():
                step = self._room() - child.limit
                if not child.empty and (step >= self._grant_step or (step > 0 and self._room() == self.count)):
                    effects += self._grant_to(site)
        if turn_is_over and not self._goes_on:
            self._goes_on = True
            effects.append(GoOn(tag=self.tag, tree=self.tree))  # last: what it brings comes after all of this
        return effects

    def go_on(self) -> list[ReduceEffect]:
        """What a `GoOn` asked for."""
        self._goes_on = False
        return self.advance()

    def _may_combine(self) -> bool:
        if self.combined >= self._own_ready or self.combined == self.count or self.came_up_empty:
            return False
        if any(child.received <= self.combined for child in self._children.values()):
            return False
        return self.place.parent is None or (self._limit is not None and self.combined < self._limit)

    def _nothing_to_sum(self) -> list[ReduceEffect]:
        if self.place.parent is None:
            self.came_up_empty = True
            return [RoundEmpty(tag=self.tag)]
        self.combined = self.count
        return [self._send_empty()]

    def _combine(self) -> list[ReduceEffect]:
        chunk = self.combined
        self.combined += 1
        first = self._sum = self._sum or self._sum_of_chunk_0()
        effects: list[ReduceEffect] = [structs.replace(first, chunk=chunk) if chunk else first]
        if self.place.parent is not None:
            return [*effects, self._send_up(chunk)]
        if self.weights is None:
            self.weights = tuple(self._known[member] for member in self.place.members)
            self.checks = self._checks_of(self.place.members)
        effects.append(Finalise(tag=self.tag, tree=self.tree, chunk=chunk, total=fsum(self.weights)))
        self.finished = chunk + 1
        return effects + self._serve()

    def _sum_of_chunk_0(self) -> Combine:
        """Every child has told its weights by then."""
        giving = tuple((site, child.members) for site, child in self._children.items() if not child.empty)
        return Combine(
            tag=self.tag,
            tree=self.tree,
            chunk=0,
            weight=self._own or None,
            children=tuple(site for site, _ in giving),
            children_weights=tuple(fsum(self._known[member] for member in members) for _, members in giving),
            subtree_weight=(
                fsum(self._known[member] for member in self.place.subtree) if self.place.parent is not None else None
            ),
        )

    # -- down

    def wanted(self, site: SiteId, message: ChunkWant) -> list[ReduceEffect]:
        """A child has opened the round, or finds its link renewed."""
        self._require(site in self._children or site in self.place.listeners, site, "only a child wants results")
        self._require(message.next <= self.count, site, "a chunk that is wanted must exist")
        self._wants[site] = message.next
        return self._serve()

    def takes_down(self, site: SiteId, message: ChunkDown) -> ResultRef | None:
        """Where the chunk of the result goes; None: it is here already."""
        self._require(site == self.place.parent, site, "results come from the parent")
        complete = message.chunk < self._own_ready or self.site not in self.place.subtree
        self._require(complete, site, "no result is complete without this site's part")
        if message.chunk < self.finished:
            return None
        self._require(message.chunk == self.finished < self.count, site, "chunks must come in order")
        self._require((message.chunk == 0) == bool(message.weights), site, "chunk 0, and no other, has the weights")
        if message.weights:
            members = self.place.members
            self._require(len(message.weights) == len(members), site, "one weight for each member")
            self._require(any(message.weights), site, "a result has some weight behind it")
            self._require_sensible(message.weights, site)
        self._require_checks(site, message.chunk, message.checks, self.place.members)
        return ResultRef(tag=self.tag, tree=self.tree, chunk=message.chunk)

    def received_down(self, site: SiteId, message: ChunkDown, found: bytes) -> list[ReduceEffect]:
        """The chunk lies in the result, and has the hash `found`."""
        if self.takes_down(site, message) is None:
            return []
        self._require(message.hash == found, site, "it sent a chunk of a result that does not have its hash")
        if message.weights:
            self._note(self.place.members, message.weights)
            self.weights, self.checks = message.weights, message.checks
        self.finished = message.chunk + 1
        return self._serve()

    def _serve(self) -> list[ReduceEffect]:
        effects: list[ReduceEffect] = []
        for site in sorted(self._wants):
            for chunk in range(self._wants[site], self.finished):
                effects.append(self._send_down(site, chunk))
            self._wants[site] = max(self._wants[site], self.finished)
        return effects

    # -- messages

    def _room(self) -> int:
        return min(self.count, self.combined + self._in_flight_max)

    def _want(self) -> SendBulk:
        assert self.place.parent is not None
        return SendBulk(site=self.place.parent, header=ChunkWant(tag=self.tag, tree=self.tree, next=self.finished))

    def _grant_to(self, site: SiteId) -> list[ReduceEffect]:
        child = self._children[site]
        if child.empty:
            return []
        child.limit = self._room()
        header = ChunkGrant(tag=self.tag, tree=self.tree, next=child.received, limit=child.limit)
        return [SendBulk(site=site, header=header)]

    def _send_up(self, chunk: int) -> SendBulk:
        assert self.place.parent is not None
        weights = tuple(self._known[member] for member in self.place.subtree) if chunk == 0 else ()
        checks = self._checks_of(self.place.subtree) if chunk == 0 else ()
        return SendBulk(
            site=self.place.parent,
            header=ChunkUp(tag=self.tag, tree=self.tree, chunk=chunk, weights=weights, checks=checks),
            payload=PartialRef(tag=self.tag, tree=self.tree, chunk=chunk),
        )

    def _send_empty(self) -> SendBulk:
        assert self.place.parent is not None
        weights = (0.0,) * len(self.place.subtree)
        checks = self._checks_of(self.place.subtree)
        header = ChunkUp(tag=self.tag, tree=self.tree, chunk=0, empty=True, weights=weights, checks=checks)
        return SendBulk(site=self.place.parent, header=header)

    def _send_down(self, site: SiteId, chunk: int) -> SendBulk:
        assert self.weights is not None
        weights, checks = (self.weights, self.checks) if chunk == 0 else ((), ())
        return SendBulk(
            site=site,
            header=ChunkDown(tag=self.tag, tree=self.tree, chunk=chunk, weights=weights, checks=checks),
            payload=ResultRef(tag=self.tag, tree=self.tree, chunk=chunk),
        )

    def _require_sensible(self, weights: tuple[float, ...], site: SiteId) -> None:
        """The decoder has bounded them above."""
        sensible = all(weight == 0 or weight >= WEIGHT_MIN for weight in weights)
        self._require(sensible, site, SENSIBLE)

    def _checks_of(self, sites: tuple[SiteId, ...]) -> tuple[bytes, ...]:
        """Empty for a site that says nothing. None where no site does; nor where those of all members do not fit into a
        header: nobody is asked then, but one may say something all the same."""
        checks = tuple(self._checks.get(site, b"") for site in sites)
        return checks if any(checks) and len(self.place.members) <= CHECKED_SITES_MAX else ()

    def _require_checks(self, site: SiteId, chunk: int, checks: tuple[bytes, ...], of: tuple[SiteId, ...]) -> None:
        if checks:
            self._require(chunk == 0 and len(checks) == len(of), site, "checks come with chunk 0, one for each site")
            whole = all(len(check) in CHECK_SIZES for check in checks)
            self._require(whole, site, "a check of a state has its size")

    def _require(self, holds: bool, site: SiteId, rule: str) -> None:
        if not holds:
            raise RemoteProtocolError(f"site {short(site)} broke a rule of round {self.tag.round}: {rule}")
