"""What is left of a site's throughput when one of its workers computes at half its speed, before and after the plan is
changed for it, and when it is fast again: paced workers (`site_throughput`).

Eight workers as two pipelines of four stages, batch 16, shapes of Llama-2 7B. `kept_before`: seconds of a step with all
at full speed over seconds with the slow one, under the same plan: the others wait for it. `kept`: the same after the
site has changed its plan by itself. `kept_most`: 7.5 / 8, what eight devices of which one has half its speed have left
if nothing else is lost. `steps_until`: steps of the slow one before the plan changed. `kept_again`: when it computes at
full speed again, and the plan has been changed for that; a worker that was left out is tried after a minute here.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys

from tests.rigs.worker_group import launch

from benchmarks.measure import Figures
from benchmarks.site_throughput import LIMIT_S, SCRIPT, SETTINGS, ImitatedPlanner
from chaos_protocols.worker_group import probation
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened

BATCH = 16
STEPS_FREE, STEPS, STEPS_SHORT = 6, 160, 110
STEPS_SLOW = 40
TRY_AFTER_S = 60.0
"""In place of the ten minutes after which a worker that was left out is tried again."""

SLOW = 5
"""The worker that is slow: it has the second stage of the second pipeline."""


async def _train(steps: int, slow: int, slow_steps: int = 0) -> list[list[float]]:
    """When the steps of each plan ended."""
    ends: list[list[float]] = []

    def happened(entry: Happened) -> None:
        if entry.kind == "plan":
            ends.append([])
            print(f"{entry.fields['shape']}: {entry.reason}", file=sys.stderr)
        elif entry.kind == "step":
            ends[-1].append(entry.at_s)
        elif entry.kind in ("stop", "plan-kept"):
            print(f"{entry.kind}: {entry.reason}", file=sys.stderr)

    setting = SETTINGS[0]
    options = [f"--model={setting.model}", "--pace=1", f"--batch={BATCH}", f"--steps={steps}", f"--slow={slow}"]
    options += [f"--slow-steps={slow_steps}"] if slow_steps else []
    controller = Controller(
        command=[sys.executable, "-u", "-m", SCRIPT, *options],
        workers=setting.workers,
        planner=ImitatedPlanner(setting, chosen=False),
        restarts=0,
        launch=launch,
        environment={"CHAOS_STANDALONE": "1", "OMP_NUM_THREADS": "1"},
        happened=happened,
    )
    async with asyncio.timeout(LIMIT_S):
        failed = await controller.run()
    if failed:
        raise RuntimeError(f"the training failed: {failed}")
    return ends


def _step_s(ends: list[float]) -> float:
    """Of a plan, without its first step."""
    return statistics.median([b - a for a, b in itertools.pairwise(ends)])


def run(*, short: bool, seed: int) -> Figures:
    """See the module."""
    (free,) = asyncio.run(_train(STEPS_FREE, -1))
    probation.TRY_AFTER_S = TRY_AFTER_S
    plans = asyncio.run(_train(STEPS_SHORT if short else STEPS, SLOW, STEPS_SLOW))
    if len(plans) != 3 or not len(plans[0]) < STEPS_SLOW < len(plans[0]) + len(plans[1]):
        raise RuntimeError(f"not changed once for the slow one and once when it is fast: {[*map(len, plans)]} steps")
    before, after, again = plans
    fast_at_s = (before + after)[STEPS_SLOW - 1]
    slow_after = [end_s for end_s in after if end_s <= fast_at_s]
    free_s, before_s, after_s, again_s = _step_s(free), _step_s(before), _step_s(slow_after), _step_s(again)
    return {
        "kept_before": free_s / before_s,
        "kept": free_s / after_s,
        "kept_most": 7.5 / 8,
        "steps_until": len(before),
        "kept_again": free_s / again_s,
        "seconds": f"{free_s:.3f} s a step, {before_s:.3f} with the slow one, {after_s:.3f} after the plan changed, "
        f"{again_s:.3f} when it was fast again",
    }
