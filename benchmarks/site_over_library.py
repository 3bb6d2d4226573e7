"""What a site of several workers costs over the library's own training while nothing dies: unpaced, in one sitting.

Processes with one thread each train the small GPT of `examples/site` with 8 micro-batches of 2 samples a step. Two
replicas: `parallelize` (canonical sums, two-phase steps), `replicate`, and DistributedDataParallel with one all-reduce
a step. Two pipelines of two stages: `parallelize`, and Schedule1F1B with one all-reduce a stage. All are there from the
beginning to the end and take turns of a few steps, while the others sleep; a turn's figure is the median of its steps
but the first. Ratios are those of turns that follow each other, a second or two apart, so that what else the machine
does meets both sides of a ratio. Processor time is that of all processes of a way, a controller's by itself: what it is
more than the library's is work, and the rest of what a step takes longer is waiting.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.measure import Figures, ratios, spread
from benchmarks.over_library_site import ENVIRONMENT, SHAPES
from benchmarks.over_library_worker import BLOCK_STEPS, LOOK_S, RANKS, WAYS, Gate

ROOT = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("over_library_worker.py")
SITE = "benchmarks.over_library_site"
LIMIT_S = 600.0
MICRO_BATCH, MICRO_BATCH_LONG = 2, 10
"""Samples: 45 ms a step of two processes on two cores, and 200 ms."""


class Way:
    """The processes of one way. Those of a site are its workers, which sleep while it is not their turn, and its
    controller, which looks at them twenty times a second all the same: it is stopped meanwhile."""

    def __init__(self, name: str, folder: Path, blocks: int, micro_batch: int) -> None:
        self.name = name
        self._words = (name, str(folder), str(blocks), str(micro_batch))
        self._running: list[asyncio.subprocess.Process] = []
        self.controller_s: list[float] = []
        """What its controller worked in each turn, where there is one; in hundredths of a second."""

    async def start(self) -> None:
        """Every process of a training is a session of its own, in all ways alike: so the kernel counts them alike."""
        if self.name in SHAPES:
            await self._launch("-m", SITE, *self._words)
            return
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        for rank in range(RANKS[self.name]):
            await self._launch(str(WORKER), *self._words, str(rank), str(port))

    async def _launch(self, *words: str) -> None:
        environment = {**os.environ, **ENVIRONMENT}
        self._running.append(
            await asyncio.create_subprocess_exec(
                sys.executable, *words, env=environment, cwd=ROOT, start_new_session=True
            )
        )

    async def end(self) -> None:
        """Raises RuntimeError unless all of them end well."""
        codes = [await each.wait() for each in self._running]
        if any(codes):
            raise RuntimeError(f"{self.name}: the training ended with exit codes {codes}")

    def begin(self) -> None:
        """Its turn: its controller goes on."""
        for each in self._controller:
            each.send_signal(signal.SIGCONT)
            self.controller_s.append(-_worked_s(each.pid))

    def rest(self, stopped: bool) -> None:
        """Its turn is over. `stopped`: its controller stands still."""
        for each in self._controller:
            self.controller_s[-1] += _worked_s(each.pid)
            if stopped:
                each.send_signal(signal.SIGSTOP)

    @property
    def _controller(self) -> Sequence[asyncio.subprocess.Process]:
        return [each for each in self._running if self.name in SHAPES and each.returncode is None]

    def kill(self) -> None:
        """Whatever has not ended; workers end with their controller."""
        for each in self._running:
            if each.returncode is None:
                each.kill()


async def _turns(gate: Gate, ways: Sequence[Way], blocks: int) -> None:
    """Who trains when: there and back, so that drift meets all alike."""
    turn = 0
    for block in range(blocks):
        for way in ways if block % 2 == 0 else reversed(ways):
            turn += 1
            way.begin()
            gate.give(turn, way.name)
            while not gate.done(turn, way.name):  # noqa: ASYNC110 - other processes say it, in shared memory
                await asyncio.sleep(LOOK_S)
            way.rest(stopped=block < blocks - 1)


async def _all(folder: Path, blocks: int, micro_batch: int) -> dict[str, list[float]]:
    """What the controllers worked in each turn, by way."""
    gate = Gate(folder / "gate")
    ways = [Way(name, folder, blocks, micro_batch) for name in WAYS]
    try:
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            for way in ways:
                await way.start()
                group.create_task(way.end())
            group.create_task(_turns(gate, ways, blocks))
    finally:
        for way in ways:
            way.kill()
    return {way.name: way.controller_s for way in ways}


def _worked_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@dataclass(frozen=True, slots=True)
class Turns:
    """Of one way: seconds of a step, and what the processor worked in it for all who compute, a figure a turn; what it
    worked for a controller, on average."""

    took_s: list[float]
    worked_s: list[float]
    controller_s: float


def _sitting(blocks: int, micro_batch: int) -> dict[str, Turns]:
    """By way."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "gate").write_bytes(bytes(Gate.BYTES))
        controllers_s = asyncio.run(_all(folder, blocks, micro_batch))
        return {way: _read(folder, way, controllers_s[way]) for way in WAYS}


def _read(folder: Path, way: str, controller_s: list[float]) -> Turns:
    """What its processes have written."""
    told = [json.loads((folder / f"{way}-{rank}").read_text(encoding="utf-8")) for rank in range(RANKS[way])]
    by_turn = list(zip(*told, strict=True))[1:]  # the first one warms up
    return Turns(
        took_s=[statistics.median(took for took, _ in turn[0]) for turn in by_turn],
        worked_s=[sum(statistics.median(worked for _, worked in each) for each in turn) for turn in by_turn],
        controller_s=sum(controller_s[1:]) / (len(by_turn) * BLOCK_STEPS),
    )


def _ratios(turns: dict[str, Turns], suffix: str) -> Figures:
    figures: Figures = {}
    for name, way, library in (
        ("fault_free", "layers", "library"),
        ("replicas", "replicas", "library"),
        ("stages", "stages", "library_stages"),
    ):
        figures[f"{name}_over_library{suffix}"] = ratios(turns[way].took_s, turns[library].took_s)
        figures[f"{name}_processor_over_library{suffix}"] = ratios(turns[way].worked_s, turns[library].worked_s)
    for way in WAYS:
        figures[f"seconds_{way}{suffix}"] = spread(turns[way].took_s)
        figures[f"processor_seconds_{way}{suffix}"] = spread(turns[way].worked_s)
    for way in SHAPES:
        figures[f"controller_seconds_{way}{suffix}"] = turns[way].controller_s
    return figures


def run(*, short: bool, seed: int) -> Figures:
    """`fault_free_over_library`: parallelize over DDP; `replicas_over_library`: replicate over DDP;
    `stages_over_library`: two pipelines of two stages over Schedule1F1B. `..._processor_...`: what the processors
    worked, all workers of a way together; `controller_seconds_WAY`: for its controller, a step. `..._long`: the same
    with steps of four to five times the work, to tell what a step costs from what its work does."""
    blocks = 6 if short else 25
    return {
        **_ratios(_sitting(blocks, MICRO_BATCH), ""),
        **_ratios(_sitting(6 if short else 10, MICRO_BATCH_LONG), "_long"),
    }
