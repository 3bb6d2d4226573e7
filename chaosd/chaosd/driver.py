"""The driver: facts from sockets, timers and engines go into the site's machine, its effects are carried out, in order.

It decides nothing. Everything that can be decided is decided in `chaos_protocols.site.SiteMachine`, which the
simulator runs as well; here a fact becomes an event, an effect becomes bytes, a timer, a file record or a message to
the worker. One event at a time: events that arise while effects run wait in a queue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, assert_never

import msgspec

from chaos_protocols import effects, events
from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.messages import CodecError, Envelope, decode_envelope, encode_envelope, signed_bytes
from chaos_protocols.names import SiteId, short
from chaos_protocols.plans import Tag
from chaos_protocols.raft import Persist
from chaos_protocols.roster import ModelFacts
from chaos_protocols.site import SiteMachine
from chaos_protocols.wire.versions import SPOKEN, Versions, agreed
from chaos_protocols.worker import (
    ApplyResult,
    LeaveRequested,
    ResultApplied,
    RoundContributed,
    SnapshotMissed,
    SnapshotTaken,
    StateLoaded,
    UpdateStarted,
    WorkerHello,
    WorkerMessage,
    WorkerRefused,
    WorkerWelcome,
)
from chaosd.arena import Arena
from chaosd.authentic import check_source
from chaosd.bulk_effects import execute_bulk
from chaosd.bulk_streams import BulkStreams
from chaosd.history import History
from chaosd.identity import Identity
from chaosd.journal import Journal, JournalError
from chaosd.measuring import LinkMeter
from chaosd.mirror import StateKeeper
from chaosd.model_check import ModelCheck
from chaosd.recorder import Recorder
from chaosd.rounds_log import RoundsLog
from chaosd.transport import DialError, Transport
from chaosd.vector_file import read_vector, write_vector
from chaosd.worker_server import WorkerServer

log = logging.getLogger("chaosd")
SIGNED_KEPT_MAX = 64
"""A flooded envelope goes to several neighbours: it is signed once."""


class Driver:
    """See the module. `parts` are attached by the daemon before `start`; `stopped` is set when the machine says that
    this daemon ends."""

    def __init__(self, machine: SiteMachine, identity: Identity, journal: Journal, history: History) -> None:
        self.machine = machine
        self.transport: Transport
        self.workers: WorkerServer
        self.bulk: BulkStreams
        self.meter: LinkMeter
        self.models: ModelCheck
        self.keeper: StateKeeper
        self.arena: Arena | None = None
        self.hello: WorkerHello | None = None
        self.transfer_rates: dict[SiteId, float] = {}
        self.rounds_log: RoundsLog | None = None
        self.stopped: asyncio.Future[tuple[bool, str]] | None = None
        self.started_s = 0.0
        self.answers: dict[str, asyncio.Future[tuple[bool, str]]] = {}
        self.recorder = Recorder(history, machine)
        self._identity, self._journal = identity, journal
        self._queue: deque[events.Event] = deque()
        self._running = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._signed: dict[tuple[SiteId, int], bytes] = {}
        self._old_arenas: list[Arena] = []
        self._vector_path: Path | None = None
        self._dial_failures: dict[SiteId, str] = {}

    # -- the loop of events and effects

    def start(self, peers: tuple[tuple[SiteId, str], ...]) -> None:
        loop = asyncio.get_running_loop()
        self.stopped = loop.create_future()
        self.started_s = self.now_s()
        self.keeper.look()
        self.feed(events.Started(peers=peers))

    def remember_vector(self, path: Path) -> None:
        """A daemon that was restarted knows what is averaged before its worker is back: it relays, with weight 0."""
        self._vector_path = path
        spec = read_vector(path)
        if spec is not None:
            self.bulk.reduce.configure(spec, memoryview(bytearray(spec.size_bytes)))
            self.bulk.reduce.detach_contribution()

    def now_s(self) -> float:
        """Not the loop's own clock: uvloop's counts in milliseconds, and stands still while a callback runs."""
        return time.monotonic()

    def feed(self, event: events.Event) -> None:
        """Take an event, now or as soon as the effects of the one before are carried out."""
        self._queue.append(event)
        if self._running or (self.stopped is not None and self.stopped.done()):
            return
        self._running = True
        try:
            while self._queue:
                for effect in self.machine.handle(self._queue.popleft(), now_s=self.now_s()):
                    self._execute(effect)
        except Exception as error:  # a defect of ours, or a disk that fails: what is not durable must not be answered
            self._fail(error)
        finally:
            self._running = False

    def _fail(self, error: Exception) -> None:
        log.critical("the daemon must stop: %s", error, exc_info=not isinstance(error, OSError | JournalError))
        if self.stopped is not None and not self.stopped.done():
            self.stopped.set_exception(error)

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """A task of the driver, with a name; cancelled at `close`."""
        task = asyncio.get_running_loop().create_task(work(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.keeper.close()
        if self.arena is not None:
            self._old_arenas.append(self.arena)
        for arena in self._old_arenas:
            arena.close()
        if self.rounds_log is not None:
            self.rounds_log.close()

    # -- effects

    def _execute(self, effect: effects.Effect) -> None:
        match effect:
            case Persist():
                self._journal.persist(effect)
            case effects.SendEnvelope(neighbour=neighbour, envelope=envelope):
                self.transport.send_control(neighbour, self._encoded(neighbour, envelope))
            case effects.SetTimer(at_s=at_s):
                if self._timer is not None:
                    self._timer.cancel()
                delay_s = max(0.0, at_s - self.now_s())
                self._timer = asyncio.get_running_loop().call_later(delay_s, lambda: self.feed(events.TimerFired()))
            case effects.Dial(site=site, address=address, timeout_s=timeout_s):
                self.spawn(lambda: self._dial(site, address, timeout_s), f"dial {short(site)}")
            case effects.CloseLink(site=site, reason=reason):
                self.transport.close_link(site, reason)
            case effects.ProbeLink(site=site):
                self.spawn(lambda: self._probe(site), f"probe {short(site)}")
            case effects.ToWorker(message=WorkerRefused(reason=reason)):
                self.spawn(lambda: self._refuse_worker(reason), "refuse worker")
            case effects.ToWorker(message=message):
                self.workers.send(message)
            case effects.DeliverResult(round=number, sites=sites, weight=weight):
                self._deliver(number, sites, weight)
            case effects.Record():
                self.recorder.record(effect)
            case effects.AnswerRequest(request=request, done=done, reason=reason):
                answer = self.answers.pop(request, None)
                if answer is not None and not answer.done():
                    answer.set_result((done, reason))
            case effects.StopDaemon(graceful=graceful, reason=reason):
                if self.stopped is not None and not self.stopped.done():
                    self.stopped.set_result((graceful, reason))
            case (
                effects.KeepCopy()
                | effects.DropCopy()
                | effects.RestoreCopy()
                | effects.WriteCheckpoint()
                | effects.LoadCheckpoint()
            ):
                self.keeper.execute(effect, self.arena, self.hello)
            case _:
                execute_bulk(self.bulk, effect, self.arena, self.machine.links.up_sites())

    def _encoded(self, neighbour: SiteId, envelope: Envelope) -> bytes:
        """Signed where it is ours and somebody else than the neighbour will read it."""
        if envelope.source != self.machine.site or envelope.destination == neighbour:
            return encode_envelope(envelope)
        key = (envelope.destination, envelope.sequence)
        signature = self._signed.get(key)
        if signature is None:
            signature = self._identity.sign(signed_bytes(envelope))
            self._signed[key] = signature
            if len(self._signed) > SIGNED_KEPT_MAX:
                del self._signed[next(iter(self._signed))]
        return encode_envelope(msgspec.structs.replace(envelope, signature=signature))

    async def _dial(self, site: SiteId, address: str, timeout_s: float) -> None:
        try:
            await self.transport.dial(site, address, timeout_s=timeout_s)
        except DialError as error:
            if self._dial_failures.get(site) != str(error):  # once for each reason, not at every attempt
                self._dial_failures[site] = str(error)
                log.warning("no link to %s at %s: %s", short(site), address, error)
            self.feed(events.DialFailed(site=site, reason=str(error)))

    async def _probe(self, site: SiteId) -> None:
        rate_bytes_per_s, reason = await self.meter.measure(site)
        log.info("link to %s: %.1f Mbit/s (%s)", short(site), rate_bytes_per_s * 8 / 1e6, reason)
        self.feed(events.LinkProbed(site=site, rate_bytes_per_s=rate_bytes_per_s, reason=reason))

    async def _refuse_worker(self, reason: str) -> None:
        """The run has another model: say where it differs, if a neighbour tells."""
        explained = await self.models.explain(reason, self.hello.state if self.hello else None)
        log.warning("the worker is refused: %s", explained)
        self.workers.refuse(explained)

    def _deliver(self, number: int, sites: int, weight: float) -> None:
        if self.arena is None:
            return
        result = self.bulk.reduce.result(number)
        assert result is not None, f"the result of round {number} was dropped before the worker had it"
        self.arena.result[:] = result
        self.workers.send(ApplyResult(round=number, sites=sites, weight=weight))

    # -- facts from the transport (TransportEvents)

    def link_up(self, site: SiteId, incarnation: int, address: str, versions: Versions) -> None:
        self.feed(events.LinkUp(site=site, incarnation=incarnation, address=address, versions=versions))
        self.bulk.link_up(site)

    def link_lost(self, site: SiteId, incarnation: int, reason: str, end_of_file: bool) -> None:
        self.bulk.link_lost(site, reason)
        self.feed(events.LinkLost(site=site, incarnation=incarnation, reason=reason, end_of_file=end_of_file))

    def control_received(self, site: SiteId, frame: bytes) -> None:
        try:
            envelope = decode_envelope(frame)
            check_source(self.machine.site, site, envelope)
        except (CodecError, RemoteProtocolError) as error:
            self.peer_broke_rules(site, str(error))
            return
        self.feed(events.EnvelopeReceived(neighbour=site, envelope=envelope))

    def bulk_lost(self, site: SiteId, stream: int, reason: str) -> None:
        self.transport.close_link(site, f"bulk stream {stream} was lost: {reason}")

    def peer_broke_rules(self, site: SiteId, reason: str) -> None:
        """Whatever it was, this site is unharmed: the link is closed, and the event log says why."""
        log.warning("site %s broke the rules: %s", short(site), reason)
        self.recorder.record(
            effects.Record(
                kind="refused", subject=short(site), cause=reason, outcome="refused", duration_s=None, reason="closed"
            )
        )
        self.transport.close_link(site, f"broke the rules: {reason}")

    # -- facts from the engines

    def reduce_finished(self, tag: Tag, digest: str, weights: tuple[tuple[SiteId, float], ...]) -> None:
        if self.rounds_log is not None:
            self.rounds_log.append(tag, digest, weights)
        self.feed(events.ReduceFinished(tag=tag, digest=digest, weights=weights))

    def reduce_stalled(self, tag: Tag) -> None:
        self.feed(events.ReduceStalled(tag=tag))

    def result_fetched(self, number: int, digest: str) -> None:
        self.feed(events.ResultFetched(round=number, digest=digest))

    def result_lost(self, tag: Tag, reason: str) -> None:
        log.info("the result of round %d cannot be had any more: %s", tag.round, reason)
        self.feed(events.ResultMissed(tag=tag))

    def transfer_progress(self, transfer: str, verified_bytes: int, rates: dict[SiteId, float]) -> None:
        self.transfer_rates = rates
        self.feed(events.TransferProgressed(transfer=transfer, verified_bytes=verified_bytes))

    def transfer_finished(self, transfer: str, digest: str) -> None:
        self.feed(events.TransferFinished(transfer=transfer, digest=digest))

    def source_dropped(self, transfer: str, site: SiteId, reason: str, wrong: bool) -> None:
        cause = f"sent bytes that fail their hash: {reason}" if wrong else reason
        subject, what = short(site), "no longer a source of the state transfer"
        self.recorder.record(
            effects.Record(kind="source", subject=subject, cause=cause, outcome="", duration_s=None, reason=what)
        )

    def transfer_failed(self, transfer: str, reason: str) -> None:
        self.feed(events.TransferFailed(transfer=transfer, reason=reason))

    # -- facts from the worker (WorkerEvents)

    def worker_hello(self, hello: WorkerHello, arena: Arena) -> None:
        version = agreed(SPOKEN, hello.versions)
        if version is None:
            arena.close()
            self.workers.refuse(
                f"the script's chaos package speaks protocol {hello.versions}, this daemon {SPOKEN}, and they share "
                "none; install the same chaos-train in both environments"
            )
            return
        if self.arena is not None:
            self._old_arenas.append(self.arena)  # a transfer under way may still read from it
            while len(self._old_arenas) > 2:
                self._old_arenas.pop(0).close()
        self.arena, self.hello = arena, hello
        self.bulk.reduce.configure(hello.contribution, arena.contribution)
        if self._vector_path is not None:
            write_vector(self._vector_path, hello.contribution)
        self.workers.send(WorkerWelcome(site=self.machine.site, run=self.machine.facts.run, version=version))
        model = ModelFacts(
            spec_digest=hello.state.digest,
            state_bytes=hello.state.size_bytes,
            shard_bytes=hello.state.shard_bytes,
        )
        size_bytes = hello.contribution.size_bytes
        self.feed(events.WorkerReady(model=model, round=hello.round, contribution_bytes=size_bytes))

    def worker_message(self, message: WorkerMessage) -> None:
        match message:
            case RoundContributed(round=number, weight=weight):
                if number == self.machine.rounds.done + 1:
                    self.bulk.reduce.keep_contribution(number)  # its own, even if the worker dies
                self.feed(events.WorkerContributed(round=number, weight=weight))
            case UpdateStarted(round=number):
                self.feed(events.WorkerUpdating(round=number))
            case ResultApplied(round=number, digest=digest):
                self.feed(events.WorkerApplied(round=number, digest=digest))
            case SnapshotTaken(round=number):
                self.feed(events.WorkerSnapshotTaken(round=number))
            case SnapshotMissed(round=number, now=now):
                self.feed(events.WorkerSnapshotMissed(round=number, now=now))
            case StateLoaded(round=number, digest=digest):
                self.feed(events.WorkerLoaded(round=number, digest=digest))
            case LeaveRequested(reason=reason, contributes=contributes):
                self.feed(events.LeaveRequested(request="", reason=reason, contributes=contributes))
            case WorkerHello():
                pass  # the server takes the first one, and refuses a second
            case _:
                assert_never(message)

    def worker_lost(self, reason: str) -> None:
        self.bulk.reduce.detach_contribution()
        self.feed(events.WorkerLost(reason=reason))
