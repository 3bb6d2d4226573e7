"""A simulated site: the real machines, a disk, a worker; the process may be killed, stopped, restarted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chaos_protocols import effects, events
from chaos_protocols.agreement.raft import Persist
from chaos_protocols.site import SiteMachine
from chaos_protocols.wire.worker import (
    Dismissed,
    FallenBehind,
    LeaveOrdered,
    LoadState,
    TakeSnapshot,
    TrainFrom,
    WorkerRefused,
)
from tests.simulator.building import make_machine
from tests.simulator.contents import Region, digest_of
from tests.simulator.damaging import gives_up
from tests.simulator.disk import Disk, DiskFailed
from tests.simulator.drifting import digests_of, parted, word_of
from tests.simulator.engines import BulkEngines
from tests.simulator.hanging import Hang
from tests.simulator.keeping import TORN, Keeper
from tests.simulator.odd_workers import OddWorker
from tests.simulator.outbox import Frame
from tests.simulator.watching import watch_links
from tests.simulator.worker import BLOCK_S, MODEL, STATE_BYTES, Worker
from tests.unit.daemon.storage.journal_faults import PowerLost

if TYPE_CHECKING:
    from tests.simulator.averaging import Result
    from tests.simulator.world import World


class Node:
    """One site. `alive`: its daemon runs; `stopped`: it runs, but stands still (SIGSTOP). `stray`: see `strays`."""

    stray = ""

    def __init__(self, world: World, site: str, name: str, *, founder: bool, peers: tuple[str, ...]) -> None:
        self.world, self.site, self.name = world, site, name
        self.founder, self.peers, self.min_sites = founder, peers, 1
        self.disk, self.keeper = Disk(), Keeper(self)
        self.alive = self.stopped = self.stopped_for_good = self.left = False
        self.dark_until_s = 0.0  # it has no power before
        self.machine: SiteMachine | None = None
        self.worker: Worker | None = None
        self.connected: Worker | None = None
        self.knocking: Worker | None = None
        self.hang, self.odd = Hang(self), OddWorker(self)
        self.bulk: BulkEngines | None = None
        self.region: Region | None = None
        self.connections: dict[str, Any] = {}
        self.hanging_up: Any = None
        self.mailbox: list[Any] = []
        self.answers: dict[str, tuple[bool, str]] = {}
        self._timer = self._generation = self._workers = 0
        self.contribution: tuple[Any, ...] | None = None
        self.contribution_bytes, self.apply_s = 0, 0.001
        self.fetched: list[bool] = []
        self.crash_at: int | None = None
        self._restart: Any = None
        self.compute_factor, self.slowdowns, self.transfer_delay_s, self._engines_s = 1.0, 0, 0.0, 0.0

    # -- the process

    def start(self) -> None:
        world = self.world
        self.alive, self.stopped, self.left = True, False, False
        self._generation += 1
        self.disk.open()
        self.disk.count_start()
        self.machine = make_machine(self)
        self.bulk, self.region = BulkEngines(self), None
        self.mailbox.clear()
        world.runs.started(self)
        world.oracles.started(self)
        peers = tuple((peer, peer) for peer in self.peers)
        self.handle(events.Started(peers=peers))  # type: ignore[arg-type]
        world.bans.started(self)
        self.keeper.started()
        watch_links(self)

    def kill(self, *, worker_too: bool = True) -> None:
        """SIGKILL: sockets are closed by the kernel, nothing more is written."""
        if not self.alive:
            return
        self.alive, self.machine, self.bulk = False, None, None
        self._generation += 1
        for connection in list(self.connections.values()):
            self.world.network.close(connection, self.site)
        self.connections.clear()
        self.connected = None  # the next daemon has read no hello yet
        if worker_too:
            self.worker = None

    def start_worker(self) -> None:
        """A new one; while one hangs, the daemon refuses it."""
        if self.hang.lasts:
            return
        self._workers += 1
        self.worker = Worker(number=self._workers, model=self.odd.model(MODEL))
        self._hello(self.worker)

    @property
    def listening(self) -> Worker | None:
        """The worker whose hello the daemon has read; what it tells a dead one is lost."""
        return self.worker if self.worker is self.connected else None

    def _hello(self, worker: Worker) -> None:
        worker.training = False
        if self.stopped:
            self.mailbox.append(lambda: self._hello(worker))
        elif self.alive:
            self.knocking = worker
            self.handle(worker.hello(self.contribution_bytes))

    def reconnect_worker(self) -> None:
        """The daemon was restarted, its worker lives: it says hello again."""
        worker = self.worker
        if worker is not None:
            self.odd.when_it_answers(lambda: self._hello(worker) if worker is self.worker else None)

    def kill_worker(self) -> None:
        if self.worker is not None:
            self.worker = None
            if self.alive:
                self.handle(events.WorkerLost(reason="killed"))

    # -- events in

    def reduced(self, event: events.ReduceFinished, result: Result) -> None:
        """A round is done in the averaging engine."""
        self.world.oracles.reduced(self, event, result)
        self.soon(event)

    def peer_broke_rules(self, site: str, reason: str, *, faulty: bool) -> None:
        """From the engines, as to the daemon's driver: the link is closed. `faulty`: a fault made it."""
        connection = self.connections.get(site)
        if connection is None or connection is self.hanging_up:
            return  # what comes after a frame that was refused may well be out of order
        if not faulty:
            self.world.oracles.accused(self, site, reason)
        self.world.tell(f"{self.name}: {site} broke the rules: {reason}")
        self.hanging_up = connection
        self.later(0.0, lambda: self.world.hang_up(self, connection))

    def soon(self, event: Any) -> None:
        """From the engines: as its own event, at once."""
        world = self.world
        self._engines_s = max(self._engines_s, world.now_s + world.rng.random() * world.hand_over_s)
        self.later(self._engines_s - world.now_s, lambda: self.handle(event))

    def later(self, delay_s: float, action: Any) -> None:
        """In this life of the daemon, or not at all."""
        generation = self._generation
        self.world.schedule(delay_s, lambda: action() if generation == self._generation else None)

    def handle(self, event: Any) -> None:
        if not self.alive or self.machine is None:
            return
        if self.stopped:
            self.mailbox.append(lambda: self.handle(event))
            return
        world, generation = self.world, self._generation
        world.steps += 1
        world.trail.append((world.now_s, self.name, self.machine.outbox.events + 1, event))
        world.oracles.before_step(self, event)
        out = self.machine.handle(event, now_s=world.now_s + world.drift_s(self.site))
        for effect in out:
            if generation != self._generation:
                return
            if self.crash_at is not None and isinstance(effect, Persist):
                if self.crash_at == 1:
                    self._execute(effect)
                self._crash()
                return
            self._execute(effect)
        world.oracles.after_step(self, event)

    def crash_at_persist(self, *, durable: bool, restart: Any) -> None:
        """Die in the middle of the next list of effects that begins with a `Persist`: just before or just after it."""
        self.crash_at, self._restart = int(durable), restart

    def power_fails_at_persist(self, *, restart: Any) -> None:
        """Lose power within the next write: it is on the disk, torn, or not there at all."""
        self.disk.power_fails(self.world.rng)
        self._restart = restart

    def disk_fails(self, *, restart: Any) -> None:
        """The next write is refused: the daemon must end without a word about what it could not keep."""
        self.disk.fails()
        self._restart = restart

    def _crash(self, how: str = "dies between two effects", *, worker_too: bool = True) -> None:
        restart, self.crash_at = self._restart, None
        self.world.tell(f"!! {self.name} {how}")
        self.kill(worker_too=worker_too and not self.world.must_live(self))
        if restart is not None:
            restart()

    def _persist(self, effect: Any) -> None:
        try:
            self.disk.keep(effect)
        except PowerLost:
            self._crash("loses power while it writes")
        except DiskFailed as error:
            self._crash(f"ends: its disk fails ({error})", worker_too=False)

    def stop(self, *, for_good: bool = False) -> None:
        self.stopped = True
        self.stopped_for_good |= for_good

    def go_on(self) -> None:
        if self.stopped_for_good:
            return
        self.stopped = False
        waiting, self.mailbox = self.mailbox, []
        for action in waiting:
            if self.alive:
                action()

    def to_bulk(self, action: Any) -> None:
        """Something for the bulk engines: they stand still with the process, and read it when it goes on."""
        if self.bulk is None:
            return
        if self.stopped:
            self.mailbox.append(lambda: self.to_bulk(action))
        else:
            action(self.bulk)

    # -- effects out

    def _execute(self, effect: Any) -> None:
        world, bulk = self.world, self.bulk
        assert bulk is not None and self.machine is not None
        world.oracles.executed(self, effect)
        match effect:
            case Persist() | effects.NoteReached() | effects.KeyAgreed() | effects.StartOver():
                self._persist(effect)
            case effects.SendEnvelope(neighbour=neighbour, envelope=envelope):
                world.says(self, neighbour, envelope)
            case effects.SetTimer(at_s=at_s):
                number = self._timer = self._timer + 1
                delay_s = at_s - world.now_s - world.drift_s(self.site)
                self.later(max(0.0, delay_s), lambda: self._timer_fired(number))
            case effects.Dial(site=site, timeout_s=timeout_s):
                world.dial(self, site, timeout_s)
            case effects.CloseLink(site=site):
                connection = self.connections.pop(site, None)
                if connection is not None:
                    world.network.close(connection, self.site)
                    bulk.link_lost(site)  # as the transport tells its engines of every link that ends
            case effects.ProbeLink(site=site):
                probed = events.LinkProbed(site=site, rate_bytes_per_s=world.network.rate(self.site, site), reason="")
                self.later(0.02, lambda: self.handle(probed))
            case effects.DeliverResult(round=number, digest=piece):
                self._apply(number, piece)
            case _ if isinstance(effect, effects.CheckpointEffect):
                self.keeper.execute(effect)
            case effects.ToWorker(message=message):
                self._to_worker(message)
            case effects.TakeWorker():
                assert self.knocking is not None
                self.connected, self.region = self.knocking, self.knocking.region
            case effects.RefuseWorker():
                world.dismissed(self, effect)
                self.worker = None if self.worker is self.knocking else self.worker
            case effects.WorkerOverdue():
                self.odd.overdue += 1
            case effects.EndWorker():
                self.hang.ended()
            case effects.Record():
                world.recorded(self, effect)
            case effects.AnswerRequest(request=request, done=done, reason=reason):
                self.answers[request] = (done, reason)
            case effects.StopDaemon(again=again):
                world.runs.ended(self, again=again)
            case _:
                if isinstance(effect, effects.FetchState):
                    self.fetched.append(effect.have)
                bulk.execute(effect)

    def _timer_fired(self, number: int) -> None:
        if number == self._timer:
            self.handle(events.TimerFired())

    def _send_bulk(self, site: str, frame: Frame) -> None:
        if site in self.connections:
            self.world.oracles.bulk_sent(self, site, frame)
            self.world.network.send(self.connections[site], self.site, frame.stream, frame)

    def block_s(self, joiner: str, size_bytes: int) -> float:
        """So long takes a block of a state until the link has it; the link is the same for all joiners."""
        return BLOCK_S + self.transfer_delay_s * size_bytes / STATE_BYTES

    # -- the worker

    def _later(self, delay_s: float, action: Any) -> None:
        worker = self.worker

        def run() -> None:
            if self.worker is worker and worker is not None:
                self.odd.when_it_answers(lambda: action(worker) if self.worker is worker else None)

        self.world.schedule(delay_s, run)

    def _to_worker(self, message: Any) -> None:
        assert self.machine is not None
        self.hang.told(message)
        self._tell(message, self.machine.roster.epoch)

    def _tell(self, message: Any, epoch: int) -> None:
        """Now, or when it goes on: what it was told then, in the epoch of then."""
        generation = self._generation
        self.odd.when_it_answers(lambda: self._told(message, epoch) if generation == self._generation else None)

    def _told(self, message: Any, epoch: int) -> None:
        worker = self.listening
        if worker is None or gives_up(self, worker, message):
            return
        match message:
            case FallenBehind():
                self.odd.reads_that_it_is_behind(worker)
            case TrainFrom(round=number):
                self.world.oracles.training(self, number, epoch)
                worker.training = True
                self._compute(worker)
            case LoadState() if worker.updating:  # one thing after the other
                generation = self._generation
                self._later(self.apply_s, lambda _: self._tell(message, epoch) if generation == self._generation else 0)
            case LoadState(round=number):
                worker.state, worker.drift = parted(worker.region)
                self.world.oracles.loaded(self, number, worker.state, epoch)
                worker.has_loaded(number)
                self._later(0.01, lambda _: self.handle(events.WorkerLoaded(round=number)))
            case TakeSnapshot(round=number):
                worker.snapshot_due = number
                self._snapshot(worker)
            case WorkerRefused() | Dismissed():
                self.world.dismissed(self, message)
                self.worker = None
            case LeaveOrdered():
                self.handle_later(events.LeaveRequested(request="", reason="ordered", contributes=False))

    def handle_later(self, event: Any) -> None:
        self.later(0.0, lambda: self.handle(event))

    def _compute(self, worker: Worker) -> None:
        delay_s = self.world.compute_s(self.site) * self.compute_factor * (8.0 if self.slowdowns else 1.0)
        worker.attempt = attempt = worker.attempt + 1
        self.odd.pieces.computes(worker, delay_s)

        def done(worker: Worker) -> None:
            if worker.training and worker.attempt == attempt:
                self.handle(self.odd.contribution(worker))

        self._later(delay_s, done)

    def _apply(self, number: int, piece: tuple[int, int] | None) -> None:
        worker = self.listening
        if worker is None or self.bulk is None:
            return
        result = self.bulk.averaging.results[number]
        digest, finite, generation = result.digest, result.finite, self._generation

        def done(worker: Worker) -> None:
            before, worker.state = worker.state, digest_of((worker.state, digest)) if finite else worker.state
            worker.advance(number)
            self.world.oracles.applied(self, number, digest, worker.state, before)
            self._snapshot(worker)
            self.handle(events.WorkerApplied(round=number, digests=digests_of(worker, piece)))
            if worker.training:
                self._compute(worker)

        def begin() -> None:
            if generation == self._generation and worker is self.worker:
                worker.updating = True
                self.handle_later(events.WorkerUpdating(round=number))
                self._later(self.apply_s, done)

        self.odd.when_it_answers(begin)

    def _snapshot(self, worker: Worker) -> None:
        due = worker.snapshot_due
        if due is None or worker.updating or worker.reached < due:
            return
        worker.snapshot_due = None
        if worker.reached > due:
            self.handle_later(events.WorkerSnapshotMissed(round=due, now=worker.reached))
            return
        served = self.bulk.transfers.served.values() if self.bulk is not None else ()
        if any(region is worker.region and plan.round != worker.round for plan, region in served):
            self.world.oracles.fail(4, f"{self.name} overwrites what it serves")
        worker.write(TORN if worker.updating else word_of(worker))
        self.handle_later(events.WorkerSnapshotTaken(round=due))
