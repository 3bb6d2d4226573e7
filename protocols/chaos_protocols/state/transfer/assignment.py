"""Who sends what: the sources of one transfer, what was asked of each, and how the rest is spread over them.

Pure bookkeeping of the joiner, driven by `TransferMachine`, which decides when a source is given up and when a block
counts. Chaos section III: all sources are to finish together; spec 11.9: the rest is planned anew with the
rates seen when one runs dry or will be late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chaos_protocols.names import SiteId
from chaos_protocols.state.transfer.effects import JoinerEffect, SendHeader
from chaos_protocols.state.transfer.held import LocalCells, at_cells
from chaos_protocols.state.transfer.ranges import Range, RangeSet, Replan, SourceRate, joined, size_of
from chaos_protocols.state.transfer.sources import Source, SourceState
from chaos_protocols.wire.bulk import BlockDrop, BlockWant
from chaos_protocols.wire.plans import ReplicationPlan, SourceRange

OUTSTANDING_BYTES_MAX = 256 << 20
"""Asked for and not yet verified, from all sources together: what was asked can be planned anew only by dropping it.
Half a second of 4 Gbit/s."""

REPLAN_INTERVAL_S = 0.25
"""Between two plans: rates need a moment to show."""

LATE_FACTOR = 1.2
"""A rate within a fifth of the planned one is noise (spec 11.9)."""


class Assignment:
    """See the module."""

    def __init__(
        self,
        plan: ReplicationPlan,
        replan: Replan,
        verified: RangeSet,
        held: LocalCells | None,
        rates: Mapping[SiteId, float],
    ) -> None:
        self._plan = plan
        self._replan = replan
        self._verified = verified
        self._held = held
        self._unassigned: list[Range] = []
        self.begun_s = self.planned_s = 0.0
        self.plans_made = 0
        self.sources: dict[SiteId, Source] = {}
        for site in sorted({part.source for part in plan.ranges}):
            own = [(part.start, part.stop) for part in plan.ranges if part.source == site]
            self.sources[site] = Source(
                site=site, planned_bytes=max(size_of(own), 1), rate=rates.get(site, 0.0), crowded=site in rates
            )
        self._give(plan.ranges)

    def _give(self, parts: Iterable[SourceRange]) -> None:
        for part in parts if self._held is None else at_cells(parts):
            if part.start < part.stop:
                self.sources[part.source].give(part.start, part.stop)

    def start(self, now_s: float) -> None:
        """What the plan says counts from now on."""
        self.begun_s = self.planned_s = now_s

    def passed_by(self, site: SiteId, size_bytes: int, now_s: float, *, for_s: float) -> None:
        """What it was not asked for now comes over its link: that shows its rate, and for so long after the start it is
        no silence."""
        if (source := self.sources.get(site)) is None:
            return
        source.pass_by(size_bytes, now_s)
        if now_s < self.begun_s + for_s:
            source.hear(now_s)

    @property
    def usable(self) -> list[Source]:
        """Those that have a link and have not been given up."""
        return [source for source in self.sources.values() if source.usable]

    @property
    def ready(self) -> list[Source]:
        """Those that are known to have, or not known to lack, their snapshot."""
        return [source for source in self.sources.values() if source.state is SourceState.READY]

    def return_range(self, start: int, stop: int) -> None:
        """To be fetched again, from whomever."""
        self._unassigned.append((start, stop))

    def take_back(self, source: Source) -> None:
        """What it owes has no source now. Blocks being checked are not touched: they are here."""
        self._unassigned += source.owed()

    def spread(self, now_s: float) -> None:
        """Plan everything anew that was not asked for yet."""
        usable = self.ready or self.usable
        if not usable:
            return
        for source in self.sources.values():
            self._unassigned += source.unasked()
        self.planned_s = now_s
        self.plans_made += 1
        left = [gap for start, stop in joined(self._unassigned) for gap in self._verified.missing(start, stop)]
        self._unassigned.clear()
        if left:
            rates = tuple(SourceRate(site=one.site, rate_bytes_per_s=self._rate_of(one)) for one in usable)
            self._give(self._replan(tuple(left), rates))

    def rebalance(self, now_s: float) -> tuple[list[JoinerEffect], list[Source]]:
        """Where a source has run dry, or one will be late, plan anew. Also: whose wants were dropped for that."""
        if not self._plan.adaptive or now_s < self.planned_s + REPLAN_INTERVAL_S:
            return [], []
        ready = self.ready
        if not ready:
            return [], []
        dropped: list[Source] = []
        idle = any(not one.todo and not one.asked for one in ready)
        if idle:
            dropped = [one for one in self.sources.values() if one.state is SourceState.WAITING and one.asked]
            for source in dropped:
                self.take_back(source)
        movable = size_of(self._unassigned) + sum(size_of(one.todo) for one in self.sources.values())
        total_s = sum(one.left_bytes for one in ready) / sum((self._rate_of(one) for one in ready), 0.0)
        late = max(one.left_bytes / self._rate_of(one) for one in ready) > LATE_FACTOR * total_s + REPLAN_INTERVAL_S
        seen = all(one.rate for one in ready)
        if movable and (idle or (late and seen)):
            self.spread(now_s)
        else:
            self.planned_s = now_s
        header = BlockDrop(transfer=self._plan.transfer)
        return [SendHeader(site=source.site, header=header) for source in dropped], dropped

    def ask(self, source: Source, now_s: float) -> list[JoinerEffect]:
        """Up to its window, and up to what may be outstanding in all."""
        if not source.usable or not source.todo:
            return []
        outstanding = sum(one.outstanding_bytes for one in self.sources.values())
        room = min(source.window_bytes() - source.outstanding_bytes, OUTSTANDING_BYTES_MAX - outstanding)
        block = source.block_bytes()
        if not source.asked:
            source.hear(now_s)
            if not source.checking:
                source.begin_sample(now_s)
        effects: list[JoinerEffect] = []
        while source.todo and room >= min(block, source.todo[0][1] - source.todo[0][0]):
            start, stop = source.todo[0]
            end = stop if stop - start <= room else (start + room) // block * block
            have = b""
            if self._held is not None:
                end, have = self._held.piece(start, end, stop)
                if end == start:
                    break  # it is being hashed; asked for as soon as its hash is known
            source.ask(end, block)
            header = BlockWant(transfer=self._plan.transfer, start=start, stop=end, block_bytes=block, have=have)
            effects.append(SendHeader(site=source.site, header=header))
            room -= end - start
        return effects

    def _rate_of(self, source: Source) -> float:
        """Seen, or guessed from the plan: its shares are in proportion to the rates that were measured before."""
        if source.rate:
            return source.rate
        seen = [one.rate / one.planned_bytes for one in self.sources.values() if one.rate]
        return source.planned_bytes * (sorted(seen)[len(seen) // 2] if seen else 1.0)
