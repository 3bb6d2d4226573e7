"""Real worker processes under a real controller, forked from one that has torch already, so that a test takes a second.

`launch` stands in for a new interpreter; everything else is as under `chaosd run`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.integration import site_training
from tests.rigs import devices, warm

from chaos_planner.pipelines.plans.layout import Policy
from chaosd.worker_group import processes
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.devices import Placement
from chaosd.worker_group.history import Happened
from chaosd.worker_group.planning import SitePlanner
from chaosd.worker_group.timed_steps import TimedSteps

SCRIPT = Path(site_training.__file__)
LIMIT_S = 250.0
"""Of one training, which takes one to five seconds."""
STOPPED_S = 20.0
"""In place of `FIRST_LIMIT_S`, where a process is stopped in work that was never seen to end: steps here are shorter
than the time between two looks."""


def launch(command: Sequence[str], environment: Mapping[str, str], shared: Mapping[str, int]) -> processes.Process:
    """In place of a new interpreter."""
    if devices.REAL:
        return processes.launch(
            [sys.executable, *command[1:]], {**os.environ, **environment, "PYTHONPATH": warm.SEARCHED}, shared
        )
    paths = {variable: f"/proc/{os.getpid()}/fd/{descriptor}" for variable, descriptor in shared.items()}
    words = command[1:] if command[1] != "-u" else command[2:]
    with open(os.dup(2), "wb") as output:
        return warm.interpreter(warm.TORCH).fork(words, output, output, Path.cwd(), environment, paths)


@dataclass
class Ran:
    """What came of a training."""

    failed: str = "it has not ended"
    failed_after: str = ""
    happened: list[Happened] = field(default_factory=list)
    struck: list[tuple[int, str, float]] = field(default_factory=list)
    """(worker, where, when) of the faults."""

    def of(self, kind: str) -> list[Happened]:
        return [each for each in self.happened if each.kind == kind]

    @property
    def digests(self) -> list[tuple[str, ...]]:
        """Of all layers, after each step."""
        steps = {int(str(each.fields["step"])): each.fields["digests"] for each in self.of("step")}
        return [steps[step] for step in sorted(steps)]  # type: ignore[misc]

    @property
    def policies(self) -> list[str]:
        return [str(each.fields["policy"]) for each in self.of("plan")]

    def after(self, kind: str, at_s: float) -> float:
        """Seconds until the first entry of this kind."""
        return min(each.at_s for each in self.of(kind) if each.at_s >= at_s) - at_s


async def train(
    tmp_path: Path,
    *,
    dp: int,
    pp: int,
    faults: str = "",
    policies: Sequence[Policy] = tuple(Policy),
    spares: int = 0,
    restarts: int = 0,
    group_size: int = 1,
    failure_timeout_s: float = 5.0,
    script: Path = SCRIPT,
    environment: Mapping[str, str] | None = None,
    daemon: Path | None = None,
    placement: Placement | None = None,
    watch: Callable[[Controller, Happened], None] | None = None,
    timed: TimedSteps | None = None,
    launch: processes.Launch = launch,
    skip_not_finite: bool = False,
) -> Ran:
    """Train to the end, or until it cannot go on. `timed`: keeps what the workers do when."""
    struck = tmp_path / f"struck-{dp}-{pp}"
    struck.touch()
    ran = Ran()

    def happened(entry: Happened) -> None:
        ran.happened.append(entry)
        if watch is not None:
            watch(controller, entry)

    planner = SitePlanner(workers=dp * pp, pipelines=dp, stages=pp, policies=frozenset(policies))
    controller = Controller(
        command=[sys.executable, "-u", str(script)],
        workers=dp * pp,
        spares=spares,
        restarts=restarts,
        planner=planner,
        failure_timeout_s=failure_timeout_s,
        skip_not_finite=skip_not_finite,
        audit=True,
        timed=timed,
        launch=launch,
        group_size=group_size,
        environment={"FAULTS": faults, "STRUCK": str(struck), "OMP_NUM_THREADS": "1", **(environment or {})},
        daemon=daemon,
        placement=placement or (devices.placement() if group_size == 1 else None),
        happened=happened,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            ran.failed = await controller.run()
            ran.failed_after = controller.failed_after
    except TimeoutError:
        raise AssertionError(f"no end within {LIMIT_S:g} s: {ran.happened}") from None
    for text in struck.read_text(encoding="utf-8").splitlines():
        worker, where, at_s = text.split()
        ran.struck.append((int(worker), where, float(at_s)))
    return ran


@cache
def alone(**training: Any) -> list[tuple[str, ...]]:
    """Digests of all layers after each step of the same training in one process."""
    found: list[tuple[str, ...]] = []
    site_training.train(
        lambda model, report: found.append(tuple(d for _, d in sorted(model.digests().items()))), **training
    )
    return found
