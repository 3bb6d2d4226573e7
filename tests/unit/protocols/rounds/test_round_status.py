"""After a failure everybody is asked how far it is: who is asked again, and what is decided on which answers."""

from __future__ import annotations

import msgspec
from tests.unit.protocols.one_site import (
    EPOCH,
    PLANNER,
    SETTINGS,
    A,
    B,
    C,
    D,
    E,
    leader_of,
    link,
    records,
    roster_of,
    sent,
)
from tests.unit.protocols.scheduler.scheduler_kit import accepting, alive, holds, line, lose, refusing

from chaos_protocols import events
from chaos_protocols.agreement.views import make_view
from chaos_protocols.links.liveness import LinkPhase
from chaos_protocols.wire.control import (
    RoundStatusQuery,
    RoundStatusReply,
)


def test_an_unanswered_resolve_question_is_asked_again_and_nothing_is_decided_meanwhile() -> None:
    bench = leader_of(roster=line(B, C))
    lose(bench, C)
    bench.taken()
    alive(bench, B, seconds=0.7)
    assert sent(bench.out, RoundStatusQuery) and bench.machine.roster.resolving


def test_an_answer_for_another_epoch_is_no_promise_for_this_one() -> None:
    bench = leader_of(roster=line(B, C))
    lose(bench, C)
    bench.hear(B, RoundStatusReply(epoch=EPOCH, done_round=9, digest="ee"))
    assert bench.machine.roster.resolving


def test_of_two_results_of_one_round_the_more_frequent_stands_and_the_other_is_removed() -> None:
    bench = leader_of(roster=line(B, C, D, E))
    lose(bench, E)
    epoch = bench.machine.roster.epoch
    for site, digest in ((B, "aa"), (C, "bb"), (D, "bb")):
        bench.hear(site, RoundStatusReply(epoch=epoch, done_round=3, digest=digest))
    assert bench.machine.roster.record(B) is None and bench.machine.roster.record(C) is not None
    assert "is not that of" in bench.machine.roster.departed[-1].reason


def test_a_scheduler_that_lags_itself_leaves_the_resolving_to_another() -> None:
    roster = roster_of(A, B, C, links=tuple(link(A, one) for one in (B, C)))
    before = make_view(PLANNER, first_round=1, members=(B,), listeners=(A,), links=roster.links[:1])
    later = msgspec.structs.replace(roster.views[0], first_round=92)
    views = (msgspec.structs.replace(before, epoch=EPOCH - 1), later)
    bench = leader_of(roster=msgspec.structs.replace(roster, views=views))
    lose(bench, C)
    holds(bench, 84, "aa")
    bench.hear(B, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=0, digest=""))
    assert bench.machine.roster.resolving and bench.machine.roster.resolved_round == 0


def test_a_round_that_a_member_holds_too_is_resolved_with_the_learner_in_the_run() -> None:
    bench = leader_of(roster=roster_of(A, B, C, learners=(D,), links=tuple(link(A, one) for one in (B, C, D))))
    lose(bench, C)
    epoch = bench.machine.roster.epoch
    for site in (B, D):
        bench.hear(site, RoundStatusReply(epoch=epoch, done_round=35, digest="dd"))
    assert bench.machine.roster.record(D) is not None and bench.machine.roster.resolved_round == 35


def test_a_second_failure_while_resolving_is_removed_before_the_round_is_resolved() -> None:
    bench = leader_of(roster=line(B, C, D))
    lose(bench, D)
    lose(bench, C)
    assert bench.machine.roster.resolving and bench.machine.roster.site_ids() == (A, B)


def test_only_those_that_have_not_answered_a_resolve_question_are_asked_again() -> None:
    bench = leader_of(roster=line(B, C, D))
    lose(bench, D)
    bench.hear(B, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=0, digest=""))
    bench.taken()
    alive(bench, B, C, seconds=2 * SETTINGS.retry_s)
    assert {site for site, _ in sent(bench.out, RoundStatusQuery)} == {C}


def test_a_refused_resolution_is_proposed_again() -> None:
    bench = leader_of(roster=line(B, C))
    lose(bench, C)
    real = refusing(bench)
    answer = RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=0, digest="")
    bench.hear(B, answer)
    assert bench.machine.roster.resolving and not records(bench.out, "resolve")
    accepting(bench, real)
    assert not bench.machine.roster.resolving


def test_a_scheduler_whose_own_result_is_outvoted_hands_the_role_over() -> None:
    bench = leader_of(roster=line(B, C, D))
    tag = bench.machine.rounds.running
    assert tag is not None
    weights = tuple((site, 1.0) for site in (A, B, C, D))
    bench.handle(events.ReduceFinished(tag=tag, digest="aa", weights=weights))
    lose(bench, D)
    epoch = bench.machine.roster.epoch
    for site in (B, C):
        bench.hear(site, RoundStatusReply(epoch=epoch, done_round=1, digest="bb"))
    assert bench.machine.roster.resolving and bench.machine.roster.site_ids() == (A, B, C), "not by its own word"


def test_a_resolving_never_decides_without_a_site_that_is_not_removed_yet() -> None:
    bench = leader_of(roster=line(B, C, D))
    lose(bench, D)
    bench.machine.links.neighbours[C].phase = LinkPhase.DOWN
    decision = bench.machine.scheduler.term.resolution.step(bench.now_s)
    assert decision.proposal is None and "removed first" in decision.reason


def test_a_resolve_question_is_not_repeated_before_its_time() -> None:
    bench = leader_of(roster=line(B, C))
    lose(bench, C)
    bench.taken()
    alive(bench, B, seconds=SETTINGS.retry_s / 2, step_s=0.05)
    assert not sent(bench.out, RoundStatusQuery)
    alive(bench, B, seconds=SETTINGS.retry_s, step_s=0.05)
    assert sent(bench.out, RoundStatusQuery)


def test_state_of_a_restored_member_counts_like_a_result() -> None:
    """Its worker may be the only one with the newest state, though it holds no result (row 7)."""
    bench = leader_of(roster=line(B, C, D))
    lose(bench, D)
    epoch = bench.machine.roster.epoch
    bench.hear(B, RoundStatusReply(epoch=epoch, done_round=4, digest="aa"))
    bench.hear(C, RoundStatusReply(epoch=epoch, done_round=5, digest="", has_state=True))
    assert not bench.machine.roster.resolving
    assert bench.machine.roster.resolved_round == 5
