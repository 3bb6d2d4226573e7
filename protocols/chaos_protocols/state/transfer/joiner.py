"""A joiner's bookkeeping of one state transfer: what is verified, what was asked from whom, what to do when a source
is lost, slow, silent or wrong.

Driven by the replication engine. The joiner pulls: each source is asked for blocks of its ranges, as many as it
delivers in WINDOW_S. A block counts when its hash was checked (and, with `settings.witness`, when a second source named
the same hash). What a source still owes when its link is lost, when it stalls (no progress for `stall_timeout_s`), or
when it no longer has the snapshot goes to the others; and when a source runs dry, or will be much later than the
others, all that was not asked for yet is planned anew with the rates seen. A source whose link comes up again is used
again; nothing verified is fetched twice. Hashes of what the destination held go along; what is the same is not sent.

Sources: Chaos section III (shards from several neighbours at once, all finishing together); spec 11.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.names import SiteId, short
from chaos_protocols.state.transfer.assignment import REPLAN_INTERVAL_S, Assignment
from chaos_protocols.state.transfer.effects import (
    CheckBlock,
    FetchFailed,
    JoinerEffect,
    SendHeader,
    SourceDropped,
    StateFetched,
)
from chaos_protocols.state.transfer.held import LocalCells
from chaos_protocols.state.transfer.ranges import RangeSet, Replan, joined, size_of, split_by_rate
from chaos_protocols.state.transfer.sources import Source, SourceProgress, SourceState, TransferSettings
from chaos_protocols.state.transfer.witnesses import CrossCheck, Witnesses, WitnessVerdict
from chaos_protocols.wire.bulk import (
    BlockData,
    BlockDrop,
    BlockGone,
    BlockReady,
    BlockSame,
    BlockWait,
    StandHeader,
    WitnessHash,
)
from chaos_protocols.wire.plans import ReplicationPlan


class TransferMachine:
    """See the module. Every call returns effects; `deadline_s` says when `due` wants to be called (None: never)."""

    def __init__(
        self,
        plan: ReplicationPlan,
        *,
        settings: TransferSettings | None = None,
        replan: Replan = split_by_rate,
        held: bool = False,
        rates: Mapping[SiteId, float] | None = None,
    ) -> None:
        """`held`: the destination holds something that may be the same in part; its cells are hashed in the order of
        `held.cells()` and told by `held_hashed`. `rates`: of sources, as an earlier transfer over their links has
        shown: who is slow is not asked for much. Raises LocalProtocolError for a plan that does not cover the state
        exactly once."""
        pieces = sorted((part.start, part.stop) for part in plan.ranges if part.start < part.stop)
        if size_of(pieces) != plan.state_bytes or joined(pieces) != ([(0, plan.state_bytes)] if pieces else []):
            raise LocalProtocolError(f"the plan of transfer {plan.transfer} does not cover the state exactly once")
        self.plan = plan
        self.verified_ranges = RangeSet()
        self.ended = False
        self.same_bytes = 0
        """Not sent, since the destination held them already."""
        self.held = LocalCells(plan.ranges, plan.state_bytes) if held else None
        self._settings = settings or TransferSettings()
        self._sources_needed = 2 if self._settings.witness else 1
        self._all = Assignment(plan, replan, self.verified_ranges, self.held, rates or {})
        self._sources = self._all.sources
        self._witnesses = Witnesses(plan.transfer, self._all)
        self._alone_since_s: float | None = None

    @property
    def verified_bytes(self) -> int:
        return self.verified_ranges.size_bytes

    def progress(self) -> dict[SiteId, SourceProgress]:
        """How far each source is; a rate of 0 where nothing came yet."""
        return {site: SourceProgress(source.rate, source.received_bytes) for site, source in self._sources.items()}

    def rates(self) -> dict[SiteId, float]:
        """In bytes a second, of those over whose links more was on its way than they deliver in time: for `rates`."""
        return {source.site: source.rate for source in self._all.usable if source.crowded and source.rate}

    def sources(self) -> dict[SiteId, SourceState]:
        return {site: source.state for site, source in self._sources.items()}

    # -- the engine's calls

    def start(self, links: frozenset[SiteId], *, now_s: float) -> list[JoinerEffect]:
        """Begin, with the links that are up."""
        self._alone_since_s = now_s
        self._all.start(now_s)
        if self._settings.witness and len(self._sources) == 1 and self.plan.state_bytes:
            self.ended = True
            reason = "verify = witness needs two sources, and only one has the state; add a neighbour or set hash"
            return [FetchFailed(reason=reason)]
        for source in self._sources.values():
            source.hear(now_s)
            if source.site in links:
                source.become(SourceState.READY, now_s)
        if any(not source.usable for source in self._sources.values()):
            self._all.spread(now_s)
        return self._go_on(now_s)

    def held_hashed(self, start: int, digest: bytes, *, now_s: float) -> list[JoinerEffect]:
        """What the destination holds in the cell at `start` has this hash."""
        assert self.held is not None
        self.held.hashed(start, digest)
        return [] if self.ended else self._go_on(now_s)

    def link_up(self, site: SiteId, *, now_s: float) -> list[JoinerEffect]:
        """A source's link is new: what it was asked for is asked again, of it or of others."""
        if (source := self._sources.get(site)) is None or self.ended:
            return []
        self._take_back(source)
        if source.state is not SourceState.EXCLUDED:
            source.become(SourceState.READY, now_s)
        self._all.spread(now_s)
        return self._go_on(now_s)

    def link_lost(self, site: SiteId, *, now_s: float) -> list[JoinerEffect]:
        if (source := self._sources.get(site)) is None or self.ended or not source.usable:
            return []
        return self._drop(source, SourceState.DOWN, "its link was lost", now_s)

    def gone(self, site: SiteId, *, now_s: float) -> list[JoinerEffect]:
        """It is not the source of the plan any more, whatever its link and its next daemon say."""
        if (source := self._sources.get(site)) is None or self.ended or source.state is SourceState.EXCLUDED:
            return []
        return self._drop(source, SourceState.EXCLUDED, "it left the run, or was started again", now_s)

    def takes(self, site: SiteId, header: BlockData, size_bytes: int) -> bool:
        """Whether this payload was asked for here and is still needed. If not, it is discarded: it may belong to an
        older transfer, or have been given to another source meanwhile."""
        return header.transfer == self.plan.transfer and self.awaits(site, header.start, header.start + size_bytes)

    def awaits(self, site: SiteId, start: int, stop: int) -> bool:
        """Whether this block is wanted from this source, and is not here yet."""
        source = self._sources.get(site)
        return source is not None and not self.ended and source.asked.get(start) == stop

    def begins(self, site: SiteId, start: int, *, now_s: float) -> None:
        """A block that this machine `takes` begins to arrive, into its place in the state."""
        if self.held is not None:
            self.held.touch(start)
        self.progressed(site, now_s=now_s)

    def progressed(self, site: SiteId, *, now_s: float) -> None:
        """This source is alive, and has its snapshot."""
        if (source := self._sources.get(site)) is not None:
            source.hear(now_s)
            if source.state is SourceState.WAITING:
                source.become(SourceState.READY, now_s)

    def passed_by(self, site: SiteId, size_bytes: int, *, now_s: float) -> None:
        """A block comes that nobody needs, of an earlier transfer say: what was asked for since comes behind it."""
        self._all.passed_by(site, size_bytes, now_s, for_s=self._settings.wait_timeout_s)

    def received(self, site: SiteId, header: BlockData, size_bytes: int, *, now_s: float) -> list[JoinerEffect]:
        """The block lies where it can be checked."""
        if not self.takes(site, header, size_bytes):
            return []
        source = self._sources[site]
        stop = source.answered(header.start)
        source.check(header.start, stop)
        source.take(size_bytes)
        self.progressed(site, now_s=now_s)
        source.measure(size_bytes, now_s)
        effects: list[JoinerEffect] = [CheckBlock(source=site, start=header.start, stop=stop, hash=header.hash)]
        if self._settings.witness:
            effects += self._witnesses.seek(self._witnesses.begin(site, header.start, stop, header.hash), now_s)
        return [*effects, *self._all.ask(source, now_s)]

    def checked(self, check: CheckBlock, digest: bytes, *, now_s: float) -> list[JoinerEffect]:
        """The bytes of the block have this hash."""
        tell = self.verified if digest == check.hash else self.refuted
        return tell(check.source, check.start, check.stop, now_s=now_s)

    def verified(self, site: SiteId, start: int, stop: int, *, now_s: float) -> list[JoinerEffect]:
        """The block has the hash that its source told."""
        if self._settings.witness:
            cross_check = self._witnesses.waiting.get(start)
            if cross_check is None or self.ended:
                return []
            cross_check.check()
            return self._judge(cross_check, now_s)
        self._accept(site, start, stop)
        return [] if self.ended else self._go_on(now_s)

    def refuted(self, site: SiteId, start: int, stop: int, *, now_s: float) -> list[JoinerEffect]:
        """The block does not have the hash that its source told: another source is asked for it."""
        source = self._sources[site]
        source.checked(start)
        if self.ended:
            return []
        self._witnesses.forget(start)
        source.refute()
        self._all.return_range(start, stop)
        others = any(other.usable for other in self._sources.values() if other is not source)
        if source.often_wrong or others:
            reason = f"{source.wrong} block(s) that it sent did not have their hash"
            return self._drop(source, SourceState.EXCLUDED, reason, now_s, wrong=True)
        self._all.spread(now_s)
        return [
            SourceDropped(source=site, reason="a block did not have its hash; asked again", wrong=True),
            *self._go_on(now_s),
        ]

    def told(self, site: SiteId, header: StandHeader, *, now_s: float) -> list[JoinerEffect]:
        """What a source says about its snapshot."""
        source = self._sources.get(site)
        if source is None or self.ended or not source.usable or header.transfer != self.plan.transfer:
            return []
        match header:
            case BlockGone():
                return self._drop(source, SourceState.EXCLUDED, "it no longer has the snapshot", now_s)
            case BlockWait():
                if source.state is SourceState.READY:
                    source.become(SourceState.WAITING, now_s)
                return []
            case BlockReady():
                self.progressed(site, now_s=now_s)
                self._all.spread(now_s)
                return self._go_on(now_s)
            case BlockSame(start=start):
                return self._same(source, start, now_s)
            case WitnessHash(start=start, stop=stop, hash=digest):
                self.progressed(site, now_s=now_s)
                cross_check = self._witnesses.answered(site, start, stop, digest)
                return [] if cross_check is None else self._judge(cross_check, now_s)
            case _:
                assert_never(header)

    def cancel(self) -> list[JoinerEffect]:
        """Ask for nothing more."""
        self.ended = True
        header = BlockDrop(transfer=self.plan.transfer)
        return [SendHeader(site=source.site, header=header) for source in self._sources.values() if source.usable]

    @property
    def deadline_s(self) -> float | None:
        if self.ended:
            return None
        times = [at for source in self._sources.values() if (at := self._patience_ends_s(source)) is not None]
        if self._alone_since_s is not None:
            times.append(self._alone_since_s + self._settings.stall_timeout_s)
        states = [source.state for source in self._sources.values() if source.usable]
        if self.plan.adaptive and len(states) > 1 and SourceState.READY in states:
            times.append(self._all.planned_s + REPLAN_INTERVAL_S)
        return min(times, default=None)

    def due(self, *, now_s: float) -> list[JoinerEffect]:
        """Time has passed: give up sources without progress, plan anew where that helps."""
        if self.ended:
            return []
        effects: list[JoinerEffect] = []
        ends = [at_s for source in self._sources.values() if (at_s := self._patience_ends_s(source)) is not None]
        if ends and now_s - min(ends) > self._settings.stall_timeout_s / 2:
            # This process itself stood still: what the sources sent lies unread; blame nobody yet.
            for source in self._sources.values():
                source.hear(now_s)
        for source in self._sources.values():
            ends_s = self._patience_ends_s(source)
            if ends_s is not None and now_s >= ends_s:
                effects.append(SendHeader(site=source.site, header=BlockDrop(transfer=self.plan.transfer)))
                effects += self._drop(source, SourceState.STALLED, source.stall_reason(self._settings), now_s)
        return effects if self.ended else effects + self._go_on(now_s)

    # -- verifying

    def _accept(self, site: SiteId, start: int, stop: int) -> None:
        self.verified_ranges.add(start, stop)
        self._sources[site].checked(start)

    def _same(self, source: Source, start: int, now_s: float) -> list[JoinerEffect]:
        """A cell that the destination holds already. Only where its hash was told, and nothing of it came meanwhile."""
        held = self.held
        if held is None or not held.is_told(start):
            return []
        stop = held.stop_of(start)
        blocks = [at for at in source.asked if start <= at < stop]
        if sum(source.asked[at] - at for at in blocks) != stop - start:
            return []
        for at in blocks:
            source.answered(at)
        self.progressed(source.site, now_s=now_s)
        source.measure(stop - start, now_s)
        self.same_bytes += stop - start
        if not self._settings.witness:
            self.verified_ranges.add(start, stop)
            return self._go_on(now_s)
        source.check(start, stop)
        cross_check = self._witnesses.begin(source.site, start, stop, held.hashes[start])
        cross_check.check()
        return [*self._witnesses.seek(cross_check, now_s), *self._go_on(now_s)]

    def _judge(self, cross_check: CrossCheck, now_s: float) -> list[JoinerEffect]:
        """A block's own check is done, or another site named its hash."""
        if not cross_check.checked:
            return []
        verdict = self._witnesses.verdict(cross_check)
        if verdict is None:
            if cross_check.witness is not None or len(cross_check.said) < 2:
                return []  # its witness, or any witness, is still to be heard
            sought = self._witnesses.seek(cross_check, now_s)
            self.ended = not sought
            return sought or self._witnesses.undecided(cross_check)
        self._witnesses.forget(cross_check.start)
        if verdict.right:
            self._accept(cross_check.source, cross_check.start, cross_check.stop)
        else:
            self._sources[cross_check.source].checked(cross_check.start)
            self._all.return_range(cross_check.start, cross_check.stop)
            if self.held is not None:
                self.held.touch(cross_check.start)
        return self._blame(verdict, now_s)

    def _blame(self, verdict: WitnessVerdict, now_s: float) -> list[JoinerEffect]:
        effects: list[JoinerEffect] = []
        for site in verdict.wrong:
            source = self._sources[site]
            source.refute()
            if source.state is not SourceState.EXCLUDED and not self.ended:
                reason = "two other sources agree on a block, and its own is another one"
                effects += self._drop(source, SourceState.EXCLUDED, reason, now_s, wrong=True)
        return effects if self.ended else [*effects, *self._go_on(now_s)]

    # -- deciding

    def _patience_ends_s(self, source: Source) -> float | None:
        owes = bool(source.asked) or (self._settings.witness and self._witnesses.asked_of(source.site))
        return source.patience_ends_s(self._settings) if owes else None

    def _drop(
        self, source: Source, state: SourceState, reason: str, now_s: float, *, wrong: bool = False
    ) -> list[JoinerEffect]:
        source.become(state, now_s)
        self._take_back(source)
        self._all.spread(now_s)
        return [SourceDropped(source=source.site, reason=reason, wrong=wrong), *self._go_on(now_s)]

    def _take_back(self, source: Source) -> None:
        """What it owes, blocks and words, is to come from others, or from it once more."""
        self._all.take_back(source)
        self._witnesses.lost(source.site)

    def _go_on(self, now_s: float) -> list[JoinerEffect]:
        """Ask for more; tell the end."""
        assert not self.ended
        if self.verified_bytes >= self.plan.state_bytes:
            self.ended = True
            return [StateFetched()]
        if len(self._all.usable) < self._sources_needed:
            return self._without_sources(now_s)
        self._alone_since_s = None
        effects, dropped = self._all.rebalance(now_s)
        for source in dropped:
            self._witnesses.lost(source.site)
        if self._settings.witness:
            for cross_check in [one for one in self._witnesses.waiting.values() if one.witness is None]:
                effects += self._witnesses.seek(cross_check, now_s)
        for source in self._sources.values():
            effects += self._all.ask(source, now_s)
        return effects

    def _without_sources(self, now_s: float) -> list[JoinerEffect]:
        self._alone_since_s = now_s if self._alone_since_s is None else self._alone_since_s
        hopeful = [one for one in self._sources.values() if one.state is not SourceState.EXCLUDED]
        if len(hopeful) >= self._sources_needed and now_s < self._alone_since_s + self._settings.stall_timeout_s:
            return []
        self.ended = True
        states = "; ".join(f"{short(site)}: {one.state.value}" for site, one in self._sources.items())
        wanted = "two sources that agree are needed" if self._settings.witness else "no source is left"
        return [FetchFailed(reason=f"{wanted} ({states or 'the plan names none'})")]
