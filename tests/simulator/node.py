"""A simulated site: the real machine, a disk, a worker, bulk engines; the process may be killed, stopped, restarted."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chaos_protocols import effects, events
from chaos_protocols.commands import decode_roster, encode_roster
from chaos_protocols.raft import HardState, Persist, RaftMachine, RaftSettings
from chaos_protocols.raft import found as found_log
from chaos_protocols.roster import ModelFacts
from chaos_protocols.site import SiteMachine
from chaos_protocols.site_facts import SiteFacts, founding_roster
from chaos_protocols.worker import (
    Dismissed,
    LeaveOrdered,
    LoadState,
    TakeSnapshot,
    TrainFrom,
    WorkerRefused,
)
from tests.simulator.bulk import SimulatedBulk, digest_of

if TYPE_CHECKING:
    from tests.simulator.world import World

MODEL = ModelFacts(spec_digest="ab" * 16, state_bytes=1 << 20, shard_bytes=4096)


@dataclass
class Disk:
    """What survives a crash: exactly what a `Persist` was executed for."""

    incarnation: int = 0
    hard_state: HardState = field(default_factory=lambda: HardState(0, None))
    snapshot: Any = None
    entries: tuple[Any, ...] = ()

    def persist(self, effect: Persist) -> None:
        if effect.hard_state is not None:
            self.hard_state = effect.hard_state
        if effect.snapshot is not None:
            self.snapshot = effect.snapshot
            self.entries = tuple(entry for entry in self.entries if entry.index > effect.snapshot.index)
        if effect.truncate_from is not None:
            self.entries = tuple(entry for entry in self.entries if entry.index < effect.truncate_from)
        self.entries += effect.entries


@dataclass
class Worker:
    """A training process: computes, contributes, applies. Its state is the chain of all results it has applied."""

    round: int = 0
    state: str = "initial"
    training: bool = False
    snapshot_due: int | None = None
    snapshot: tuple[int, str] | None = None
    number: int = 0
    busy_until_s: float = 0.0


class Node:
    """One site. `alive`: its daemon runs; `stopped`: it runs, but stands still (SIGSTOP)."""

    def __init__(self, world: World, site: str, name: str, *, founder: bool, peers: tuple[str, ...]) -> None:
        self.world, self.site, self.name = world, site, name
        self.founder, self.peers = founder, peers
        self.disk = Disk()
        self.alive = self.stopped = self.left = False
        self.machine: SiteMachine | None = None
        self.worker: Worker | None = None
        self.bulk: SimulatedBulk | None = None
        self.connections: dict[str, Any] = {}
        self.mailbox: list[Any] = []
        self.answers: dict[str, tuple[bool, str]] = {}
        self._timer = 0
        self._generation = 0
        self._workers = 0
        self.min_sites = 1
        self.was_active = False
        self.crash_at: int | None = None
        self._restart: Any = None

    # -- the process

    def start(self) -> None:
        world = self.world
        self.alive, self.stopped, self.left = True, False, False
        self._generation += 1
        self.was_active = False
        self.disk.incarnation += 1
        facts = SiteFacts(
            site=self.site,  # type: ignore[arg-type]
            name=self.name,
            address=self.site,
            public_key=b"",
            incarnation=self.disk.incarnation,
            run="simulated",
            min_sites=self.min_sites,
        )
        if self.founder and self.disk.snapshot is None:
            hard_state, snapshot = found_log(
                self.site,  # type: ignore[arg-type]
                encode_roster(founding_roster(facts, world.planner)),
            )
            self.disk.hard_state, self.disk.snapshot = hard_state, snapshot
        rng = random.Random(f"{world.seed}/{self.site}/{self.disk.incarnation}")
        raft = RaftMachine(
            self.site,  # type: ignore[arg-type]
            settings=RaftSettings(
                election_timeout_s=world.settings.election_timeout_s,
                heartbeat_interval_s=world.settings.raft_heartbeat_s,
            ),
            rng=rng,
            hard_state=self.disk.hard_state,
            snapshot=self.disk.snapshot,
            entries=self.disk.entries,
            now_s=world.now_s,
        )
        roster = decode_roster(self.disk.snapshot.state) if self.disk.snapshot is not None else None
        self.machine = SiteMachine(
            facts,
            settings=world.settings,
            planner=world.planner,
            rng=rng,
            raft=raft,
            roster=roster,
            entries=self.disk.entries,
            now_s=world.now_s,
        )
        self.bulk = SimulatedBulk(self.site, self._send_bulk, self.soon)
        self.mailbox.clear()
        peers = tuple((peer, peer) for peer in self.peers)
        self.handle(events.Started(peers=peers))  # type: ignore[arg-type]

    def kill(self, *, worker_too: bool = True) -> None:
        """SIGKILL: sockets are closed by the kernel, nothing more is written."""
        if not self.alive:
            return
        self.alive, self.machine, self.bulk = False, None, None
        self._generation += 1
        for connection in list(self.connections.values()):
            self.world.network.close(connection, self.site)
        self.connections.clear()
        if worker_too:
            self.worker = None

    def start_worker(self) -> None:
        self._workers += 1
        self.worker = Worker(number=self._workers)
        self._hello()

    def _hello(self) -> None:
        assert self.worker is not None
        self.worker.training = False
        if self.alive:
            self.handle(events.WorkerReady(model=MODEL, round=self.worker.round))

    def reconnect_worker(self) -> None:
        """The daemon was restarted, its worker lives: it says hello again."""
        if self.worker is not None:
            self._hello()

    def kill_worker(self) -> None:
        if self.worker is not None:
            self.worker = None
            if self.alive:
                self.handle(events.WorkerLost(reason="killed"))

    # -- events in

    def soon(self, event: Any) -> None:
        """From the engines: as its own event, at once."""
        generation = self._generation
        self.world.schedule(0.0, lambda: self.handle(event) if generation == self._generation else None)

    def handle(self, event: Any) -> None:
        if not self.alive or self.machine is None:
            return
        if self.stopped:
            self.mailbox.append(lambda: self.handle(event))
            return
        self.world.steps += 1
        generation = self._generation
        out = self.machine.handle(event, now_s=self.world.now_s + self.world.drift_s(self.site))
        for effect in out:
            if generation != self._generation:
                return
            if self.crash_at is not None and isinstance(effect, Persist):
                if self.crash_at == 1:
                    self._execute(effect)
                self._crash()
                return
            self._execute(effect)
        self.world.after_step(self, event)

    def crash_at_persist(self, *, durable: bool, restart: Any) -> None:
        """Die in the middle of the next list of effects that begins with a `Persist`: just before or just after it."""
        self.crash_at, self._restart = int(durable), restart

    def _crash(self) -> None:
        restart, self.crash_at = self._restart, None
        self.world.tell(f"!! {self.name} dies between two effects")
        self.kill()
        restart()

    def replay(self, event: Any) -> None:
        """An old message once more, from a connection that lives."""
        if self.alive and not self.stopped and self.machine is not None:
            out = self.machine.handle(event, now_s=self.world.now_s + self.world.drift_s(self.site))
            self.world.oracles.replayed(self, out)
            for effect in out:
                self._execute(effect)

    def stop(self) -> None:
        self.stopped = True

    def go_on(self) -> None:
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
        match effect:
            case Persist():
                self.disk.persist(effect)
            case effects.SendEnvelope(neighbour=neighbour, envelope=envelope):
                if neighbour in self.connections:
                    world.network.send(self.connections[neighbour], self.site, "control", envelope)
            case effects.SetTimer(at_s=at_s):
                self._timer += 1
                number, generation = self._timer, self._generation
                delay_s = at_s - world.now_s - world.drift_s(self.site)
                world.schedule(max(0.0, delay_s), lambda: self._timer_fired(number, generation))
            case effects.Dial(site=site, timeout_s=timeout_s):
                world.dial(self, site, timeout_s)
            case effects.CloseLink(site=site):
                connection = self.connections.pop(site, None)
                if connection is not None:
                    world.network.close(connection, self.site)
            case effects.ProbeLink(site=site):
                probed = events.LinkProbed(site=site, rate_bytes_per_s=1e7, reason="")
                generation = self._generation
                world.schedule(0.02, lambda: self.handle(probed) if generation == self._generation else None)
            case effects.OpenRound():
                bulk.open_round(effect)
            case effects.Contribute():
                world.contributed(self, effect)
                bulk.contribute(effect)
            case effects.StopRound(tag=tag):
                bulk.stop_round(tag)
            case effects.FetchResult(round=number, digest=digest):
                bulk.fetch_result(number, digest, sorted(self.connections))
            case effects.DeliverResult(round=number):
                self._apply(number)
            case effects.DropResults(before_round=before_round):
                bulk.drop_results(before_round)
            case effects.ToWorker(message=message):
                self._to_worker(message)
            case effects.ServeState(plan=plan):
                if self.worker is not None and self.worker.snapshot is not None:
                    bulk.serve_state(plan, self.worker.snapshot)
            case effects.ReleaseState(transfer=transfer):
                bulk.release_state(transfer)
            case effects.FetchState(plan=plan):
                bulk.fetch_state(plan)
            case effects.CancelTransfer(transfer=transfer):
                bulk.cancel(transfer)
            case effects.Record():
                world.recorded(self, effect)
            case effects.AnswerRequest(request=request, done=done, reason=reason):
                self.answers[request] = (done, reason)
            case effects.StopDaemon():
                self.left = True
                self.kill()
            case _:
                raise AssertionError(f"unknown effect {effect}")

    def _timer_fired(self, number: int, generation: int) -> None:
        if number == self._timer and generation == self._generation:
            self.handle(events.TimerFired())

    def _send_bulk(self, site: str, message: Any) -> None:
        if site in self.connections:
            if message[0] == "state":
                self.world.oracles.state_sent(self, site)
            self.world.network.send(self.connections[site], self.site, "bulk", message)

    # -- the worker

    def _later(self, delay_s: float, action: Any) -> None:
        worker = self.worker

        def run() -> None:
            if self.worker is worker and worker is not None:
                action(worker)

        self.world.schedule(delay_s, run)

    def _to_worker(self, message: Any) -> None:
        worker = self.worker
        if worker is None:
            return
        match message:
            case TrainFrom(round=number):
                assert worker.round == number - 1, f"{self.name}: told to train {number} in state of {worker.round}"
                worker.training = True
                self._compute(worker)
            case LoadState(round=number):
                assert self.bulk is not None and self.bulk.received_state is not None
                snapshot_round, state = self.bulk.received_state
                assert snapshot_round == number
                worker.round, worker.state, worker.training = number, state, False
                self._later(0.01, lambda _: self.handle(events.WorkerLoaded(round=number, digest=state)))
            case TakeSnapshot(round=number):
                worker.snapshot_due = number
                self._snapshot(worker)
            case WorkerRefused() | Dismissed():
                self.world.dismissed(self, message)
                self.worker = None
            case LeaveOrdered():
                self.handle_later(events.LeaveRequested(request="", reason="ordered", contributes=False))
            case _:
                pass

    def handle_later(self, event: Any) -> None:
        generation = self._generation
        self.world.schedule(0.0, lambda: self.handle(event) if generation == self._generation else None)

    def _compute(self, worker: Worker) -> None:
        delay_s = self.world.compute_s(self.site)

        def done(worker: Worker) -> None:
            if worker.training:
                self.handle(events.WorkerContributed(round=worker.round + 1, weight=10.0 + worker.number))

        self._later(delay_s, done)

    def _apply(self, number: int) -> None:
        worker = self.worker
        if worker is None or self.bulk is None:
            return
        assert worker.round == number - 1, f"{self.name}: result {number} for a state of {worker.round}"
        digest, _ = self.bulk.results[number]
        self.handle_later(events.WorkerUpdating(round=number))

        def done(worker: Worker) -> None:
            worker.state = digest_of((worker.state, digest))
            worker.round = number
            self.world.applied(self, number, digest, worker.state)
            self._snapshot(worker)
            self.handle(events.WorkerApplied(round=number, digest=worker.state))
            if worker.training:
                self._compute(worker)

        self._later(0.001, done)

    def _snapshot(self, worker: Worker) -> None:
        due = worker.snapshot_due
        if due is None or worker.round < due:
            return
        worker.snapshot_due = None
        if worker.round > due:
            self.handle_later(events.WorkerSnapshotMissed(round=due, now=worker.round))
            return
        worker.snapshot = (worker.round, worker.state)
        self.handle_later(events.WorkerSnapshotTaken(round=due))
