"""Which round stands after a failure: whose word is a measure, and whose is not."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.one_site import (
    EPOCH,
    PLANNER,
    SETTINGS,
    A,
    B,
    Bench,
    C,
    D,
    leader_of,
    link,
    moving,
    records,
    roster_of,
    sent,
)
from tests.unit.protocols.scheduler.scheduler_kit import (
    acknowledge,
    alive,
    asked_to_lead,
    down,
    elect,
    holds,
    line,
    lose,
    report,
)

from chaos_protocols.agreement.roster import Roster
from chaos_protocols.agreement.views import make_view
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.reports import ROUNDS_MAX
from chaos_protocols.scheduler.round_resolution import REPEATED_MAX, beyond_belief, outcome_of
from chaos_protocols.wire.control import RoundStatusReply, RoundWaits
from chaos_protocols.wire.waits import UNANSWERED


def said(done: int, digest: str = "", *, has_state: bool = False, known: int = 0) -> RoundStatusReply:
    return RoundStatusReply(epoch=EPOCH, done_round=done, digest=digest, has_state=has_state, known_round=known)


def test_only_who_holds_a_result_or_the_state_after_it_says_which_round_stands() -> None:
    roster = roster_of(A, B, C)
    outcome = outcome_of(roster, {A: said(4, "aa"), B: said(5, has_state=True), C: said(9, known=7)})
    assert (outcome.furthest, outcome.holders, outcome.digests, outcome.pending) == (5, (B,), {}, False)


def test_the_results_of_one_round_are_told_apart_and_those_of_older_ones_left_out() -> None:
    roster = roster_of(A, B, C, D)
    outcome = outcome_of(roster, {A: said(3, "aa"), B: said(5, "bb"), C: said(5, "cc"), D: said(5, has_state=True)})
    assert outcome.holders == (B, C, D) and outcome.digests == {B: "bb", C: "cc"}


def test_where_nobody_holds_anything_the_newest_round_that_is_known_of_stands_and_nobody_is_pending() -> None:
    roster = roster_of(A, B, resolved_round=6)
    for known, furthest in ((4, 6), (8, 8)):
        outcome = outcome_of(roster, {A: said(0), B: said(9, known=known)})
        assert (outcome.furthest, outcome.holders, outcome.pending) == (furthest, (), False)


def test_a_round_that_only_a_learner_holds_is_not_what_the_run_goes_on_from() -> None:
    """All members were restarted; a worker of theirs may have a newer state than a learner that lagged (seed 4634 of
    the simulator, 4 sites)."""
    bench = leader_of(roster=roster_of(A, B, C, learners=(D,), links=tuple(link(A, one) for one in (B, C, D))))
    lose(bench, C)
    epoch = bench.machine.roster.epoch
    bench.hear(B, RoundStatusReply(epoch=epoch, done_round=0, digest=""))
    bench.hear(D, RoundStatusReply(epoch=epoch, done_round=35, digest="dd"))
    assert bench.machine.roster.record(D) is None and bench.machine.roster.resolving
    assert "no round waits for it yet" in bench.machine.roster.departed[-1].reason
    bench.hear(B, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=0, digest=""))
    assert not bench.machine.roster.resolving and bench.machine.roster.resolved_round == 0


def test_where_nobody_has_a_result_or_a_state_the_newest_round_that_anybody_knows_stands() -> None:
    """All daemons were restarted but one, whose worker died with the state of round 24 before its first round as a
    member, 26: a worker of round 22 must not do (seed 26030 of the simulator, 4 sites)."""
    bench = leader_of(roster=line(B, C, D))
    lose(bench, D)
    epoch = bench.machine.roster.epoch
    bench.hear(B, RoundStatusReply(epoch=epoch, done_round=0, digest=""))
    bench.hear(C, RoundStatusReply(epoch=epoch, done_round=25, digest="", known_round=24))
    assert not bench.machine.roster.resolving and bench.machine.roster.resolved_round == 24


def test_a_member_that_has_not_reached_its_first_round_is_no_measure_for_the_run() -> None:
    """It was promoted, cut off, and is behind the members that were restarted (seed 8846 of the simulator, 4 sites)."""
    roster = roster_of(A, B, C, links=tuple(link(A, one) for one in (B, C)))
    before = make_view(PLANNER, first_round=1, members=(A, C), listeners=(B,), links=roster.links)
    later = msgspec.structs.replace(roster.views[0], first_round=92)
    views = (msgspec.structs.replace(before, epoch=EPOCH - 1), later)
    bench = leader_of(roster=msgspec.structs.replace(roster, views=views))
    lose(bench, C)
    bench.hear(B, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=84, digest="", has_state=True))
    assert bench.machine.roster.record(B) is None
    assert "no round waits for it yet" in bench.machine.roster.departed[-1].reason


def test_a_member_that_lacks_the_resolved_round_alone_is_a_measure_when_its_holder_dies() -> None:
    """The round is done again: one round is lost (seed 17966 of the simulator, 4 sites)."""
    roster = roster_of(A, B, C, links=tuple(link(A, one) for one in (B, C)), first_round=11)
    bench = leader_of(roster=msgspec.structs.replace(roster, resolved_round=10, resolved_digest="aa", resolved_epoch=5))
    lose(bench, C)
    bench.hear(B, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=9, digest="99", has_state=True))
    assert bench.machine.roster.site_ids() == (A, B)
    assert not bench.machine.roster.resolving and bench.machine.roster.resolved_round == 9


def test_a_pending_member_holds_the_newest_round_if_another_one_that_counts_has_less() -> None:
    """B has not reached its first round, 62, but no round after 60 can have been done without C (seed 1924 of the
    simulator, 6 sites)."""
    roster = roster_of(A, B, C, D, links=tuple(link(A, one) for one in (B, C, D)))
    views = tuple(
        make_view(PLANNER, first_round=first, members=members, listeners=(), links=roster.links)
        for first, members in ((1, (A, D)), (61, (A, C, D)), (62, (A, B, C, D)))
    )
    bench = leader_of(roster=msgspec.structs.replace(roster, views=views))
    lose(bench, D)
    epoch = bench.machine.roster.epoch
    bench.hear(B, RoundStatusReply(epoch=epoch, done_round=60, digest="", has_state=True))
    bench.hear(C, RoundStatusReply(epoch=epoch, done_round=55, digest="", has_state=True))
    assert bench.machine.roster.site_ids() == (A, B, C)
    assert not bench.machine.roster.resolving and bench.machine.roster.resolved_round == 60


def test_the_last_site_of_a_run_goes_on_though_rounds_may_have_been_done_without_it() -> None:
    """It was promoted, and all others left or died: those rounds are done again, and the run goes on (seed 37608 of the
    simulator, 2 sites)."""
    for first_round in (42, 43, 49):
        bench = leader_of(roster=_promoted_for(first_round, A, before=(B,), learners=(C,)))
        bench.machine.rounds.begin_from_worker(40)
        lose(bench, B)
        down(bench, C, B)
        bench.hear(C, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=0, digest=""))
        assert bench.machine.roster.member_ids() == (A,)
        assert not bench.machine.roster.resolving and bench.machine.roster.resolved_round == 40
        assert "died with those who did it" in records(bench.out, "resolve")[-1].reason


def test_members_that_all_count_later_only_go_on_together() -> None:
    """None of them could let the others go and go on."""
    bench = leader_of(roster=_promoted_for(45, A, C, before=(B,)))
    bench.machine.rounds.begin_from_worker(40)
    lose(bench, B)
    down(bench, C, B)
    bench.hear(C, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=40, digest="", has_state=True))
    assert bench.machine.roster.site_ids() == (A, C)
    assert not bench.machine.roster.resolving and bench.machine.roster.resolved_round == 40


def test_a_pending_member_that_schedules_gives_the_role_to_a_member_that_can_let_it_go() -> None:
    """C counts, and was restarted: its worker may have more. It gets a vote first where it has none."""
    for voters in ((A,), (A, B, C)):
        bench = Bench(A, _promoted_for(45, A, before=(B, C)), voters=voters).up(B, C)
        if len(voters) > 1:
            elect(bench)
        bench.wait(0.1)
        bench.machine.rounds.begin_from_worker(40)
        lose(bench, B)
        down(bench, C, B)
        for _ in range(12):
            alive(bench, C, seconds=0.1)
            acknowledge(bench, C)
            if bench.machine.roster.resolving:
                bench.hear(C, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=0, digest=""))
        assert asked_to_lead(bench)[:1] == [C] and bench.machine.roster.resolving


def test_a_scheduler_with_another_result_than_most_makes_way_for_one_of_those() -> None:
    """It has the only vote, and gives one away first."""
    bench = leader_of(B, C, D)
    holds(bench, 3, "aa")
    lose(bench, D)
    for site in (B, C):
        down(bench, site, D)
    for _ in range(12):
        alive(bench, B, C, seconds=0.1)
        acknowledge(bench, B, C)
        for site in (B, C):
            bench.hear(site, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=3, digest="bb"))
    assert asked_to_lead(bench)[:1] == [B] and bench.machine.roster.resolving


def test_results_of_learners_do_not_outvote_those_of_members() -> None:
    bench = leader_of(roster=roster_of(A, B, learners=(C, D), links=tuple(link(A, one) for one in (B, C, D))))
    holds(bench, 3, "aa")
    lose(bench, B)
    for site in (C, D):
        bench.hear(site, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=3, digest="bb"))
    assert bench.machine.roster.site_ids() == (A,) and bench.machine.roster.resolved_digest == "aa"


def test_before_the_first_round_every_member_is_a_measure() -> None:
    roster = roster_of(A, B, C, D, links=tuple(link(one, other) for one, other in ((A, B), (B, C), (A, D))))
    bench = leader_of(roster=msgspec.structs.replace(roster, views=(), started=False, min_sites=4))
    lose(bench, B)
    assert bench.machine.roster.resolving, "C is cut off as well"
    down(bench, C, B)
    bench.hear(D, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=0, digest="", has_state=True))
    assert bench.machine.roster.site_ids() == (A, D)


def _promoted_for(
    first_round: int, *members: SiteId, before: tuple[SiteId, ...], learners: tuple[SiteId, ...] = ()
) -> Roster:
    """Round 40 is resolved; `before` have counted all along, `members` will from `first_round` on."""
    everybody = (*members, *before)
    roster = roster_of(*everybody, learners=learners)
    listeners = (*members, *learners)
    first = make_view(PLANNER, first_round=1, members=before, listeners=listeners, links=roster.links)
    later = msgspec.structs.replace(roster.views[0], first_round=first_round)
    return msgspec.structs.replace(roster, resolved_round=40, views=(first, later))


def test_a_round_that_the_scheduler_has_given_nothing_to_is_done_nowhere() -> None:
    roster = roster_of(A, B, C)
    answers = {A: said(4, "aa", has_state=True), B: said(5, "bb"), C: said(6, has_state=True)}
    assert beyond_belief(roster, A, answers) == (C,)
    assert beyond_belief(roster, A, {**answers, C: said(6, known=900)}) == (), "it holds nothing"
    assert beyond_belief(roster, A, {**answers, A: said(4, "aa")}) == (), "it was restarted: the others may be further"
    later = make_view(PLANNER, first_round=9, members=(A, B, C), listeners=(), links=roster.links)
    first = make_view(PLANNER, first_round=1, members=(B, C), listeners=(), links=roster.links[-1:])
    assert beyond_belief(msgspec.structs.replace(roster, views=(first, later)), A, answers) == ()


def test_who_says_that_it_has_a_round_that_cannot_have_been_done_is_put_out_and_moves_nobody() -> None:
    """Its one word would set the run to a round that nobody can reach."""
    bench = leader_of(roster=roster_of(A, B, C, D, links=tuple(link(A, one) for one in (B, C, D))))
    bench.machine.rounds.begin_from_worker(3)
    lose(bench, D)
    bench.hear(B, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=3, digest="aa"))
    bench.hear(C, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=1 << 40, digest="cc", has_state=True))
    bench.hear(B, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=3, digest="aa"))
    roster = bench.machine.roster
    assert roster.site_ids() == (A, B) and not roster.resolving
    assert (roster.resolved_round, roster.resolved_digest) == (3, "aa")
    assert "which cannot have been done" in roster.departed[-1].reason


@pytest.mark.parametrize("lie", [said(ROUNDS_MAX, "cc"), said(0, known=ROUNDS_MAX)], ids=["held", "known"])
def test_a_round_that_nobody_can_have_done_ends_no_scheduler_that_has_no_state_itself(lie: RoundStatusReply) -> None:
    """The round after it has no number: what it would have agreed on could be read by nobody, itself included."""
    bench = leader_of(roster=roster_of(A, B, C, D, links=tuple(link(A, one) for one in (B, C, D)), resolved_round=3))
    lose(bench, D)
    for _ in range(2):
        epoch = bench.machine.roster.epoch
        bench.hear(B, msgspec.structs.replace(said(3), epoch=epoch))
        bench.hear(C, msgspec.structs.replace(lie, epoch=epoch))
    roster = bench.machine.roster
    assert roster.site_ids() == (A, B) and not roster.resolving and roster.resolved_round == 3
    assert "which cannot have been done" in roster.departed[-1].reason


def test_whom_a_resolution_waits_for_is_told_whatever_round_a_member_says_it_knows() -> None:
    bench = leader_of(roster=roster_of(A, B, C, D, links=tuple(link(A, one) for one in (B, C, D))))
    bench.hear(B, msgspec.structs.replace(report(bench), known_round=ROUNDS_MAX))
    lose(bench, D)
    alive(bench, B, C, seconds=SETTINGS.waits_told_s + 3 * SETTINGS.failure_timeout_s)
    told = sent(bench.out, RoundWaits)
    assert told and all(one.round <= ROUNDS_MAX for _, one in told)


def test_a_site_outside_the_roster_has_no_say_in_a_round_in_doubt() -> None:
    bench = leader_of(roster=roster_of(A, B, C, D, links=tuple(link(A, one) for one in (B, C, D))))
    lose(bench, D)
    assert bench.machine.roster.resolving
    epoch = bench.machine.roster.epoch
    answers = bench.machine.scheduler.term.resolution
    bench.hear(D, RoundStatusReply(epoch=epoch, done_round=9, digest="dd"))
    assert D not in answers.answers, "it is in the roster no more"
    bench.hear(B, RoundStatusReply(epoch=epoch, done_round=0, digest=""))
    bench.hear(C, RoundStatusReply(epoch=epoch, done_round=0, digest=""))
    assert not bench.machine.roster.resolving and bench.machine.roster.resolved_round == 0


def test_no_round_is_resolved_by_the_word_of_a_start_that_the_roster_does_not_name() -> None:
    """Be its renewal held back (seed 26 of the simulator, 25 sites): what its former life had said is gone with it."""
    bench = leader_of(roster=roster_of(A, B, C, D, links=tuple(link(A, one) for one in (B, C, D))))
    lose(bench, D)
    assert bench.machine.roster.resolving
    machine = bench.machine
    resolution, epoch = machine.scheduler.term.resolution, machine.roster.epoch
    resolution.answered(B, RoundStatusReply(epoch=epoch, done_round=0, digest=""))
    resolution.answered(C, RoundStatusReply(epoch=epoch, done_round=0, digest=""))
    machine.network.saw_incarnation(C, 2)
    assert resolution.step(machine.now_s).proposal is None
    bench.up(C, incarnation=2)
    record = machine.roster.record(C)
    assert record is not None and record.incarnation == 2 and machine.roster.resolving
    for site in (B, C):
        bench.hear(
            site, RoundStatusReply(epoch=machine.roster.epoch, done_round=0, digest=""), incarnation=1 + (site == C)
        )
    assert not machine.roster.resolving


def in_doubt() -> Bench:
    """D is lost; B has answered, C has not."""
    bench = leader_of(roster=roster_of(A, B, C, D, links=tuple(link(A, one) for one in (B, C, D))))
    lose(bench, D)
    answers(bench, B)
    assert bench.machine.roster.resolving
    return bench


def answers(bench: Bench, site: SiteId) -> None:
    bench.hear(site, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=0, digest=""))


ASKED_S = REPEATED_MAX * SETTINGS.retry_s
"""A site that never answers has so long, at least."""


def test_a_site_whose_links_are_up_and_that_never_answers_is_removed() -> None:
    bench = in_doubt()
    alive(bench, B, C, seconds=ASKED_S)
    assert bench.machine.roster.site_ids() == (A, B, C) and bench.machine.roster.resolving
    alive(bench, B, C, seconds=ASKED_S / 4)
    assert bench.machine.roster.site_ids() == (A, B) and bench.machine.roster.resolving, "all are asked anew"
    answers(bench, B)
    assert not bench.machine.roster.resolving
    done = [one for one in records(bench.taken()) if one.kind == "scale-in" and one.outcome == "done"]
    assert "it does not say how far it is" in done[-1].cause


def test_a_site_that_answers_at_last_has_all_the_time_again() -> None:
    bench = in_doubt()
    alive(bench, B, C, seconds=0.9 * ASKED_S)
    answers(bench, C)
    assert not bench.machine.roster.resolving
    lose(bench, B)
    assert bench.machine.roster.site_ids() == (A, C) and bench.machine.roster.resolving
    alive(bench, C, seconds=ASKED_S)
    assert bench.machine.roster.site_ids() == (A, C)


def test_a_scheduler_that_stood_still_has_asked_nobody_meanwhile() -> None:
    bench = in_doubt()
    bench.handle(moving(C), after_s=3 * ASKED_S)
    alive(bench, B, C, seconds=ASKED_S / 2)
    assert bench.machine.roster.site_ids() == (A, B, C)


def test_everybody_is_told_who_does_not_answer_until_it_does() -> None:
    bench = in_doubt()
    bench.taken()
    alive(bench, B, C, seconds=SETTINGS.waits_told_s + 1.5)
    told = sent(bench.taken(), RoundWaits)
    assert {site for site, _ in told} == {B, C}
    assert [(one.site, one.reason) for one in told[-1][1].waits] == [(C, UNANSWERED)] and not told[-1][1].limit_s
    assert "waits for the answer of site c" in bench.machine.participation.waits.reason()
    answers(bench, C)
    assert not bench.machine.participation.waits.waited_for
    alive(bench, B, C, seconds=2.0)
    assert not [one for _, one in sent(bench.taken(), RoundWaits) if one.waits]
