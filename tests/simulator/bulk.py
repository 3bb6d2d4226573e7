"""The bulk engines of a simulated site: rounds reduced along the agreed tree, results kept and fetched, states
transferred.

A vector is one chunk here; everything that decides (tags, who waits for whom, what a renewed link sends again) is as
in the daemon.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chaos_protocols import effects, events
from chaos_protocols.plans import ReplicationPlan, Tag

Send = Callable[[str, Any], None]
Emit = Callable[[Any], None]
Later = Callable[[float, Callable[[], None]], None]
Part = tuple[float, Any]
"""What one site gives to a round: its weight, and a token that says what it was computed from."""

Reduced = Callable[[Any, dict[str, Part]], None]

PATIENCE_S = 2.0
PATIENCES = 3
"""A source that was asked so often, so many seconds apart, and has sent nothing, is given up."""


def digest_of(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


@dataclass
class OpenedRound:
    effect: effects.OpenRound
    own: Part | None = None
    parts: dict[str, dict[str, Part]] = field(default_factory=dict)
    sent_up: bool = False


class SimulatedBulk:
    """`send(site, message)` goes over the connection to a neighbour, if there is one; `emit(event)` to the site's
    machine."""

    def __init__(self, site: str, send: Send, emit: Emit, reduced: Reduced, later: Later) -> None:
        self.site, self._send, self._emit, self._reduced, self._later = site, send, emit, reduced, later
        self.open: OpenedRound | None = None
        self.results: dict[int, tuple[str, tuple[tuple[str, Part], ...]]] = {}
        self.finished: Tag | None = None
        self.tags: dict[int, Tag] = {}
        self._early: dict[tuple[str, str], Any] = {}
        self._wanted: dict[Tag, set[str]] = {}
        self._settled_wanted: dict[tuple[int, str], set[str]] = {}
        self._evicted: Tag | None = None
        self._fetching: tuple[int, str] | None = None
        self.serving: tuple[ReplicationPlan, Any] | None = None
        self._asked: dict[str, set[str]] = {}
        self.fetching: ReplicationPlan | None = None
        self._missing: set[str] = set()
        self._dead: set[str] = set()
        self._state: Any = None
        self.stalled = False
        self.spoils = 0

    # -- rounds

    def open_round(self, effect: effects.OpenRound) -> None:
        self.open = OpenedRound(effect)
        if not effect.member:
            parent, _, _ = self._tree()
            assert parent is not None
            self._send(parent, ("want", effect.tag))
        early, self._early = self._early, {}
        for (source, _), message in sorted(early.items(), key=lambda item: item[0]):
            self.receive(source, message)

    def contribute(self, effect: effects.Contribute, token: Any) -> None:
        if self.open is not None and self.open.effect.tag == effect.tag:
            self.open.own = (effect.weight, token)
            self._advance()

    def is_open(self, tag: Tag) -> bool:
        return self.open is not None and self.open.effect.tag == tag

    def stop_round(self, tag: Tag) -> None:
        if self.open is not None and self.open.effect.tag == tag:
            self.open = None

    def _tree(self) -> tuple[str | None, list[str], list[str]]:
        """Parent, children that contribute, children that only listen."""
        assert self.open is not None
        effect = self.open.effect
        tree = effect.plan.trees[0]
        parent = dict(tree.parent).get(self.site)  # type: ignore[call-overload]
        children = [child for child, above in tree.parent if above == self.site]
        return (
            parent,
            [child for child in children if child not in effect.listeners],
            [child for child in children if child in effect.listeners],
        )

    def _advance(self) -> None:
        opened = self.open
        if opened is None or opened.own is None or not opened.effect.member:
            return
        parent, children, _ = self._tree()
        if any(child not in opened.parts for child in children):
            return
        parts = {self.site: opened.own}
        for child in children:
            parts |= opened.parts[child]
        tag = opened.effect.tag
        if parent is not None:
            self._send(parent, ("up", tag, parts))
            return
        if sum(weight for weight, _ in parts.values()) <= 0:
            self._emit(events.ReduceStalled(tag=tag))
            return
        final = tuple(sorted(parts.items()))
        self._finish(tag, digest_of((tag.round, final)), final)

    def _finish(self, tag: Tag, digest: str, parts: tuple[tuple[str, Part], ...]) -> None:
        _, children, _ = self._tree()
        self.open = None
        self.finished = tag
        self.results[tag.round], self.tags[tag.round] = (digest, parts), tag
        if self._fetching is not None and self._fetching[0] == tag.round:
            self._fetching = None  # done again: what was settled of it before is void
        for child in children:
            self._send(child, ("down", tag, digest, parts))
        for wanting in sorted(self._wanted.pop(tag, ())):
            self._send(wanting, ("result", tag, digest, self._on_the_way(parts)))
        self._wanted = {later: sites for later, sites in self._wanted.items() if later > tag}
        self._held(tag.round, digest, parts)
        weights = tuple((site, weight) for site, (weight, _) in parts)
        finished = events.ReduceFinished(tag=tag, digest=digest, weights=weights)  # type: ignore[arg-type]
        self._reduced(finished, dict(parts))

    def receive(self, source: str, message: Any) -> None:
        kind = message[0]
        if kind in ("up", "down"):
            self._round_message(source, message)
        elif kind == "want":
            self._want(source, message[1])
        elif kind == "result":
            self._result(source, message[1], message[2], message[3])
        elif kind == "no result":
            if self._listens_to(message[1]):
                self._emit(events.ResultMissed(tag=message[1]))
        elif kind == "settled?":
            self._settled_want(source, message[1], message[2])
        elif kind == "settled":
            self._fetched(source, message[1], message[2], message[3])
        elif kind == "state?":
            self._asked.setdefault(message[1], set()).add(source)
            self._serve()
        elif kind == "state":
            self._got_state(source, message[1], message[2], message[3])
        elif kind == "gone":
            self.source_lost(source)

    def _round_message(self, source: str, message: Any) -> None:
        tag: Tag = message[1]
        opened = self.open
        if opened is None or opened.effect.tag != tag:
            if message[0] == "up" and tag.round in self.results and tag == self.tags[tag.round]:
                digest, weights = self.results[tag.round]
                self._send(source, ("down", tag, digest, weights))
            elif opened is None or tag > opened.effect.tag:
                known = self._early.get((source, message[0]))
                if known is None or tag > known[1]:
                    self._early[source, message[0]] = message
            return
        parent, children, _ = self._tree()
        if message[0] == "up" and source in children:
            opened.parts[source] = dict(message[2])
            self._advance()
        elif message[0] == "down" and source == parent:
            self._finish(tag, message[2], message[3])

    def link_up(self, site: str) -> None:
        """New or renewed: what this side still owes goes over it again."""
        if self.open is not None and self.open.own is not None:
            parent, _, _ = self._tree()
            if parent == site:
                self._advance()
        elif self.open is not None:
            parent, _, _ = self._tree()
            if parent == site:
                self._send(site, ("want", self.open.effect.tag))
        if self._fetching is not None:
            self._send(site, ("settled?", *self._fetching))
        if self.fetching is not None and site in self._missing:
            self._send(site, ("state?", self.fetching.transfer))

    def fetch_result(self, round_number: int, digest: str, neighbours: list[str]) -> None:
        self._fetching = (round_number, digest)
        for site in neighbours:
            self._send(site, ("settled?", round_number, digest))

    def _listens_to(self, tag: Tag) -> bool:
        return self.open is not None and not self.open.effect.member and self.open.effect.tag == tag

    def _want(self, source: str, tag: Tag) -> None:
        """A listener's: of this tag, as all chunks are; a result of an older epoch may have been given up since."""
        if self.tags.get(tag.round) == tag:
            digest, parts = self.results[tag.round]
            self._send(source, ("result", tag, digest, self._on_the_way(parts)))
        elif self._evicted is not None and tag <= self._evicted:
            self._send(source, ("no result", tag))
        elif self.finished is None or tag > self.finished:
            self._wanted.setdefault(tag, set()).add(source)

    def _result(self, source: str, tag: Tag, digest: str, parts: Any) -> None:
        if not self._listens_to(tag):
            return
        if self.verified((tag.round, parts), digest):
            self._finish(tag, digest, parts)
        else:
            self._send(source, ("want", tag))

    def _settled_want(self, source: str, round_number: int, digest: str) -> None:
        """Of a round that was settled: whatever its tag was, the digest says which result is meant."""
        known = self.results.get(round_number)
        if known is not None and known[0] == digest:
            self._send(source, ("settled", round_number, digest, self._on_the_way(known[1])))
        else:
            self._settled_wanted.setdefault((round_number, digest), set()).add(source)

    def _held(self, round_number: int, digest: str, parts: Any) -> None:
        for wanting in sorted(self._settled_wanted.pop((round_number, digest), ())):
            self._send(wanting, ("settled", round_number, digest, self._on_the_way(parts)))

    def _fetched(self, source: str, round_number: int, digest: str, parts: Any) -> None:
        if self._fetching != (round_number, digest):
            return
        if not self.verified((round_number, parts), digest):
            self._send(source, ("settled?", round_number, digest))
            return
        self._fetching = None
        self.results[round_number] = (digest, parts)
        self.tags[round_number] = Tag(epoch=0, round=round_number)
        self._held(round_number, digest, parts)
        self._emit(events.ResultFetched(round=round_number, digest=digest))

    def drop_results(self, before_round: int) -> None:
        for round_number in [one for one in self.results if one < before_round]:
            del self.results[round_number]
            tag = self.tags.pop(round_number)
            self._evicted = tag if self._evicted is None else max(self._evicted, tag)

    def void_results(self, after_round: int) -> None:
        for round_number in [one for one in self.results if one > after_round]:
            del self.results[round_number], self.tags[round_number]

    # -- state

    def put_state(self, state: Any) -> None:
        """Not by a transfer: the site had it."""
        self._state = state

    def serve_state(self, plan: ReplicationPlan, state: Any) -> None:
        self.serving = (plan, state)
        self._serve()

    def stall(self, stalled: bool) -> None:
        """A source that stands still: what it was asked for waits."""
        self.stalled = stalled
        self._serve()

    def abort(self) -> None:
        """A source that gives up in the middle: whoever asked is told."""
        if self.serving is not None:
            for joiner in sorted(self._asked.pop(self.serving[0].transfer, ())):
                self._send(joiner, ("gone",))

    def release_state(self, transfer: str) -> None:
        if self.serving is not None and self.serving[0].transfer == transfer:
            self.serving = None

    def _serve(self) -> None:
        if self.serving is None or self.stalled:
            return
        plan, state = self.serving
        for joiner in sorted(self._asked.pop(plan.transfer, ())):
            self._send(joiner, ("state", plan.transfer, self._on_the_way(state), digest_of(state)))

    def fetch_state(self, plan: ReplicationPlan) -> None:
        self.fetching, self._state = plan, None
        self._missing = {part.source for part in plan.ranges}
        self._dead = set()
        for source in sorted(self._missing):
            self._send(source, ("state?", plan.transfer))
        self._later(PATIENCE_S, lambda: self._look_at_sources(plan, 1))

    def _look_at_sources(self, plan: ReplicationPlan, times: int) -> None:
        """Who owes something still is asked again, and given up after PATIENCES of it."""
        if self.fetching is not plan:
            return
        for source in sorted(self._missing):
            if times >= PATIENCES:
                self.source_lost(source)
            else:
                self._send(source, ("state?", plan.transfer))
        self._later(PATIENCE_S, lambda: self._look_at_sources(plan, times + 1))

    def cancel(self, transfer: str) -> None:
        if self.fetching is not None and self.fetching.transfer == transfer:
            self.fetching = None

    def spoil(self, count: int) -> None:
        """The next states and results that this site sends have a wrong byte."""
        self.spoils = count

    def _on_the_way(self, value: Any) -> Any:
        if not self.spoils:
            return value
        self.spoils -= 1
        return (*value[:-1], "spoiled")

    @staticmethod
    def verified(value: Any, digest: str) -> bool:
        """What came has the hash that was announced: nothing else counts (spec 11.6)."""
        return digest_of(value) == digest

    def _got_state(self, source: str, transfer: str, state: Any, digest: str) -> None:
        plan = self.fetching
        if plan is None or plan.transfer != transfer or source not in self._missing:
            return
        if not self.verified(state, digest):
            self.source_lost(source)  # it has other bytes than it said: given up
            return
        assert self._state is None or self._state == state, f"sources of {transfer} serve different states"
        self._state = state
        self._missing.discard(source)
        self._emit(events.TransferProgressed(transfer=transfer, verified_bytes=1))
        self._finish_transfer()

    def source_lost(self, site: str) -> None:
        if self.fetching is not None and site in self._missing:
            self._dead.add(site)
            self._missing.discard(site)
            self._finish_transfer()

    def _finish_transfer(self) -> None:
        plan = self.fetching
        if plan is None or self._missing:
            return
        self.fetching = None
        if self._state is None:
            self._emit(events.TransferFailed(transfer=plan.transfer, reason="all sources are gone"))
        else:
            self._emit(events.TransferFinished(transfer=plan.transfer))

    @property
    def received_state(self) -> Any:
        return self._state
