"""The first plan has the shape that was asked for; one that begins anew, with whoever is left, the best there is."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.unit.daemon.worker_group.test_planning import ask, begun, greeting

from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Pipeline, Policy, Stage
from chaos_protocols.streams import prove
from chaos_protocols.worker_group.events import AskPlanner
from chaosd.worker_group.planning import SitePlanner
from chaosd.worker_group.ways import Unplannable

STAGES = (Stage(worker=0, first_layer=0, last_layer=3), Stage(worker=1, first_layer=3, last_layer=6))
GIVEN = ExecutionPlan.build(policy=Policy.REROUTE, pipelines=[Pipeline(stages=STAGES, micro_batches=8)])


def afresh(number: int) -> AskPlanner:
    """All who held some layers are gone; the state comes from elsewhere."""
    return replace(ask(number), afresh=True)


@pytest.mark.parametrize("shape", [{"pipelines": 3}, {"stages": 3}, {"pipelines": 2, "stages": 2}])
def test_a_shape_that_whoever_is_left_cannot_have_is_given_up(shape: dict[str, int]) -> None:
    planner, greeted = SitePlanner(workers=6, **shape), greeting()
    begun(planner, range(6), greeted)
    with pytest.raises(Unplannable, match=r"need \d workers; 2 are here"):
        planner.make(replace(afresh(2), more=True), greeted, frozenset({7, 9}))
    plan = planner.make(afresh(2), greeted, frozenset({7, 9}))
    prove({worker: plan.shares[worker] for worker in plan.workers}, layers=6, micro_batches=8)
    assert plan.workers == {7, 9} and plan.reason.startswith("too few for the shape that was asked for")
    planner.put_in_force(2)
    as_asked = planner.make(afresh(3), greeted, frozenset(range(10, 16)))
    assert "as asked for" in as_asked.reason and as_asked.workers == set(range(10, 10 + len(as_asked.workers)))


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ({"pipelines": 3}, "3 pipelines of 1 stages need 3 workers; 1 are here"),
        ({"stages": 3}, "1 pipelines of 3 stages need 3 workers; 1 are here"),
    ],
)
def test_workers_that_are_missing_before_the_first_plan_are_told_in_numbers(shape: dict[str, int], text: str) -> None:
    with pytest.raises(Unplannable, match=text) as found:
        SitePlanner(workers=4, **shape).make(ask(1), greeting(), frozenset({0}))
    assert not found.value.hopeless


def test_a_model_that_is_too_large_for_all_workers_is_told_by_the_plan_that_comes_closest() -> None:
    planner, tiny = SitePlanner(workers=2), msgspec.structs.replace(greeting(), memory_bytes=10)
    with pytest.raises(Unplannable) as found:
        planner.make(ask(1), tiny, frozenset({0, 1}))
    assert str(found.value).startswith("the model is too large for any plan of 2 workers with memory_bytes of 10; ")
    assert "bytes each would do for one pipeline of 2 stages" in str(found.value)
    assert found.value.hopeless  # a process in another one's place would have no more
    with pytest.raises(Unplannable, match="too large for any plan of 1 workers") as found:
        planner.make(ask(2), tiny, frozenset({0}))
    assert not found.value.hopeless


def test_the_places_of_a_plan_file_go_to_whoever_is_here() -> None:
    planner, greeted = SitePlanner(workers=2, first=GIVEN), greeting()
    plan = planner.make(ask(1), greeted, frozenset({1, 4}))
    assert plan.workers == {1, 4} and plan.reason == "the plan that was given"
    assert (plan.shares[4].first_layer, plan.shares[1].first_layer) == (0, 3)
    with pytest.raises(Unplannable, match="the plan file has places for 2 workers; 1 are here") as found:
        planner.make(ask(2), greeted, frozenset({3}))
    assert not found.value.hopeless
    begun(planner, range(2), greeted)
    assert planner.make(afresh(3), greeted, frozenset({5})).workers == {5}
