"""What a site sends at most: it says so, and is planned with as such."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.protocols.one_site import A, B, C, D, leader_of, link, record

from chaos_protocols import events, wishes
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.proposals import sources_for
from chaos_protocols.scheduler.reports import UPLINK_MIN_BYTES_PER_S
from chaos_protocols.wire.control import SiteStatus


def says(bench: Any, site: SiteId, limit: float, *, incarnation: int = 1) -> None:
    status = SiteStatus(
        incarnation=incarnation,
        epoch=bench.machine.roster.epoch,
        done_round=0,
        active=True,
        transfer_bytes=0,
        send_limit=limit,
    )
    bench.hear(site, status, incarnation=incarnation)


def test_an_operators_limit_is_in_the_next_report() -> None:
    bench = leader_of(B)
    assert bench.machine.own_report().send_limit == 0.0
    bench.handle(wishes.SendLimitSet(bytes_per_s=2.5e6))
    assert bench.machine.own_report().send_limit == 2.5e6
    assert bench.machine.scheduler.uplinks() == {A: 2.5e6}
    bench.handle(wishes.SendLimitSet(bytes_per_s=0.0))
    assert bench.machine.scheduler.uplinks() == {}


def test_the_newest_word_of_each_start_of_a_site_counts() -> None:
    bench = leader_of(B, C)
    says(bench, B, 1e6)
    says(bench, C, 2e6)
    assert bench.machine.scheduler.uplinks() == {B: 1e6, C: 2e6}
    says(bench, B, 0.0)
    assert bench.machine.scheduler.uplinks() == {C: 2e6}
    started = tuple(record(one, incarnation=2 if one == C else 1) for one in (A, B, C))
    bench.pretend(msgspec.structs.replace(bench.machine.roster, sites=started))
    assert bench.machine.scheduler.uplinks() == {}, "of another start of its daemon"


def test_who_names_next_to_nothing_is_planned_with_as_if_it_were_the_least_that_can_be_set() -> None:
    bench = leader_of(B)
    says(bench, B, 1e-9)
    assert bench.machine.scheduler.uplinks() == {B: UPLINK_MIN_BYTES_PER_S}


def test_nobody_plans_with_what_it_heard_before_another_site_led() -> None:
    bench = leader_of(B)
    says(bench, B, 1e6)
    bench.machine.scheduler.retire()
    assert bench.machine.scheduler.uplinks() == {}


def test_views_are_planned_with_the_limits() -> None:
    """As every view that the scheduler makes."""
    bench = leader_of(B, C)
    says(bench, B, 4e6)
    links = {one.key: one for one in (link(A, B), link(A, C), link(B, C))}
    plan = bench.machine.planner.sync((A, B, C), (), links, several=True)
    assert all(sum(B in pair for pair in tree.parent) == 1 for tree in plan.trees)
    assert bench.machine.planner.rate_bytes_per_s(plan, links) == 4e6


@pytest.mark.parametrize(
    ("limit", "rate", "sends"), [(0.0, 1e7, 1e7), (4e6, 1e7, 4e6), (2e7, 1e7, 1e7), (4e6, 0.0, 4e6), (0.0, 0.0, 0.0)]
)
def test_a_source_of_a_state_is_as_fast_as_its_link_and_its_limit(limit: float, rate: float, sends: float) -> None:
    bench = leader_of(B, C)
    says(bench, B, limit)
    situation = bench.machine.scheduler._situation()
    found = {one.site: one.rate_bytes_per_s for one in sources_for(situation, D, (link(B, D, rate_bytes_per_s=rate),))}
    assert found == {B: sends}


def test_a_limit_says_nothing_of_what_links_carry() -> None:
    bench = leader_of(B)
    bench.handle(events.RatesMeasured(rates=((B, 1e6),)))
    bench.handle(wishes.SendLimitSet(bytes_per_s=5e5))
    assert bench.machine.own_report().rates == ((B, 1e6),)
