"""Decisions computed ahead: hits, workers that are alike, and forgetting when facts change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.planner.pipelines.test_planner import grid, model_of, site

from chaos_planner.pipelines.estimates.estimator import estimate
from chaos_planner.pipelines.facts.site import DeviceFacts
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.search import cache
from chaos_planner.pipelines.search.cache import PlanCache
from chaos_planner.pipelines.search.planner import NoPlan, Settings, plan


def filled(dp: int = 3) -> PlanCache:
    known = PlanCache(model_of(micro_batches=8 * dp), site(4 * dp), grid(dp, 4, micro_batches=8 * dp))
    list(known.ahead())
    return known


def test_one_decision_per_kind_of_place_is_computed_ahead() -> None:
    known = PlanCache(model_of(micro_batches=24), site(12), grid(3, 4, micro_batches=24))
    assert list(known.ahead()) == [0, 1, 2, 3]
    assert list(known.ahead()) == []


def test_every_single_loss_is_then_a_hit_and_as_good_as_planned_anew() -> None:
    known = filled()
    model, facts, current = model_of(micro_batches=24), site(12), grid(3, 4, micro_batches=24)
    for worker in range(12):
        cached, fresh = known.decide(frozenset({worker})), plan(model, facts, current, frozenset({worker}))
        assert cached.policy is fresh.policy
        assert worker not in cached.plan.workers
        for one, two in zip(cached.candidates, fresh.candidates, strict=True):
            assert replace(one, plan=None) == replace(two, plan=None)
            if one.plan is not None:
                assert ExecutionPlan.from_json(one.plan.to_json()) == one.plan
                assert estimate(one.plan, model, facts).step_s == one.step_s
    assert (known.hits, known.misses) == (12, 0)


def test_several_losses_are_planned_when_they_come_and_kept() -> None:
    known = filled()
    first = known.decide(frozenset({0, 5}))
    assert known.decide(frozenset({0, 5})) is first
    assert (known.hits, known.misses) == (1, 1)


def test_a_change_of_facts_plan_or_settings_forgets_everything_and_equal_ones_do_not() -> None:
    model, facts, current = model_of(micro_batches=24), site(12), grid(3, 4, micro_batches=24)
    known = filled()
    assert not known.update(model_of(micro_batches=24), site(12), grid(3, 4, micro_batches=24))
    for change in (
        (model, replace(facts, mtbf_s=10.0), current, None),
        (replace(model, micro_batch_size=2), facts, current, None),
        (model, facts, grid(2, 6, micro_batches=24), None),
        (model, facts, current, Settings(memory_margin=0.1)),
    ):
        known = filled()
        assert known.update(*change)
        known.decide(frozenset({0}))
        assert known.misses == 1


def test_workers_on_unlike_devices_are_not_taken_for_each_other() -> None:
    devices = tuple(DeviceFacts(worker=w, memory_bytes=10**9, speed=0.5 if w == 5 else 1.0) for w in range(12))
    known = PlanCache(model_of(micro_batches=24), site(12, devices=devices), grid(3, 4, micro_batches=24))
    assert list(known.ahead()) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_loss_without_a_plan_is_remembered_as_such() -> None:
    known = PlanCache(model_of(), site(8), grid(2, 4))
    for _ in range(2):
        with pytest.raises(NoPlan, match="all replicas of layers 2 to 3"):
            known.decide(frozenset({1, 5}))
    assert (known.hits, known.misses) == (1, 1)


def test_the_least_recently_used_decision_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "ENTRIES_MAX", 2)
    known = PlanCache(model_of(), site(8), grid(2, 4))
    pairs = [frozenset({0, 5}), frozenset({0, 6}), frozenset({0, 7})]
    known.decide(pairs[0])
    known.decide(pairs[1])
    known.decide(pairs[0])
    known.decide(pairs[2])
    known.decide(pairs[0])
    assert known.misses == 3
    known.decide(pairs[1])
    assert known.misses == 4
