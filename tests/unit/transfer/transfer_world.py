"""A joiner and its sources under virtual time: both pure machines, real bytes, links with a rate that break at will.

What must hold whatever happens is checked at every step: a byte counts as verified only if it equals the state and came
from a source of the plan that was asked for it; nothing verified is lost; the end is told once, and only when it is
true.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

from blake3 import blake3

from chaos_protocols.bulk import BlockData, BlockDrop, BlockGone, BlockWait, BlockWant
from chaos_protocols.names import SiteId
from chaos_protocols.plans import ReplicationPlan, SourceRange
from chaos_protocols.transfer import (
    Block,
    CheckBlock,
    JoinerEffect,
    RangeSet,
    SendHeader,
    SourceDropped,
    SourceEffect,
    StreamBlocks,
    TransferFailed,
    TransferFinished,
    TransferMachine,
    TransferSettings,
    TransferSource,
)
from chaos_protocols.transfer.joiner import OUTSTANDING_BYTES_MAX

JOINER = SiteId("f" * 32)
STEPS_MAX = 200_000
CHECK_S = 0.0002


def site(number: int) -> SiteId:
    return SiteId(f"{number:032x}")


def make_plan(
    state_bytes: int, shares: Sequence[int], *, transfer: str = "t", joiner: SiteId = JOINER, shard_bytes: int = 4096
) -> ReplicationPlan:
    """Source `site(n)` sends `shares[n]` of all shares, in one range."""
    borders = [state_bytes * part // sum(shares) for part in itertools.accumulate(shares, initial=0)]
    ranges = tuple(
        SourceRange(source=site(number), start=start, stop=stop)
        for number, (start, stop) in enumerate(itertools.pairwise(borders))
    )
    return ReplicationPlan(
        transfer=transfer,
        joiner=joiner,
        round=7,
        state_bytes=state_bytes,
        shard_bytes=shard_bytes,
        ranges=ranges,
        reason="by shares",
    )


@dataclass(slots=True)
class Neighbour:
    """One source and its link to the joiner."""

    site: SiteId
    machine: TransferSource = field(default_factory=TransferSource)
    rate_bytes_per_s: float = 4e6
    latency_s: float = 0.005
    connection: int = 1
    """Odd while the link is up; a frame of an older connection is lost."""
    silent: bool = False
    """Takes what it is told and sends nothing: a stopped process."""
    spoils: Callable[[Block], bool] = lambda _block: False
    sending: bool = False
    sent_bytes: int = 0
    asked: RangeSet = field(default_factory=RangeSet)

    @property
    def up(self) -> bool:
        return self.connection % 2 == 1


class World:
    """See the module. `run` goes on until the transfer ends or nothing more can happen."""

    def __init__(
        self,
        plan: ReplicationPlan,
        *,
        seed: int = 0,
        settings: TransferSettings | None = None,
        verified: RangeSet | None = None,
        arena: bytearray | None = None,
    ) -> None:
        self.plan = plan
        self.state = random.Random(f"state of {plan.state_bytes}").randbytes(plan.state_bytes)
        self.arena = bytearray(plan.state_bytes) if arena is None else arena
        self.settings = settings or TransferSettings(stall_timeout_s=1.0, wait_timeout_s=20.0)
        self.machine = TransferMachine(plan, settings=self.settings, verified=verified)
        self.rng = random.Random(seed)
        self.neighbours = {name: Neighbour(site=name) for name in sorted({part.source for part in plan.ranges})}
        self.now_s = 0.0
        self.finished_s: float | None = None
        self.failed: str | None = None
        self.dropped: list[SourceDropped] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._timer_s: float | None = None
        self._verified_bytes = self.machine.verified_bytes

    # -- what a test does to it

    def start(self, *, serving: bool = True) -> None:
        if serving:
            for name in self.neighbours:
                self.serve(name)
        links = frozenset(name for name, neighbour in self.neighbours.items() if neighbour.up)
        self._joiner(self.machine.start(links, now_s=self.now_s))

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (at_s, next(self._numbers), action))

    def serve(self, name: SiteId) -> None:
        self._source(name, self.neighbours[name].machine.serve(self.plan.transfer, JOINER, self.plan.state_bytes))

    def release(self, name: SiteId) -> None:
        self._source(name, self.neighbours[name].machine.release(self.plan.transfer))

    def cut(self, name: SiteId) -> None:
        neighbour = self.neighbours[name]
        if neighbour.up:
            neighbour.connection += 1
            neighbour.machine.link_lost(JOINER)
            self._joiner(self.machine.link_lost(name, now_s=self.now_s))

    def renew(self, name: SiteId) -> None:
        neighbour = self.neighbours[name]
        self.cut(name)
        neighbour.connection += 1
        neighbour.sending = False
        self._joiner(self.machine.link_up(name, now_s=self.now_s))

    def run(self, until_s: float = 1000.0) -> None:
        for _ in range(STEPS_MAX):
            if not self._heap or self._heap[0][0] > until_s or self.machine.ended:
                return
            self.now_s, _, action = heapq.heappop(self._heap)
            action()
        raise AssertionError(f"no end after {STEPS_MAX} steps")

    # -- the joiner

    def _joiner(self, effects: list[JoinerEffect]) -> None:
        for effect in effects:
            match effect:
                case SendHeader(site=name, header=header):
                    self._told(name, header)
                case CheckBlock():
                    raise AssertionError("a check belongs to a block that was received")
                case SourceDropped():
                    self.dropped.append(effect)
                case TransferFinished():
                    self._end()
                    self.finished_s = self.now_s
                    assert self.arena == self.state, "finished with bytes that are not the state's"
                case TransferFailed(reason=reason):
                    self._end()
                    self.failed = reason
                case _:
                    assert_never(effect)
        self._look()

    def _end(self) -> None:
        assert self.finished_s is None and self.failed is None, "the end is told once"
        assert self.machine.ended

    def _look(self) -> None:
        """What holds after every step."""
        machine = self.machine
        assert machine.verified_bytes >= self._verified_bytes, "verified bytes were forgotten"
        self._verified_bytes = machine.verified_bytes
        outstanding = sum(source.outstanding_bytes for source in machine._sources.values())
        assert outstanding <= OUTSTANDING_BYTES_MAX
        deadline_s = machine.deadline_s
        assert machine.ended == (deadline_s is None) or all(neighbour.up for neighbour in self.neighbours.values())
        if deadline_s is not None and deadline_s != self._timer_s:
            self._timer_s = deadline_s
            self.at(max(deadline_s, self.now_s), partial(self._due, deadline_s))

    def _due(self, deadline_s: float) -> None:
        if self._timer_s == deadline_s:
            self._timer_s = None
            self._joiner(self.machine.due(now_s=self.now_s))

    def _told(self, name: SiteId, header: object) -> None:
        neighbour = self.neighbours[name]
        if not neighbour.up:
            return
        assert isinstance(header, BlockWant | BlockDrop)
        if isinstance(header, BlockWant):
            assert 0 <= header.start < header.stop <= self.plan.state_bytes
            neighbour.asked.add(header.start, header.stop)
        connection = neighbour.connection

        def arrive() -> None:
            if neighbour.connection == connection:
                self._source(name, neighbour.machine.received(JOINER, header))

        self.at(self.now_s + neighbour.latency_s, arrive)

    def _block(self, name: SiteId, connection: int, header: BlockData, data: bytes) -> None:
        neighbour = self.neighbours[name]
        if neighbour.connection != connection or self.machine.ended:
            return
        if not self.machine.takes(name, header, len(data)):
            return
        self.machine.progressed(name, now_s=self.now_s)
        effects = self.machine.received(name, header, len(data), now_s=self.now_s)
        check = effects[0]
        assert isinstance(check, CheckBlock) and (check.start, check.stop) == (header.start, header.start + len(data))
        assert not neighbour.asked.missing(check.start, check.stop), "a block that its source was not asked for"
        self.at(self.now_s + CHECK_S, partial(self._check, check, data))
        self._joiner(effects[1:])

    def _check(self, check: CheckBlock, data: bytes) -> None:
        if blake3(data).digest() == check.hash:
            assert self.state[check.start : check.stop] == data
            self.arena[check.start : check.stop] = data
            effects = self.machine.verified(check.source, check.start, check.stop, now_s=self.now_s)
            assert not self.machine.verified_ranges.missing(check.start, check.stop)
        else:
            before = self.machine.verified_bytes
            effects = self.machine.refuted(check.source, check.start, check.stop, now_s=self.now_s)
            assert self.machine.verified_bytes == before
        self._joiner(effects)

    # -- the sources

    def _source(self, name: SiteId, effects: list[SourceEffect]) -> None:
        neighbour = self.neighbours[name]
        for effect in effects:
            match effect:
                case SendHeader(header=header):
                    assert isinstance(header, BlockWait | BlockGone)
                    self.at(
                        self.now_s + neighbour.latency_s, partial(self._answered, name, neighbour.connection, header)
                    )
                case StreamBlocks():
                    if not neighbour.sending:
                        neighbour.sending = True
                        self._send(name, neighbour.connection)
                case _:
                    assert_never(effect)

    def _answered(self, name: SiteId, connection: int, header: BlockWait | BlockGone) -> None:
        if self.neighbours[name].connection == connection and not self.neighbours[name].silent:
            self._joiner(self.machine.told(name, header, now_s=self.now_s))

    def _send(self, name: SiteId, connection: int) -> None:
        neighbour = self.neighbours[name]
        if neighbour.connection != connection:
            return
        block = None if neighbour.silent else neighbour.machine.next_block(JOINER)
        if block is None:
            neighbour.sending = False
            return
        data = self.state[block.start : block.stop]
        header = BlockData(transfer=block.transfer, start=block.start, hash=blake3(data).digest())
        if neighbour.spoils(block):
            data = bytes([data[0] ^ 1]) + data[1:]
        takes_s = len(data) / neighbour.rate_bytes_per_s
        neighbour.sent_bytes += len(data)
        arrives_s = self.now_s + takes_s + neighbour.latency_s
        self.at(arrives_s, partial(self._block, name, connection, header, data))
        self.at(self.now_s + takes_s, partial(self._send, name, connection))
