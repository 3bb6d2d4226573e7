"""What a site of two replicas costs over the library's DistributedDataParallel while nothing dies: unpaced, in turn.

Two processes with one thread each train the small GPT of `examples/site` with 8 micro-batches of 2 samples a step:
`chaosd run` with stages of the whole model (`parallelize`, canonical sums, two-phase steps), the same with a loop of
its own (`replicate`), and DDP over gloo with gradients accumulated and one all-reduce a step. They run one after the
other, in turn; a run's figure is the median of its steps but the first five. Ratios are taken turn by turn.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measure import Figures, alternating, ratios, spread
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened
from chaosd.worker_group.planning import SitePlanner
from chaosd.worker_group.processes import Process

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "examples" / "site"
LIBRARY = Path(__file__).with_name("library_replicas.py")
WORKERS = 2
WIDTH, GLOBAL_BATCH, MICRO_BATCH = 64, 16, 2
STEPS, UNCOUNTED = 30, 5
LIMIT_S = 200.0
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


def _site(script: str) -> float:
    """Median seconds of a step under `chaosd run`."""
    ends_s: list[float] = []

    def happened(entry: Happened) -> None:
        if entry.kind == "step":
            ends_s.append(entry.at_s)

    async def train() -> str:
        controller = Controller(
            command=[sys.executable, "-u", str(SITE / script), "--steps", str(STEPS)],
            workers=WORKERS,
            planner=SitePlanner(workers=WORKERS, pipelines=WORKERS, stages=1),
            restarts=0,
            launch=_silent,
            environment={**ENVIRONMENT, "CHAOS_STANDALONE": "1"},
            happened=happened,
        )
        async with asyncio.timeout(LIMIT_S):
            return await controller.run()

    failed = asyncio.run(train())
    if failed or len(ends_s) != STEPS:
        raise RuntimeError(f"{script}: {failed or f'{len(ends_s)} of {STEPS} steps'}")
    return statistics.median([b - a for a, b in itertools.pairwise(ends_s[UNCOUNTED - 1 :])])


def _library() -> float:
    """Median seconds of a step of DDP."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
        free.close()
        out = Path(folder) / "seconds.json"
        numbers = {"world": WORKERS, "port": port, "steps": STEPS, "width": WIDTH}
        numbers |= {"global-batch": GLOBAL_BATCH, "micro-batch": MICRO_BATCH}
        words = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, str(LIBRARY), "--out", str(out), *words]
        environment = {**os.environ, **ENVIRONMENT}
        running = [subprocess.Popen([*command, "--rank", str(r)], env=environment) for r in range(WORKERS)]
        codes = [each.wait(timeout=LIMIT_S) for each in running]
        if any(codes):
            raise RuntimeError(f"the library's training ended with exit codes {codes}")
        took_s: list[float] = json.loads(out.read_text(encoding="utf-8"))
        return statistics.median(took_s[UNCOUNTED:])


def run(*, short: bool, seed: int) -> Figures:
    """`fault_free_over_library`: parallelize over DDP; `replicas_over_library`: replicate over DDP."""
    samples = alternating(
        {"library": _library, "layers": lambda: _site("train.py"), "replicas": lambda: _site("replicas.py")},
        repeats=3 if short else 7,
    )
    return {
        "fault_free_over_library": ratios(samples["layers"], samples["library"]),
        "replicas_over_library": ratios(samples["replicas"], samples["library"]),
        "seconds_library": spread(samples["library"]),
        "seconds_layers": spread(samples["layers"]),
        "seconds_replicas": spread(samples["replicas"]),
    }
