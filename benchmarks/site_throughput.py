"""What is left of a site's throughput when a worker dies, and how well the planner knew it: paced workers.

Real workers train `paced_layers` (equal layers that sleep until their time is over, so that many processes on two
cores behave like as many devices), with 16, 32 and 64 micro-batches of one sample. One is killed; the planner answers
as it likes. Kept: seconds of a step before over seconds after, the median of each plan's steps but the first. Both the
plan that was asked for and the best plan that the planner finds for as many workers stand below the line, since a poor
start flatters. Expected: the planner's seconds beside the measured ones, before and after, as a share.

Three settings: 8 -> 7 as two pipelines of four stages; 16 -> 15 as four of four, with layers twice as slow, since
sixteen processes share the two cores; 32 -> 24 devices in groups of eight, as two pipelines of two stages: here a group
is one process, as it is one worker of the plan, and what its eight devices say to each other is not in the figure
(`throughput_kept_32` is over 24/32, what eight devices fewer leave at best if nothing was idle before).

Measured against Chameleon (Fig. 6: 96.22, 89.00 and 99.17 %; its own formulas 9 to 11 give, for equal layers, 91.7,
87.4 and 87.5 % for 8 -> 7).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.rigs.worker_group import launch

from benchmarks.measure import Figures, spread
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened
from chaosd.worker_group.planning import SitePlanner

SCRIPT = Path(__file__).with_name("paced_layers.py")
LAYERS = 32
FORWARD_S, BACKWARD_S = 0.004, 0.008
"""Of one layer and micro-batch."""
BATCHES = (16, 32, 64)
STEPS = 6
"""Under each plan; the first one is not counted."""
STEPS_SHORT = 4
LIMIT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`pace`: how many times slower layers are than `FORWARD_S` and `BACKWARD_S`. `most`: the share of the throughput
    that is left at best; what is kept is told over it."""

    key: str
    pipelines: int
    stages: int
    pace: float = 1.0
    most: float = 1.0

    @property
    def workers(self) -> int:
        return self.pipelines * self.stages


SETTINGS = (
    Setting(key="throughput_kept", pipelines=2, stages=4),
    Setting(key="throughput_kept_16", pipelines=4, stages=4, pace=2.0),
    Setting(key="throughput_kept_32", pipelines=2, stages=2, most=24 / 32),
)


@dataclass(slots=True)
class _Plan:
    """One plan, as expected and as it went."""

    policy: str
    shape: str
    expected_s: float
    ends_s: list[float] = field(default_factory=list)

    @property
    def step_s(self) -> float:
        return statistics.median([b - a for a, b in itertools.pairwise(self.ends_s)])

    @property
    def error(self) -> float:
        return abs(self.expected_s / self.step_s - 1)


async def _train(setting: Setting, *, batch: int, steps: int, kill: bool, chosen: bool) -> list[_Plan]:
    """The plans of one training. `chosen`: the planner chooses the first one. `kill`: one worker, half way."""
    plans: list[_Plan] = []
    workers: list[int] = []

    def happened(entry: Happened) -> None:
        if entry.kind == "plan":
            fields = entry.fields
            plans.append(_Plan(str(fields["policy"]), str(fields["shape"]), float(str(fields["step_s"]))))
            listed = fields["workers"]
            assert isinstance(listed, Sequence)
            workers[:] = [int(str(worker)) for worker in listed]
        elif entry.kind == "step":
            plans[-1].ends_s.append(entry.at_s)
            if kill and len(plans) == 1 and len(plans[0].ends_s) == steps:
                os.kill(controller.pid(workers[0]), signal.SIGKILL)

    total = 2 * steps + 1 if kill else steps
    numbers: dict[str, float] = {"layers": LAYERS, "batch": batch, "steps": total}
    numbers |= {"forward-s": setting.pace * FORWARD_S, "backward-s": setting.pace * BACKWARD_S}
    options = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    pipelines, stages = (0, 0) if chosen else (setting.pipelines, setting.stages)
    controller = Controller(
        command=[sys.executable, "-u", str(SCRIPT), *options],
        workers=setting.workers,
        planner=SitePlanner(workers=setting.workers, pipelines=pipelines, stages=stages),
        restarts=0,
        launch=launch,
        environment={"CHAOS_STANDALONE": "1", "OMP_NUM_THREADS": "1"},
        happened=happened,
    )
    async with asyncio.timeout(LIMIT_S):
        failed = await controller.run()
    if failed or len(plans) != 1 + kill:
        raise RuntimeError(f"the training did not go as planned: {failed or plans}")
    return plans


def run(*, short: bool, seed: int) -> Figures:
    """`throughput_kept` (8 -> 7, batch 16), `_16`, `_32`, each with `_batch_32`, `_batch_64`: over the plan that was
    asked for; `_of_best`: over the best one."""
    figures: Figures = {}
    errors: list[float] = []
    for setting, batch in itertools.product(SETTINGS, BATCHES[:1] if short else BATCHES):
        steps = STEPS_SHORT if short else STEPS
        before, after = asyncio.run(_train(setting, batch=batch, steps=steps, kill=True, chosen=False))
        (best,) = asyncio.run(_train(setting, batch=batch, steps=steps, kill=False, chosen=True))
        key = setting.key if batch == BATCHES[0] else f"{setting.key}_batch_{batch}"
        figures[key] = before.step_s / after.step_s / setting.most
        figures[f"{key}_of_best"] = best.step_s / after.step_s / setting.most
        figures[f"{key}_expected"] = before.expected_s / after.expected_s / setting.most
        figures[f"{key}_after"] = f"{after.policy}: {after.shape}"
        figures[f"{key}_best"] = best.shape
        mine = [before.error, after.error, best.error]
        figures[f"{key}_error"] = spread(mine)
        errors += mine
    figures["error_mean"] = statistics.fmean(errors)
    figures["error_max"] = max(errors)
    return figures
