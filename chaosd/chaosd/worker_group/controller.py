"""Drives the worker group of one machine: events in, effects out; decides nothing.

One asyncio loop: the workers' unix socket, their pidfds, the words of their progress. The planner thinks elsewhere
(`planner_thread`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import assert_never

from chaos_protocols.wire.worker import ResultApplied
from chaos_protocols.worker_group.events import (
    AskPlanner,
    Begin,
    BeginStore,
    Effect,
    EndGroup,
    EndWanted,
    Event,
    GreetRun,
    GroupTimer,
    GroupTimerFired,
    JoinRun,
    KillWorker,
    NoteEvent,
    OrderAnswered,
    PreparePlan,
    PutPlanInForce,
    ReplanAnswered,
    SetGroupTimer,
    StartsSeen,
    StartWorker,
    TellDigests,
    TellRun,
    TellWorker,
    WorkerGone,
    WorkerSaid,
    WorkerSuspected,
)
from chaos_protocols.worker_group.machine import WorkerGroupMachine
from chaos_protocols.worker_group.messages import EndsItself, GroupHello, RunSpecs, StoreGet, StoreSet, WorkerMessage
from chaos_protocols.worker_group.phases import GroupPhase
from chaos_protocols.worker_group.settings import GroupSettings
from chaos_protocols.worker_group.starts import LOOK_INTERVAL_S as STARTS_INTERVAL_S
from chaos_protocols.worker_group.store import GroupStore
from chaos_protocols.worker_group.suspicion import (
    READ_INTERVAL_S,
    WAIT_TOGETHER_LIMIT_S,
    Reading,
    Suspicion,
    next_interval_s,
)
from chaosd.worker_group.board import WRITE_INTERVAL_S, Board
from chaosd.worker_group.collector import CyclesLater
from chaosd.worker_group.devices import Placement
from chaosd.worker_group.door import OrderDoor
from chaosd.worker_group.exits import Exits
from chaosd.worker_group.feedback import Feedback
from chaosd.worker_group.figures import LoggedFigures
from chaosd.worker_group.folder import group_folder
from chaosd.worker_group.guard import Guard
from chaosd.worker_group.history import GroupHistory, Happened
from chaosd.worker_group.lines import WorkerLines
from chaosd.worker_group.memory import SharedMemory, TooLittleMemory
from chaosd.worker_group.planner_thread import PlannerThread
from chaosd.worker_group.planning import SitePlanner
from chaosd.worker_group.processes import RUN_ON, Launch, WorkerProcesses, launch
from chaosd.worker_group.processor_time import processor_s
from chaosd.worker_group.run_line import RunLine, greeting
from chaosd.worker_group.timed_steps import TimedSteps

FINISH_S = 10.0
"""How long workers have to end by themselves, unless the training is complete: what a script does then is its own."""

LAST_WORDS_S = 0.005
"""What a worker wrote before it died lies in its socket, and is read within that."""

TURNS = 4
"""Of the loop, from bytes in a socket to a message that was taken; more than that where the loop itself was late."""

LOOK_INTERVAL_S = 0.01
"""Between two looks at whether a worker is dying."""


class Controller:
    """Of one worker group, for one training. `group_size`: processes of a worker. `happened` is told every entry of
    its history; `environment` is added to that of the workers; `daemon`: the worker socket of the site's daemon,
    in whose run these workers take part if their script wants that; None: they train by themselves. `timed`: keeps
    what they do when."""

    def __init__(
        self,
        *,
        command: Sequence[str],
        workers: int,
        planner: SitePlanner,
        spares: int = 0,
        restarts: int = 3,
        failure_timeout_s: float = 1.0,
        skip_not_finite: bool = False,
        audit: bool = False,
        timed: TimedSteps | None = None,
        launch: Launch = launch,
        group_size: int = 1,
        placement: Placement | None = None,
        environment: Mapping[str, str] | None = None,
        daemon: Path | None = None,
        happened: Callable[[Happened], None],
    ) -> None:
        self._token = secrets.token_hex(32)
        self._machine = WorkerGroupMachine(
            GroupSettings(
                token=self._token,
                workers=workers,
                spares=spares,
                restarts=restarts,
                failure_timeout_s=failure_timeout_s,
                skip_not_finite=skip_not_finite,
                audit=audit,
                timed=timed is not None,
            )
        )
        self._planner, self._timed = planner, timed
        self._environment = dict(environment or {})
        self._command, self._local, self._launch = list(command), (workers + spares) * group_size, launch
        self._group_size, self._placement = group_size, placement
        self._suspicion, self._store = Suspicion(failure_timeout_s), GroupStore()
        self._run = RunLine(daemon, self._feed)
        self._figures = LoggedFigures(self._run.hand_on)
        said, ended, logged = self._received, self._line_ended, self._figures.take
        self._lines = WorkerLines(self._token, said=said, ended=ended, unread=self._kill, logged=logged)
        self._exits, self._dying = Exits(), set[int]()
        self._cycles = CyclesLater()
        self._feedback = Feedback(planner, timed)
        self._thread = PlannerThread(planner, self._feedback, self._machine, self._feed, self._record)
        self._history = GroupHistory(happened, () if timed is None else (timed,))
        self._timers: dict[GroupTimer, asyncio.TimerHandle] = {}
        self._burials: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[str] | None = None
        self._runs_on: asyncio.TimerHandle | None = None
        self.failed_after = ""  # what is not well though the training is complete

    async def run(self) -> str:
        """Until the training is over; why it failed, empty if it did not."""
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        with group_folder() as folder:
            path = str(folder / "group.sock")
            environment = {
                **self._environment,
                "CHAOS_WORKER_GROUP": path,
                "CHAOS_WORKER_TOKEN": self._token,
                "LOCAL_WORLD_SIZE": str(self._local),
            }
            self._memory = SharedMemory()
            guard = Guard(folder)
            self._processes = WorkerProcesses(
                self._command,
                environment,
                self._process_ended,
                self._memory.descriptor,
                self._launch,
                self._group_size,
                self._placement,
                guard,
            )
            await self._lines.listen(Path(path))
            self._door = OrderDoor(folder, self._feed)
            board = Board(folder, " ".join(self._command), self._figures.newest)
            watching = asyncio.gather(self._watch(), self._look(), self._look_at_starts(), self._show(board))
            try:
                self._thread.warm_up()
                await self._door.start()
                self._feed(Begin())
                failed = await self._over
                self._planner.prepare_no_more()
                await (self._processes.end(FINISH_S, self._lines.greeted) if failed else self._run_on())
            finally:
                self._cycles.close()
                watching.cancel()
                await self._door.close()
                for worker in self._processes.running:
                    self._processes.kill(worker)
                await self._processes.finish(0.0)
                for timer in self._timers.values():
                    timer.cancel()
                self._lines.close()
                self._figures.close()
                self._run.close()
                await asyncio.gather(watching, *self._burials, return_exceptions=True)
                await self._thread.close()
                self._processes.close()
                guard.close()
                self._memory.close()
        return self._exits.explained(failed) if failed else ""

    async def _run_on(self) -> None:
        """The training is complete: until the scripts have ended."""
        self._runs_on = asyncio.get_running_loop().call_later(FINISH_S, self._record, "scripts-run-on", RUN_ON)
        try:
            self.failed_after = await self._processes.run_on(self._lines.greeted)
        finally:
            self._runs_on.cancel()

    def end(self, reason: str) -> bool:
        """The operator wants it to end; workers are told, and have some seconds. False: it has ended already."""
        ends = self._over is None or not self._over.done()
        self._feed(EndWanted(reason=reason))
        if self._over is not None and self._over.done():
            self._processes.hurry(FINISH_S)
            if self._runs_on is not None:
                self._runs_on.cancel()  # it has been said how they end
        return ends

    def pid(self, worker: int) -> int:
        """Process id of a running worker."""
        return self._processes.pid(worker)

    def reading(self, worker: int) -> Reading | None:
        """What a running worker says that it is at."""
        return self._processes.readings().get(worker)

    # ---- events

    def _feed(self, event: Event) -> None:
        if self._over is not None and self._over.cancelled():
            return  # `run` was: nobody is to be started in the place of those that are killed
        if isinstance(event, WorkerGone) and self._machine.phase is not GroupPhase.ENDED:
            self._exits.lost(event.worker)
        effects = self._machine.handle(event, now_s=asyncio.get_running_loop().time())
        self._cycles.follow(self._machine.phase)
        for effect in effects:
            self._execute(effect)

    def _started(self, worker: int) -> None:
        pid, device = self._processes.pid(worker), self._processes.placement.of(worker)
        self._record("worker-started", "", worker=worker, pid=pid, device=device)

    def _kill(self, worker: int) -> None:
        self._processes.kill(worker)

    def _process_ended(self, worker: int, reason: str, killed: bool) -> None:
        """Its last words may still lie in its socket, whose end follows; a child of it may hold that open."""
        self._exits.ended(worker, reason)
        if worker in self._dying:
            self._dying.discard(worker)
            self._record("worker-ended", reason, worker=worker)
        self._is_gone(worker, reason, killed=killed)

    def _is_gone(self, worker: int, reason: str, *, killed: bool = False) -> None:
        burial = asyncio.get_running_loop().create_task(self._bury(worker, reason, killed=killed))
        self._burials.add(burial)
        burial.add_done_callback(self._burials.discard)

    async def _bury(self, worker: int, reason: str, *, killed: bool) -> None:
        if worker in self._lines:
            await asyncio.sleep(LAST_WORDS_S)
            for _ in range(TURNS):
                await asyncio.sleep(0)
        self._feed(WorkerGone(worker=worker, reason=reason, killed=killed))

    async def _look(self) -> None:
        """Sees who is dying, long before the kernel has buried it. Before the training nobody waits for that, and how
        its process ended is what its operator has to know."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            if self._machine.phase is GroupPhase.FORMING:
                continue
            for worker in self._processes.dying():
                self._dying.add(worker)
                self._is_gone(worker, "its process is being ended")

    async def _look_at_starts(self) -> None:
        """Sees whether those that have yet to come do anything."""
        while True:
            await asyncio.sleep(STARTS_INTERVAL_S)
            if self._processes.running - self._lines.greeted:
                self._feed(StartsSeen(processor_s=processor_s(self._processes.pids)))

    def _line_ended(self, worker: int, reason: str) -> None:
        why = reason or self._exits.how(worker) or self._processes.exit_text(worker) or "its connection ended"
        self._feed(WorkerGone(worker=worker, reason=why))
        asyncio.get_running_loop().call_later(FINISH_S, self._processes.kill, worker)

    def _received(self, worker: int, message: WorkerMessage) -> None:
        self._exits.heard(worker, message)
        if isinstance(message, StoreSet | StoreGet):
            for each, answer in self._store.take(worker, message):
                self._lines.send(each, answer)
        elif isinstance(message, EndsItself):
            if message.device:
                self._processes.placement.has_failed(worker)
            self._feed(WorkerGone(worker=worker, reason=message.text))
            self._processes.kill(worker)
        else:
            if isinstance(message, GroupHello) and message.run is not None and not self._laid_out(message.run):
                return
            if self._timed is not None:
                self._timed.hear(worker, message)
            self._feed(WorkerSaid(worker=worker, message=message))
            if (learnt := self._feedback.take(worker, message, self._machine)) is not None:
                self._record(learnt.kind, learnt.reason, **learnt.fields)
                self._thread.prepare_losses()
            if (measured := self._feedback.speeds(self._machine)) is not None:
                self._feed(measured)

    def _laid_out(self, specs: RunSpecs) -> bool:
        """Make room for what the workers share with the daemon; False, and the end, where that cannot be."""
        try:
            self._memory.lay_out(specs)
        except TooLittleMemory as error:
            self.end(str(error))
            return False
        return True

    async def _watch(self) -> None:
        """Reads the words of progress."""
        loop, interval_s, told_together = asyncio.get_running_loop(), READ_INTERVAL_S, False
        while True:
            await asyncio.sleep(interval_s)
            now_s = loop.time()
            stopped = self._processes.stopped(self._suspicion.still(now_s))
            readings = self._processes.readings()
            for suspect in self._suspicion.observe(now_s, readings, stopped=stopped, interval_s=interval_s):
                who, why, over_s = suspect.worker, suspect.reason, suspect.over_s
                self._feed(WorkerSuspected(worker=who, reason=why, over_s=over_s, in_vain=suspect.in_vain))
            together = self._machine.member is None and self._suspicion.waiting_s(now_s) > WAIT_TOGETHER_LIMIT_S
            if together and not told_together:
                self._record("all-wait", f"all workers have waited for {WAIT_TOGETHER_LIMIT_S:g} s; please report this")
            told_together = together
            interval_s = next_interval_s(loop.time() - now_s)

    async def _show(self, board: Board) -> None:
        while True:
            pids = {worker: self._processes.pid(worker) for worker in self._processes.running}
            devices = {worker: self._processes.placement.of(worker) for worker in pids}
            board.write(self._machine, pids, self._processes.readings(), self._history, devices)
            await asyncio.sleep(WRITE_INTERVAL_S)

    # ---- effects

    def _execute(self, effect: Effect) -> None:
        loop = asyncio.get_running_loop()
        match effect:
            case StartWorker(worker=worker):
                self._processes.start(worker, self._started)
            case KillWorker(worker=worker):
                self._processes.kill(worker)
            case TellWorker(worker=worker, message=message):
                self._lines.send(worker, message)
            case AskPlanner():
                self._thread.ask(effect)
            case PreparePlan():
                self._thread.prepare(effect)
            case PutPlanInForce(asked=asked):
                self._planner.put_in_force(asked)
                self._feedback.begin(self._machine)
                self._thread.prepare_losses()
            case BeginStore(generation=generation):
                self._store.begin(generation)
            case SetGroupTimer(timer=timer, after_s=after_s):
                old = self._timers.pop(timer, None)
                if old is not None:
                    old.cancel()
                if after_s is not None:
                    self._timers[timer] = loop.call_later(after_s, self._feed, GroupTimerFired(timer=timer))
            case NoteEvent(kind=kind, reason=reason, fields=fields):
                self._record(kind, reason, **fields)
            case OrderAnswered() | ReplanAnswered():
                self._door.answered(effect)
                if effect.done:
                    self._thread.prepare_losses()
            case JoinRun():
                self._run.join()
            case GreetRun():
                self._greet(effect)
            case TellRun(message=message, notes=notes):
                self._memory.note(notes)
                self._run.tell(message)
            case TellDigests(round=round, start=start, stop=stop):
                self._run.tell(ResultApplied(round=round, digests=self._memory.digests(start, stop)))
            case EndGroup(failed=failed, lacks=lacks):
                if self._over is not None and not self._over.done():
                    self._over.set_result(failed)
                    if not failed:
                        self._processes.trained(lacks)
            case _:
                assert_never(effect)

    def _greet(self, effect: GreetRun) -> None:
        hello, layout = self._machine.hello, self._memory.layout
        assert hello is not None and hello.run is not None and layout is not None
        self._run.greet(greeting(effect, hello.run, layout.size_bytes), self._memory.descriptor)

    def _record(self, kind: str, reason: str, **fields: object) -> None:
        self._history.record(asyncio.get_running_loop().time(), kind, reason, fields)
