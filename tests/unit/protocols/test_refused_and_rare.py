"""What happens seldom: a site is far behind, words come twice, small rules of names, routes and views."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.protocols.follower import Follower, finish_round, level_learner, of, to_worker, training_member, views
from tests.unit.protocols.one_site import (
    MODEL,
    PLANNER,
    A,
    B,
    Bench,
    C,
    D,
    link,
    records,
    roster_of,
)

from chaos_protocols import events
from chaos_protocols.agreement.commands import AddLink, PromoteSite, RemoveSite, RoundResolved
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.agreement.views import make_view, resolved_views
from chaos_protocols.effects import OpenRound
from chaos_protocols.links.link_state import ROUTES_CACHED_MAX, LinkStateTable
from chaos_protocols.rounds.machine import RoundMachine, StateLost
from chaos_protocols.wire.control import (
    JoinAnswer,
)
from chaos_protocols.wire.plans import Tag
from chaos_protocols.wire.state_spec import NAME_CHARACTERS_MAX, fact
from chaos_protocols.wire.worker import RunPaused, TrainFrom

# ---- words that come twice, early, late


def test_a_new_reason_for_the_same_pause_is_told_to_the_worker_and_not_recorded_again() -> None:
    bench = Bench(D).up(A)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    bench.wait(0.3)
    bench.taken()
    bench.hear(A, JoinAnswer(incarnation=1, accepted=False, final=False, reason="resolving"))
    bench.wait(0.3)
    assert [one.reason for one in to_worker(bench.out, RunPaused)] == ["resolving"]
    assert not records(bench.out, "pause")


# ---- rounds of a site that is far behind


def rounds_of(*members: Any, first_round: int, site: Any = B, listeners: tuple[Any, ...] = ()) -> RoundMachine:
    roster = roster_of(*members, learners=listeners, first_round=first_round)
    machine = RoundMachine(site, roster)
    machine.takes_part = True
    return machine


def test_a_member_that_is_too_far_behind_gives_its_state_up_and_goes_on_in_standby() -> None:
    machine = rounds_of(A, B, first_round=50)
    machine.begin_at(3)
    machine.worker_loaded(3)
    (opened, *_) = of(machine.advance(), OpenRound)
    assert opened.tag.round == 50 and machine.worker_round is None
    assert [type(one) for one in machine.notices] == [StateLost]


def test_a_listener_that_is_too_far_behind_waits_for_another_state() -> None:
    machine = rounds_of(A, first_round=50, listeners=(B,))
    machine.begin_at(3)
    assert not of(machine.advance(), OpenRound)
    assert [type(one) for one in machine.notices] == [StateLost]


def test_a_site_promoted_while_its_state_was_lost_takes_part_from_its_first_round_on() -> None:
    machine = rounds_of(A, B, first_round=5)
    machine.completed_round = 1
    (opened, *_) = of(machine.advance(), OpenRound)
    assert opened.tag == Tag(epoch=7, round=5)


def test_a_site_outside_every_view_opens_nothing() -> None:
    machine = rounds_of(A, C, first_round=1)
    assert machine.advance() == []


def test_a_gap_in_the_results_costs_the_state() -> None:
    machine = rounds_of(A, B, first_round=1)
    machine.begin_at(1)
    machine.delivery.add((3, 2, 2.0))
    machine.completed_round = 3
    assert machine.worker_loaded(1) == []
    assert [type(one) for one in machine.notices] == [StateLost]


def test_a_site_that_trains_contributes_nothing_before_its_worker_does() -> None:
    bench = training_member()
    assert bench.machine.rounds.phase.value == "compute" and not bench.machine.rounds.own.given
    bench.handle(events.WorkerContributed(round=2, weight=1.0))
    assert bench.machine.rounds.phase.value == "reduce"


def test_the_fetching_of_a_resolved_result_is_begun_once() -> None:
    bench = training_member()
    gone = Departure(site=B, incarnation=1, last_round=0, cause="failed", reason="")
    bench.agreed(RemoveSite(departure=gone, resolve=True, views=bench.roster.views))
    new = make_view(bench.machine.planner, first_round=3, members=(A, D), listeners=(), links=bench.roster.links)
    bench.agreed(RoundResolved(round=2, digest="ee", holders=(A,), views=(new,)))
    assert bench.machine.rounds.fetching == 2 and bench.machine.rounds.advance() == []


def test_a_source_that_became_a_neighbour_meanwhile_keeps_its_link_after_the_transfer() -> None:
    bench = Follower(D, roster_of(A, B, D, links=(link(A, B), link(A, D))))
    bench.machine.participation.links.reach({B})
    bench.agreed(AddLink(link=link(B, D), views=views(bench, 3)))
    bench.taken()
    bench.machine.participation.links.reach(set())
    assert bench.machine.links.neighbours[B].wanted


def test_a_state_of_old_is_not_replayed_where_no_memory_checkpoint_has_kept_the_results_since() -> None:
    machine = rounds_of(A, B, first_round=1)
    machine.done = 5
    assert not machine.replay_after(3)


def test_a_leaver_that_is_promoted_on_its_way_out_does_not_train() -> None:
    bench = level_learner()
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    bench.agreed(PromoteSite(site=D, views=views(bench, 2, add_member=D)))
    finish_round(bench)
    bench.handle(events.WorkerApplied(round=1))
    assert not bench.machine.rounds.active and not to_worker(bench.out, TrainFrom)


# ---- small rules


def test_views_of_later_rounds_survive_a_resolving_with_the_members_that_are_left() -> None:
    roster = roster_of(A, B, C)
    later = msgspec.structs.replace(roster.views[0], first_round=9, epoch=8)
    resolved = resolved_views(msgspec.structs.replace(roster, views=(*roster.views, later)), PLANNER, first_round=4)
    assert [view.first_round for view in resolved] == [4, 9]


def test_routes_that_are_kept_are_bounded_in_number() -> None:
    overlay, roster = LinkStateTable(A), roster_of(A, B, C)
    for number in range(ROUTES_CACHED_MAX + 5):
        overlay.next_hops(roster, (B,) * (number + 1))
    assert len(overlay._hops) <= ROUTES_CACHED_MAX


def test_a_fact_that_is_too_long_for_a_name_is_cut_down_to_its_hash() -> None:
    short, long, other = fact("a=1"), fact("x" * 900), fact("x" * 899 + "y")
    assert short.name == "a=1" and len(long.name) <= NAME_CHARACTERS_MAX and long.name != other.name


def test_a_member_hears_of_a_change_that_does_not_concern_it() -> None:
    bench = Follower(B, roster_of(A, B, C))
    out = bench.agreed(RemoveSite(
        departure=Departure(site=C, incarnation=1, last_round=3, cause="left", reason="done"),
        resolve=False,
        views=views(bench, 4, remove=C, links=(link(A, B),)),
    ))  # fmt: skip
    assert bench.roster.site_ids() == (A, B) and not of(out, OpenRound)
