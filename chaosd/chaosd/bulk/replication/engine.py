"""State transfer with bytes: serves snapshots of this site's state, fetches a state from several neighbours at once.

Executes what the pure machines of `chaos_protocols.state.transfer` decide. Driven by the driver on its loop; links and
frames come from the transport (streams 1 and up); reports through `ReplicationEvents`, from the loop and never from
inside one of its own methods.

Blocks go straight from the snapshot to the socket, and from the socket into their place in the arena, where a thread
hashes them: no copy on either side, and no memory beyond the arena. A place counts as state only when its hash was
checked; until then it holds whatever came. What may write into the arena is known at every moment (`_Fetch.incoming`):
one block for each stream, no two that overlap; when a source is given up or the transfer ends, the transport is told to
forget what is under way, and since both run on the loop nothing is written after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, assert_never

from chaos_protocols.errors import LocalProtocolError, RemoteProtocolError
from chaos_protocols.names import SiteId, short
from chaos_protocols.state.transfer import (
    CheckBlock,
    FetchFailed,
    JoinerEffect,
    Replan,
    SendHeader,
    SourceDropped,
    SourceProgress,
    StateFetched,
    TransferMachine,
    TransferSettings,
    split_by_rate,
)
from chaos_protocols.state.transfer.ranges import Range
from chaos_protocols.wire.bulk import (
    STREAM_REPLICATION,
    BlockData,
    BlockDrop,
    BlockGone,
    BlockReady,
    BlockSame,
    BlockWait,
    BlockWant,
    WitnessHash,
    WitnessWant,
    decode_bulk_header,
)
from chaos_protocols.wire.plans import ReplicationPlan
from chaosd.bulk.replication.blocks import HashThreads, hash_of
from chaosd.bulk.replication.source import StateSource
from chaosd.bulk.send_queue import BulkSender, Frame, SendQueue

PROGRESS_INTERVAL_S = 0.1
"""Between two reports of progress."""

PROGRESS_BYTES_MIN = 4 << 10
"""A block of a slow link may take longer than a stall: a source that has sent so much of one meanwhile is none."""

HELD_HASHED_AHEAD = 8
"""Cells of what the destination holds that are on the threads at a time."""


class ReplicationEvents(Protocol):
    """What the engine reports. Called on the loop, never from inside a method of the engine."""

    def transfer_finished(self, transfer: str) -> None:
        """The whole state lies in the destination; each of its blocks was verified there."""

    def transfer_failed(self, transfer: str, reason: str) -> None:
        """No source is left. A later `fetch` with `have` keeps what is right of it."""

    def transfer_progress(self, transfer: str, verified_bytes: int) -> None:
        """At most every PROGRESS_INTERVAL_S."""

    def source_dropped(self, transfer: str, site: SiteId, reason: str, wrong: bool) -> None:
        """A source is not used any more, or (`wrong`) sent bytes that fail their hash."""

    def peer_broke_rules(self, site: SiteId, reason: str) -> None:
        """Close its link."""


@dataclass(slots=True)
class _Fetch:
    """A running transfer to this site."""

    machine: TransferMachine
    destination: memoryview
    begun_s: float
    told_s: float = float("-inf")
    timer: asyncio.Handle | None = None
    timer_s: float = 0.0
    incoming: dict[tuple[SiteId, int], Range] = field(default_factory=dict)
    """What is being written into the destination now: by which site and stream, and where."""
    seen: dict[tuple[SiteId, int], int] = field(default_factory=dict)
    """How many bytes of each block under way were here when the timer last fired."""
    held: Iterator[Range] = field(default_factory=lambda: iter(()))


class ReplicationEngine:
    """See the module. `close` must be awaited before the loop ends."""

    def __init__(
        self,
        site: SiteId,
        sender: BulkSender,
        events: ReplicationEvents,
        *,
        settings: TransferSettings | None = None,
        replan: Replan = split_by_rate,
    ) -> None:
        self._site = site
        self._sender = sender
        self._events = events
        self._settings = settings
        self._replan = replan
        self._outbox: SendQueue[None] = SendQueue(sender, STREAM_REPLICATION, self._overflowed)
        self._links: set[SiteId] = set()
        self._hashing = HashThreads()
        self._source = StateSource(sender, self._outbox, self._hashing)
        self._fetch: _Fetch | None = None
        self._rates: dict[SiteId, float] = {}
        """Of sources whose links were crowded (`TransferMachine.rates`), over the links that are up now."""
        self.same_bytes = 0
        """Of the last state that was fetched: what had not to be sent."""
        self._announced: dict[tuple[SiteId, int], tuple[bytes, BlockData]] = {}

    # -- the source's side ---------------------------------------------------------------------------------------------

    def serve(self, transfer: str, joiner: SiteId, round_number: int, snapshot: memoryview) -> None:
        """The state of the end of `round_number` lies in `snapshot` and stays as it is until `release`."""
        del round_number  # part of the plan that both sides hold; the transfer names it
        self._source.serve(transfer, joiner, snapshot)

    def release(self, transfer: str) -> None:
        """The snapshot will not be read any more; a joiner that still asks is told. Also where it was never taken."""
        self._source.release(transfer)

    # -- the joiner's side ---------------------------------------------------------------------------------------------

    def fetch(self, plan: ReplicationPlan, destination: memoryview, *, have: bool = False) -> None:
        """Get the state into `destination` (exactly `plan.state_bytes` bytes); a fetch before is cancelled.

        `have`: the destination holds an older state, or part of one (what a fetch that failed had got): its cells are
        hashed here, and only those that differ are sent.
        """
        if destination.nbytes != plan.state_bytes or destination.readonly:
            raise LocalProtocolError(f"a destination of {destination.nbytes} bytes for {plan.state_bytes} of state")
        if self._fetch is not None:
            self.cancel(self._fetch.machine.plan.transfer)
        machine = TransferMachine(plan, settings=self._settings, replan=self._replan, held=have, rates=self._rates)
        now_s = self._now_s()
        fetch = self._fetch = _Fetch(machine=machine, destination=destination.cast("B"), begun_s=now_s)
        if machine.held is not None:
            fetch.held = machine.held.cells()
            for _ in range(HELD_HASHED_AHEAD):
                self._hash_held(fetch)
        self._run_joiner(fetch, machine.start(frozenset(self._links), now_s=now_s))

    def sources_of(self, transfer: str) -> dict[SiteId, SourceProgress]:
        """How far each source of a running transfer is; empty where that one does not run."""
        fetch = self._fetch
        return fetch.machine.progress() if fetch is not None and fetch.machine.plan.transfer == transfer else {}

    def cancel(self, transfer: str) -> None:
        """Ask for nothing more; nothing is reported about this transfer any more, nothing written for it."""
        fetch = self._fetch
        if fetch is not None and fetch.machine.plan.transfer == transfer:
            self._run_joiner(fetch, fetch.machine.cancel())
            self._end_fetch(fetch)

    def source_gone(self, transfer: str, site: SiteId) -> None:
        """It is asked for nothing more, also when its link is back; without another source the transfer fails."""
        fetch = self._fetch
        if fetch is not None and fetch.machine.plan.transfer == transfer:
            self._run_joiner(fetch, fetch.machine.gone(site, now_s=self._now_s()))

    # -- links and frames ----------------------------------------------------------------------------------------------

    def link_up(self, site: SiteId) -> None:
        """A new connection: what is still wanted is asked for again."""
        self._close_link(site)
        self._links.add(site)
        self._outbox.link_up(site)
        if self._fetch is not None:
            self._run_joiner(self._fetch, self._fetch.machine.link_up(site, now_s=self._now_s()))

    def link_lost(self, site: SiteId) -> None:
        self._close_link(site)
        if self._fetch is not None:
            self._run_joiner(self._fetch, self._fetch.machine.link_lost(site, now_s=self._now_s()))

    def bulk_buffer(self, site: SiteId, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        """Where the payload of this frame goes; None: nobody needs it."""
        try:
            message = decode_bulk_header(header)
            if not isinstance(message, BlockData):
                raise RemoteProtocolError(f"site {short(site)} sent a {type(message).__name__} with a payload")
            self._announced[site, stream] = (header, message)
        except RemoteProtocolError as error:
            self._tell(self._events.peer_broke_rules, site, str(error))
            return None
        fetch = self._fetch
        start, stop = message.start, message.start + size_bytes
        if fetch is None:
            return None
        fetch.seen.pop((site, stream), None)
        if not fetch.machine.takes(site, message, size_bytes):
            fetch.machine.passed_by(site, size_bytes, now_s=self._now_s())
            return None
        if any(start < until and at < stop for at, until in fetch.incoming.values()):
            return None  # a second writer to the same place: whatever it sends, it is not needed
        fetch.machine.begins(site, start, now_s=self._now_s())
        fetch.incoming[site, stream] = (start, stop)
        return fetch.destination[start:stop]

    def bulk_received(self, site: SiteId, stream: int, header: bytes, payload: memoryview | None) -> None:
        """A frame is complete."""
        known, announced = self._announced.pop((site, stream), (b"", None))
        try:
            message = announced if announced is not None and known == header else decode_bulk_header(header)
            match message:
                case BlockData():
                    self._block_received(site, stream, message, payload)
                case BlockWant() | BlockDrop() | WitnessWant():
                    self._source.received(site, message)
                case BlockSame() | BlockWait() | BlockReady() | BlockGone() | WitnessHash():
                    fetch = self._fetch
                    if fetch is not None:
                        self._run_joiner(fetch, fetch.machine.told(site, message, now_s=self._now_s()))
                        self._report_progress(fetch)
                case _:
                    raise RemoteProtocolError(f"a {type(message).__name__} does not belong on the replication stream")
        except RemoteProtocolError as error:
            self._tell(self._events.peer_broke_rules, site, str(error))

    async def close(self) -> None:
        """Drop everything. Returns when no task and no thread is left."""
        if self._fetch is not None:
            self._end_fetch(self._fetch)
        await self._source.close()
        await self._outbox.close()
        await self._hashing.close()

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _block_received(self, site: SiteId, stream: int, message: BlockData, payload: memoryview | None) -> None:
        fetch = self._fetch
        place = fetch.incoming.get((site, stream)) if fetch is not None else None
        if payload is None or fetch is None or place is None:
            return  # discarded, or of a transfer that was cancelled meanwhile
        del fetch.incoming[site, stream]
        effects = fetch.machine.received(site, message, payload.nbytes, now_s=self._now_s())
        self._run_joiner(fetch, effects)

    def _run_joiner(self, fetch: _Fetch, effects: list[JoinerEffect]) -> None:
        transfer = fetch.machine.plan.transfer
        for effect in effects:
            match effect:
                case SendHeader():
                    self._outbox.put(effect.site, Frame(key=None, header=effect.header))
                case CheckBlock():
                    place = fetch.destination[effect.start : effect.stop]
                    self._hashing.submit(partial(hash_of, place), partial(self._checked, fetch, effect))
                case SourceDropped():
                    self._tell(self._events.source_dropped, transfer, effect.source, effect.reason, effect.wrong)
                case StateFetched():
                    self.same_bytes = fetch.machine.same_bytes
                    self._end_fetch(fetch)
                    self._tell(self._events.transfer_finished, transfer)
                case FetchFailed(reason=reason):
                    self._end_fetch(fetch)
                    self._tell(self._events.transfer_failed, transfer, reason)
                case _:
                    assert_never(effect)
        for (site, stream), (start, stop) in list(fetch.incoming.items()):
            if not fetch.machine.awaits(site, start, stop):
                self._forget(fetch, site, stream)
        self._set_timer(fetch)

    def _checked(self, fetch: _Fetch, effect: CheckBlock, digest: bytes) -> None:
        if self._fetch is not fetch:
            return
        self._run_joiner(fetch, fetch.machine.checked(effect, digest, now_s=self._now_s()))
        self._report_progress(fetch)

    def _report_progress(self, fetch: _Fetch) -> None:
        now_s = self._now_s()
        if self._fetch is fetch and now_s >= fetch.told_s + PROGRESS_INTERVAL_S:
            fetch.told_s = now_s
            machine = fetch.machine
            self._tell(self._events.transfer_progress, machine.plan.transfer, machine.verified_bytes)

    def _hash_held(self, fetch: _Fetch) -> None:
        """The next cell of what the destination holds."""
        cell = next(fetch.held, None)
        if cell is not None:
            place = fetch.destination[cell[0] : cell[1]]
            self._hashing.submit(partial(hash_of, place), partial(self._held_hashed, fetch, cell[0]))

    def _held_hashed(self, fetch: _Fetch, start: int, digest: bytes) -> None:
        if self._fetch is fetch:
            self._hash_held(fetch)
            self._run_joiner(fetch, fetch.machine.held_hashed(start, digest, now_s=self._now_s()))

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _set_timer(self, fetch: _Fetch) -> None:
        deadline_s = fetch.machine.deadline_s if self._fetch is fetch else None
        if fetch.timer is not None:
            if deadline_s is not None and fetch.timer_s <= deadline_s:
                return  # it looks again when it fires: cheaper than a new timer for every block
            fetch.timer.cancel()
            fetch.timer = None
        if deadline_s is not None:
            fetch.timer_s = deadline_s
            fetch.timer = asyncio.get_running_loop().call_at(deadline_s, self._time_passed, fetch)

    def _time_passed(self, fetch: _Fetch) -> None:
        fetch.timer = None
        here = {key: self._sender.payload_bytes(*key) for key in self._announced}
        for key, size_bytes in here.items():
            if size_bytes >= fetch.seen.get(key, 0) + PROGRESS_BYTES_MIN:
                if key in fetch.incoming:
                    fetch.machine.progressed(key[0], now_s=self._now_s())
                else:
                    fetch.machine.passed_by(key[0], 0, now_s=self._now_s())
        fetch.seen = here
        self._run_joiner(fetch, fetch.machine.due(now_s=self._now_s()))

    def _end_fetch(self, fetch: _Fetch) -> None:
        """Nothing is written into its destination after this."""
        fetch.machine.ended = True
        self._rates |= fetch.machine.rates()
        for site, stream in list(fetch.incoming):
            self._forget(fetch, site, stream)
        if self._fetch is fetch:
            self._fetch = None
        self._set_timer(fetch)

    def _forget(self, fetch: _Fetch, site: SiteId, stream: int) -> None:
        del fetch.incoming[site, stream]
        self._sender.forget_payload(site, stream)

    def _close_link(self, site: SiteId) -> None:
        self._links.discard(site)
        self._rates.pop(site, None)
        self._outbox.link_lost(site)
        self._source.link_lost(site)
        for key in [key for key in self._announced if key[0] == site]:
            del self._announced[key]  # what was under way never becomes whole
        if self._fetch is not None:
            for key in [key for key in self._fetch.incoming if key[0] == site]:
                self._forget(self._fetch, *key)

    def _overflowed(self, site: SiteId) -> None:
        self._tell(self._events.peer_broke_rules, site, "it takes nothing of what it is told")

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        asyncio.get_running_loop().call_soon(partial(callback, *arguments))
