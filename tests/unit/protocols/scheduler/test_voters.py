"""Who votes, and how the scheduler's role passes to another site."""

from __future__ import annotations

import msgspec
from tests.unit.protocols.one_site import (
    A,
    B,
    Bench,
    C,
    D,
    E,
    leader_of,
    roster_of,
)
from tests.unit.protocols.scheduler.scheduler_kit import acknowledge, alive, asked_to_lead, down, elect, lose, report

from chaos_protocols import events
from chaos_protocols.agreement.raft.messages import (
    Configuration,
)
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.names import VOTERS_MAX, SiteId
from chaos_protocols.scheduler import proposals, voters
from chaos_protocols.wire.control import (
    LeaveRequest,
)


def test_a_scheduler_that_leaves_hands_the_role_to_another_voter() -> None:
    bench = Bench(A, roster_of(A, B, C), voters=(A, B, C)).up(B, C)
    elect(bench)
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    for _ in range(12):
        alive(bench, B, C, seconds=0.1)
        acknowledge(bench, B, C)
    assert asked_to_lead(bench) == [B]


def test_a_scheduler_that_is_the_only_voter_makes_another_one_before_it_leaves() -> None:
    bench = leader_of(B)
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    for _ in range(12):
        alive(bench, B, seconds=0.1)
        acknowledge(bench, B)
    assert B in bench.machine.configuration.voters


def test_a_scheduler_whose_only_successors_leave_too_or_are_away_keeps_the_role() -> None:
    bench = leader_of(B)
    bench.hear(B, LeaveRequest(incarnation=1, reason="me too"))
    bench.handle(events.LeaveRequested(request="r", reason="done"))
    alive(bench, B, seconds=1.0)
    assert bench.machine.configuration.voters == (A,) and bench.machine.scheduler.leading


def test_who_failed_and_still_hears_the_log_is_released_by_the_next_scheduler() -> None:
    gone = Departure(site=D, incarnation=1, last_round=0, cause="failed", reason="cut")
    roster = roster_of(A, B, departed=(gone,))
    with_site = msgspec.structs.replace(roster, sites=(*roster.sites, *roster_of(D).sites))
    bench = Bench(A, with_site, voters=(A,))
    bench.machine._roster = roster
    bench.up(B)
    alive(bench, B, seconds=bench.machine.settings.election_timeout_s + 0.5)
    assert D not in bench.machine.configuration.learners


def test_leaver_that_is_lost_before_its_release_does_not_hear_the_log_for_ever() -> None:
    bench = leader_of(B, C)
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    assert C in bench.machine.configuration.learners
    lose(bench, C)
    down(bench, B, C)
    bench.wait(0.3)
    assert C not in (*bench.machine.configuration.learners, *bench.machine.configuration.voters)
    gone = bench.machine.roster.departure(C, 1)
    assert gone is not None
    assert gone.cause == "left"


def test_leaver_whose_leave_nobody_remembers_is_released_from_the_agreement() -> None:
    """Until then it is believed, as one that hears the log."""
    bench = leader_of(B, C)
    bench.hear(B, report(bench))
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    assert bench.machine.roster.record(C) is None and C in bench.machine.configuration.learners
    assert bench.machine.is_trusted(C)
    negotiations = bench.machine.scheduler.term.negotiations
    for name in tuple(negotiations.all):
        negotiations.forget(name)
    alive(bench, B, C, seconds=0.5)
    assert C not in (*bench.machine.configuration.learners, *bench.machine.configuration.voters)
    assert not bench.machine.is_trusted(C)


SITES = tuple(SiteId(f"{number:032x}") for number in range(12))


def configuration(voters: tuple[SiteId, ...], learners: tuple[SiteId, ...] = ()) -> Configuration:
    return Configuration(voters=voters, learners=learners)


def test_voters_are_odd_in_number_and_bounded() -> None:
    assert [voters.voters_wanted(count) for count in (0, 1, 2, 3, 4, 5, 8, 9, 50)] == [
        1, 1, 1, 3, 3, 5, 7, 7, VOTERS_MAX
    ]  # fmt: skip


def test_the_voters_wanted_are_reached_one_step_at_a_time() -> None:
    members = SITES[:5]
    roster = roster_of(*members)
    found = configuration((members[0],), members[1:4])
    steps = []
    while (following := voters.next_voters(roster, found, members[0])) is not None:
        assert len({*following.voters} ^ {*found.voters}) <= 1, "one voter changes at a time"
        found = following
        steps.append(len(found.voters))
    assert set(found.voters) == set(members) and steps == [1, 2, 3, 4, 5]


def test_a_voter_that_is_no_member_loses_its_vote_and_a_surplus_one_too() -> None:
    roster = roster_of(A, B)
    stranger = voters.next_voters(roster, configuration((A, B, E)), A)
    assert stranger == configuration((A, B), (E,))
    surplus = voters.next_voters(roster, configuration((A, B)), A)
    assert surplus == configuration((A,), (B,))
    assert voters.next_voters(roster, configuration((A,), (B,)), A) is None


def test_a_scheduler_that_is_no_member_is_never_the_surplus() -> None:
    assert voters.next_voters(roster_of(A), configuration((B,), (A,)), B) is None
    assert voters.next_voters(roster_of(A, B), configuration((A, B)), B) == configuration((B,), (A,))


def test_a_voter_is_not_made_a_learner_by_the_way() -> None:
    found = configuration((A,))
    assert proposals.with_learner(found, A) is found
