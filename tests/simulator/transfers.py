"""State transfers at a simulated site: carries out what the machines of `chaos_protocols.state.transfer` ask for.

As the daemon's replication engine does, with regions of `contents` for bytes: blocks are hashed, sent over two streams
that overtake each other, written into their place, hashed there, and count then. Modelled: how long a source needs for
a block (`block_s`: link, hashing and disk together), how long a joiner needs to hash one (HASH_S).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

from chaos_protocols import events
from chaos_protocols.names import SiteId
from chaos_protocols.state.transfer import (
    Block,
    CheckBlock,
    Comparison,
    FetchFailed,
    JoinerEffect,
    SendHeader,
    SourceDropped,
    SourceEffect,
    StateFetched,
    StreamBlocks,
    TransferMachine,
    TransferSettings,
    TransferSource,
)
from chaos_protocols.state.transfer.ranges import Range
from chaos_protocols.wire.bulk import BlockData, BlockDrop, BlockWant, WitnessWant
from chaos_protocols.wire.plans import ReplicationPlan
from tests.simulator.contents import Region, hash_of
from tests.simulator.outbox import STATES, Frame, Outbox

if TYPE_CHECKING:
    from tests.simulator.node import Node

HASH_S = 0.0003
"""A block of a MiB at 3 GB/s."""
PROGRESS_INTERVAL_S = 0.1
HELD_HASHED_AHEAD = 8


@dataclass(slots=True)
class Fetch:
    """A running transfer to this site."""

    machine: TransferMachine
    region: Region
    told_s: float = float("-inf")
    timer_s: float | None = None
    timer: int = 0
    incoming: dict[tuple[str, str], Range] = field(default_factory=dict)
    """What is being written into the region now: by which site and stream, and where."""
    held: Iterator[Range] = field(default_factory=lambda: iter(()))
    seen: dict[tuple[int, str], int] = field(default_factory=dict)
    """Pieces that had come of blocks, by connection and stream, when the timer last fired."""


@dataclass(slots=True)
class _Lane:
    """One joiner. `busy`: its next block is being hashed and taken by the link; `held`: it waits, the source stands."""

    joiner: str
    busy: bool = False
    over: bool = False
    sent: int = 0
    held: Callable[[], None] | None = None


class Transfers:
    """See the module. `fetching`: the plan of the transfer that runs; `served`: plans and what is read for them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.source = TransferSource()
        self.served: dict[str, tuple[ReplicationPlan, Region]] = {}
        self.fetch_now: Fetch | None = None
        self.outboxes = {stream: Outbox(node._send_bulk) for stream in STATES}
        self._links: set[str] = set()
        self._lanes: dict[str, _Lane] = {}
        self.stalled = False
        self._rates: dict[SiteId, float] = {}
        self.spoils = 0
        """So many blocks that this site sends have a byte that changed after they were hashed."""

    @property
    def fetching(self) -> ReplicationPlan | None:
        return self.fetch_now.machine.plan if self.fetch_now is not None else None

    # -- the source

    def serve(self, plan: ReplicationPlan, region: Region) -> None:
        asked = self.source.serve(plan.transfer, plan.joiner, region.size_bytes)
        self.served[plan.transfer] = (plan, region)
        self._run_source(asked)

    def release(self, transfer: str) -> None:
        self.served.pop(transfer, None)
        self._run_source(self.source.release(transfer))

    def abort(self) -> None:
        """A source that gives up in the middle: whoever asked is told."""
        for transfer in list(self.served):
            self.release(transfer)

    def stall(self, stalled: bool) -> None:
        """A source that stands still: no block leaves it."""
        self.stalled = stalled
        for lane in list(self._lanes.values()):
            if not stalled and lane.held is not None:
                go_on, lane.held = lane.held, None
                go_on()
            self._pump(lane)

    def taken(self, site: str, stream: str) -> None:
        """The far end has read a frame."""
        self.outboxes[stream].taken(site)
        lane = self._lanes.get(site)
        if lane is not None:
            self._pump(lane)

    def _run_source(self, asked: list[SourceEffect]) -> None:
        for effect in asked:
            match effect:
                case SendHeader(site=site, header=header):
                    self.outboxes[STATES[0]].put(site, Frame(STATES[0], header))
                case StreamBlocks(joiner=joiner):
                    self._pump(self._lanes.setdefault(joiner, _Lane(joiner)))
                case _:
                    assert_never(effect)

    def _pump(self, lane: _Lane) -> None:
        """Hash the next block, and let the link take it: one at a time, since the path is one."""
        stream = STATES[lane.sent % len(STATES)]
        if lane.busy or lane.over or self.stalled or not self.outboxes[stream].has_room(lane.joiner):
            return
        item = self.source.next_item(lane.joiner)  # type: ignore[arg-type]
        if item is None:
            return
        lane.busy = True
        digest = hash_of(self.served[item.transfer][1].read(item.start, item.stop))
        size_bytes = item.stop - item.start if isinstance(item, Block) else 0
        self._node.later(self._node.block_s(lane.joiner, size_bytes), lambda: self._ready(lane, item, digest, stream))

    def _ready(self, lane: _Lane, item: Block | Comparison, digest: bytes, stream: str) -> None:
        if lane.over:
            return
        if self.stalled:
            lane.held = lambda: self._ready(lane, item, digest, stream)
            return
        lane.busy = False
        joiner: Any = lane.joiner
        if isinstance(item, Comparison):
            self._run_source(self.source.hashed(joiner, item, digest))
        elif self.source.is_wanted(joiner, item):
            runs = self.served[item.transfer][1].read(item.start, item.stop)
            faulty = self.spoils > 0
            if faulty:
                self.spoils -= 1
                self._node.world.oracles.block_spoilt(self._node)
                runs = tuple((start, stop, f"{word}, spoilt") for start, stop, word in runs)
            header = BlockData(transfer=item.transfer, start=item.start, hash=digest)
            lane.sent += 1
            self.outboxes[stream].put(joiner, Frame(stream, header, runs, item.stop - item.start, faulty=faulty))
        self._pump(lane)

    # -- the joiner

    def fetch(self, plan: ReplicationPlan, region: Region, *, have: bool) -> None:
        if self.fetch_now is not None:
            self.cancel(self.fetch_now.machine.plan.transfer)
        settings = TransferSettings(stall_timeout_s=2 * self._node.world.settings.failure_timeout_s)
        machine = TransferMachine(plan, settings=settings, held=have, rates=self._rates)
        fetch = self.fetch_now = Fetch(machine, region)
        if machine.held is not None:
            fetch.held = machine.held.cells()
            for _ in range(HELD_HASHED_AHEAD):
                self._hash_held(fetch)
        self._run(fetch, machine.start(frozenset(self._links), now_s=self._now_s()))  # type: ignore[arg-type]

    def cancel(self, transfer: str) -> None:
        fetch = self.fetch_now
        if fetch is not None and fetch.machine.plan.transfer == transfer:
            self._run(fetch, fetch.machine.cancel())
            self._end(fetch)

    def source_gone(self, transfer: str, site: SiteId) -> None:
        fetch = self.fetch_now
        if fetch is not None and fetch.machine.plan.transfer == transfer:
            self._run(fetch, fetch.machine.gone(site, now_s=self._now_s()))

    # -- links and frames

    def link_up(self, site: SiteId) -> None:
        self._close_link(site)
        self._links.add(site)
        for outbox in self.outboxes.values():
            outbox.link_up(site)
        if self.fetch_now is not None:
            self._run(self.fetch_now, self.fetch_now.machine.link_up(site, now_s=self._now_s()))

    def link_lost(self, site: SiteId) -> None:
        self._close_link(site)
        if self.fetch_now is not None:
            self._run(self.fetch_now, self.fetch_now.machine.link_lost(site, now_s=self._now_s()))

    def begins(self, site: str, frame: Frame) -> None:
        """The head of a block is here, and says where its bytes will lie."""
        fetch, header = self.fetch_now, frame.header
        start, stop = header.start, header.start + frame.size_bytes
        if fetch is None:
            return
        if not fetch.machine.takes(site, header, frame.size_bytes):  # type: ignore[arg-type]
            fetch.machine.passed_by(site, frame.size_bytes, now_s=self._now_s())  # type: ignore[arg-type]
            return
        if any(start < until and at < stop for at, until in fetch.incoming.values()):
            return  # a second writer to the same place: whatever it sends, it is not needed
        fetch.machine.begins(site, start, now_s=self._now_s())  # type: ignore[arg-type]
        fetch.incoming[site, frame.stream] = (start, stop)
        fetch.region.write(((start, stop, "a block that is arriving"),))

    def received(self, site: SiteId, frame: Frame) -> None:
        """A frame is complete. Raises RemoteProtocolError."""
        header, fetch = frame.header, self.fetch_now
        if isinstance(header, BlockWant | BlockDrop | WitnessWant):
            self._run_source(self.source.received(site, header))
        elif fetch is None:
            return
        elif isinstance(header, BlockData):
            if fetch.incoming.pop((site, frame.stream), None) is not None:
                fetch.region.write(frame.payload)
                received = fetch.machine.received(site, header, frame.size_bytes, now_s=self._now_s())
                self._run(fetch, received)
        else:
            self._run(fetch, fetch.machine.told(site, header, now_s=self._now_s()))
            self._report(fetch)

    # -- effects

    def _run(self, fetch: Fetch, asked: list[JoinerEffect]) -> None:
        node, transfer = self._node, fetch.machine.plan.transfer
        for effect in asked:
            match effect:
                case SendHeader(site=site, header=header):
                    self.outboxes[STATES[0]].put(site, Frame(STATES[0], header))
                case CheckBlock():
                    node.later(HASH_S, self._checking(fetch, effect))
                case SourceDropped(source=source, reason=reason, wrong=wrong):
                    node.world.oracles.source_dropped(node, source, wrong=wrong)
                    node.world.tell(f"{node.name}: source {source}: {reason}")
                case StateFetched():
                    node.later(HASH_S, lambda: self._finished(fetch))
                case FetchFailed(reason=reason):
                    self._end(fetch)
                    node.soon(events.TransferFailed(transfer=transfer, reason=reason))
                case _:
                    assert_never(effect)
        for (sender, stream), (start, stop) in list(fetch.incoming.items()):
            if not fetch.machine.awaits(sender, start, stop):  # type: ignore[arg-type]
                del fetch.incoming[sender, stream]
        self._set_timer(fetch)

    def _checking(self, fetch: Fetch, effect: CheckBlock) -> Callable[[], None]:
        def hashed() -> None:
            if self.fetch_now is fetch:
                digest = hash_of(fetch.region.read(effect.start, effect.stop))
                self._run(fetch, fetch.machine.checked(effect, digest, now_s=self._now_s()))
                self._report(fetch)

        return hashed

    def _report(self, fetch: Fetch) -> None:
        if self.fetch_now is fetch and self._now_s() >= fetch.told_s + PROGRESS_INTERVAL_S:
            fetch.told_s = self._now_s()
            machine = fetch.machine
            told = events.TransferProgressed(transfer=machine.plan.transfer, verified_bytes=machine.verified_bytes)
            self._node.soon(told)

    def _hash_held(self, fetch: Fetch) -> None:
        """The next cell of what the region holds."""
        cell = next(fetch.held, None)
        if cell is None:
            return

        def hashed() -> None:
            if self.fetch_now is fetch:
                self._hash_held(fetch)
                digest = hash_of(fetch.region.read(*cell))
                self._run(fetch, fetch.machine.held_hashed(cell[0], digest, now_s=self._now_s()))

        self._node.later(HASH_S, hashed)

    def _finished(self, fetch: Fetch) -> None:
        if self.fetch_now is fetch:
            self._end(fetch)
            machine = fetch.machine
            told = events.TransferFinished(transfer=machine.plan.transfer, held_bytes=machine.same_bytes)
            self._node.soon(told)

    # -- helpers

    def _set_timer(self, fetch: Fetch) -> None:
        """It looks again when it fires: cheaper than a new timer for every block."""
        deadline_s = fetch.machine.deadline_s if self.fetch_now is fetch else None
        if deadline_s is None or (fetch.timer_s is not None and fetch.timer_s <= deadline_s):
            return
        fetch.timer_s, fetch.timer = deadline_s, fetch.timer + 1
        number = fetch.timer

        def due() -> None:
            if self.fetch_now is fetch and fetch.timer == number:
                fetch.timer_s = None
                self._look(fetch)
                self._run(fetch, fetch.machine.due(now_s=self._now_s()))

        self._node.later(max(0.0, deadline_s - self._now_s()), lambda: self._node.to_bulk(lambda _: due()))

    def _look(self, fetch: Fetch) -> None:
        """A block over a slow way takes longer than a stall: a source of which more has come is none."""
        before, fetch.seen = fetch.seen, {}
        for site, connection in self._node.connections.items():
            for stream in STATES:
                pieces = fetch.seen[connection.number, stream] = connection.pieces.get((site, stream), 0)
                if pieces > before.get((connection.number, stream), 0):
                    if (site, stream) in fetch.incoming:
                        fetch.machine.progressed(site, now_s=self._now_s())  # type: ignore[arg-type]
                    else:
                        fetch.machine.passed_by(site, 0, now_s=self._now_s())  # type: ignore[arg-type]

    def _end(self, fetch: Fetch) -> None:
        """Nothing is written into its region after this."""
        fetch.machine.ended = True
        self._rates |= fetch.machine.rates()
        fetch.incoming.clear()
        if self.fetch_now is fetch:
            self.fetch_now = None

    def _close_link(self, site: str) -> None:
        self._links.discard(site)
        self._rates.pop(site, None)  # type: ignore[call-overload]
        for outbox in self.outboxes.values():
            outbox.link_lost(site)
        self.source.link_lost(site)  # type: ignore[arg-type]
        lane = self._lanes.pop(site, None)
        if lane is not None:
            lane.over = True
        if self.fetch_now is not None:
            for key in [key for key in self.fetch_now.incoming if key[0] == site]:
                del self.fetch_now.incoming[key]

    def _now_s(self) -> float:
        return self._node.world.now_s

    def is_over(self, header: Any) -> bool:
        """Whether this block is of a transfer that is over: once more, it must change nothing."""
        return isinstance(header, BlockData) and (self.fetching is None or self.fetching.transfer != header.transfer)

    def is_in_the_middle(self, site: str, stream: str) -> bool:
        """Whether a frame of this site has begun to arrive on this stream and is not here yet."""
        return self.fetch_now is not None and (site, stream) in self.fetch_now.incoming

    def fingerprint(self) -> tuple[Any, ...]:
        fetch = self.fetch_now
        held = None if fetch is None else (fetch.machine.plan.transfer, fetch.region.version, len(fetch.incoming))
        verified = None if fetch is None else fetch.machine.verified_bytes
        return (held, verified, tuple(self.served))
