"""The driver: events go into the site's machine, its effects are carried out, in order.

It decides nothing. Everything that can be decided is decided in `chaos_protocols.site.SiteMachine`, which the
simulator runs as well; here an effect becomes bytes, a timer, a file record or a message to the worker. What happens
becomes an event where it is seen: with the neighbours (`neighbours.py`), the engines (`engine_reports.py`), the worker
(`worker/session.py`). One event at a time: events that arise while effects run wait in a queue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, assert_never

from chaos_protocols import effects, events
from chaos_protocols.agreement.raft import Persist
from chaos_protocols.names import SITES_MAX, SiteId, short
from chaos_protocols.site import SiteMachine
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.plans import Reached
from chaos_protocols.wire.worker import StateSpec, WorkerRefused
from chaosd.bulk.streams import BulkStreams
from chaosd.conduct import Conduct
from chaosd.message_auth import MessageAuth
from chaosd.metrics import Metrics, PhaseClock, StatePhases
from chaosd.monitor.round_clock import RoundClock
from chaosd.site_names import SiteNames
from chaosd.storage.checkpoint_keeper import StateKeeper
from chaosd.storage.journal.journal import Journal, JournalError
from chaosd.storage.recorder import Recorder
from chaosd.storage.rounds_log import RoundsLog
from chaosd.transport import DialError, Transport
from chaosd.worker.hang_command import HangCommand
from chaosd.worker.session import WorkerSessions

log = logging.getLogger("chaosd")

BulkEffect = (
    effects.OpenRound
    | effects.Contribute
    | effects.StopRound
    | effects.FetchResult
    | effects.DropResults
    | effects.VoidResults
    | effects.ServeState
    | effects.ReleaseState
    | effects.FetchState
    | effects.CancelTransfer
    | effects.DropSource
)


@dataclass(frozen=True, slots=True)
class Parts:
    """What carries effects out and reports facts. `rounds_log`: in a lab only."""

    transport: Transport
    workers: WorkerSessions
    bulk: BulkStreams
    keeper: StateKeeper
    hang_command: HangCommand
    rounds_log: RoundsLog | None
    key_agreed: Callable[[KeyChain], None]


class Driver:
    """See the module. `stopped` is set when the machine says that this daemon ends."""

    def __init__(
        self,
        machine: SiteMachine,
        auth: MessageAuth,
        journal: Journal,
        recorder: Recorder,
        names: SiteNames,
        metrics: Metrics,
        make_parts: Callable[[Driver], Parts],
    ) -> None:
        """`make_parts` builds what reports to this driver, of which the driver is one end and the part the other."""
        self.machine = machine
        self.recorder = recorder
        self.names = names
        self.metrics = metrics
        self.stopped: asyncio.Future[effects.StopDaemon] | None = None
        self.started_s = 0.0
        self.answers: dict[str, asyncio.Future[tuple[bool, str]]] = {}
        self.auth, self._journal = auth, journal
        self.conduct, self.round_clock = Conduct(machine.is_trusted), RoundClock()
        self.phase_clock = PhaseClock(metrics.phase_seconds, self.now_s())
        self._phases = StatePhases(metrics.state_phase_seconds)
        self._queue: deque[events.Event] = deque()
        self._running = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._dial_failures: dict[SiteId, str] = {}
        self._note_failed = False
        self._over = False
        """Another life begins at once: nothing of this one counts any more."""
        parts = make_parts(self)
        self.transport, self.workers = parts.transport, parts.workers
        self.bulk, self.meter = parts.bulk, parts.bulk.meter
        self._keeper, self._rounds_log = parts.keeper, parts.rounds_log
        self.hang_command, self._key_agreed = parts.hang_command, parts.key_agreed

    # -- the loop of events and effects

    def start(self, lists: events.PeersChanged) -> None:
        loop = asyncio.get_running_loop()
        self.stopped = loop.create_future()
        self.started_s = self.now_s()
        self.spawn(self.metrics.watch_loop, "watch the loop")
        self._keeper.look()
        self.feed(events.Started(peers=lists.peers, sponsors=lists.sponsors))

    def now_s(self) -> float:
        """Not the loop's own clock: uvloop's counts in milliseconds, and stands still while a callback runs."""
        return time.monotonic()

    def feed(self, event: events.Event) -> None:
        """Take an event, now or as soon as the effects of the one before are carried out."""
        self._queue.append(event)
        if self._running or self._over or (self.stopped is not None and self.stopped.done()):
            return
        self._running = True
        try:
            while self._queue:
                self._handle(self._queue.popleft())
        except Exception as error:  # a defect of ours, or a disk that fails: what is not durable must not be answered
            self.fail(error)
        finally:
            self._running = False

    def _handle(self, event: events.Event) -> None:
        begun_s = self.now_s()
        self._phases.event(event)
        for effect in self.machine.handle(event, now_s=begun_s):
            if self._over:
                return  # the journal is that of the next life
            self._phases.effect(effect)
            self._execute(effect)
        ended_s = self.now_s()
        self.metrics.handled(event, ended_s - begun_s)
        self.phase_clock.look(self.machine.rounds.phase.value, ended_s)

    def fail(self, error: Exception) -> None:
        """The daemon cannot go on."""
        log.critical("the daemon must stop: %s", error, exc_info=not isinstance(error, OSError | JournalError))
        if self.stopped is not None and not self.stopped.done():
            self.stopped.set_exception(error)

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """A task of the driver, with a name; cancelled at `close`."""
        task = asyncio.get_running_loop().create_task(work(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._has_ended)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (defect := task.exception()) is not None:
            log.error("a defect of chaosd, which goes on without this: %s", task.get_name(), exc_info=defect)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._keeper.close()
        self.workers.release()
        if self._rounds_log is not None:
            self._rounds_log.close()

    # -- effects

    def _execute(self, effect: effects.Effect) -> None:
        match effect:
            case Persist():
                with self.metrics.journal_seconds.time():
                    self._journal.persist(effect)
            case effects.NoteReached(reached=reached):
                with self.metrics.journal_seconds.time():
                    self._note(reached)
            case effects.SendEnvelope(neighbour=neighbour, envelope=envelope):
                self._send(neighbour, self.auth.encode(neighbour, envelope))
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
                self._tell_why(reason, self.workers.spec, self.workers.refusal())
            case effects.TakeWorker():
                self.workers.take()
            case effects.RefuseWorker(reason=reason):
                spec, knock = self.workers.turned_away()
                self._tell_why(reason, spec, knock.turn_away)
            case effects.ToWorker(message=message):
                self.workers.send(self.names.in_message(message))
            case effects.WorkerOverdue(waited_s=waited_s):
                self.hang_command.run(self.workers.pid, waited_s)
            case effects.EndWorker():
                self.workers.end()
            case effects.DeliverResult(round=number, sites=sites, weight=weight, digest=digest):
                self.workers.deliver(number, sites, weight, digest)
            case effects.Record():
                self.record(effect)
            case effects.KeyAgreed(chain=chain):
                self._key_agreed(chain)
            case effects.AnswerRequest(request=request, done=done, reason=reason):
                answer = self.answers.pop(request, None)
                if answer is not None and not answer.done():
                    answer.set_result((done, reason))
            case effects.StartOver():
                with self.metrics.journal_seconds.time():
                    self._journal.start_over(effect)
            case effects.StopDaemon(again=again):
                if self.stopped is not None and not self.stopped.done():
                    self.stopped.set_result(effect)
                self._over = again
            case (
                effects.SaveMemoryCheckpoint()
                | effects.DropMemoryCheckpoint()
                | effects.RestoreMemoryCheckpoint()
                | effects.WriteCheckpoint()
                | effects.LoadCheckpoint()
                | effects.SetCheckpointsAside()
            ):
                session = self.workers.session
                self._keeper.execute(effect, *((session.arena, session.hello) if session else (None, None)))
            case _:
                self._execute_bulk(effect)

    def _execute_bulk(self, effect: BulkEffect) -> None:
        """Effects that concern rounds, results and states. Without an arena there is nothing to serve from or fetch
        into: the worker is gone, and the machine is about to hear of it."""
        bulk, arena = self.bulk, self.workers.arena
        match effect:
            case effects.OpenRound():
                self.workers.under(effect.bounds)
                bulk.reduce.bounds, bulk.reduce.centred = effect.bounds, effect.centred
                bulk.reduce.open(effect.tag, effect.plan, effect.listeners, effect.member)
            case effects.Contribute(tag=tag, weight=weight, has_bytes=has_bytes, check=check, ready_bytes=ready):
                if has_bytes and ready is None:
                    self.round_clock.gave(tag, self.now_s())
                bulk.reduce.contribute(tag, weight, has_bytes, check, ready)
            case effects.StopRound(tag=tag):
                bulk.reduce.stop(tag)
            case effects.FetchResult(round=number, digest=digest, bounds=bounds):
                bulk.reduce.bounds = bounds
                bulk.reduce.fetch_result(number, digest, self.machine.links.up_sites())
            case effects.DropResults(before_round=before_round):
                bulk.reduce.drop_results(before_round)
            case effects.VoidResults(after_round=after_round):
                bulk.reduce.drop_results(0, after_round=after_round)
            case effects.ServeState(plan=plan):
                if arena is not None:
                    bulk.replication.serve(plan.transfer, plan.joiner, plan.round, arena.state)
            case effects.ReleaseState(transfer=transfer):
                bulk.replication.release(transfer)
            case effects.FetchState(plan=plan, have=have):
                if arena is not None:
                    bulk.replication.fetch(plan, arena.state, have=have)
            case effects.CancelTransfer(transfer=transfer):
                bulk.replication.cancel(transfer)
            case effects.DropSource(transfer=transfer, source=source):
                bulk.replication.source_gone(transfer, source)
            case _:
                assert_never(effect)

    def _note(self, reached: Reached) -> None:
        """That a worker trains no more must be on the disk before this site gives to a round without it. All else in a
        note only helps after a power cut: a full disk is no reason to stop for it."""
        try:
            self._journal.note_reached(reached)
        except JournalError as error:
            if not reached.active:
                raise
            if not self._note_failed:
                log.warning("how far the run has come is not noted: %s", error)
            self._note_failed = True
        else:
            self._note_failed = False

    def _send(self, neighbour: SiteId, frame: bytes) -> None:
        if self.transport.send_control(neighbour, frame):
            messages, sent_bytes = self.metrics.control_sent
            messages.inc()
            sent_bytes.inc(len(frame))

    def record(self, record: effects.Record) -> None:
        self.metrics.recorded(record)
        self.recorder.record(record)

    async def _dial(self, site: SiteId, address: str, timeout_s: float) -> None:
        if refusal := self.conduct.why_not(site):
            return self.feed(events.DialFailed(site=site, reason=refusal))
        try:
            await self.transport.dial(site, address, timeout_s=timeout_s)
            self.conduct.linked(site)
        except DialError as error:
            if self._dial_failures.get(site) != str(error):  # once for each reason, not at every attempt
                self._dial_failures.pop(site, None)
                self._dial_failures[site] = str(error)
                if len(self._dial_failures) > SITES_MAX:
                    del self._dial_failures[next(iter(self._dial_failures))]
                log.warning("no link: %s", self.names.in_text(str(error)))
            self.feed(events.DialFailed(site=site, reason=error.brief, why=error.why))
        except Exception as defect:  # of ours: it costs this dial, and not the link for as long as the daemon lives
            self.feed(events.DialFailed(site=site, reason=f"a defect of chaosd: {defect!r}"))
            raise

    async def _probe(self, site: SiteId) -> None:
        rate_bytes_per_s, reason = await self.meter.measure(site)
        called = self.machine.roster.called(site)
        log.info("link to %s: %.1f Mbit/s (%s)", called, rate_bytes_per_s * 8 / 1e6, reason)
        self.feed(events.LinkProbed(site=site, rate_bytes_per_s=rate_bytes_per_s, reason=reason))

    def _tell_why(self, reason: str, spec: StateSpec | None, tell: Callable[[str], None]) -> None:
        """A worker is refused. If the run has another model: say where it differs, as far as a neighbour tells."""

        async def explain() -> None:
            explained = await self.bulk.models.explain(reason, spec)
            log.warning("the worker is refused: %s", explained)
            tell(explained)

        self.spawn(explain, "refuse worker")
