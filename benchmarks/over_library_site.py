"""One site of `site_over_library`: its controller, with the workers that it starts. `way folder blocks micro_batch`."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from chaosd.worker_group.controller import Controller
from chaosd.worker_group.planning import SitePlanner
from chaosd.worker_group.processes import launch

WORKER = Path(__file__).with_name("over_library_worker.py")
SHAPES = {"layers": (2, 1), "replicas": (2, 1), "stages": (2, 2)}
"""Pipelines and stages."""

ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


def train(worker: Path, way: str, words: Sequence[str]) -> None:
    """The processes of a site, each of which runs `worker` with these words. Raises RuntimeError where the training
    failed."""
    pipelines, stages = SHAPES[way]
    controller = Controller(
        command=[sys.executable, "-u", str(worker), way, *words],
        workers=pipelines * stages,
        planner=SitePlanner(workers=pipelines * stages, pipelines=pipelines, stages=stages),
        restarts=0,
        launch=functools.partial(launch, stdout=subprocess.DEVNULL),
        environment={**ENVIRONMENT, "CHAOS_STANDALONE": "1"},
        happened=lambda _: None,
    )
    failed = asyncio.run(controller.run())
    if failed:
        raise RuntimeError(f"{way}: {failed}")


def main() -> None:
    way, *words = sys.argv[1:]
    train(WORKER, way, words)


if __name__ == "__main__":
    main()
