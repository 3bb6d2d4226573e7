"""What the death of a worker costs the controller of a site, from 32 to 5,000 workers: flat, or not.

The real controller, machine and store, on real unix sockets, with a process that sleeps for each worker, whose death
they see by its pidfd; what the workers say comes from one other process (`simulated_workers`), which computes nothing
and builds no groups, but sets and gets their keys. A spare takes the dead one's place by a plan that is changed here in
that place only: what the planner takes is a figure of `planner`. Orders have the size of those of two replicas a layer.

Times run from SIGKILL: until the death is seen, until everybody has stopped, until all are ready under the next plan.
Both processes and all else of this machine share its cores, so what grows with the workers is an upper bound: the other
end's work for all of them is in it. What the controller itself computes meanwhile is told for each worker (every one of
them is told to stop, is given an order, and is told to go), as processor time; and, as a share of a core, what it
computes while nothing happens: it only watches then.

Measured against FlashRecovery, which calls its recovery "nearly constant regardless of cluster scale" (abstract, IV-C):
in all 97 s with 32 devices and 147.5 s with 4,800 (Table III), 1.52 times as long, or 50.5 s more. 78 to 116 s of these
are the start of the replacement, which a spare here has behind it: our growth as a ratio is that of a much smaller
thing (`growth`, `flat`), and is told in seconds beside it (`seconds_more`). Its table of ranks takes 8 to
249 s from 1,000 to 18,000 devices where it is collected, less than 0.5 s as a shared file (Table I).
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.measure import Figures, spread
from benchmarks.simulated_workers import MICRO_BATCHES, STAGES
from chaos_protocols.streams import (
    BackwardPass,
    ForwardPass,
    Instruction,
    Message,
    ReceiveMessage,
    SendMessage,
    Share,
    Sum,
    incoming_of,
)
from chaos_protocols.worker_group.events import AskPlanner
from chaos_protocols.worker_group.messages import GroupHello
from chaos_protocols.worker_group.plan import Plan
from chaosd.os_errors import raise_files_allowed
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened
from chaosd.worker_group.planning import SitePlanner

SIZES = (32, 100, 320, 1000, 3200, 5000)
SIZES_SHORT = (32, 320)
KILLS, KILLS_SHORT = 5, 3
LIMIT_S = 300.0
REST_S = 2.0
FLAT = 1.52
"""At most so many times as long with the most workers as with the fewest; in FlashRecovery's table it is."""


class _Places(SitePlanner):
    """Pipelines of `STAGES`, two and two with sums in common; whoever is lost is replaced."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers=workers)
        self._places, self._held = workers, list[int]()
        self._shares: dict[int, Share] = {}

    def warm_up(self) -> None:
        """There are no solvers."""

    def put_in_force(self, asked: int) -> None:
        """There is but one plan."""

    def prepare(
        self, hello: GroupHello, present: frozenset[int], idle: frozenset[int], drained: frozenset[int] = frozenset()
    ) -> None:
        """A plan is made at once."""

    def make(self, asked: AskPlanner, hello: GroupHello, present: frozenset[int]) -> Plan:
        """The plan before, but for the place of the lost one and those it spoke with: the controller's own planner has
        worked that out before anybody dies, and a death costs it a look-up."""
        if not self._held:
            self._held = sorted(present)[: self._places]
            changed = set(range(self._places))
        else:
            spares = sorted(asked.idle)
            empty = {place for place, worker in enumerate(self._held) if worker in asked.lost}
            for place in empty:
                del self._shares[self._held[place]]
                self._held[place] = spares.pop(0)
            changed = empty.union(*map(self._partners, empty))
        told = changed.union(*map(self._partners, changed))
        streams = {self._held[place]: tuple(self._stream(place)) for place in told}
        incoming = incoming_of(streams)
        for place in changed:
            worker, layer = self._held[place], place % STAGES
            self._shares[worker] = Share(
                first_layer=layer, last_layer=layer + 1, stream=streams[worker], incoming=incoming[worker]
            )
        for worker in present - self._shares.keys():
            self._shares[worker] = Share()
        return Plan(policy="spare", reason="a spare takes its place", shares=dict(self._shares))

    def _partners(self, place: int) -> set[int]:
        """Those who hear from it, or sum with it."""
        return {each for each in (place - 1, place + 1, *self._twins(place)) if 0 <= each < self._places}

    def _twins(self, place: int) -> tuple[int, int]:
        first = place - place % (2 * STAGES) + place % STAGES
        return first, first + STAGES

    def _stream(self, place: int) -> list[Instruction]:
        """One micro-batch forward, one back, the sum with the next pipeline's, for each two of them."""
        layer, half = place % STAGES, MICRO_BATCHES // 2
        twins = self._twins(place)
        found: list[Instruction] = []
        for g in range(half):
            if layer:
                found.append(ReceiveMessage(Message(False, g, layer), self._held[place - 1]))
            found.append(ForwardPass(g, layer, layer + 1))
            if layer < STAGES - 1 and place + 1 < len(self._held):
                found.append(SendMessage(Message(False, g, layer + 1), self._held[place + 1]))
        for g in range(half):
            if layer < STAGES - 1 and place + 1 < len(self._held):
                found.append(ReceiveMessage(Message(True, g, layer + 1), self._held[place + 1]))
            found.append(BackwardPass(g, layer, layer + 1))
            if layer:
                found.append(SendMessage(Message(True, g, layer), self._held[place - 1]))
        if twins[1] < len(self._held):
            holders = tuple(sorted(self._held[twin] for twin in twins))
            found.append(Sum((layer,), holders, (((1, 0),), ((1, 1),))))
        return found


@dataclass(slots=True)
class _Marks:
    """Of one death, seconds on the monotonic clock."""

    killed_s: float
    cpu_s: float
    """Of this process: when it was killed, then from there until all were ready."""
    of: dict[str, float] = field(default_factory=dict)

    def after(self, kind: str) -> float:
        return self.of[kind] - self.killed_s


class _Site:
    """One worker group: its controller, the process that talks for its workers, and what happened."""

    def __init__(self, workers: int, spares: int) -> None:
        self.marks: list[_Marks] = []
        self.training, self.stepped = asyncio.Event(), asyncio.Event()
        self.held: list[int] = []
        self._talking: subprocess.Popen[bytes] | None = None
        self._bodies: list[subprocess.Popen[bytes]] = []
        self.controller = Controller(
            command=["sleep", "infinity"],
            workers=workers,
            planner=_Places(workers),
            spares=spares,
            restarts=0,
            launch=self._launch,
            happened=self._happened,
        )

    def tell(self, text: str) -> None:
        """The process that talks."""
        assert self._talking is not None and self._talking.stdin is not None
        self._talking.stdin.write(f"{text}\n".encode())
        self._talking.stdin.flush()

    def kill(self, worker: int) -> None:
        self.marks.append(_Marks(time.monotonic(), time.process_time()))
        os.kill(self.controller.pid(worker), signal.SIGKILL)

    def end(self) -> None:
        """Nobody sleeps any more."""
        for process in self._bodies:
            process.kill()
        if self._talking is not None:
            self._talking.kill()
            self._talking.wait()

    def _launch(
        self, command: Sequence[str], environment: Mapping[str, str], shared: Mapping[str, int]
    ) -> subprocess.Popen[bytes]:
        if self._talking is None:
            named = [environment["CHAOS_WORKER_GROUP"], environment["CHAOS_WORKER_TOKEN"]]
            program = [sys.executable, "-m", "benchmarks.simulated_workers", *named]
            self._talking = subprocess.Popen(program, stdin=subprocess.PIPE)
        self._bodies.append(subprocess.Popen(command, start_new_session=True))
        self.tell(f"come {environment['CHAOS_WORKER']}")
        return self._bodies[-1]

    def _happened(self, entry: Happened) -> None:
        if self.marks:
            self.marks[-1].of.setdefault(entry.kind, entry.at_s)
        match entry.kind:
            case "worker-lost":
                self.tell(f"go {entry.fields['worker']}")
            case "plan":
                listed = entry.fields["workers"]
                assert isinstance(listed, Sequence)
                self.held = [int(str(worker)) for worker in listed]
            case "training":
                if self.marks:
                    self.marks[-1].cpu_s = time.process_time() - self.marks[-1].cpu_s
                self.training.set()
            case "step":
                self.stepped.set()


async def _kill(workers: int, kills: int) -> tuple[list[_Marks], list[float], float]:
    """The deaths, what the two phases of a step without any work took, and the share of a core at rest."""
    commits: list[float] = []
    site = _Site(workers, spares=kills)
    running = asyncio.create_task(site.controller.run())
    try:
        async with asyncio.timeout(LIMIT_S):
            for turn in range(kills + 1):
                await _until(site.training, running)
                site.training.clear()
                site.stepped.clear()
                began_s = time.monotonic()
                site.tell("step")
                await _until(site.stepped, running)
                commits.append(time.monotonic() - began_s)
                if turn < kills:
                    site.kill(site.held[turn * 7 % len(site.held)])
        rested_s = time.process_time()
        await asyncio.sleep(REST_S)
        at_rest = (time.process_time() - rested_s) / REST_S
        site.controller.end("measured")
        site.end()
        await running
    finally:
        site.end()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return site.marks, commits, at_rest


async def _until(event: asyncio.Event, running: asyncio.Task[str]) -> None:
    """Raises `RuntimeError` if the worker group ends before."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
    if not event.is_set():
        waiting.cancel()
        raise RuntimeError(f"the worker group ended: {await running}")


def run(*, short: bool, seed: int) -> Figures:
    """`seconds_N`: from the death to all ready again; `growth`: of the largest over the smallest; `seconds_more`: the
    difference; `seconds_a_worker_N`; `cpu_a_worker_N`: of the controller; `seconds_to_see_N`; `commit_N`:
    both phases of a step; `at_rest_N`."""
    figures: Figures = {}
    medians: dict[int, float] = {}
    sizes = SIZES_SHORT if short else SIZES
    refused = raise_files_allowed(0)
    if refused:
        raise RuntimeError(refused)
    for workers in sizes:
        marks, commits, at_rest = asyncio.run(_kill(workers, KILLS_SHORT if short else KILLS))
        ready = [each.after("training") for each in marks]
        medians[workers] = statistics.median(ready)
        figures[f"seconds_{workers}"] = spread(ready)
        figures[f"seconds_a_worker_{workers}"] = medians[workers] / workers
        figures[f"cpu_a_worker_{workers}"] = statistics.median(each.cpu_s for each in marks) / workers
        figures[f"at_rest_{workers}"] = at_rest
        figures[f"seconds_to_see_{workers}"] = spread([each.after("worker-lost") for each in marks])
        figures[f"seconds_to_stop_{workers}"] = spread([each.after("stopped") for each in marks])
        figures[f"commit_{workers}"] = spread(commits)
    growth = medians[sizes[-1]] / medians[sizes[0]]
    figures["growth"] = growth
    figures["seconds_more"] = medians[sizes[-1]] - medians[sizes[0]]
    figures["flat"] = growth <= FLAT
    return figures
