"""What the death of a worker costs a site of several, at most one step repeated and the bits of one process kept.

Real workers (2 pipelines of 2 stages, `examples/site/train.py`) are killed by SIGKILL at the moment in which their word
of progress says forward, backward, summing, update or waiting; spares take their places, and when none is left the
planner answers. Times run from the signal: until the controller has seen the death, until all survivors have stopped,
until everybody is ready under the new plan, until its first step is done. The states of all layers after every step are
compared with those of the same script in one process. Others are stopped (SIGSTOP), which shows by what they do not do
alone: they are to be replaced within the failure timeout and half a second. Beside it, in turn: the same model with as
many processes, as replicas that are all started again from a checkpoint (`full_restart`).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.full_restart import full_restarts
from benchmarks.measure import Figures, percentile, spread
from chaos_protocols.worker_group.suspicion import Work
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened
from chaosd.worker_group.planning import SitePlanner

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "site" / "train.py"
ALONE = {"CHAOS_STANDALONE": "1"}
STEPS_BETWEEN = 5
LIMIT_S = 540.0
PAUSE_S = 1.0
"""Of training, between a return and the next kill."""

STEPS_OF_RETURNS = 100_000
"""More than there is time for: the training ends with the last return."""

FAILURE_TIMEOUT_S = 1.0
"""Of workers that are stopped, as `chaosd run` has it by itself."""

RESTARTS = 3
"""Of the baseline, in each turn."""
PLACES = (Work.FORWARD, Work.BACKWARD, Work.SUMMING, Work.UPDATE, Work.WAITING)


def listed(value: object) -> list[object]:
    """A field of an event that is a list."""
    assert isinstance(value, list | tuple)
    return list(value)


@dataclass(slots=True)
class Strike:
    """A signal to a worker, and what followed; times on the monotonic clock."""

    worker: int
    work: Work
    number: signal.Signals = signal.SIGKILL
    steps_before: int = 0
    sent_s: float = 0.0
    seen_s: float = 0.0
    stopped_s: float = 0.0
    ready_s: float = 0.0
    stepped_s: float = 0.0
    resumed: int = -1
    policy: str = ""
    expected_step_s: float = 0.0
    """What the planner expects of a step of the plan that follows."""

    @property
    def repeated(self) -> int:
        """Steps that were begun before the strike and done again."""
        return self.steps_before + 1 - self.resumed


@dataclass(slots=True)
class Struck:
    """A training under strikes."""

    strikes: list[Strike] = field(default_factory=list)
    happened: list[Happened] = field(default_factory=list)
    failed: str = ""

    @property
    def digests(self) -> dict[int, list[str]]:
        """Step to the digests of all layers."""
        steps = [each for each in self.happened if each.kind == "step"]
        return {int(str(each.fields["step"])): [str(d) for d in listed(each.fields["digests"])] for each in steps}


async def strike(
    plan: Sequence[tuple[Work, signal.Signals]],
    *,
    dp: int,
    pp: int,
    spares: int,
    seed: int,
    arguments: Sequence[str] = (),
    failure_timeout_s: float = FAILURE_TIMEOUT_S,
) -> Struck:
    """Train with `dp` x `pp` workers; strike one of those that train, `STEPS_BETWEEN` steps after the last recovery."""
    found = Struck()
    training: set[int] = set()
    changed = asyncio.Event()

    def happened(entry: Happened) -> None:
        found.happened.append(entry)
        last = found.strikes[-1] if found.strikes else None
        if last is not None:
            follow(last, entry)
        if entry.kind == "plan":
            training.clear()
            training.update(int(str(worker)) for worker in listed(entry.fields["workers"]))
        changed.set()

    steps = (len(plan) + 1) * (STEPS_BETWEEN + 1)
    controller = Controller(
        command=[sys.executable, "-u", str(SCRIPT), "--steps", str(steps), *arguments],
        workers=dp * pp,
        planner=SitePlanner(workers=dp * pp, pipelines=dp, stages=pp),
        spares=spares,
        restarts=0,
        failure_timeout_s=failure_timeout_s,
        audit=True,
        environment=ALONE,
        happened=happened,
    )

    struck = _strikes(plan, controller, found, training, changed, random.Random(seed))
    striking = asyncio.create_task(struck)
    try:
        async with asyncio.timeout(LIMIT_S):
            found.failed = await controller.run()
    finally:
        striking.cancel()
        await asyncio.gather(striking, return_exceptions=True)
    return found


async def _strikes(
    plan: Sequence[tuple[Work, signal.Signals]],
    controller: Controller,
    found: Struck,
    training: set[int],
    changed: asyncio.Event,
    draw: random.Random,
) -> None:
    """Strike one that trains, each time when the last one has been recovered from."""
    for work, number in plan:
        await _steps_done(found, changed)
        chosen = draw.choice(sorted(training))
        await asyncio.to_thread(until_it_does, controller, chosen, work)
        entry = Strike(worker=chosen, work=work, number=number, steps_before=max(found.digests, default=0))
        found.strikes.append(entry)
        pid = controller.pid(chosen)
        entry.sent_s = time.monotonic()
        os.kill(pid, number)


def until_it_does(controller: Controller, worker: int, work: Work) -> None:
    """Look at its word until it says so; on a thread, since a word in memory gives no event."""
    while (reading := controller.reading(worker)) is not None and reading.work is not work:
        time.sleep(0.0002)


async def _steps_done(found: Struck, changed: asyncio.Event) -> None:
    """Wait until `STEPS_BETWEEN` steps are done since the last recovery."""
    while True:
        changed.clear()
        since_s = found.strikes[-1].ready_s if found.strikes else 0.0
        recovered = not found.strikes or since_s > 0.0
        done = [each for each in found.happened if each.kind == "step" and each.at_s > since_s]
        if recovered and len(done) >= STEPS_BETWEEN:
            return
        await changed.wait()


def follow(last: Strike, entry: Happened) -> None:
    """Note the first of each kind after the strike."""
    match entry.kind:
        case "worker-lost" if not last.seen_s and entry.fields["worker"] == last.worker:
            last.seen_s = entry.at_s
        case "stopped" if last.seen_s and not last.stopped_s:
            last.stopped_s = entry.at_s
        case "plan" if last.seen_s and not last.policy:
            last.policy = str(entry.fields["policy"])
            last.resumed = int(str(entry.fields["step"]))
            last.expected_step_s = float(str(entry.fields["step_s"]))
        case "training" if last.seen_s and not last.ready_s:
            last.ready_s = entry.at_s
        case "step" if last.ready_s and not last.stepped_s:
            last.stepped_s = entry.at_s


def alone(arguments: Sequence[str], steps: int) -> list[list[str]]:
    """Digests of all layers after each step of the same training in one process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "digests.json"
        command = [sys.executable, str(SCRIPT), "--steps", str(steps), "--digests", str(out), *arguments]
        subprocess.run(command, check=True, timeout=LIMIT_S, env={**os.environ, "OMP_NUM_THREADS": "1", **ALONE})
        return [digests for _, digests in sorted(digests_in(out).items())]


def digests_in(path: Path) -> dict[int, list[str]]:
    """What `train.py --digests` has written so far: step to the digests of all layers."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return dict(json.loads(line) for line in lines if line.endswith("\n"))


def equal(found: Struck, expected: Sequence[Sequence[str]]) -> bool:
    """Whether every step that was told of left the bits of one process, the last one among them."""
    told = found.digests
    return bool(told) and all(list(expected[step - 1]) == digests for step, digests in told.items())


async def come_back(count: int, *, dp: int, pp: int) -> list[Mapping[str, float]]:
    """Kill one that trains, so often, and let a new process take its place: what the others stood still for when it
    came, by what they did."""
    found: list[Mapping[str, float]] = []
    training: list[int] = []
    loop = asyncio.get_running_loop()

    def kill() -> None:
        os.kill(controller.pid(training[-1]), signal.SIGKILL)

    def happened(entry: Happened) -> None:
        if entry.kind == "plan":
            training[:] = [int(str(worker)) for worker in listed(entry.fields["workers"])]
        elif entry.kind == "training" and entry.fields["generation"] == 1:
            loop.call_later(PAUSE_S, kill)
        elif entry.kind == "recovered" and "is here" in entry.reason:
            seconds = entry.fields["seconds"]
            assert isinstance(seconds, dict)
            found.append(seconds)
            if len(found) == count:
                controller.end("the last one is back")
            else:
                loop.call_later(PAUSE_S, kill)

    controller = Controller(
        command=[sys.executable, "-u", str(SCRIPT), "--steps", str(STEPS_OF_RETURNS)],
        workers=dp * pp,
        planner=SitePlanner(workers=dp * pp, pipelines=dp, stages=pp),
        restarts=count,
        environment=ALONE,
        happened=happened,
    )
    async with asyncio.timeout(LIMIT_S):
        failed = await controller.run()
    if len(found) < count:
        raise RuntimeError(f"only {len(found)} of {count} came back: {failed}")
    return found


def stops(turns: int, *, seed: int) -> list[float]:
    """Seconds until each of some workers that are stopped is replaced, five in a turn."""
    found: list[float] = []
    for turn in range(turns):
        plan = [(work, signal.SIGSTOP) for work in PLACES]
        struck = asyncio.run(strike(plan, dp=2, pp=2, spares=len(plan), seed=seed + turn))
        if struck.failed or any(not each.ready_s for each in struck.strikes) or len(struck.strikes) < len(plan):
            raise RuntimeError(f"the training was not struck as planned: {struck.failed or struck.strikes}")
        found += [each.ready_s - each.sent_s for each in struck.strikes]
    return found


def run(*, short: bool, seed: int) -> Figures:
    """Kills in all places; equality, repeated steps, and seconds from the signal on. `over_full_restart`: ours, until
    the next step is done, over a full restart's. `seconds_of_return`: for which the others stand still when a restarted
    worker takes its place; `seconds_of_return_deciding`: of those, until there was a plan.
    `seconds_to_replace_stopped`: from SIGSTOP until everybody is ready without that worker."""
    strikes: list[Strike] = []
    equals: list[bool] = []
    expected: list[list[str]] = []
    restarted: list[float] = []
    for turn in range(1 if short else 4):
        plan = [(work, signal.SIGKILL) for work in PLACES]
        found = asyncio.run(strike(plan, dp=2, pp=2, spares=4, seed=seed + turn))
        if found.failed or any(not each.stepped_s for each in found.strikes) or len(found.strikes) < len(plan):
            raise RuntimeError(f"the training was not struck as planned: {found.failed or found.strikes}")
        expected = expected or alone([], (len(plan) + 1) * (STEPS_BETWEEN + 1))
        equals.append(equal(found, expected))
        strikes += found.strikes
        restarted += full_restarts(4, RESTARTS)
    stopped = stops(1 if short else 4, seed=seed)
    returns = asyncio.run(come_back(2 if short else 8, dp=2, pp=3))
    seen = [each.seen_s - each.sent_s for each in strikes]
    stepped = [each.stepped_s - each.sent_s for each in strikes]
    return {
        "kills": len(strikes),
        "equal": all(equals),
        "steps_repeated_max": max(each.repeated for each in strikes),
        "seconds_to_see": spread(seen),
        "seconds_to_see_p99": percentile(seen, 99),
        "seconds_to_stop": spread([each.stopped_s - each.sent_s for each in strikes]),
        "seconds_to_ready": spread([each.ready_s - each.sent_s for each in strikes]),
        "seconds_to_next_step": spread(stepped),
        "seconds_to_next_step_max": max(stepped),
        "stops": len(stopped),
        "seconds_to_replace_stopped": spread(stopped),
        "seconds_to_replace_stopped_max": max(stopped),
        "seconds_to_replace_stopped_bar": FAILURE_TIMEOUT_S + 0.5,
        "seconds_of_full_restart": spread(restarted),
        "seconds_of_return": spread([sum(each.values()) for each in returns]),
        "seconds_of_return_deciding": spread([each["deciding"] for each in returns]),
        "over_full_restart": statistics.median(stepped) / statistics.median(restarted),
        "policies": ", ".join(sorted({each.policy for each in strikes})),
    }
