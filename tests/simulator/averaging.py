"""Rounds and results at a simulated site: carries out what the machines of `chaos_protocols.rounds.reduce` ask for.

As the daemon's reduce engine does, with chunks of `contents` for bytes. Every decision is the machines'; here is only
where a chunk lies. Not modelled: that the vector's layout may be unknown at first, or change (all sites know it).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from chaos_protocols import effects, events
from chaos_protocols.names import SiteId
from chaos_protocols.rounds.reduce import (
    ChildRef,
    Chunk,
    ChunkLayout,
    Combine,
    FetchedRef,
    Finalise,
    GoOn,
    HeldRef,
    PartialRef,
    Place,
    ReduceEffect,
    ReduceMachine,
    ReleasePartials,
    Residuals,
    ResultComplete,
    ResultEffect,
    ResultExchange,
    ResultLost,
    ResultRefuted,
    ResultUnavailable,
    ResultVerified,
    RetainedRounds,
    RoundEmpty,
    RoundReduced,
    SendBulk,
    lay_out,
)
from chaos_protocols.state.result_log import results_max
from chaos_protocols.wire.bulk import ChunkDown, ChunkGone, ChunkGrant, ChunkUp, ChunkWant, ResultData
from chaos_protocols.wire.plans import Tag
from tests.simulator.contents import Numbers, added, vector_digest
from tests.simulator.outbox import AVERAGING, Frame, Outbox
from tests.simulator.piecewise import OwnPart

if TYPE_CHECKING:
    from tests.simulator.node import Node

CHUNK = Chunk(start=0, stop=0, dtype="float32")
"""Its place in the vector is not modelled, only its number."""
NOTHING = Numbers(())


@dataclass(slots=True)
class Result:
    """The whole vector of a round."""

    round: int
    layout: ChunkLayout
    chunks: list[Numbers]
    digest: str = ""

    @property
    def finite(self) -> bool:
        """Whether it may be applied."""
        return all(chunk.finite for chunk in self.chunks)


@dataclass(slots=True)
class _Round:
    """Everything of one open tag. `centre`: around the result with this digest parts are clipped (empty: it is not
    here); None: around zero, or not. `own`: what this site gives."""

    tag: Tag
    result: Result
    centre: str | None = None
    own: OwnPart = field(default_factory=OwnPart)
    partials: dict[tuple[int, int], Numbers] = field(default_factory=dict)
    scratch: dict[tuple[int, int, str], Numbers] = field(default_factory=dict)


def _nothing_lost(count: int) -> tuple[list[Tag | None], list[Tag | None]]:
    """Two copies for each chunk."""
    return [None] * count, [None] * count


class Averaging:
    """See the module. `results`: by round, those that are held."""

    def __init__(self, node: Node) -> None:
        world = node.world
        self._node = node
        self._chunk_count = world.chunk_count
        self.machine = ReduceMachine(
            node.site,  # type: ignore[arg-type]
            chunks_in_flight_max=world.chunks_in_flight,
            results_kept=world.results_kept,
            chunks_a_turn_max=2,
        )
        self.exchange = ResultExchange(node.site)  # type: ignore[arg-type]
        self.outbox = Outbox(node._send_bulk)
        self.results: dict[int, Result] = {}
        self._retained = RetainedRounds(kept_min=world.results_kept, count_max=results_max(node.contribution_bytes) + 1)
        self._open: _Round | None = None
        self._residuals, self._lost = Residuals(self._chunk_count), _nothing_lost(self._chunk_count)
        self._fetching: Result | None = None
        self._incoming: dict[str, tuple[Place, _Round | Result]] = {}
        self._doubtful: set[str] = set()
        """Neighbours that have sent a wrong byte: what is fetched from them may lack its digest."""
        self.spoils = self.spoils_held = 0
        """So many chunks of results that this site sends to its children, and to those who fetch a whole result, have a
        byte that changed after they were hashed."""

    # -- what the site's machine asks for

    def open(self, effect: effects.OpenRound) -> None:
        self._close_round()
        tag, trees = effect.tag, effect.plan.trees
        layout = lay_out((CHUNK,) * self._chunk_count, [tree.weight for tree in trees], chunks_a_tree_min=1)
        result = Result(tag.round, layout, [NOTHING] * self._chunk_count)
        last = self.results.get(tag.round - 1) if effect.centred else None
        centre = None if not effect.centred or (last is not None and not last.finite) else last.digest if last else ""
        self._open = _Round(tag, result, centre)
        self._voided(tag.round - 1, kept=self._residuals.begin(tag.round, member=effect.member))
        listeners = frozenset(effect.listeners)
        self._run(
            self.machine.open(tag, effect.plan, chunk_counts=layout.counts, listeners=listeners, member=effect.member)
        )

    def contribute(self, effect: effects.Contribute, token: Any) -> None:
        opened = self._open
        if opened is None or opened.tag != effect.tag:
            return
        (own := opened.own).take(effect, token, self._chunk_count)
        ready = None if own.ready is None else opened.result.layout.ready(own.ready)
        part = self.machine.contribute
        self._run(part(effect.tag, effect.weight, has_bytes=effect.has_bytes, check=effect.check, ready=ready))

    @property
    def open_tag(self) -> Tag | None:
        """Of the round that is open here."""
        return self._open.tag if self._open is not None else None

    def centre(self, tag: Tag) -> str | None:
        """Around what parts of this tag, which is open, are clipped (`_Round.centre`)."""
        assert self._open is not None and self._open.tag == tag
        return self._open.centre

    def stop(self, tag: Tag) -> None:
        if self._open is not None and self._open.tag == tag:
            self._close_round()

    def drop_results(self, before_round: int, after_round: int | None = None) -> None:
        if after_round is not None:
            self._voided(after_round, kept=self._residuals.begin(after_round + 1, member=False))
        self._forget(self._retained.drop(before_round, after_round))

    def fetch_result(self, round_number: int, digest: str, holders: Iterable[SiteId]) -> None:
        here = self.results.get(round_number)
        if here is not None and here.digest == digest:
            self._node.soon(events.ResultFetched(round=round_number, digest=digest, finite=here.finite))
            return
        wanted = self._fetching
        if wanted is None or (wanted.round, wanted.digest) != (round_number, digest):
            layout = lay_out((CHUNK,) * self._chunk_count, [1.0])
            self._fetching = Result(round_number, layout, [NOTHING] * self._chunk_count, digest)
        self._run(self.exchange.fetch(round_number, digest, chunk_count=self._chunk_count, holders=holders))

    # -- links and frames

    def link_up(self, site: str) -> None:
        self._incoming.pop(site, None)
        self.outbox.link_up(site)
        self._run(self.machine.link_up(site))  # type: ignore[arg-type]
        self._run(self.exchange.link_up(site))  # type: ignore[arg-type]

    def link_lost(self, site: str) -> None:
        self._incoming.pop(site, None)
        self.outbox.link_lost(site)
        self.machine.link_lost(site)  # type: ignore[arg-type]
        self._run(self.exchange.link_lost(site))  # type: ignore[arg-type]

    def begins(self, site: str, frame: Frame) -> None:
        """The head of a frame is here, and says where its payload will lie. Raises RemoteProtocolError."""
        place = self._place(site, frame.header)
        if place is not None:
            memory: _Round | Result | None = self._fetching if isinstance(place, FetchedRef) else self._open
            assert memory is not None
            self._incoming[site] = (place, memory)

    def received(self, site: str, frame: Frame) -> None:
        """A frame is complete. Raises RemoteProtocolError."""
        header = frame.header
        found = b""
        if frame.payload is not None:
            place, memory = self._incoming.pop(site, (None, None))
            if place is None or (memory is not self._open and memory is not self._fetching):
                return  # nobody needs it, or its round was stopped while it arrived
            found = self._store(place, frame.payload)
            if frame.faulty:
                self._doubtful.add(site)
        if isinstance(header, ChunkUp | ChunkDown | ChunkGrant | ChunkWant | ChunkGone):
            self._run(self.machine.received(site, header, found=found))  # type: ignore[arg-type]
        else:
            self._run(self.exchange.received(site, header))  # type: ignore[arg-type]

    def _place(self, site: str, header: Any) -> Place | None:
        if isinstance(header, ResultData):
            return self.exchange.place(site, header)  # type: ignore[arg-type]
        return self.machine.place(site, header)  # type: ignore[arg-type]

    def _store(self, place: Place, chunk: Numbers) -> bytes:
        if isinstance(place, FetchedRef):
            assert self._fetching is not None
            self._fetching.chunks[place.index] = chunk
            return b""
        assert self._open is not None
        if isinstance(place, ChildRef):
            self._open.scratch[place.tree, place.chunk, place.child] = chunk
            return b""
        result = self._open.result
        result.chunks[result.layout.index(place.tree, place.chunk)] = chunk
        return chunk.hash

    # -- effects

    def _run(self, asked: Iterable[ReduceEffect | ResultEffect]) -> None:
        for effect in asked:
            match effect:
                case SendBulk():
                    self._send(effect)
                case Combine():
                    self._combine(effect)
                case Finalise(tree=tree, chunk=number, total=total):
                    opened = self._opened(effect.tag)
                    index = opened.result.layout.index(tree, number)
                    summed = opened.partials.pop((tree, number))
                    opened.result.chunks[index] = self._encoded(summed.divided(total), index, effect.tag)
                case GoOn():
                    self._node.later(0.0, lambda effect=effect: self._run(self.machine.go_on(effect)))
                case ReleasePartials(tree=tree, below=below):
                    opened = self._opened(effect.tag)
                    for key in [key for key in opened.partials if key[0] == tree and key[1] < below]:
                        del opened.partials[key]
                case RoundReduced():
                    self._finished(effect)
                case RoundEmpty(tag=tag):
                    self._node.soon(events.RoundCameUpEmpty(tag=tag))
                case ResultLost(tag=tag):
                    self._close_round()
                    self._node.soon(events.ResultMissed(tag=tag))
                case ResultComplete():
                    assert self._fetching is not None
                    self._run(self.exchange.checked(effect, vector_digest(self._fetching.chunks)))
                case ResultVerified():
                    self._verified(effect)
                case ResultRefuted(source=source):
                    reason = "a result with another digest than was agreed"
                    self._node.peer_broke_rules(source, reason, faulty=source in self._doubtful)
                case ResultUnavailable():
                    pass  # whoever links up is asked
                case _:
                    assert_never(effect)

    def _send(self, effect: SendBulk) -> None:
        lies = self._node.world.check_lies
        header, reference = (lies and lies.passes(self._node, effect)) or effect.header, effect.payload
        if reference is None:
            key = header.tag if isinstance(header, ChunkGrant | ChunkWant | ChunkUp) else None
            self.outbox.put(effect.site, Frame(AVERAGING, header, key=key))
            return
        opened, key = self._open, None
        if isinstance(reference, HeldRef):
            chunk = self.results[reference.round].chunks[reference.index]
        elif isinstance(reference, PartialRef):
            key, chunk = reference.tag, self._opened(reference.tag).partials[reference.tree, reference.chunk]
        else:
            if opened is not None and opened.tag == reference.tag:
                key, result = opened.tag, opened.result
            else:
                result = self.results[reference.tag.round]
            chunk = result.chunks[result.layout.index(reference.tree, reference.chunk)]
            header = msgspec.structs.replace(header, hash=chunk.hash)
        faulty = not isinstance(reference, PartialRef) and self._is_spoilt(isinstance(reference, HeldRef))
        if faulty:
            chunk = chunk.with_a_wrong_byte()
        self.outbox.put(effect.site, Frame(AVERAGING, header, chunk, key=key, faulty=faulty))

    def _is_spoilt(self, held: bool) -> bool:
        left = self.spoils_held if held else self.spoils
        if held:
            self.spoils_held = max(0, left - 1)
        else:
            self.spoils = max(0, left - 1)
        return left > 0

    def _combine(self, effect: Combine) -> None:
        opened = self._opened(effect.tag)
        index = opened.result.layout.index(effect.tree, effect.chunk)
        children = [opened.scratch.pop((effect.tree, effect.chunk, child)) for child in effect.children]
        own = (self._node.site, effect.weight, opened.own.at(index), index) if effect.weight is not None else None
        summed = added(own, children)
        if effect.subtree_weight is not None:  # to a parent; the root encodes what it has divided
            summed = self._encoded(summed, index, effect.tag)
        opened.partials[effect.tree, effect.chunk] = summed

    def _encoded(self, chunk: Numbers, index: int, tag: Tag) -> Numbers:
        """With what was lost of this chunk before; what is lost now is told by its tag."""
        if not self._node.world.lossy:
            return chunk
        lost = self._lost[self._residuals.side(index)][index]
        self._lost[self._residuals.write(index)][index] = tag
        if not chunk.finite:
            self._residuals.waits(index)
        return chunk.encoded(self._node.site, lost)

    def _voided(self, after_round: int, *, kept: bool) -> None:
        """No result of a later round stands. `kept` false: nor does anything that was lost."""
        if self.exchange.void_after(after_round):
            self._fetching = None
        if not kept:
            self._lost = _nothing_lost(self._chunk_count)

    def _finished(self, effect: RoundReduced) -> None:
        opened = self._opened(effect.tag)
        self._open = None
        result = opened.result
        result.digest = vector_digest(result.chunks)
        self._hold(result)
        finished = events.ReduceFinished(
            tag=effect.tag,
            digest=result.digest,
            weights=effect.weights,
            checks=effect.checks,
            finite=result.finite,
        )
        self._node.reduced(finished, result)

    def _verified(self, effect: ResultVerified) -> None:
        assert self._fetching is not None
        result, self._fetching = self._fetching, None
        self._hold(result)
        self._node.soon(events.ResultFetched(round=effect.round, digest=effect.digest, finite=result.finite))

    def _hold(self, result: Result) -> None:
        if self._fetching is not None and self._fetching.round == result.round:
            self._fetching = None
        self._residuals.held(result.round, finite=result.finite)
        self.results[result.round] = result
        self._forget(self._retained.add(result.round))
        self._run(self.exchange.hold(result.round, result.digest, self._chunk_count))

    def _forget(self, rounds: list[int]) -> None:
        for one in rounds:
            del self.results[one]
            self.machine.forget(one)
            self.exchange.drop(one)

    # -- helpers

    def _opened(self, tag: Tag) -> _Round:
        assert self._open is not None and self._open.tag == tag
        return self._open

    def _close_round(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            self.machine.stop(opened.tag)
            self.outbox.drop(opened.tag)

    def is_over(self, header: Any) -> bool:
        """Whether this frame is of a round, or of a fetch, that is over: once more, it must change nothing."""
        if isinstance(header, ResultData):
            return self._fetching is None or self._fetching.round != header.round
        if isinstance(header, ChunkUp | ChunkDown):
            tag = self.machine.tag
            return bool(header.tag <= (self.machine._newest or header.tag)) and (tag is None or header.tag != tag)
        return False

    def is_in_the_middle(self, site: str, stream: str) -> bool:
        """Whether a frame of this site has begun to arrive and is not here yet."""
        return stream == AVERAGING and site in self._incoming

    def fingerprint(self) -> tuple[Any, ...]:
        """All that is held of rounds."""
        opened = self._open
        held = None
        if opened is not None:
            flows = self.machine._current.trees if self.machine._current is not None else {}
            places = tuple((tree, flow.combined, flow.finished) for tree, flow in flows.items())
            chunks = tuple(chunk.hash for chunk in opened.result.chunks)
            held = (opened.tag, replace(opened.own), places, tuple(opened.partials), tuple(opened.scratch), chunks)
        results = tuple((number, one.digest, vector_digest(one.chunks)) for number, one in sorted(self.results.items()))
        return (held, results, self._fetching is None)
