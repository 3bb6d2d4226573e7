"""What is left of a site's throughput when a worker dies, and how well the planner knew it: paced workers.

Real workers train `paced_layers`, which take as long as the layers of Llama-2 7B, its optimizer and its exchanges would
(`paced_model`), so that many processes on two cores behave like as many devices. Batches are 16, 32 and 64
micro-batches of one sample. One worker is killed; the planner answers as it likes. Kept: seconds of a step before over
seconds after, the median of each plan's steps but the first. `_of_best`: over the best plan that the planner finds for
as many workers, since a poor start flatters. `_virtual`: the same two by calculation, from exact facts and without any
cost of executing: what is measured should come to that. Expected: the planner's seconds, from what the workers measured
in their first micro-batch, beside the measured ones, before and after, as a share.

Settings: 8 -> 7 as two pipelines of four stages; 16 -> 15 as four of four, everything twice as slow, since sixteen
processes share the two cores; 32 -> 24 devices in groups of eight, as two pipelines of two stages: here a group is one
process with eight times the speed, eight times slowed down (`throughput_kept_32` is over 24/32, what eight devices
fewer leave at best if nothing was idle before). `throughput_kept_equal`: 8 -> 7 with 32 equal layers, for which the
formulas have 91.7 %.

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

import msgspec
from tests.rigs.worker_group import launch

from benchmarks.measure import Figures, spread
from benchmarks.paced_model import EQUAL, LLAMA, MEMORY_BYTES, RATE_BYTES_PER_S, profile
from chaos_planner.pipelines.facts.models import LINK_LATENCY_S
from chaos_protocols.worker_group.events import AskPlanner
from chaos_protocols.worker_group.messages import VERSION, GroupHello, LayerReport
from chaos_protocols.worker_group.plan import Plan
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.facts import MeasuredFactors
from chaosd.worker_group.history import Happened
from chaosd.worker_group.planning import SitePlanner

SCRIPT = "benchmarks.paced_layers"
BATCHES = (16, 32, 64)
STEPS = 6
"""Under each plan; the first one is not counted."""
STEPS_SHORT = 4
LIMIT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`devices`: in each worker. `pace`: how many times longer than for one device everything takes. `most`: the share
    of the throughput that is left at best; what is kept is told over it."""

    key: str
    pipelines: int
    stages: int
    model: str = LLAMA
    devices: int = 1
    pace: float = 1.0
    most: float = 1.0

    @property
    def workers(self) -> int:
        return self.pipelines * self.stages


SETTINGS = (
    Setting(key="throughput_kept", pipelines=2, stages=4),
    Setting(key="throughput_kept_16", pipelines=4, stages=4, pace=2.0),
    Setting(key="throughput_kept_32", pipelines=2, stages=2, devices=8, most=24 / 32),
    Setting(key="throughput_kept_equal", pipelines=2, stages=4, model=EQUAL),
)


class ImitatedPlanner(SitePlanner):
    """Knows the network and the memory that are imitated, which no worker can measure."""

    def __init__(self, setting: Setting, *, chosen: bool) -> None:
        """`chosen`: it chooses the first plan, too."""
        super().__init__(
            workers=setting.workers,
            pipelines=0 if chosen else setting.pipelines,
            stages=0 if chosen else setting.stages,
            rate_bytes_per_s=RATE_BYTES_PER_S / setting.pace,
            latency_s=LINK_LATENCY_S * setting.pace,
        )
        self._setting = setting

    def make(self, asked: AskPlanner, hello: GroupHello, present: frozenset[int]) -> Plan:
        return super().make(asked, self._as_imitated(hello), present)

    def prepare(
        self, hello: GroupHello, present: frozenset[int], idle: frozenset[int], drained: frozenset[int] = frozenset()
    ) -> None:
        super().prepare(self._as_imitated(hello), present, idle, drained)

    def prepare_change(
        self,
        hello: GroupHello,
        present: frozenset[int],
        idle: frozenset[int],
        drained: frozenset[int] = frozenset(),
        *,
        faster_by: float = 0.0,
    ) -> None:
        super().prepare_change(self._as_imitated(hello), present, idle, drained, faster_by=faster_by)

    def learn(self, factors: MeasuredFactors, hello: GroupHello, present: frozenset[int]) -> float:
        return super().learn(factors, self._as_imitated(hello), present)

    def _as_imitated(self, hello: GroupHello) -> GroupHello:
        exact = profile(self._setting.model, pace=self._setting.pace, micro_batches=hello.micro_batches)
        layers = tuple(
            msgspec.structs.replace(told, activation_bytes=layer.activation_bytes)
            for told, layer in zip(hello.layers, exact.layers, strict=True)
        )
        return msgspec.structs.replace(hello, layers=layers, memory_bytes=MEMORY_BYTES * self._setting.devices)


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

    numbers = {"pace": setting.pace, "batch": batch, "steps": 2 * steps + 1 if kill else steps}
    options = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    controller = Controller(
        command=[sys.executable, "-u", "-m", SCRIPT, "--model", setting.model, *options],
        workers=setting.workers,
        planner=ImitatedPlanner(setting, chosen=chosen),
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


@dataclass(frozen=True, slots=True)
class _Seconds:
    """Of a step: of the plan that was asked for, of the best one, and after a loss."""

    before_s: float
    best_s: float
    after_s: float

    def kept(self, setting: Setting) -> tuple[float, float]:
        """Over the plan that was asked for, and over the best one."""
        return self.before_s / self.after_s / setting.most, self.best_s / self.after_s / setting.most


def _virtual(setting: Setting, batch: int) -> _Seconds:
    """By calculation, from exact facts."""
    exact = profile(setting.model, pace=setting.pace, micro_batches=batch)
    hello = GroupHello(
        version=VERSION,
        token="",
        worker=0,
        torch="none",
        model="00",
        layers=tuple(
            LayerReport(**{name: getattr(layer, name) for name in LayerReport.__struct_fields__})
            for layer in exact.layers
        ),
        micro_batches=batch,
        micro_batch_size=1,
        memory_bytes=0,
    )
    present, nobody = frozenset(range(setting.workers)), frozenset[int]()
    started, best = ImitatedPlanner(setting, chosen=False), ImitatedPlanner(setting, chosen=True)
    start = AskPlanner(asked=1, lost=nobody, idle=nobody)
    before_s = started.make(start, hello, present).step_s
    started.put_in_force(1)
    after = started.make(AskPlanner(asked=2, lost=frozenset({0}), idle=nobody), hello, present - {0})
    return _Seconds(before_s, best.make(start, hello, present).step_s, after.step_s)


def run(*, short: bool, seed: int) -> Figures:
    """`throughput_kept` (8 -> 7, batch 16), `_16`, `_32`, `_equal`, each with `_batch_32`, `_batch_64`: over the plan
    that was asked for; `_of_best`: over the best one; `_virtual`: both by calculation."""
    figures: Figures = {}
    errors: list[float] = []
    for setting, batch in itertools.product(SETTINGS, BATCHES[:1] if short else BATCHES):
        measure(setting, batch, STEPS_SHORT if short else STEPS, figures, errors)
    figures["error_mean"] = statistics.fmean(errors)
    figures["error_max"] = max(errors)
    return figures


def measure(setting: Setting, batch: int, steps: int, figures: Figures, errors: list[float]) -> None:
    """One setting with one batch."""
    before, after = asyncio.run(_train(setting, batch=batch, steps=steps, kill=True, chosen=False))
    (best,) = asyncio.run(_train(setting, batch=batch, steps=steps, kill=False, chosen=True))
    key = setting.key if batch == BATCHES[0] else f"{setting.key}_batch_{batch}"
    took = _Seconds(before.step_s, best.step_s, after.step_s)
    figures[key], figures[f"{key}_of_best"] = took.kept(setting)
    virtual = _virtual(setting, batch)
    figures[f"{key}_virtual"], figures[f"{key}_of_best_virtual"] = virtual.kept(setting)
    figures[f"{key}_after"] = f"{after.policy}: {after.shape}"
    figures[f"{key}_best"] = best.shape
    told = (("before", before, virtual.before_s), ("best", best, virtual.best_s), ("after", after, virtual.after_s))
    for name, plan, exact_s in told:
        figures[f"{key}_{name}"] = f"{plan.step_s:.4f} s, expected {plan.expected_s:.4f}, virtual {exact_s:.4f}"
    mine = [before.error, after.error, best.error]
    figures[f"{key}_error"] = spread(mine)
    errors += mine
