"""The planners in the words of the protocols: what a plan is worth, how deep it is, and how the daemon tells it."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import sys
import tracemalloc
import types
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from chaos_planner.overlay.trees import TreePlan, pack, tree
from chaos_protocols.agreement.roster import LinkRecord
from chaos_protocols.agreement.views import SourceFacts
from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.plans import SyncPlan, Tag, Tree
from chaosd.api.status import AveragingStatus
from chaosd.cli.render import _averaging
from chaosd.monitor.round_clock import RoundClock
from chaosd.plan_adapter import RATE_UNKNOWN_BYTES_PER_S, DaemonPlanner, depth_s

A, B, C, D = (SiteId(name * 32) for name in "abcd")


def mesh(*sites: SiteId, rate: float = 1e7) -> dict[tuple[SiteId, SiteId], LinkRecord]:
    return {
        pair: LinkRecord(one=pair[0], other=pair[1], rate_bytes_per_s=rate, rtt_s=0.02)
        for pair in itertools.combinations(sites, 2)
    }


def test_several_trees_are_planned_only_where_all_sites_can_tell_them_apart() -> None:
    planner = DaemonPlanner()
    several = planner.sync((A, B, C, D), (), mesh(A, B, C, D), several=True)
    single = planner.sync((A, B, C, D), (), mesh(A, B, C, D), several=False)
    assert several.several and len(several.trees) > 1
    assert not single.several and len(single.trees) == 1
    links = mesh(A, B, C, D)
    assert planner.rate_bytes_per_s(several, links) > 1.5 * planner.rate_bytes_per_s(single, links)


def test_a_policy_that_is_not_there_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="must be tree, trees"):
        DaemonPlanner(averaging="fastest")


def own_policy(monkeypatch: pytest.MonkeyPatch, name: str, policy: Callable[..., Any]) -> DaemonPlanner:
    module = types.ModuleType("own_policies")
    setattr(module, name, policy)
    monkeypatch.setitem(sys.modules, "own_policies", module)
    return DaemonPlanner(averaging=f"own_policies:{name}")


def test_a_policy_of_ones_own_may_compute_with_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers have no form on the wire."""

    def computed(*arguments: Any, **more: Any) -> TreePlan:
        plan = pack(*arguments, **more)
        trees = tuple(
            dataclasses.replace(
                each,
                weight=np.float64(each.weight),
                root=np.str_(each.root),
                parent=[list(pair) for pair in each.parent],
            )
            for each in plan.trees
        )
        return dataclasses.replace(plan, trees=trees, reason=None)

    links = mesh(A, B, C, D)
    plan = own_policy(monkeypatch, "computed", computed).sync((A, B, C, D), (), links, several=True)
    wanted = DaemonPlanner().sync((A, B, C, D), (), links, several=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=SyncPlan).trees == wanted.trees


def disconnected(sites: Any, links: Any, *_: Any, **more: Any) -> TreePlan:
    """That of the operating page, where a link that it leaves out is needed."""
    return pack(sites, {}, **more)


def ended(*_: Any, **__: Any) -> TreePlan:
    raise SystemExit(3)


@pytest.mark.parametrize(("policy", "why"), [(disconnected, "fall into 3 groups"), (ended, "it ended the program")])
def test_a_policy_of_ones_own_that_gives_no_plan_gives_way_to_one_tree(
    monkeypatch: pytest.MonkeyPatch, policy: Callable[..., Any], why: str
) -> None:
    plan = own_policy(monkeypatch, policy.__name__, policy).sync((A, B, C), (), mesh(A, B, C), several=True)
    assert len(plan.trees) == 1
    assert f"not several trees: {policy.__name__} gave no plan" in plan.reason and why in plan.reason


def unreadable(*_: Any, **__: Any) -> TreePlan:
    raise FileNotFoundError(os.fsdecode(b"rates-\xff.csv"))


def unreadably_told(*arguments: Any, **more: Any) -> TreePlan:
    return dataclasses.replace(pack(*arguments, **more), reason=os.fsdecode(b"as rates-\xff.csv says"))


@pytest.mark.parametrize(("policy", "told"), [(unreadable, "rates-?.csv"), (unreadably_told, "as rates-?.csv says")])
def test_what_a_policy_of_ones_own_says_can_always_be_written_down(
    monkeypatch: pytest.MonkeyPatch, policy: Callable[..., Any], told: str
) -> None:
    """The name of a file may hold bytes that are no text; the plan is written into the journal with its reason."""
    plan = own_policy(monkeypatch, policy.__name__, policy).sync((A, B, C), (), mesh(A, B, C), several=True)
    assert told in msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=SyncPlan).reason


def summed(*arguments: Any, **more: Any) -> TreePlan:
    plan = tree(*arguments, **more)
    return dataclasses.replace(plan, trees=(dataclasses.replace(plan.trees[0], weight=math.nextafter(1.0, 2.0)),))


def test_weights_of_a_policy_of_ones_own_that_add_up_to_a_little_more_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shares that were added up may be more than 1 in their last digit: no site could read what was agreed on."""
    plan = own_policy(monkeypatch, "summed", summed).sync((A, B, C), (), mesh(A, B, C), several=True)
    (only,) = msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=SyncPlan).trees
    assert only.weight == 1.0 and "gave no plan" not in plan.reason


def test_a_scheduler_that_plans_for_months_does_not_grow() -> None:
    """It looks at the rates every ten seconds, and each time they are others."""
    planner = DaemonPlanner()
    sites = tuple(SiteId(f"{number:032x}") for number in range(24))

    def plan(times: int) -> None:
        for _ in range(times):
            planner.sync(sites, (), mesh(*sites, rate=float(next(rates))), several=False)

    rates = itertools.count(1_000_000)
    plan(20)
    tracemalloc.start()
    try:
        plan(250)
        grown_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown_bytes < 5 << 20


def test_a_plan_is_as_fast_as_its_fullest_link() -> None:
    chain = Tree(weight=0.75, root=A, parent=((B, A), (C, B)))
    star = Tree(weight=0.25, root=A, parent=((B, A), (C, A)))
    plan = SyncPlan(trees=(chain, star), reason="by hand", several=True)
    links = mesh(A, B, C)
    planner = DaemonPlanner()
    assert planner.rate_bytes_per_s(plan, links) == 1e7
    slow = msgspec.structs.replace(links[A, C], rate_bytes_per_s=1e6)
    assert planner.rate_bytes_per_s(plan, {**links, (A, C): slow}) == 4e6
    unknown = msgspec.structs.replace(links[A, C], rate_bytes_per_s=0.0)
    assert planner.rate_bytes_per_s(plan, {**links, (A, C): unknown}) == min(1e7, 4 * RATE_UNKNOWN_BYTES_PER_S)
    assert planner.rate_bytes_per_s(plan, links, {B: 3.5e6, D: 1.0}) == 2e6, "B sends 1.75 times the vector"
    del links[A, C]
    assert planner.rate_bytes_per_s(plan, links) == 0.0
    alone = SyncPlan(trees=(Tree(weight=1.0, root=A, parent=()),), reason="alone")
    assert planner.rate_bytes_per_s(alone, {}) == math.inf


def test_what_is_planned_with_an_assumed_rate_says_so() -> None:
    planner, links = DaemonPlanner(), mesh(A, B, C)
    links[A, B] = msgspec.structs.replace(links[A, B], rate_bytes_per_s=0.0)
    told = planner.sync((A, B), (), {(A, B): links[A, B]}, several=False).reason
    assert f"carries 100.0 Mbit/s; assumed, since not measured (Mbit/s): {A} - {B} (100.0)" in told
    sources = tuple(SourceFacts(site=site, rate_bytes_per_s=rate, rtt_s=0.02) for site, rate in ((A, 1e7), (B, 0.0)))
    plan = planner.replicate(
        transfer="t", joiner=C, round_number=1, state_bytes=1 << 20, shard_bytes=1 << 16, sources=sources
    )
    assert plan.reason.endswith(f"; 100 Mbit/s assumed of {short(B)}")


def test_a_tree_is_as_deep_as_its_farthest_site() -> None:
    links = mesh(A, B, C)
    assert depth_s(Tree(weight=1.0, root=A, parent=((B, A), (C, B))), links) == pytest.approx(0.02)
    assert depth_s(Tree(weight=1.0, root=A, parent=((B, A), (C, A))), links) == pytest.approx(0.01)


def test_rounds_are_timed_from_the_part_given_and_one_that_begins_again_from_the_last_time() -> None:
    clock = RoundClock()
    assert clock.usual_s is None
    first, again = Tag(epoch=1, round=1), Tag(epoch=2, round=1)
    clock.gave(first, 10.0)
    clock.gave(again, 11.0)
    clock.finished(first, 11.5)
    assert clock.usual_s is None
    clock.finished(again, 11.5)
    for number, took_s in ((2, 0.25), (3, 4.0)):
        clock.gave(Tag(epoch=2, round=number), 20.0)
        clock.finished(Tag(epoch=2, round=number), 20.0 + took_s)
    assert clock.usual_s == 0.5


def test_status_tells_what_a_round_should_take_beside_what_it_takes() -> None:
    told = _averaging(AveragingStatus(trees=3, rate_bytes_per_s=12.5e6, predicted_s=0.5, took_s=0.75, reason="3 trees"))
    assert told == (
        "averaged along 3 trees, 100.0 Mbit/s: 0.500 s predicted, 0.750 s taken since this site gave its part (3 trees)"
    )
    young = AveragingStatus(trees=1, rate_bytes_per_s=1e6, predicted_s=None, took_s=None, reason="one tree")
    assert _averaging(young) == "averaged along one tree, 8.0 Mbit/s (one tree)"
    coded = msgspec.structs.replace(young, encoding="int8", relative_error=0.0163)
    assert _averaging(coded) == "averaged along one tree, 8.0 Mbit/s, in int8 (relative error 0.016) (one tree)"
    alone = msgspec.structs.replace(coded, errors_known=1, mean_error=0.0163, worst_error=0.0163, worst_site="a" * 32)
    assert _averaging(alone) == _averaging(coded), "of one site there is nothing to compare"
    several = msgspec.structs.replace(alone, errors_known=3, mean_error=0.02, worst_error=0.031, worst_site="b" * 32)
    assert f"(relative error 0.016; mean 0.02 of 3 sites, worst 0.031 at {'b' * 32})" in _averaging(several)


def test_who_sends_little_over_all_its_links_passes_on_nothing() -> None:
    links, planner = mesh(A, B, C, D), DaemonPlanner()
    plan = planner.sync((A, B, C, D), (), links, several=True, uplinks={A: 5e6, SiteId("9" * 32): 1.0})
    degrees = [sum(A in pair for pair in tree.parent) for tree in plan.trees]
    assert degrees == [1] * len(plan.trees)
    assert planner.rate_bytes_per_s(plan, links, {A: 5e6}) == pytest.approx(5e6)
    without = planner.sync((A, B, C, D), (), links, several=True)
    assert planner.rate_bytes_per_s(without, links, {A: 5e6}) < 4e6
