"""A leaver that alone has the state takes it along; those that stay wait for it, and take nothing older in silence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.unit.protocols.one_site import SETTINGS, A, B, Bench, C, leader_of, link, roster_of
from tests.unit.protocols.scheduler.scheduler_kit import alive, holds, lose, report
from tests.unit.protocols.scheduler.test_operator import spoken
from tests.unit.protocols.scheduler.test_restore_point import asks, disk

from chaos_protocols.agreement.commands import RemoveSite
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.scheduler.removals import Removal, remove_site
from chaos_protocols.scheduler.reports import ROUNDS_MAX
from chaos_protocols.wire.control import LeaveRequest, RoundStatusReply
from chaos_protocols.wire.plans import CheckpointFacts

LINEAGE, REACHED = 3, 7


def run_of(*active: str, at: int = 0, **changes: Any) -> Bench:
    """A leads; of B and C those train that are named. `at`: the round of which B's worker has the state all the same,
    though its script gives nothing more."""
    roster = roster_of(A, B, C, restore_epoch=LINEAGE, resolved_round=REACHED, first_round=REACHED + 1, **changes)
    bench = leader_of(roster=msgspec.structs.replace(roster, **spoken(roster)))
    holds(bench, REACHED, "digest")
    for site in (B, C):
        said = report(bench, active=site in active)
        worker = at if site == B else 0
        bench.hear(site, msgspec.structs.replace(said, done_round=REACHED, known_round=REACHED, worker_round=worker))
    return bench


def departure(bench: Bench) -> Departure:
    gone = bench.machine.roster.departure(B, 1)
    assert gone is not None and gone.cause == "left"
    return gone


OWN = disk(REACHED, lineage=LINEAGE)


@pytest.mark.parametrize(
    ("active", "keeps", "newest"),
    [
        ((B,), OWN, REACHED + 1),
        ((), OWN, REACHED),
        ((), disk(REACHED + 5, lineage=LINEAGE), REACHED),
        ((), disk(3, lineage=LINEAGE), 3),
        ((), disk(REACHED, lineage=LINEAGE + 1), REACHED),
        ((), disk(REACHED, lineage=LINEAGE - 1), None),
        ((B,), None, None),
        ((B, C), OWN, None),
        ((C,), OWN, None),
    ],
    ids=[
        "it trains, up to its last round",
        "it trains no more",
        "it says more than is known to be done",
        "its worker has not the state, its disk an older one",
        "journals were lost, and its disk knows a later history",
        "what it has was given up",
        "it keeps nothing",
        "another one trains",
        "only another one trains",
    ],
)
def test_a_leaver_takes_along_what_is_waited_for_where_nobody_else_has_the_state_and_it_keeps_it(
    active: tuple[str, ...], keeps: CheckpointFacts | None, newest: int | None
) -> None:
    bench = run_of(*active)
    bench.hear(B, LeaveRequest(incarnation=1, reason="done", keeps=keeps))
    gone = departure(bench)
    taken = (0, 0, "") if newest is None else (LINEAGE, newest, "site b")
    assert (gone.lineage, gone.newest_round, gone.name) == taken


def test_a_leaver_whose_script_gives_nothing_more_has_all_rounds_up_to_its_last_one() -> None:
    """Its part of the round that was in doubt had been given."""
    bench = run_of(at=REACHED)
    bench.hear(B, LeaveRequest(incarnation=1, reason="done", keeps=OWN))
    assert departure(bench).newest_round == REACHED + 1


def test_a_leaver_goes_when_it_is_known_whether_its_worker_trains() -> None:
    """A scheduler that was just elected has heard nobody yet; the leaver does rounds up to its last one."""
    roster = roster_of(A, B, C, restore_epoch=LINEAGE, resolved_round=REACHED, first_round=REACHED + 1)
    bench = leader_of(roster=msgspec.structs.replace(roster, **spoken(roster)))
    holds(bench, REACHED, "digest")
    bench.hear(B, LeaveRequest(incarnation=1, reason="done", keeps=OWN))
    assert bench.machine.roster.departure(B, 1) is None
    bench.hear(B, msgspec.structs.replace(report(bench, active=True), done_round=REACHED, known_round=REACHED))
    bench.hear(B, LeaveRequest(incarnation=1, reason="done", keeps=OWN))
    assert departure(bench).newest_round == REACHED + 1


def test_what_a_leaver_took_along_when_it_failed_before_says_nothing() -> None:
    """The same start of it has joined again since."""
    failed = Departure(
        site=B, incarnation=1, last_round=3, cause="failed", reason="", lineage=LINEAGE, newest_round=3, name="site b"
    )
    for active, newest in (((B,), REACHED + 1), ((B, C), 0)):
        bench = run_of(*active, departed=(failed,))
        bench.hear(B, LeaveRequest(incarnation=1, reason="done", keeps=OWN))
        assert departure(bench).newest_round == newest


@pytest.mark.parametrize("done", [REACHED, REACHED + 1], ids=["it was not done", "it was done"])
def test_a_leaver_whose_last_round_is_resolved_without_it_has_taken_along_what_was_done(done: int) -> None:
    """That counts after a restart of everybody, too, who then would wait for a round that never was."""
    bench = run_of(B)
    bench.hear(B, LeaveRequest(incarnation=1, reason="done", keeps=OWN))
    before = departure(bench)
    assert before.newest_round == REACHED + 1, "its last one, that is to be done yet"
    bench.hear(C, msgspec.structs.replace(report(bench, active=False), done_round=done, known_round=done))
    lose(bench, B)
    alive(bench, C, seconds=2 * SETTINGS.failure_timeout_s)
    gone = departure(bench)
    assert bench.machine.roster.resolving
    assert (gone.lineage, gone.newest_round, gone.name) == (LINEAGE, done, before.name)


def test_a_leaver_that_nobody_remembers_has_taken_along_all_of_its_last_rounds() -> None:
    """All daemons were restarted since: what it was said to take along stands."""
    bench = run_of(B)
    bench.hear(B, LeaveRequest(incarnation=1, reason="done", keeps=OWN))
    before = departure(bench)
    asked = Removal(site=B, incarnation=1, graceful=False, left=True, resolve=True, reason="left, and has ended")
    nobody_remembers = replace(bench.machine.scheduler._situation(), newest_round=ROUNDS_MAX)
    command = remove_site(nobody_remembers, asked).command
    assert isinstance(command, RemoveSite) and command.departure.newest_round == before.newest_round


def test_those_that_stay_wait_for_what_a_leaver_alone_has() -> None:
    """The worker of C comes back when B is gone, and its disk has an older state."""
    bench = run_of(B)
    bench.hear(B, LeaveRequest(incarnation=1, reason="done", keeps=OWN))
    lose(bench, B)
    alive(bench, C, seconds=2 * SETTINGS.failure_timeout_s)
    how_far = RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=REACHED, digest="digest")
    bench.hear(C, how_far)
    assert not bench.machine.roster.resolving
    asks(bench, A)
    asks(bench, C, checkpoint=disk(REACHED - 4, lineage=LINEAGE))
    alive(bench, C, seconds=SETTINGS.restore_wait_s)
    restore_point = bench.machine.scheduler.term.restore_point
    assert "waiting for site b (it has left with what nobody else had" in restore_point.waiting


def waits_for_a_leaver(newest: int, *, known: int, noted: int) -> bool:
    """C has left with all rounds up to `newest`; of B `known` is what its daemon knows, and `noted` its journal. What
    can be had is of round 8."""
    gone = Departure(
        site=C, incarnation=1, last_round=9, cause="left", reason="", lineage=LINEAGE, newest_round=newest, name="c"
    )
    roster = roster_of(A, B, restore_epoch=LINEAGE, departed=(gone,), resolved_round=REACHED, first_round=REACHED + 1)
    bench = leader_of(roster=roster)
    said = report(bench, active=False)
    bench.hear(B, msgspec.structs.replace(said, done_round=known, known_round=known, reached_round=noted))
    alive(bench, B, seconds=2 * SETTINGS.failure_timeout_s)
    asks(bench, B, checkpoint=disk(8, lineage=LINEAGE))
    asks(bench, A)
    alive(bench, B, seconds=SETTINGS.restore_wait_s)
    return "c (it has left with what nobody else had" in bench.machine.scheduler.term.restore_point.waiting


def test_of_a_leavers_last_rounds_those_count_that_were_done() -> None:
    assert waits_for_a_leaver(9, known=9, noted=9), "done"
    assert not waits_for_a_leaver(9, known=8, noted=8), "not done"
    assert not waits_for_a_leaver(8, known=9, noted=9), "done without it"


def test_where_all_daemons_were_restarted_a_leavers_last_rounds_may_have_been_done() -> None:
    """Nobody remembers, and journals note a round every so often (seeds 6159872 and 6159918 of the simulator)."""
    assert waits_for_a_leaver(9, known=0, noted=8)
    assert not waits_for_a_leaver(8, known=0, noted=7), "it has no more than what can be had"


def test_a_leaver_that_cannot_go_yet_and_alone_has_the_state_is_waited_for() -> None:
    """It holds the overlay together; what lies on another disk is older."""
    bench = run_of(at=REACHED)
    asks(bench, A)
    asks(bench, C, checkpoint=disk(REACHED - 4, lineage=LINEAGE))
    alive(bench, B, C, seconds=SETTINGS.restore_wait_s + SETTINGS.transfer_stall_s)
    restore_point = bench.machine.scheduler.term.restore_point
    assert f"waiting for site b (its worker has the state of round {REACHED}" in restore_point.waiting
    assert bench.machine.roster.restore_epoch == LINEAGE


def test_a_leaver_that_cannot_go_yet_takes_along_what_it_has_by_then() -> None:
    """It holds the overlay together; when it has asked first its disk had an older state, and another one trained."""
    for last in (OWN, None):
        bench = run_of(B, C, links=(link(A, B), link(B, C)))
        bench.hear(B, LeaveRequest(incarnation=1, reason="done", keeps=disk(2, lineage=LINEAGE) if last else OWN))
        roster = bench.machine.roster
        assert roster.record(B) is not None
        for site in (B, C):
            said = report(bench, active=False)
            bench.hear(site, msgspec.structs.replace(said, done_round=REACHED, known_round=REACHED))
        bench.hear(B, LeaveRequest(incarnation=1, reason="done", keeps=last))
        bench.pretend(msgspec.structs.replace(roster, links=(*roster.links, link(A, C))))
        alive(bench, B, C, seconds=1.0)
        assert departure(bench).newest_round == (REACHED if last else 0)


def test_where_all_end_at_once_nobody_is_left_to_wait() -> None:
    """The workers of A and C have the state, too, and both leave. Who only pauses, or has not the state, stays."""
    for own, rests, newest in ((True, "", 0), (True, "it evaluates", REACHED + 1), (False, "", REACHED + 1)):
        bench = run_of(at=REACHED)
        bench.machine.rounds.delivery.worker_round = REACHED if own else None
        said = msgspec.structs.replace(report(bench, active=False), done_round=REACHED, known_round=REACHED)
        bench.hear(C, msgspec.structs.replace(said, worker_round=REACHED, rests=rests))
        alive(bench, B, C, seconds=1.0)
        bench.hear(B, LeaveRequest(incarnation=1, reason="done", keeps=OWN))
        assert departure(bench).newest_round == newest


def test_who_has_just_lost_the_state_at_the_scheduler_is_none_that_ends() -> None:
    """What the scheduler's own site has told itself with its last beat is of before."""
    roster = roster_of(A, B, restore_epoch=LINEAGE, resolved_round=REACHED, first_round=REACHED + 1)
    bench = leader_of(roster=msgspec.structs.replace(roster, **spoken(roster)))
    holds(bench, REACHED, "digest")
    trains = msgspec.structs.replace(report(bench), done_round=REACHED, known_round=REACHED, worker_round=REACHED)
    bench.machine.tell(A, trains)
    bench.hear(B, trains)
    assert not bench.machine.own_report().worker_round, "it has lost the state since"
    bench.hear(B, LeaveRequest(incarnation=1, reason="done", keeps=OWN))
    assert (departure(bench).lineage, departure(bench).newest_round) == (LINEAGE, REACHED + 1)
