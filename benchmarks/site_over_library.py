"""What a site of several workers costs over the library's own training while nothing dies: unpaced, in one sitting.

Processes with one thread each train the small GPT of `examples/site` with 8 micro-batches of 2 samples a step. Two
replicas: `parallelize` (canonical sums, two-phase steps), `replicate`, and DistributedDataParallel with one all-reduce
a step. Two pipelines of two stages: `parallelize`, and Schedule1F1B with one all-reduce a stage. All are there from the
beginning to the end and take turns of a few steps, while the others sleep; a turn's figure is the median of its steps
but the first. Ratios are those of turns that follow each other, a second or two apart, so that what else the machine
does meets both sides of a ratio.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measure import Figures, ratios, spread
from benchmarks.over_library_worker import LOOK_S, RANKS, WAYS, Gate
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.planning import SitePlanner
from chaosd.worker_group.processes import Process

WORKER = Path(__file__).with_name("over_library_worker.py")
SHAPES = {"layers": (2, 1), "replicas": (2, 1), "stages": (2, 2)}
LIMIT_S = 600.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


def _silent(command: Sequence[str], environment: Mapping[str, str], shared: Mapping[str, int]) -> Process:
    """As `chaosd run` starts a worker, without what it prints."""
    named = {variable: str(descriptor) for variable, descriptor in shared.items()}
    return subprocess.Popen(
        command,
        env={**environment, **named},
        pass_fds=tuple(shared.values()),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


async def _site(way: str, folder: Path, blocks: int) -> None:
    pipelines, stages = SHAPES[way]
    controller = Controller(
        command=[sys.executable, "-u", str(WORKER), way, str(folder), str(blocks)],
        workers=RANKS[way],
        planner=SitePlanner(workers=RANKS[way], pipelines=pipelines, stages=stages),
        restarts=0,
        launch=_silent,
        environment={**ENVIRONMENT, "CHAOS_STANDALONE": "1"},
        happened=lambda _: None,
    )
    failed = await controller.run()
    if failed:
        raise RuntimeError(f"{way}: {failed}")


async def _library(way: str, folder: Path, blocks: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    words = [str(WORKER), way, str(folder), str(blocks)]
    running = [
        await asyncio.create_subprocess_exec(
            sys.executable, *words, str(rank), str(port), env={**os.environ, **ENVIRONMENT}
        )
        for rank in range(RANKS[way])
    ]
    codes = [await each.wait() for each in running]
    if any(codes):
        raise RuntimeError(f"{way}: the library's training ended with exit codes {codes}")


async def _turns(gate: Gate, blocks: int) -> None:
    """Who trains when: there and back, so that drift meets all alike."""
    turn = 0
    for block in range(blocks):
        for way in WAYS if block % 2 == 0 else reversed(WAYS):
            turn += 1
            gate.give(turn, way)
            while not gate.done(turn, way):  # noqa: ASYNC110 - other processes say it, in shared memory
                await asyncio.sleep(LOOK_S)


async def _all(folder: Path, blocks: int) -> None:
    gate = Gate(folder / "gate")
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        for way in WAYS:
            group.create_task((_site if way in SHAPES else _library)(way, folder, blocks))
        group.create_task(_turns(gate, blocks))


def run(*, short: bool, seed: int) -> Figures:
    """`fault_free_over_library`: parallelize over DDP; `replicas_over_library`: replicate over DDP;
    `stages_over_library`: two pipelines of two stages over Schedule1F1B."""
    blocks = 6 if short else 25
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "gate").write_bytes(bytes(Gate.BYTES))
        asyncio.run(_all(folder, blocks))
        told = {way: json.loads((folder / way).read_text(encoding="utf-8")) for way in WAYS}
    seconds = {way: [statistics.median(block) for block in told[way][1:]] for way in WAYS}  # the first one warms up
    return {
        "fault_free_over_library": ratios(seconds["layers"], seconds["library"]),
        "replicas_over_library": ratios(seconds["replicas"], seconds["library"]),
        "stages_over_library": ratios(seconds["stages"], seconds["library_stages"]),
        **{f"seconds_{way}": spread(seconds[way]) for way in WAYS},
    }
