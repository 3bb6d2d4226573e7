"""A joiner's bookkeeping of one state transfer: what is verified, what was asked from whom, what to do when a source
is lost, slow, silent or wrong.

Driven by the replication engine. The joiner pulls: each source is asked for blocks of its ranges, as many as it
delivers in WINDOW_S. A block counts when its hash was checked. What a source still owes when its link is lost, when it
stalls (no progress for `stall_timeout_s`), or when it no longer has the snapshot goes to the others; and when a source
runs dry, or will finish much later than the others, all that was not asked for yet is planned anew with the rates
seen. A link that comes up again makes its source usable again; nothing verified is fetched twice.

Sources: Chaos section III (shards from several neighbours at once, all finishing together); protocols.md section 5.
"""

from __future__ import annotations

from chaos_protocols.bulk import BlockData, BlockDrop, BlockGone, BlockWait, BlockWant
from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.names import SiteId, short
from chaos_protocols.plans import ReplicationPlan
from chaos_protocols.transfer.effects import (
    CheckBlock,
    JoinerEffect,
    SendHeader,
    SourceDropped,
    TransferFailed,
    TransferFinished,
)
from chaos_protocols.transfer.ranges import Range, RangeSet, Replan, SourceRate, joined, size_of, split_by_rate
from chaos_protocols.transfer.sources import Source, SourceState, TransferSettings

OUTSTANDING_BYTES_MAX = 48 << 20
"""Asked for and not yet verified, from all sources together: what a joiner needs beyond its arena is bounded."""

REPLAN_INTERVAL_S = 0.25
"""Between two plans: rates need a moment to show."""

LATE_FACTOR = 1.2
"""planning.md section 1: a rate within a fifth of the planned one is noise."""

WRONG_BLOCKS_MAX = 3
"""From one source; then it is not asked any more, even if it is the last one."""


class TransferMachine:
    """See the module. Every call returns effects; `deadline_s` says when `due` wants to be called (None: never)."""

    def __init__(
        self,
        plan: ReplicationPlan,
        *,
        settings: TransferSettings | None = None,
        replan: Replan = split_by_rate,
        verified: RangeSet | None = None,
    ) -> None:
        """`verified`: of an earlier transfer of the same round. Raises LocalProtocolError for a plan that does not
        cover the state exactly once."""
        pieces = sorted((part.start, part.stop) for part in plan.ranges if part.start < part.stop)
        if size_of(pieces) != plan.state_bytes or joined(pieces) != ([(0, plan.state_bytes)] if pieces else []):
            raise LocalProtocolError(f"the plan of transfer {plan.transfer} does not cover the state exactly once")
        self.plan = plan
        self.verified_ranges = verified if verified is not None else RangeSet()
        self.ended = False
        self._settings = settings or TransferSettings()
        self._replan = replan
        self._sources: dict[SiteId, Source] = {}
        for site in sorted({part.source for part in plan.ranges}):
            own = [(part.start, part.stop) for part in plan.ranges if part.source == site]
            source = self._sources[site] = Source(site=site, planned_bytes=max(size_of(own), 1))
            source.todo.extend(gap for start, stop in own for gap in self.verified_ranges.missing(start, stop))
        self._homeless: list[Range] = []
        self._alone_since_s: float | None = None
        self._planned_s = 0.0

    @property
    def verified_bytes(self) -> int:
        return self.verified_ranges.size_bytes

    def rates(self) -> dict[SiteId, float]:
        """Bytes a second of each source, as seen lately; 0 where nothing came yet."""
        return {site: source.rate for site, source in self._sources.items()}

    def sources(self) -> dict[SiteId, SourceState]:
        return {site: source.state for site, source in self._sources.items()}

    # -- the engine's calls

    def start(self, links: frozenset[SiteId], *, now_s: float) -> list[JoinerEffect]:
        """Begin, with the links that are up."""
        self._planned_s = now_s
        self._alone_since_s = now_s
        for source in self._sources.values():
            source.progress_s = now_s
            if source.site in links:
                source.state = SourceState.READY
        if any(not source.usable for source in self._sources.values()):
            self._spread(now_s)
        return self._go_on(now_s)

    def link_up(self, site: SiteId, *, now_s: float) -> list[JoinerEffect]:
        """A source's link is new: what it was asked for is asked again, of it or of others."""
        source = self._sources.get(site)
        if source is None or self.ended:
            return []
        self._take_back(source)
        if source.state is not SourceState.EXCLUDED:
            source.state, source.progress_s = SourceState.READY, now_s
        self._spread(now_s)
        return self._go_on(now_s)

    def link_lost(self, site: SiteId, *, now_s: float) -> list[JoinerEffect]:
        source = self._sources.get(site)
        if source is None or self.ended or not source.usable:
            return []
        return self._drop(source, SourceState.DOWN, "its link was lost", now_s)

    def takes(self, site: SiteId, header: BlockData, size_bytes: int) -> bool:
        """Whether this payload was asked for here and is still needed. If not, it is discarded: it may belong to an
        older transfer, or have been given to another source meanwhile."""
        source = self._sources.get(site)
        if source is None or self.ended or header.transfer != self.plan.transfer:
            return False
        return source.asked.get(header.start) == header.start + size_bytes

    def progressed(self, site: SiteId, *, now_s: float) -> None:
        """A block of this source begins to arrive."""
        source = self._sources.get(site)
        if source is not None:
            source.progress_s = now_s
            if source.state is SourceState.WAITING:
                source.state = SourceState.READY

    def received(self, site: SiteId, header: BlockData, size_bytes: int, *, now_s: float) -> list[JoinerEffect]:
        """The block lies where it can be checked."""
        if not self.takes(site, header, size_bytes):
            return []
        source = self._sources[site]
        stop = source.asked.pop(header.start)
        source.checking[header.start] = stop
        source.received_bytes += size_bytes
        self.progressed(site, now_s=now_s)
        source.measure(size_bytes, now_s)
        check = CheckBlock(source=site, start=header.start, stop=stop, hash=header.hash)
        return [check, *self._ask(source, now_s)]

    def verified(self, site: SiteId, start: int, stop: int, *, now_s: float) -> list[JoinerEffect]:
        """The block is part of the state now."""
        self.verified_ranges.add(start, stop)
        self._sources[site].checking.pop(start, None)
        return [] if self.ended else self._go_on(now_s)

    def refuted(self, site: SiteId, start: int, stop: int, *, now_s: float) -> list[JoinerEffect]:
        """The block does not have the hash that its source told: another source is asked for it."""
        source = self._sources[site]
        source.checking.pop(start, None)
        if self.ended:
            return []
        source.wrong += 1
        self._homeless.append((start, stop))
        others = any(other.usable for other in self._sources.values() if other is not source)
        if source.wrong >= WRONG_BLOCKS_MAX or others:
            reason = f"{source.wrong} block(s) that it sent did not have their hash"
            return self._drop(source, SourceState.EXCLUDED, reason, now_s, wrong=True)
        self._spread(now_s)
        return [
            SourceDropped(source=site, reason="a block did not have its hash; asked again", wrong=True),
            *self._go_on(now_s),
        ]

    def told(self, site: SiteId, header: BlockWait | BlockGone, *, now_s: float) -> list[JoinerEffect]:
        """The source has the snapshot not yet, or no more."""
        source = self._sources.get(site)
        if source is None or self.ended or not source.usable or header.transfer != self.plan.transfer:
            return []
        if isinstance(header, BlockGone):
            return self._drop(source, SourceState.EXCLUDED, "it no longer has the snapshot", now_s)
        if source.state is SourceState.READY:
            source.state, source.waiting_since_s = SourceState.WAITING, now_s
        return []

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
            times.append(self._planned_s + REPLAN_INTERVAL_S)
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
                source.progress_s = now_s
        for source in self._sources.values():
            ends_s = self._patience_ends_s(source)
            if ends_s is not None and now_s >= ends_s:
                effects.append(SendHeader(site=source.site, header=BlockDrop(transfer=self.plan.transfer)))
                effects += self._drop(source, SourceState.STALLED, self._stall_reason(source), now_s)
        return effects if self.ended else effects + self._go_on(now_s)

    # -- deciding

    def _patience_ends_s(self, source: Source) -> float | None:
        if source.state is SourceState.WAITING and source.asked:
            return source.waiting_since_s + self._settings.wait_timeout_s
        if source.state is SourceState.READY and source.asked:
            return source.progress_s + self._settings.stall_timeout_s
        return None

    def _stall_reason(self, source: Source) -> str:
        if source.state is SourceState.WAITING:
            return f"its snapshot was not taken within {self._settings.wait_timeout_s:g} s"
        return f"it showed no progress for {self._settings.stall_timeout_s:g} s"

    def _drop(
        self, source: Source, state: SourceState, reason: str, now_s: float, *, wrong: bool = False
    ) -> list[JoinerEffect]:
        source.state = state
        self._take_back(source)
        self._spread(now_s)
        return [SourceDropped(source=source.site, reason=reason, wrong=wrong), *self._go_on(now_s)]

    def _take_back(self, source: Source) -> None:
        """What it owes has no source now. Blocks being checked are not touched: they are here."""
        self._homeless += [*source.todo, *source.asked.items()]
        source.todo.clear()
        source.asked.clear()

    def _spread(self, now_s: float) -> None:
        """Plan everything anew that was not asked for yet."""
        ready = [one for one in self._sources.values() if one.state is SourceState.READY]
        usable = ready or [one for one in self._sources.values() if one.usable]
        if not usable:
            return
        for source in self._sources.values():
            self._homeless += source.todo
            source.todo.clear()
        self._planned_s = now_s
        left = [gap for start, stop in joined(self._homeless) for gap in self.verified_ranges.missing(start, stop)]
        self._homeless.clear()
        if left:
            rates = tuple(SourceRate(site=one.site, rate_bytes_per_s=self._rate_of(one)) for one in usable)
            for piece in self._replan(tuple(left), rates):
                self._sources[piece.source].todo.append((piece.start, piece.stop))

    def _rate_of(self, source: Source) -> float:
        """Seen, or guessed from the plan: its shares are in proportion to the rates that were measured before."""
        if source.rate:
            return source.rate
        seen = [one.rate / one.planned_bytes for one in self._sources.values() if one.rate]
        return source.planned_bytes * (sorted(seen)[len(seen) // 2] if seen else 1.0)

    def _go_on(self, now_s: float) -> list[JoinerEffect]:
        """Ask for more; tell the end."""
        if self.ended:
            return []
        if self.verified_bytes >= self.plan.state_bytes:
            self.ended = True
            return [TransferFinished()]
        if not any(source.usable for source in self._sources.values()):
            return self._without_sources(now_s)
        self._alone_since_s = None
        effects = self._rebalance(now_s)
        for source in self._sources.values():
            effects += self._ask(source, now_s)
        return effects

    def _without_sources(self, now_s: float) -> list[JoinerEffect]:
        self._alone_since_s = now_s if self._alone_since_s is None else self._alone_since_s
        hopeless = all(source.state is SourceState.EXCLUDED for source in self._sources.values())
        if not hopeless and now_s < self._alone_since_s + self._settings.stall_timeout_s:
            return []
        self.ended = True
        states = "; ".join(f"{short(site)}: {source.state.value}" for site, source in self._sources.items())
        return [TransferFailed(reason=f"no source is left ({states or 'the plan names none'})")]

    def _rebalance(self, now_s: float) -> list[JoinerEffect]:
        """Where a source has run dry, or one will be late, plan anew."""
        ready = [one for one in self._sources.values() if one.state is SourceState.READY]
        if not self.plan.adaptive or not ready or now_s < self._planned_s + REPLAN_INTERVAL_S:
            return []
        effects: list[JoinerEffect] = []
        idle = any(not one.todo and not one.asked for one in ready)
        if idle:
            for source in [one for one in self._sources.values() if one.state is SourceState.WAITING and one.asked]:
                self._take_back(source)
                effects.append(SendHeader(site=source.site, header=BlockDrop(transfer=self.plan.transfer)))
        movable = size_of(self._homeless) + sum(size_of(one.todo) for one in self._sources.values())
        total = sum(one.left_bytes for one in ready) / sum(self._rate_of(one) for one in ready)
        late = max(one.left_bytes / self._rate_of(one) for one in ready) > LATE_FACTOR * total + REPLAN_INTERVAL_S
        seen = all(one.rate for one in ready)
        if movable and (idle or (late and seen)):
            self._spread(now_s)
        else:
            self._planned_s = now_s
        return effects

    def _ask(self, source: Source, now_s: float) -> list[JoinerEffect]:
        """Up to its window, and up to what may be outstanding in all."""
        if not source.usable or not source.todo:
            return []
        outstanding = sum(one.outstanding_bytes for one in self._sources.values())
        room = min(source.window_bytes() - source.outstanding_bytes, OUTSTANDING_BYTES_MAX - outstanding)
        block = source.block_bytes()
        if not source.asked and not source.checking:
            source.progress_s = source.sample_s = now_s
            source.sample_bytes = 0
        effects: list[JoinerEffect] = []
        while source.todo and room >= min(block, source.todo[0][1] - source.todo[0][0]):
            start, stop = source.todo.popleft()
            end = stop if stop - start <= room else start + room // block * block
            if end < stop:
                source.todo.appendleft((end, stop))
            header = BlockWant(transfer=self.plan.transfer, start=start, stop=end, block_bytes=block)
            effects.append(SendHeader(site=source.site, header=header))
            source.asked.update({at: min(at + block, end) for at in range(start, end, block)})
            room -= end - start
        return effects
