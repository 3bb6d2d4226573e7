"""Decisions computed ahead, so that a failure costs a look-up.

For whoever carries plans out: while training runs it takes one step of `ahead()` at a time, when workers fail it asks
`decide`. Nobody does so yet; the benchmark `planner` measures it.
Likely next losses are single workers. Workers at the same stage of equal pipelines on equal devices are alike, so one
decision per kind of place is computed; for another worker of that kind it is handed out with the workers of the two
pipelines exchanged, which touches only the parts of the plans that name them. Losses of several workers are computed
when they come, and kept.

Any change of facts, plan or settings (`update`) forgets everything. At most `ENTRIES_MAX` decisions are kept, the least
recently used goes first.

Source: Chameleon IV-C ("the search can be performed in advance and overlapped with training time").
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from chaos_planner.pipelines.facts.site import ClusterFacts, ModelProfile
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.search.decisions import NoPlan, PolicyCandidate, RecoveryDecision, Settings
from chaos_planner.pipelines.search.planner import RecoveryPlanner

ENTRIES_MAX = 256
"""Decisions kept; one for 2,048 workers takes some 0.5 MB."""

Kind: TypeAlias = tuple[object, ...]
"""What makes two workers' losses alike."""


class PlanCache:
    """Decisions for one set of facts and the plan in use; `hits` and `misses` count what `decide` found."""

    def __init__(
        self, model: ModelProfile, cluster: ClusterFacts, current: ExecutionPlan, settings: Settings | None = None
    ) -> None:
        self._settings = settings or Settings()
        self._planner = RecoveryPlanner(model, cluster, self._settings)
        self._current = current
        self._known: OrderedDict[frozenset[int], RecoveryDecision | NoPlan] = OrderedDict()
        self._representative: dict[Kind, int] = {}
        self._kind_of: dict[int, Kind] = _kinds(current, cluster, self._settings)
        self.hits = self.misses = 0

    def update(
        self, model: ModelProfile, cluster: ClusterFacts, current: ExecutionPlan, settings: Settings | None = None
    ) -> bool:
        """Take new facts; True if anything changed and all decisions were forgotten."""
        chosen = settings or Settings()
        old = (self._planner.model, self._planner.cluster, self._current, self._settings)
        new = (model, cluster, current, chosen)
        if all(a is b or a == b for a, b in zip(old, new, strict=True)):
            return False
        hits, misses = self.hits, self.misses
        self.__init__(model, cluster, current, chosen)  # type: ignore[misc]  # forget everything at once
        self.hits, self.misses = hits, misses
        return True

    def ahead(self) -> Iterator[int]:
        """Work out the likely next losses, one worker of each kind; yields the worker after each decision."""
        for worker in sorted(self._current.workers):
            kind = self._kind_of[worker]
            if kind not in self._representative:
                self._compute(frozenset({worker}))
                self._representative[kind] = worker
                yield worker

    def decide(self, failed: frozenset[int]) -> RecoveryDecision:
        """The decision for this loss, from the cache if it is there. Raises as `planner.plan` does."""
        found = self._known.get(failed)
        if found is None and len(failed) == 1:
            found = self._alike(next(iter(failed)))
        if found is None:
            self.misses += 1
            found = self._compute(failed)
        else:
            self.hits += 1
            if failed in self._known:
                self._known.move_to_end(failed)
        if isinstance(found, NoPlan):
            raise NoPlan(str(found))
        return found

    def _compute(self, failed: frozenset[int]) -> RecoveryDecision | NoPlan:
        found: RecoveryDecision | NoPlan
        try:
            found = self._planner.plan(self._current, failed)
        except NoPlan as error:
            found = error.with_traceback(None)
        else:
            for each in found.candidates:
                _ = each.plan and each.plan.stage_of_worker  # worked out now, so that a look-up need not
        self._known[failed] = found
        while len(self._known) > ENTRIES_MAX:
            forgotten, _ = self._known.popitem(last=False)
            self._representative = {k: w for k, w in self._representative.items() if {w} != forgotten}
        return found

    def _alike(self, worker: int) -> RecoveryDecision | NoPlan | None:
        """The decision for a worker of the same kind, with the two pipelines' workers exchanged."""
        other = self._representative.get(self._kind_of.get(worker, ()))
        if other is None:
            return None
        found = self._known.get(frozenset({other}))
        if found is None or isinstance(found, NoPlan):
            return None
        a, b = (self._current.pipelines[self._current.stage_of_worker[w][0]] for w in (worker, other))
        ways: dict[int, int] = {}
        for one, two in zip(a.stages, b.stages, strict=True):
            ways[one.worker], ways[two.worker] = two.worker, one.worker
        return _exchanged(found, ways)


def _exchanged(found: RecoveryDecision, ways: dict[int, int]) -> RecoveryDecision:
    plans: dict[int, ExecutionPlan] = {}

    def renamed(plan: ExecutionPlan) -> ExecutionPlan:
        if id(plan) not in plans:
            plans[id(plan)] = _renamed(plan, ways)
        return plans[id(plan)]

    def candidate(each: PolicyCandidate) -> PolicyCandidate:
        return each if each.plan is None else replace(each, plan=renamed(each.plan))

    return replace(found, plan=renamed(found.plan), candidates=tuple(map(candidate, found.candidates)))


def _renamed(plan: ExecutionPlan, ways: dict[int, int]) -> ExecutionPlan:
    """Workers that the plan does not name (idle or failed) may change places with ones that it does."""
    named = {worker: ways[worker] for worker in ways if worker in plan.stage_of_worker}
    return plan.renamed(named)


def _kinds(current: ExecutionPlan, cluster: ClusterFacts, settings: Settings) -> dict[int, Kind]:
    """Worker to its kind; where workers cannot be told to be alike, each is a kind of its own."""
    told_apart = bool(current.routes or cluster.pair_rates or settings.restartable or settings.returned)
    found: dict[int, Kind] = {}
    for p, pipeline in enumerate(current.pipelines):
        places = tuple(
            (stage.last_layer, device.speed, device.memory_bytes)
            for stage in pipeline.stages
            for device in (cluster.device(stage.worker),)
        )
        for s, stage in enumerate(pipeline.stages):
            found[stage.worker] = (s, places, pipeline.micro_batches, p if told_apart else -1)
    return found
