"""The planner's choice in the words of the protocols: every plan that it makes is proved, whatever is lost."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.protocols.worker_group.group_bench import hello, report

from chaos_planner.pipelines.plans.layout import Policy
from chaos_protocols.streams import BackwardPass, Sum, prove
from chaos_protocols.worker_group.events import AskPlanner
from chaos_protocols.worker_group.messages import GroupHello
from chaos_protocols.worker_group.plan import Plan
from chaos_protocols.worker_group.round_steps import RoundSteps
from chaos_protocols.worker_group.settings import GroupSettings
from chaosd.worker_group.facts import MeasuredFactors
from chaosd.worker_group.planning import SitePlanner
from chaosd.worker_group.ways import Staffing, Unplannable


def greeting(layers: int = 6, micro_batches: int = 8) -> GroupHello:
    return hello(0, layers=tuple(report(str(layer)) for layer in range(layers)), micro_batches=micro_batches)


def ask(number: int, lost: set[int] = set(), idle: set[int] = set()) -> AskPlanner:  # noqa: B006
    return AskPlanner(asked=number, lost=frozenset(lost), idle=frozenset(idle))


def begun(planner: SitePlanner, present: range, greeted: GroupHello) -> Plan:
    plan = planner.make(ask(1), greeted, frozenset(present))
    planner.put_in_force(1)
    return plan


def check_moves(before: Plan, after: Plan, lost: set[int]) -> None:
    """What a worker of the new plan lacks comes once, from a live worker that had it."""
    size = 300  # a layer's parameters and optimizer in `report`
    for worker, share in after.shares.items():
        had = (
            range(before.shares[worker].first_layer, before.shares[worker].last_layer)
            if worker in before.shares
            else ()
        )
        for layer in range(share.first_layer, share.last_layer):
            came = [0] * size
            for move in after.moves:
                if (move.target, move.layer) == (worker, layer):
                    source = before.shares[move.source]
                    assert move.source not in lost and source.first_layer <= layer < source.last_layer
                    for byte in range(move.start, move.stop):
                        came[byte] += 1
            assert set(came) == ({0} if layer in had else {1}), (worker, layer)


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(4, 9),
    st.integers(4, 12),
    st.sampled_from([(Policy.REROUTE,), (Policy.DYNAMIC,), tuple(Policy)]),
    st.data(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_after_any_losses_the_plan_is_proved_and_its_state_comes_from_the_living(
    dp: int, pp: int, layers: int, micro_batches: int, policies: tuple[Policy, ...], data: st.DataObject
) -> None:
    planner = SitePlanner(workers=dp * pp, pipelines=dp, stages=pp, policies=frozenset(policies))
    greeted = greeting(layers, micro_batches)
    before = begun(planner, range(dp * pp), greeted)
    prove(before.shares, layers=layers, micro_batches=micro_batches)
    lost = data.draw(st.sets(st.integers(0, dp * pp - 1), min_size=1, max_size=dp * pp))
    left = frozenset(range(dp * pp)) - lost
    held = {layer for w in left for layer in range(before.shares[w].first_layer, before.shares[w].last_layer)}
    if held != set(range(layers)):
        with pytest.raises(Unplannable, match="are lost, and no other institution") as refused:
            planner.make(ask(2, lost), greeted, left)
        assert refused.value.hopeless
        return
    after = planner.make(ask(2, lost), greeted, left)
    prove(after.shares, layers=layers, micro_batches=micro_batches)
    assert set(after.shares) == left
    check_moves(before, after, lost)
    if policies == (Policy.REROUTE,):
        assert not after.moves


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([(Policy.REROUTE,), (Policy.DYNAMIC,), tuple(Policy)]),
    st.integers(0, 1),
    st.data(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_after_any_losses_each_layer_is_kept_as_often_as_asked_by_those_that_hold_it(
    dp: int, pp: int, copies: int, policies: tuple[Policy, ...], spares: int, data: st.DataObject
) -> None:
    layers = 6
    planner = SitePlanner(workers=dp * pp, pipelines=dp, stages=pp, policies=frozenset(policies))
    greeted = msgspec.structs.replace(greeting(layers), optimizer_copies=copies)
    before = begun(planner, range(dp * pp + spares), greeted)
    check_kept(before, copies, layers)
    lost = data.draw(st.sets(st.integers(0, dp * pp - 1), min_size=1, max_size=dp * pp))
    left = frozenset(range(dp * pp + spares)) - lost
    idle = set(range(dp * pp, dp * pp + spares))
    if before.layers_of(left) != frozenset(range(layers)):
        with pytest.raises(Unplannable, match="are lost") as refused:
            planner.make(ask(2, lost, idle), greeted, left)
        assert refused.value.hopeless
        return
    after = planner.make(ask(2, lost, idle), greeted, left)
    check_kept(after, copies, layers)
    for worker in after.shares:
        had = before.layers_of(frozenset({worker}))
        for layer in after.layers_of(frozenset({worker})) - had:
            came = sorted((m.start, m.stop) for m in after.moves if (m.target, m.layer) == (worker, layer))
            assert came[0][0] == 0 and came[-1][1] == 300, "parameters and optimizer, all of it"
            assert all(one[1] == other[0] for one, other in itertools.pairwise(came))
    for move in after.moves:
        assert move.source not in lost and move.layer in before.layers_of(frozenset({move.source}))


def check_kept(plan: Plan, copies: int, layers: int) -> None:
    """And orders say the same to everybody."""
    orders = plan.orders(1, 0, RoundSteps(), GroupSettings(token="", workers=4))
    for layer in range(layers):
        holders = [w for w, share in plan.shares.items() if share.first_layer <= layer < share.last_layer]
        keepers = [w for w in holders if layer in (orders[w].keeps or ())]
        assert len(keepers) == min(copies, len(holders))
        assert [w for w in holders if layer in orders[w].lowest] == [min(keepers)]
        told = [[each for each in orders[w].refreshes if each.layer == layer] for w in holders]
        assert all(each == told[0] for each in told)
        if len(keepers) < len(holders):
            (refresh,) = told[0]
            sources = refresh.sources()
            assert set(sources) == set(holders) - set(keepers) and set(sources.values()) <= set(keepers)
        else:
            assert not told[0]


def test_shards_are_even_where_layers_are() -> None:
    greeted = msgspec.structs.replace(greeting(8), optimizer_copies=2)
    plan = begun(SitePlanner(workers=4, pipelines=4, stages=1), range(4), greeted)
    assert [len(plan.layers_of(frozenset({worker}))) for worker in range(4)] == [4, 4, 4, 4]


def test_a_spare_takes_the_lost_place_and_gets_its_state_from_peers() -> None:
    planner = SitePlanner(workers=4, pipelines=2, stages=2)
    greeted = greeting()
    before = begun(planner, range(5), greeted)
    assert before.shares[4].last_layer == 0, "not needed yet"
    after = planner.make(ask(2, {1}, {4}), greeted, frozenset({0, 2, 3, 4}))
    assert after.policy == "spare" and after.shape == before.shape
    check_moves(before, after, {1})
    assert (after.shares[4].first_layer, after.shares[4].last_layer) == (3, 6)


def test_what_was_prepared_is_what_would_be_worked_out_and_is_forgotten_with_the_plan() -> None:
    planner, other = (SitePlanner(workers=4, pipelines=2, stages=2) for _ in range(2))
    greeted = greeting()
    for each in (planner, other):
        begun(each, range(4), greeted)
    planner.prepare(greeted, frozenset(range(4)), frozenset())
    assert len(planner._prepared) == 4
    for worker in range(4):
        left = frozenset(range(4)) - {worker}
        assert planner.make(ask(2, {worker}), greeted, left) == other.make(ask(2, {worker}), greeted, left)
    planner.put_in_force(2)
    assert planner._prepared == {}


def test_when_the_training_is_over_no_further_loss_is_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever started it waited for all of them: seconds, on a machine that is loaded."""
    planner, greeted = SitePlanner(workers=4, pipelines=2, stages=2), greeting()
    begun(planner, range(4), greeted)
    work_out, worked_out = planner._work_out, []

    def last(*given: Any, **named: Any) -> Any:
        planner.prepare_no_more()
        worked_out.append(given)
        return work_out(*given, **named)

    monkeypatch.setattr(planner, "_work_out", last)
    for _ in range(2):
        planner.prepare(greeted, frozenset(range(4)), frozenset())
    assert len(worked_out) == 1


def test_the_plan_for_who_comes_is_prepared_and_outlives_what_is_learnt_of_seconds() -> None:
    planner, other = (SitePlanner(workers=4, pipelines=2, stages=2) for _ in range(2))
    greeted = greeting()
    for each in (planner, other):
        begun(each, range(4), greeted)
        each.make(ask(2, {1}), greeted, frozenset({0, 2, 3}))
        each.put_in_force(2)
    here, came = frozenset({0, 2, 3, 4}), frozenset({4})
    planner.prepare_change(greeted, here, came)
    planner.learn(MeasuredFactors(forward=(1.5,) * 6, backward=(1.5,) * 6), greeted, here)
    (situation,) = planner._prepared
    assert situation == Staffing(frozenset(), came, here)
    prepared, _ = planner._prepared[situation]
    assert planner.make(ask(3, set(), {4}), greeted, here) is prepared
    assert prepared == other.make(ask(3, set(), {4}), greeted, here)
    planner.put_in_force(3)
    assert planner._prepared == {}


def test_nothing_is_prepared_before_a_plan_is_in_force() -> None:
    planner = SitePlanner(workers=4, pipelines=2, stages=2)
    planner.prepare_change(greeting(), frozenset(range(4)), frozenset({3}))
    assert planner._prepared == {}


def test_the_first_plan_is_the_planners_where_no_shape_is_asked_for() -> None:
    plan = begun(SitePlanner(workers=4), range(4), greeting())
    prove(plan.shares, layers=6, micro_batches=8)
    assert len(plan.workers) == 4 and "shortest step" in plan.reason


def test_slower_links_make_a_longer_step() -> None:
    planners = (
        SitePlanner(workers=4, pipelines=2, stages=2),
        SitePlanner(workers=4, pipelines=2, stages=2, rate_bytes_per_s=1e5),
        SitePlanner(workers=4, pipelines=2, stages=2, rate_bytes_per_s=1e5, latency_s=0.01),
    )
    fast, narrow, far = (begun(planner, range(4), greeting()).step_s for planner in planners)
    assert fast < narrow < far


def test_layers_that_are_spread_alike_are_closed_together_and_others_apart() -> None:
    """After a loss in 3 pipelines of 2 stages, one of the two peers has more of the lost micro-batches."""
    planner = SitePlanner(workers=6, pipelines=3, stages=2, policies=frozenset({Policy.REROUTE}))
    greeted = greeting(micro_batches=9)
    begun(planner, range(6), greeted)
    plan = planner.make(ask(2, {1}), greeted, frozenset({0, 2, 3, 4, 5}))
    sums = [i for i in plan.shares[3].stream if isinstance(i, Sum)]
    assert [(total.layers, total.holders) for total in sums] == [((3, 4, 5), (3, 5))]
    passed = {w: [i.micro_batch for i in plan.shares[w].stream if isinstance(i, BackwardPass)] for w in (3, 5)}
    assert sorted(passed[3] + passed[5]) == list(range(9))


@pytest.mark.parametrize(
    ("shape", "layers", "text"),
    [
        ({"pipelines": 2, "stages": 4}, 6, "2 pipelines of 4 stages need 8 workers; 4 are here"),
        ({"pipelines": 1, "stages": 4}, 3, "do not fit 3 layers"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(shape: dict[str, int], layers: int, text: str) -> None:
    with pytest.raises(Unplannable, match=text):
        SitePlanner(workers=4, **shape).make(ask(1), greeting(layers), frozenset(range(4)))


def after_a_loss(optimizer_step_s: float) -> Plan:
    """Three pipelines of two stages lose a worker: five stages in a row would make the shortest step."""
    layers = tuple(msgspec.structs.replace(each, optimizer_step_s=optimizer_step_s) for each in greeting().layers)
    greeted = msgspec.structs.replace(greeting(), layers=layers)
    planner = SitePlanner(workers=6, pipelines=3, stages=2, policies=frozenset({Policy.REROUTE, Policy.DYNAMIC}))
    begun(planner, range(6), greeted)
    plan = planner.make(ask(2, {0}), greeted, frozenset(range(1, 6)))
    prove(plan.shares, layers=6, micro_batches=8)
    return plan


def holders(plan: Plan) -> list[int]:
    shares = plan.shares.values()
    return [sum(share.first_layer <= layer < share.last_layer for share in shares) for layer in range(6)]


def test_a_second_holder_of_every_layer_is_worth_some_speed() -> None:
    plan = after_a_loss(0.02)
    assert min(holders(plan)) >= 2 and "every layer has a second holder, at 7.1% of the speed" in plan.reason


def test_a_second_holder_that_costs_too_much_is_done_without_and_said() -> None:
    plan = after_a_loss(0.2)
    assert min(holders(plan)) == 1 and "a second for each would cost 29% of the speed" in plan.reason


def test_where_no_second_holder_fits_that_is_said() -> None:
    planner = SitePlanner(workers=2, pipelines=2, stages=1)
    begun(planner, range(2), greeting())
    plan = planner.make(ask(2, {0}), greeting(), frozenset({1}))
    assert holders(plan) == [1] * 6 and "no plan gives them a second" in plan.reason


def test_a_first_plan_has_two_holders_too() -> None:
    layers = tuple(msgspec.structs.replace(each, optimizer_step_s=0.02) for each in greeting().layers)
    plan = begun(SitePlanner(workers=5), range(5), msgspec.structs.replace(greeting(), layers=layers))
    assert min(holders(plan)) >= 2


def drain(number: int, *drained: int, idle: set[int] = set(), lost: set[int] = set()) -> AskPlanner:  # noqa: B006
    return AskPlanner(asked=number, lost=frozenset(lost), idle=frozenset(idle), drained=frozenset(drained))


@pytest.mark.parametrize(
    ("policies", "dp", "pp", "drained", "idle"),
    [
        (set(Policy), 2, 2, {3}, set()),
        ({Policy.REROUTE}, 2, 2, {3}, set()),
        ({Policy.DYNAMIC}, 2, 2, {0}, set()),
        ({Policy.DYNAMIC, Policy.REROUTE}, 2, 2, {3}, set()),
        (set(Policy), 2, 2, {1}, {4}),
        (set(Policy), 1, 3, {1}, set()),
        (set(Policy), 1, 3, {0, 2}, set()),
    ],
    ids=("any", "reroute", "dynamic", "both", "spare", "only-holder", "two-only-holders"),
)
def test_a_drained_worker_has_no_layers_and_gives_on_what_it_held(
    policies: set[Policy], dp: int, pp: int, drained: set[int], idle: set[int]
) -> None:
    planner = SitePlanner(workers=dp * pp, pipelines=dp, stages=pp, policies=frozenset(policies))
    greeted, here = greeting(), frozenset(range(dp * pp)) | idle
    before = begun(planner, range(dp * pp), greeted)
    planner.prepare_change(greeted, here, frozenset(idle), frozenset(drained))
    after = planner.make(drain(2, *drained, idle=idle), greeted, here)
    assert not after.workers & drained and after.shares.keys() >= drained, "they take part in the transfer alone"
    prove(after.shares, layers=6, micro_batches=8)
    check_moves(before, after, lost=set())
    planner.put_in_force(2)
    back = planner.make(ask(3, idle=drained), greeted, here)
    prove(back.shares, layers=6, micro_batches=8)
    check_moves(after, back, lost=set())
    assert back.workers & drained or idle or policies == {Policy.REROUTE}


def test_the_death_of_another_is_planned_without_those_that_are_drained() -> None:
    planner, greeted, here = SitePlanner(workers=4, pipelines=4, stages=1), greeting(), frozenset(range(4))
    begun(planner, range(4), greeted)
    planner.make(drain(2, 3), greeted, here)
    planner.put_in_force(2)
    planner.prepare(greeted, here, frozenset(), frozenset({3}))
    for worker in (0, 1, 2):
        plan = planner.make(drain(3, 3, lost={worker}), greeted, here - {worker})
        assert plan.workers == {0, 1, 2} - {worker}


def test_where_memory_is_short_no_plan_does_without_a_worker_and_that_is_said() -> None:
    planner, tight = (
        SitePlanner(workers=2, pipelines=1, stages=2),
        msgspec.structs.replace(greeting(), memory_bytes=1500),
    )
    begun(planner, range(2), tight)
    with pytest.raises(Unplannable, match="memory") as refused:
        planner.prepare_change(tight, frozenset(range(2)), frozenset(), frozenset({1}))
    assert not refused.value.hopeless


# ---- a worker that is slow


def slowed(speed: float, *, idle: int = 0) -> tuple[SitePlanner, GroupHello, float]:
    """Worker 3 of four has become slow: the planner, and what a step takes now."""
    planner, greeted = SitePlanner(workers=4), greeting(micro_batches=32)
    begun(planner, range(4), greeted)
    factors = MeasuredFactors(forward=(1.0,) * 6, backward=(1.0,) * 6, speeds={3: speed})
    return planner, greeted, planner.learn(factors, greeted, frozenset(range(4 + idle)))


def test_where_a_worker_is_slow_others_do_more_if_that_is_faster_enough() -> None:
    planner, greeted, now_s = slowed(0.5)
    here = frozenset(range(4))
    planner.prepare_change(greeted, here, frozenset(), faster_by=0.1)
    plan = planner.make(ask(2), greeted, here)
    assert plan.step_s < 0.9 * now_s and plan.workers == here
    assert "4 x" not in plan.shape, "the slow one has less to do"


def test_a_plan_that_is_hardly_faster_is_not_worth_a_stop() -> None:
    planner, greeted, _ = slowed(0.97)
    with pytest.raises(Unplannable, match=r"by the plan in force and .* by the best of the others, which is not worth"):
        planner.prepare_change(greeted, frozenset(range(4)), frozenset(), faster_by=0.1)


def test_a_spare_takes_the_place_of_a_slow_worker_which_waits_as_one() -> None:
    planner, greeted, now_s = slowed(0.5, idle=1)
    here, spare = frozenset(range(5)), frozenset({4})
    planner.prepare_change(greeted, here, spare, faster_by=0.1)
    plan = planner.make(ask(2, idle={4}), greeted, here)
    assert plan.workers == {0, 1, 2, 4} and plan.shares[3].last_layer == 0
    assert plan.step_s == pytest.approx(now_s / 2, rel=0.2) and {move.target for move in plan.moves} == {4}


def test_a_slow_worker_that_alone_has_some_layers_gives_them_on_when_another_dies() -> None:
    planner = SitePlanner(workers=4, pipelines=2, stages=2, policies=frozenset({Policy.DYNAMIC}))
    greeted = greeting()
    before = begun(planner, range(4), greeted)
    factors = MeasuredFactors(forward=(1.0,) * 6, backward=(1.0,) * 6, speeds={1: 0.05})
    planner.learn(factors, greeted, frozenset(range(4)))
    after = planner.make(ask(2, lost={3}), greeted, frozenset({0, 1, 2}))
    check_moves(before, after, {3})
    assert after.workers == {0, 2} and {move.source for move in after.moves} == {1}
