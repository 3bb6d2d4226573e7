"""How each policy goes on after a failure: the baselines of the policy simulator, each with its assumptions.

Driven by `policies`, which gives every strategy the same failures and the same ruler (`ruler.Ruler`). Where
the papers are silent, a baseline gets the kinder reading; `assumptions` says so and is printed with the results.

All of them, the adaptive one too: a lost device does not come back; the step under way is lost; detection costs
nothing; a search costs nothing; re-partitioning costs the group rebuild and the transfer found by the restorer (matched
places, all replicas as sources); state without a live replica comes from another institution at the link rate.

Source: Odyssey table I and II-C; Chameleon IV-A, V-B; FlashRecovery equation 3 (checkpoint interval).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.search.equal_devices import PipelineShape
from chaos_planner.pipelines.simulators.ruler import Ruler, formula_13_s, reroute_bound_s, rerouted
from chaos_planner.pipelines.transfers.restorer import Restoration, holdings, restore

BAMBOO_OVERHEAD = 0.095
"""Odyssey table I: 9.5 to 20 % in fault-free phases; the kinder end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a failure does: `transition_s` without training, then steps of `step_s`.

    `unaffected`: the worker was idle, training goes on. `rollback`: work since the last checkpoint is lost.
    """

    transition_s: float
    step_s: float
    unaffected: bool = False
    rollback: bool = False


class Strategy(Protocol):
    """A policy under simulation; keeps its own plan. `checkpoint_s`: pause of each checkpoint, 0 for none."""

    name: str
    assumptions: tuple[str, ...]
    step_s: float

    def fail(self, worker: int, mtbf_s: float) -> Change | None:
        """A worker is lost; None if training cannot go on with what is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The run that all strategies share: initial data-parallel and pipeline degrees on workers 0, 1, ..."""

    ruler: Ruler
    dp: int
    pp: int

    def first_plan(self) -> ExecutionPlan:
        """The symmetric plan at the start. `ValueError` where the model does not fit or workers are missing."""
        return self.ruler.symmetric_plan(self.dp, self.pp)


class Static:
    """No failure ever: the ceiling."""

    name = "fault-free"
    assumptions: tuple[str, ...] = ("no device fails",)

    def __init__(self, setting: Setting) -> None:
        self.step_s = setting.ruler.step_s(setting.first_plan())

    def fail(self, worker: int, mtbf_s: float) -> Change | None:
        """Nothing happens."""
        return Change(transition_s=0.0, step_s=self.step_s, unaffected=True)


class DynamicOnly:
    """Oobleck: a pipeline that loses a node becomes the template of one node less; missing layers are copied."""

    name = "dynamic-only"
    assumptions: tuple[str, ...] = (
        "templates of every length from the shortest that fits memory; each split and all batches optimal",
        "a pipeline below the shortest template borrows a node from the longest, else merges with the shortest one",
        "places matched and copies spread as the adaptive policy does (Oobleck's own copying is simpler)",
    )

    def __init__(self, setting: Setting) -> None:
        self.ruler = setting.ruler
        self.plan = setting.first_plan()
        self.step_s = self.ruler.step_s(self.plan)

    def fail(self, worker: int, mtbf_s: float) -> Change | None:
        """Re-instantiate what the failure touched."""
        if worker not in self.plan.workers:
            return Change(transition_s=0.0, step_s=self.step_s, unaffected=True)
        members = [[s.worker for s in p.stages if s.worker != worker] for p in self.plan.pipelines]
        chosen = self.choose(members)
        if chosen is None:
            return None
        found = move(self.ruler, self.plan, worker, chosen)
        self.plan, self.step_s = found.plan, self.ruler.step_s(found.plan)
        return Change(transition_s=transition_s(self.ruler, found), step_s=self.step_s)

    def choose(self, members: list[list[int]]) -> ExecutionPlan | None:
        """Oobleck's rule: simple re-instantiation, then borrowing, then merging; None below one shortest pipeline."""
        shortest = self.ruler.shortest
        pipelines = [list(workers) for workers in members if workers]
        while pipelines and min(map(len, pipelines)) < shortest:
            needy = min(pipelines, key=len)
            donor = max(pipelines, key=len)
            if len(donor) > shortest:
                needy.append(donor.pop())
                continue
            pipelines.remove(needy)
            if not pipelines:
                return None
            min(pipelines, key=len).extend(needy)
        limit = len(self.ruler.model.layers)
        return lay_out(self.ruler, [workers[:limit] for workers in pipelines])


class FreeTemplates(DynamicOnly):
    """Dynamic parallelism that may re-form every pipeline at each failure: no Oobleck does, an upper bound for it."""

    name = "dynamic-only, any templates"
    assumptions: tuple[str, ...] = (
        "as dynamic-only, but all pipelines may be re-formed at each failure, into the fastest set of templates",
    )

    def choose(self, members: list[list[int]]) -> ExecutionPlan | None:
        """The fastest of Oobleck's rule and of all numbers of pipelines of nearly equal length."""
        workers = [worker for pipeline in members for worker in pipeline]
        tried = [super().choose(members)]
        for count in range(1, len(workers) // self.ruler.shortest + 1):
            short, longer = divmod(len(workers), count)
            sizes = [short + 1] * longer + [short] * (count - longer)
            names = iter(workers)
            tried.append(lay_out(self.ruler, [[next(names) for _ in range(size)] for size in sizes]))
        return min((plan for plan in tried if plan is not None), key=self.ruler.step_s, default=None)


class RerouteOnly:
    """ReCycle: micro-batches of lost workers go to the peers of their stage; never another partition."""

    name = "reroute-only"
    assumptions: tuple[str, ...] = (
        "rerouted micro-batches fill bubbles (exact streams), groups are rebuilt in no time, memory never runs out",
        "when a stage has lost its last replica, a full re-partition as in dynamic-only, and no work is lost",
    )

    def __init__(self, setting: Setting) -> None:
        self.ruler = setting.ruler
        self.setting = setting
        self.plan = setting.first_plan()
        self.step_s = self.measure(self.plan)

    def measure(self, plan: ExecutionPlan) -> float:
        """Seconds of a step of a rerouted plan."""
        return self.ruler.step_s(plan)

    def fail(self, worker: int, mtbf_s: float) -> Change | None:
        """Reroute, and re-partition only when there is no peer left."""
        if worker not in self.plan.workers:
            return Change(transition_s=0.0, step_s=self.step_s, unaffected=True)
        plan = rerouted(self.plan, [worker], self.ruler)
        if plan is not None:
            self.plan, self.step_s = plan, self.measure(plan)
            return Change(transition_s=0.0, step_s=self.step_s)
        chosen = symmetric(self.ruler, sorted(self.plan.workers - {worker}))
        if chosen is None:
            return None
        found = move(self.ruler, self.plan, worker, chosen)
        self.plan, self.step_s = found.plan, self.measure(found.plan)
        return Change(transition_s=transition_s(self.ruler, found), step_s=self.step_s)


class RerouteBound(RerouteOnly):
    """ReCycle at a bound that no schedule of its passes can beat."""

    name = "reroute-only, bound"
    assumptions: tuple[str, ...] = (
        "as reroute-only, with the step at the lower bound of any schedule, all-reduce and optimizer step added: what "
        "a perfect scheduler could reach at most",
    )
    decoupled = False

    def measure(self, plan: ExecutionPlan) -> float:
        """The bound and what follows the passes, or the streams where these are faster."""
        exact_s = self.ruler.step_s(plan)
        bound_s = reroute_bound_s(plan, self.ruler, decoupled=self.decoupled)
        return min(exact_s, bound_s + self.ruler.tail_s(plan)) if plan.lost else exact_s


class RerouteDecoupled(RerouteBound):
    """ReCycle with its backward passes decoupled, at a bound that no schedule of them can beat."""

    name = "reroute-only, decoupled bound"
    assumptions: tuple[str, ...] = (
        "as the bound above for backward passes in two parts, memory for it free; the adaptive policy has no such "
        "passes",
    )
    decoupled = True


class ReroutePrinted(RerouteOnly):
    """ReCycle as Chameleon's formula 13 estimates it: bubbles are not filled."""

    name = "reroute-only, formula 13"
    assumptions: tuple[str, ...] = ("as reroute-only, with the step of Chameleon's formula 13 (what its planner uses)",)

    def measure(self, plan: ExecutionPlan) -> float:
        """Formula 13 once something is lost; the streams before."""
        return formula_13_s(plan, self.ruler) if plan.lost else self.ruler.step_s(plan)


class Checkpointing:
    """Varuna: restart from the last checkpoint with the best symmetric plan for the devices left."""

    name = "checkpoint restart"
    assumptions: tuple[str, ...] = (
        "checkpoints at the optimal interval (FlashRecovery 3), each replica saves its share at the link rate, "
        "storing overlaps with training; loading runs at the link rate",
        "the restart costs no more than the group rebuild of the other policies",
    )

    def __init__(self, setting: Setting) -> None:
        self.ruler = setting.ruler
        self.plan = setting.first_plan()
        self.spares: set[int] = set()
        self.step_s = self.ruler.step_s(self.plan)

    @property
    def checkpoint_s(self) -> float:
        """Pause of one checkpoint: parameters and optimizer state, shared among all workers."""
        state = sum(layer.parameter_bytes + layer.optimizer_bytes for layer in self.ruler.model.layers)
        return state / len(self.plan.workers) / self.ruler.cluster.rate_bytes_per_s

    def fail(self, worker: int, mtbf_s: float) -> Change | None:
        """Load the last checkpoint into the best symmetric plan."""
        if worker not in self.plan.workers:
            self.spares.discard(worker)
            return Change(transition_s=0.0, step_s=self.step_s, unaffected=True)
        left = sorted((self.plan.workers | self.spares) - {worker})
        chosen = symmetric(self.ruler, left)
        if chosen is None:
            return None
        self.spares = set(left) - chosen.workers
        self.plan, self.step_s = chosen, self.ruler.step_s(chosen)
        largest = max(_state_bytes(self.ruler, chosen, name) for name in chosen.workers)
        load_s = largest / self.ruler.cluster.rate_bytes_per_s
        rebuild_s = self.ruler.cluster.group_rebuild_s
        return Change(transition_s=rebuild_s + load_s, step_s=self.step_s, rollback=True)


class Redundant:
    """Bamboo: every worker also computes for its successor; the predecessor takes over at once."""

    name = "redundant computation"
    assumptions: tuple[str, ...] = (
        f"{100 * BAMBOO_OVERHEAD:.1f} % longer steps always (Odyssey table I: 9.5 to 20 %), its 1.5 x memory is free",
        "taking over costs no time, batches are redistributed at no cost; it re-partitions as dynamic-only does when a "
        "neighbour of a merged stage fails, or when that serves the expected time to the next failure better",
    )

    def __init__(self, setting: Setting) -> None:
        self.ruler = setting.ruler
        self.plan = setting.first_plan()
        self.merged: set[int] = set()
        self.step_s = self._step_s(self.plan)
        self._partition = DynamicOnly(setting)

    def _step_s(self, plan: ExecutionPlan) -> float:
        return self.ruler.step_s(plan) * (1 + BAMBOO_OVERHEAD)

    def fail(self, worker: int, mtbf_s: float) -> Change | None:
        """Merge into the neighbour where it holds the copy; else, or if better, re-partition."""
        if worker not in self.plan.workers:
            return Change(transition_s=0.0, step_s=self.step_s, unaffected=True)
        merged = self._merge(worker)
        members = [[s.worker for s in p.stages if s.worker != worker] for p in self.plan.pipelines]
        chosen = self._partition.choose(members)
        found = None if chosen is None else move(self.ruler, self.plan, worker, chosen)
        if merged is None and found is None:
            return None
        options: list[tuple[float, ExecutionPlan, float]] = []
        if merged is not None:
            options.append((0.0, merged[0], self._step_s(merged[0])))
        if found is not None:
            options.append((transition_s(self.ruler, found), found.plan, self._step_s(found.plan)))
        pause_s, plan, step_s = max(options, key=lambda o: 1 / (1 + o[0] / mtbf_s) / o[2])
        self.merged = merged[1] if merged is not None and plan is merged[0] else set()
        self.plan, self.step_s = plan, step_s
        return Change(transition_s=pause_s, step_s=step_s)

    def _merge(self, worker: int) -> tuple[ExecutionPlan, set[int]] | None:
        number, index = self.plan.stage_of_worker[worker]
        stages = list(self.plan.pipelines[number].stages)
        if len(stages) == 1 or worker in self.merged:
            return None
        taker = index - 1 if index else 1
        if stages[taker].worker in self.merged:
            return None
        low, high = sorted((taker, index))
        stages[low : high + 1] = [
            replace(stages[taker], first_layer=stages[low].first_layer, last_layer=stages[high].last_layer)
        ]
        rows = [stages if p == number else list(pipeline.stages) for p, pipeline in enumerate(self.plan.pipelines)]
        splits = [tuple(stage.last_layer - stage.first_layer for stage in row) for row in rows]
        shapes = self.ruler.distribute(splits)
        plan = self.ruler.plan(shapes, [[stage.worker for stage in row] for row in rows])
        return plan, (self.merged & plan.workers) | {self.plan.pipelines[number].stages[taker].worker}


def lay_out(ruler: Ruler, members: Sequence[Sequence[int]]) -> ExecutionPlan | None:
    """Each pipeline by its template, batches optimal; None where a length fits no memory or batches are too few."""
    splits = [ruler.split(len(workers)) for workers in members]
    if not splits or any(split is None for split in splits) or len(splits) > ruler.model.global_micro_batches:
        return None
    return ruler.plan(ruler.distribute([split for split in splits if split is not None]), members)


def symmetric(ruler: Ruler, workers: Sequence[int]) -> ExecutionPlan | None:
    """The fastest plan of equal pipelines on these workers, some of them idle where they do not divide."""
    best: tuple[float, list[list[int]], tuple[PipelineShape, ...]] | None = None
    for stages in range(ruler.shortest, min(len(workers), len(ruler.model.layers)) + 1):
        split = ruler.split(stages)
        for count in range(1, min(len(workers) // stages, ruler.model.global_micro_batches) + 1):
            if split is None:
                continue
            shapes = ruler.distribute([split] * count)
            guess_s = ruler.guess_s(shapes)
            if best is None or guess_s < best[0]:
                best = (guess_s, [list(workers[p * stages : (p + 1) * stages]) for p in range(count)], shapes)
    return None if best is None else ruler.plan(best[2], best[1])


def move(ruler: Ruler, old: ExecutionPlan, failed: int, new: ExecutionPlan) -> Restoration:
    """Places and transfers from the survivors of `old` to `new`."""
    return restore(ruler.model, ruler.cluster, holdings(ruler.model, old, failed=[failed]), new)


def transition_s(ruler: Ruler, found: Restoration) -> float:
    """Group rebuild and transfer; external state at the link rate of the worker that needs most of it."""
    needs: dict[int, int] = {}
    for part in found.external:
        needs[part.target] = needs.get(part.target, 0) + part.size_bytes
    external_s = max(needs.values(), default=0) / ruler.cluster.rate_bytes_per_s
    return ruler.cluster.group_rebuild_s + found.time_s + external_s


def _state_bytes(ruler: Ruler, plan: ExecutionPlan, worker: int) -> int:
    stage = plan.stage(worker)
    layers = ruler.model.layers[stage.first_layer : stage.last_layer]
    return sum(layer.parameter_bytes + layer.optimizer_bytes for layer in layers)


def checkpoint_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Equation 3 of FlashRecovery with m failures in d written as a mean time between them: sqrt(2 k0 MTBF)."""
    return math.sqrt(2 * checkpoint_s * mtbf_s)
