"""The averaging of rounds at one site, as a pure machine: which chunk is awaited from whom, summed, sent, kept.

    partial = weight * own + sums of the children, in ascending order of site; at the root result = partial / total

so the result has the same bits at every site (spec 9.8). Driven by the reduce engine of the daemon, and
by the simulator with one chunk a round. A later tag replaces the running one; whatever is of a tag that is not current
changes nothing, except that the last finished rounds still serve those children who have not got their results yet.

`open` makes a site ready to receive from its children and its parent, `contribute` says that its own part is there.
What comes for a tag that is not open yet is dropped, but for the newest grant and want of each neighbour and tree: they
are used when the tag is opened. See `tree.TreeFlow` for the flow of chunks.

A bulk frame with a payload passes in two steps: `place` says where its payload goes (or that nobody needs it), and
`received` that it lies there. Both raise RemoteProtocolError where the peer breaks a rule; nothing has changed then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from chaos_protocols.errors import LocalProtocolError, RemoteProtocolError
from chaos_protocols.names import WEIGHT_MAX, WEIGHT_MIN, SiteId, short
from chaos_protocols.rounds.reduce.effects import (
    ChildRef,
    GoOn,
    ReduceEffect,
    ResultLost,
    ResultRef,
    RoundEmpty,
    RoundReduced,
    SendBulk,
)
from chaos_protocols.rounds.reduce.topology import TreePlace, places_of
from chaos_protocols.rounds.reduce.tree import TreeFlow
from chaos_protocols.wire.bulk import ChunkDown, ChunkGone, ChunkGrant, ChunkHeader, ChunkUp, ChunkWant
from chaos_protocols.wire.plans import SyncPlan, Tag

CHUNKS_IN_FLIGHT_MAX = 16
"""Chunks of a tree under way from a child: 8 MiB, enough for 300 Mbit/s at 200 ms with room for jitter."""

CHUNKS_A_TURN_MAX = 16
"""Chunks of a tree that are summed in one go where nobody is waited for: some 5 ms, so that control is not held up."""

RESULTS_KEPT = 2
"""Finished rounds that still serve children: the last one, and the one before for a listener that lags."""


class _Round:
    """One tag: its trees, and what everybody said about the weights."""

    def __init__(self, tag: Tag, member: bool) -> None:
        self.tag = tag
        self.member = member
        self.trees: dict[int, TreeFlow] = {}
        self.contributed = False
        self.begun = 0.0
        """The weight of this site's part, of which something is still to come; 0: nothing is."""
        self.finished = False
        self.came_up_empty = False
        self.weights: dict[SiteId, float] = {}

    def note(self, sites: tuple[SiteId, ...], weights: tuple[float, ...]) -> None:
        """All trees, and everybody on the way, must say the same."""
        for site, weight in zip(sites, weights, strict=True):
            if self.weights.get(site, weight) != weight:
                raise RemoteProtocolError(
                    f"two weights are told for site {short(site)} in round {self.tag.round}: "
                    f"{self.weights[site]:g} and {weight:g}"
                )
        self.weights.update(zip(sites, weights, strict=True))


class ReduceMachine:
    """See the module."""

    def __init__(
        self,
        site: SiteId,
        *,
        chunks_in_flight_max: int = CHUNKS_IN_FLIGHT_MAX,
        results_kept: int = RESULTS_KEPT,
        chunks_a_turn_max: int = CHUNKS_A_TURN_MAX,
    ) -> None:
        """Raises ValueError for limits below 1."""
        if chunks_in_flight_max < 1 or results_kept < 1 or chunks_a_turn_max < 1:
            raise ValueError("chunks_in_flight_max, results_kept and chunks_a_turn_max must be at least 1")
        self.chunks_a_turn_max = chunks_a_turn_max
        self.site = site
        self.chunks_in_flight_max = chunks_in_flight_max
        self.results_kept = results_kept
        self._current: _Round | None = None
        self._kept: list[_Round] = []
        self._newest: Tag | None = None
        self._evicted: Tag | None = None
        self._early: dict[tuple[SiteId, int, bool], ChunkGrant | ChunkWant] = {}
        self._places: tuple[SyncPlan, frozenset[SiteId], tuple[TreePlace, ...]] | None = None

    @property
    def tag(self) -> Tag | None:
        """Of the round that is open and not finished."""
        return self._current.tag if self._current is not None else None

    # -- the driver's wishes

    def open(
        self,
        tag: Tag,
        plan: SyncPlan,
        *,
        chunk_counts: Sequence[int],
        listeners: frozenset[SiteId] = frozenset(),
        member: bool,
    ) -> list[ReduceEffect]:
        """Be ready for `tag`; a tag before is stopped. `chunk_counts`: chunks of each tree, at least one in all.

        Raises LocalProtocolError for an older tag, a plan that is no set of trees, or a site with another part in it.
        """
        if member and self._newest is not None and tag < self._newest:
            raise LocalProtocolError(f"{tag} is opened after {self._newest}")
        places = self._places_in(plan, listeners)
        if len(chunk_counts) != len(places) or not any(chunk_counts):
            raise LocalProtocolError(f"chunk counts {list(chunk_counts)} do not fit {len(places)} trees")
        if member == (self.site in listeners):
            raise LocalProtocolError(f"site {short(self.site)} cannot both contribute and only listen")
        current = _Round(tag, member)
        for tree, (place, count) in enumerate(zip(places, chunk_counts, strict=True)):
            if count:
                current.trees[tree] = TreeFlow(
                    self.site,
                    tag,
                    tree,
                    place,
                    count=count,
                    in_flight_max=self.chunks_in_flight_max,
                    turn_max=self.chunks_a_turn_max,
                    note=current.note,
                )
        self._current, self._newest = current, tag
        self._kept = [kept for kept in self._kept if kept.tag.round != tag.round]
        effects = [effect for flow in current.trees.values() for effect in flow.opened()]
        return effects + self._replay(current)

    def contribute(
        self, tag: Tag, weight: float, *, has_bytes: bool, check: bytes = b"", ready: Sequence[int] | None = None
    ) -> list[ReduceEffect]:
        """This site's part of the open round. Weight 0 and no bytes: standby. Another tag changes nothing. `check`: of
        its state, if it says something of it. `ready`: chunks of each tree that are there; None: all. Where some were
        still to come, more are there now, with the same weight and bytes; without bytes, the rest is no number.

        Raises LocalProtocolError for a listener, a second part, or a weight that does not fit.
        """
        current = self._current
        if current is None or current.tag != tag:
            return []
        if current.begun and (weight == current.begun or not has_bytes):
            return self._goes_on(current, ready)
        if not current.member or current.contributed:
            raise LocalProtocolError(f"site {short(self.site)} has no (further) part to give to round {tag.round}")
        if not (weight == 0 or WEIGHT_MIN <= weight <= WEIGHT_MAX) or (weight > 0) != has_bytes:
            raise LocalProtocolError(f"weight {weight} with{'' if has_bytes else 'out'} bytes is no contribution")
        current.contributed = True
        current.note((self.site,), (weight,))
        if check:
            next(iter(current.trees.values())).check(check)
        current.begun = weight if ready is not None else 0.0
        told = [flow.contribute(weight, _of(ready, tree)) for tree, flow in current.trees.items()]
        return self._resolved([effect for effects in told for effect in effects])

    def _goes_on(self, current: _Round, ready: Sequence[int] | None) -> list[ReduceEffect]:
        if ready is None:
            current.begun = 0.0
        told = [flow.goes_on(_of(ready, tree)) for tree, flow in current.trees.items()]
        return self._resolved([effect for effects in told for effect in effects])

    def go_on(self, effect: GoOn) -> list[ReduceEffect]:
        """What it asked for; another tag changes nothing."""
        current = self._current
        if current is None or current.tag != effect.tag:
            return []
        return self._resolved(current.trees[effect.tree].go_on())

    def stop(self, tag: Tag) -> list[ReduceEffect]:
        """Take nothing more of `tag`. Finished rounds still serve their children."""
        if self._current is not None and self._current.tag == tag:
            self._current = None
        return []

    def forget(self, round_number: int) -> None:
        """The result of a finished round is dropped: it can serve nobody any more."""
        for kept in [kept for kept in self._kept if kept.tag.round == round_number]:
            self._evict(kept)

    def _evict(self, kept: _Round) -> None:
        self._kept.remove(kept)
        self._evicted = kept.tag if self._evicted is None else max(self._evicted, kept.tag)

    # -- links

    def link_lost(self, site: SiteId) -> None:
        for key in [key for key in self._early if key[0] == site]:
            del self._early[key]
        for one in self._rounds():
            for flow in one.trees.values():
                flow.link_lost(site)

    def link_up(self, site: SiteId) -> list[ReduceEffect]:
        """A new connection: say again where we stand. What was on its way over the old one may be lost."""
        self.link_lost(site)
        if self._current is None:
            return []
        return [effect for flow in self._current.trees.values() for effect in flow.link_up(site)]

    # -- what comes from peers

    def place(self, site: SiteId, header: ChunkUp | ChunkDown) -> ChildRef | ResultRef | None:
        """Where the payload of this chunk goes; None: nobody needs it. Raises RemoteProtocolError."""
        flow = self._flow(self._current, header)
        if flow is None:
            return None
        return flow.takes_up(site, header) if isinstance(header, ChunkUp) else flow.takes_down(site, header)

    def received(self, site: SiteId, header: ChunkHeader, *, found: bytes = b"") -> list[ReduceEffect]:
        """A whole frame is here; its payload, if it has one, lies where `place` said. `found`: of a chunk of the
        result, the hash of what lies there. Raises RemoteProtocolError."""
        match header:
            case ChunkGrant() | ChunkWant():
                return self._position_told(site, header)
            case ChunkUp():
                flow = self._flow(self._current, header)
                return self._resolved(flow.received_up(site, header)) if flow is not None else []
            case ChunkDown():
                flow = self._flow(self._current, header)
                return self._resolved(flow.received_down(site, header, found)) if flow is not None else []
            case ChunkGone(tag=tag):
                return self._parent_has_dropped(site, tag)
            case _:
                assert_never(header)

    def _position_told(self, site: SiteId, header: ChunkGrant | ChunkWant) -> list[ReduceEffect]:
        for one in self._rounds():
            if one.tag == header.tag:
                flow = self._flow(one, header)
                assert flow is not None, "its tag is that of the header"
                if isinstance(header, ChunkWant):
                    return flow.wanted(site, header)
                return self._resolved(flow.granted(site, header)) if one is self._current else []
        if self._newest is None or header.tag > self._newest:
            key = (site, header.tree, isinstance(header, ChunkWant))
            known = self._early.get(key)
            if known is None or known.tag <= header.tag:
                self._early[key] = header
            return []
        if isinstance(header, ChunkWant) and self._evicted is not None and header.tag <= self._evicted:
            return [SendBulk(site=site, header=ChunkGone(tag=header.tag))]
        return []

    def _parent_has_dropped(self, site: SiteId, tag: Tag) -> list[ReduceEffect]:
        current = self._current
        if current is None or current.tag != tag:
            return []
        if all(flow.place.parent != site for flow in current.trees.values()):
            raise RemoteProtocolError(
                f"site {short(site)} broke a rule of round {tag.round}: results come from the parent"
            )
        if current.member:
            return []  # no round after this one is done without its part: its parent holds the result, or has gone on
        self._current = None
        return [ResultLost(tag=tag)]

    # -- helpers

    def _rounds(self) -> list[_Round]:
        return [*self._kept, self._current] if self._current is not None else self._kept

    def _flow(self, one: _Round | None, header: ChunkGrant | ChunkWant | ChunkUp | ChunkDown) -> TreeFlow | None:
        """None: of a tag that is not current. Raises RemoteProtocolError for a tree that the tag does not have."""
        if one is None or one.tag != header.tag:
            return None
        flow = one.trees.get(header.tree)
        if flow is None:
            raise RemoteProtocolError(f"round {header.tag.round} has no chunks on tree {header.tree}")
        return flow

    def _replay(self, current: _Round) -> list[ReduceEffect]:
        """Use what came before the tag was opened. A site that told nonsense then is ignored: it is not ours to judge
        without a connection at hand; what it sends next is judged."""
        effects: list[ReduceEffect] = []
        for key in sorted(self._early):
            header = self._early[key]
            if header.tag > current.tag:
                continue
            del self._early[key]
            if header.tag == current.tag:
                try:
                    effects += self._position_told(key[0], header)
                except RemoteProtocolError:
                    continue
        return effects

    def _resolved(self, effects: list[ReduceEffect]) -> list[ReduceEffect]:
        """Tell the end of the round, once."""
        current = self._current
        assert current is not None
        told = current.came_up_empty
        current.came_up_empty = any(flow.came_up_empty for flow in current.trees.values())
        if current.came_up_empty:
            effects = [effect for effect in effects if not isinstance(effect, RoundEmpty)]
            if not told:
                effects.append(RoundEmpty(tag=current.tag))
        if not any(flow.finished < flow.count for flow in current.trees.values()):
            self._current = None
            self._kept.append(current)
            while len(self._kept) > self.results_kept:
                self._evict(self._kept[0])
            first = next(iter(current.trees.values()))
            members = first.place.members
            weights = tuple((member, current.weights[member]) for member in members)
            checks = tuple((site, check) for site, check in zip(members, first.checks, strict=False) if check)
            effects = [*effects, RoundReduced(tag=current.tag, weights=weights, checks=checks)]
        return effects

    def _places_in(self, plan: SyncPlan, listeners: frozenset[SiteId]) -> tuple[TreePlace, ...]:
        """The plan stays the same for many rounds, and for many sites of a simulation."""
        known = self._places
        if known is not None and known[0] is plan and known[1] == listeners:
            return known[2]
        places = places_of(self.site, plan, listeners)
        self._places = (plan, listeners, places)
        return places


def _of(ready: Sequence[int] | None, tree: int) -> int | None:
    return None if ready is None else ready[tree]
