"""Whose state a run may go on from, and when it is certain that nobody trains."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.protocols.one_site import (
    EPOCH,
    MODEL,
    SETTINGS,
    A,
    B,
    C,
    D,
    leader_of,
    link,
    moving,
    record,
    roster_of,
    sent,
)
from tests.unit.protocols.scheduler.scheduler_kit import (
    alive,
    refusing,
    report,
)

from chaos_protocols import events
from chaos_protocols.agreement.commands import AddSite, SetRestorePoint
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.names import ROUNDS_DONE_MAX, SiteId
from chaos_protocols.scheduler.reports import ROUNDS_MAX
from chaos_protocols.scheduler.restore_offers import ASKERS_MAX
from chaos_protocols.wire.control import (
    CaughtUp,
    JoinRequest,
    SiteStatus,
    StateRequest,
)
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.recovery import RecoverAnswer, RecoverRequest


def request(worker_round: int = 0) -> StateRequest:
    return StateRequest(incarnation=1, worker_round=worker_round, model=MODEL, reason="")


def test_a_run_without_a_model_takes_the_first_worker_that_says_hello() -> None:
    bench = leader_of(roster=roster_of(A, model=None, started=False))
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    roster = bench.machine.roster
    assert roster.model == MODEL and roster.started and bench.machine.rounds.active


def test_a_run_goes_on_from_the_worker_with_the_newest_state() -> None:
    bench = leader_of(roster=roster_of(A, B, resolved_round=5, first_round=6))
    bench.hear(B, report(bench, active=False, done_round=5))
    bench.hear(B, request(5))
    alive(bench, B, seconds=1.5)
    assert bench.machine.roster.restored_from == (B, 1)


def test_an_older_state_is_taken_only_when_every_worker_has_said_what_it_has() -> None:
    for spoke in (True, False):
        bench = leader_of(roster=roster_of(A, B, resolved_round=5, first_round=6))
        bench.hear(B, report(bench, active=False, done_round=5))
        if spoke:
            bench.handle(events.WorkerReady(model=MODEL, round=0))
        for _ in range(int(SETTINGS.transfer_stall_s) + 3):
            bench.hear(B, request(3))
            alive(bench, B, seconds=1.0, step_s=0.25)
        assert (bench.machine.roster.restored_from == (B, 1)) == spoke


def test_a_worker_that_trained_until_its_daemon_ended_is_not_compared_with_others() -> None:
    """All daemons were restarted, so none remembers a round; nobody can have more than one round more."""
    for trained in (True, False):
        bench = leader_of(roster=roster_of(A, B, restore_epoch=3))
        bench.hear(B, msgspec.structs.replace(report(bench, active=False), reached_round=40))
        bench.hear(B, msgspec.structs.replace(request(41), trained=trained))
        alive(bench, B, seconds=2.0)
        assert (bench.machine.roster.restored_from == (B, 1)) == trained


def test_that_nobody_can_have_more_than_a_worker_that_had_trained_counts_until_more_is_done() -> None:
    """It was said after a restart, then the others went on without it, and its worker died (seed 9055453, 3 sites)."""
    gone = Departure(site=C, incarnation=1, last_round=43, cause="failed", reason="", lineage=3, newest_round=43)
    for offered in (41, 42):
        bench = leader_of(roster=roster_of(A, B, restore_epoch=3, resolved_round=43, first_round=44, departed=(gone,)))
        bench.hear(B, report(bench, active=False, done_round=43))
        bench.hear(B, msgspec.structs.replace(request(offered), trained=True))
        alive(bench, B, seconds=2.0)
        assert (bench.machine.roster.restored_from == (B, 1)) == (offered == 42)


def test_nothing_is_restored_while_a_member_has_not_reported() -> None:
    bench = leader_of(roster=roster_of(A, B, C, resolved_round=5, first_round=6))
    bench.hear(B, report(bench, active=False, done_round=5))
    bench.hear(B, request(5))
    alive(bench, B, C, seconds=2.0)
    assert bench.machine.roster.restored_from is None


@pytest.mark.parametrize("was_there", [True, False])
def test_a_site_outside_can_bring_the_newest_state_back_where_it_was_in_the_run(was_there: bool) -> None:
    """Whoever one member merely lets connect would otherwise own the model, and be a member, by naming a far round."""
    gone = Departure(site=D, incarnation=0, last_round=5, cause="failed", reason="", newest_round=5)
    roster = roster_of(A, B, resolved_round=5, first_round=6, departed=(gone,) if was_there else ())
    bench = leader_of(roster=roster)
    bench.hear(B, report(bench, active=False, done_round=5))
    bench.up(D)
    ask = JoinRequest(
        name="d", address="d:1", public_key=b"", incarnation=1, neighbours=(A,), model=MODEL,
        worker_round=5 if was_there else 1 << 40,
    )  # fmt: skip
    far = msgspec.structs.replace(ask, neighbours=(B,), name="e")
    for _ in range(8):
        bench.hear(D, ask)
        bench.hear(C, far, by=B)
        alive(bench, B, D, seconds=0.25)
    assert (bench.machine.roster.restored_from == (D, 1)) == (D in bench.machine.roster.member_ids()) == was_there


def test_a_run_begins_with_no_fresh_state_of_a_site_that_never_was_in_it() -> None:
    """Whoever one member merely lets connect would choose what all begin with, whatever history it says it is of."""
    ask = JoinRequest(
        name="d", address="d:1", public_key=b"", incarnation=1, neighbours=(A,), model=MODEL, worker_round=0
    )
    for lineage in (0, 1 << 50):
        bench = leader_of(roster=roster_of(A, B)).up(D)
        for _ in range(8 * round(SETTINGS.transfer_stall_s)):
            bench.hear(D, msgspec.structs.replace(ask, lineage=lineage))
            bench.hear(B, report(bench, active=False, done_round=0))
            alive(bench, B, D, seconds=0.25)
        assert bench.machine.roster.restored_from is None and D not in bench.machine.roster.member_ids()
        bench.hear(B, request())
        alive(bench, B, D, seconds=1.0)
        assert bench.machine.roster.restored_from == (B, 1)


def test_a_fresh_worker_is_of_no_history_whatever_its_daemon_calls_it() -> None:
    bench = leader_of(roster=roster_of(A, B, C))
    for site, lineage in ((B, 0), (C, 1 << 50)):
        bench.hear(site, report(bench, active=False, done_round=0))
        bench.hear(site, msgspec.structs.replace(request(), lineage=lineage))
    while bench.machine.roster.restored_from is None and bench.now_s < 160.0:
        alive(bench, B, C, seconds=0.25)
    assert bench.machine.roster.restored_from == (B, 1), "the lower id"


def test_a_guest_does_not_decide_as_an_operator_from_which_state_the_run_goes_on() -> None:
    """It would name its own, or an old one."""
    bench = leader_of(roster=roster_of(A, B, resolved_round=5, first_round=6)).up(D)
    bench.hear(B, report(bench, active=False, done_round=5))
    ask = JoinRequest(
        name="d", address="d:1", public_key=b"", incarnation=1, neighbours=(A,), model=MODEL, worker_round=9
    )
    bench.hear(D, ask)
    bench.taken()
    out = bench.hear(D, RecoverRequest(request="evil-1", origin="d", round=9))
    alive(bench, B, D, seconds=2.0)
    assert bench.machine.roster.restored_from is None and not sent(out, RecoverAnswer)


def test_what_a_site_offered_while_its_transfer_waited_for_its_turn_is_void_once_that_begins() -> None:
    """Its worker trains on, dies, and would be believed to have the state of long ago still."""
    bench = leader_of(B, C, D)
    bench.hear(B, report(bench))
    bench.hear(C, request())
    for _ in range(2):
        bench.hear(D, msgspec.structs.replace(request(10), trained=True))
    offers, first = bench.machine.scheduler.term.restore_point.offers, bench.machine.roster.replication
    assert first is not None and first.joiner == C and D in offers.state_requests
    bench.hear(C, CaughtUp(round=0, transfer=first.transfer))
    bench.hear(B, report(bench, done_round=3))
    second = bench.machine.roster.replication
    assert second is not None and second.joiner == D and D not in offers.state_requests


def stranger_asks(number: int, **changes: Any) -> tuple[SiteId, JoinRequest]:
    site = SiteId(f"{number:032x}")
    ask = JoinRequest(
        name="s", address="s:1", public_key=b"", incarnation=1, neighbours=(A,), model=MODEL, worker_round=5
    )
    return site, msgspec.structs.replace(ask, **changes)


def test_what_a_site_offered_before_it_was_let_in_is_void() -> None:
    """Its worker is given another state; when that one dies, the run would be taken back to the one of then."""
    for admitted in (True, False):
        bench = leader_of(B)
        scheduler, (site, ask) = bench.machine.scheduler, stranger_asks(1)
        offers = scheduler.term.restore_point.offers
        offers.outside(site, ask)
        let_in = record(site if admitted else D, state="learner")
        command = AddSite(record=let_in, links=(), views=bench.machine.roster.views, replication=None)
        scheduler.committed(command, EPOCH + 1, now_s=bench.now_s)
        assert (site in offers.join_requests) is not admitted


def test_what_a_joiner_has_counts_where_it_is_linked_with_a_member_and_not_where_it_says_so() -> None:
    gone = Departure(site=D, incarnation=0, last_round=5, cause="failed", reason="", newest_round=5)
    bench = leader_of(roster=roster_of(A, B, resolved_round=5, first_round=6, departed=(gone,)))
    offers, (_, ask) = bench.machine.scheduler.term.restore_point.offers, stranger_asks(0)
    offers.outside(D, ask)
    assert not offers.candidates()
    bench.up(D)
    assert [one.record.site for one in offers.candidates()] == [D]
    offers.outside(D, msgspec.structs.replace(ask, neighbours=(B,)))
    assert not offers.candidates()


def test_of_strangers_that_ask_to_join_a_number_is_remembered() -> None:
    """Those that asked last; who was in the run has its room beside them."""
    gone = Departure(site=D, incarnation=0, last_round=5, cause="failed", reason="", newest_round=5)
    bench = leader_of(roster=roster_of(A, B, resolved_round=5, first_round=6, departed=(gone,)))
    offers = bench.machine.scheduler.term.restore_point.offers
    offers.outside(D, stranger_asks(0)[1])
    for number in range(1, 3 * ASKERS_MAX):
        offers.outside(*stranger_asks(number))
    last = [stranger_asks(number)[0] for number in range(2 * ASKERS_MAX, 3 * ASKERS_MAX)]
    assert list(offers.join_requests) == [D, *last]


def test_what_comes_late_of_a_site_that_trains_by_now_is_no_offer() -> None:
    bench = leader_of(B)
    bench.hear(B, report(bench))
    bench.hear(B, msgspec.structs.replace(request(10), trained=True))
    bench.hear(B, report(bench, active=False, done_round=11))
    alive(bench, B, seconds=2.0)
    assert bench.machine.roster.restored_from is None


def test_a_candidate_that_the_overlay_does_not_connect_is_not_restored_from() -> None:
    bench = leader_of(roster=roster_of(A, B, resolved_round=5, first_round=6))
    bench.pretend(msgspec.structs.replace(bench.machine.roster, links=()))
    later_s = bench.now_s + 5.0
    term = bench.machine.scheduler.term
    term.reports.take(B, report(bench, active=False, done_round=5), now_s=later_s)
    term.restore_point.offers.inside(B, request(5))
    assert term.restore_point.step(later_s) is None
    bench.pretend(msgspec.structs.replace(bench.machine.roster, links=(link(A, B),)))
    decision = term.restore_point.step(later_s)
    assert decision is not None and isinstance(decision.proposal.command, SetRestorePoint)


def test_learners_of_a_transfer_whose_sources_are_gone_leave_before_another_state_is_taken() -> None:
    bench = leader_of(roster=roster_of(A, B, learners=(D,), resolved_round=5, first_round=6))
    bench.hear(B, report(bench, active=False, done_round=5))
    bench.hear(B, request(5))
    for _ in range(10):
        alive(bench, B, D, seconds=0.3)
        if bench.machine.roster.resolving:
            break
    assert bench.machine.roster.record(D) is None


def test_a_refused_restore_point_forgets_no_candidate() -> None:
    bench = leader_of(roster=roster_of(A, model=None, started=False))
    real = refusing(bench)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    assert bench.machine.roster.model is None and A in bench.machine.scheduler.term.restore_point.offers.state_requests
    bench.machine.propose = real  # type: ignore[method-assign]
    bench.wait(1.0)
    assert bench.machine.roster.model == MODEL


def test_round_that_only_a_removed_site_has_reported_is_not_waited_for() -> None:
    """It may have been void, or the first round to come of a learner: nobody alive could ever bring its state."""
    reports = leader_of(B).machine.scheduler.term.reports
    told = SiteStatus(incarnation=1, epoch=EPOCH, done_round=50, active=False, transfer_bytes=0, known_round=50)
    reports.take(C, told, now_s=0.0)
    assert reports.newest_round() == 0
    reports.take(B, msgspec.structs.replace(told, known_round=7, incarnation=2), now_s=0.0)
    assert reports.newest_round() == 0
    reports.take(B, msgspec.structs.replace(told, known_round=7), now_s=0.0)
    assert reports.newest_round() == 7


def test_second_worker_is_not_taken_over_before_the_first_could_say_that_it_trains() -> None:
    bench = leader_of(B, C)
    bench.hear(B, report(bench, active=False, done_round=5))
    bench.hear(C, report(bench, active=False, done_round=5))
    alive(bench, B, C, seconds=2 * SETTINGS.failure_timeout_s)
    bench.hear(B, StateRequest(incarnation=1, worker_round=5, model=MODEL, reason=""))
    assert bench.machine.roster.restored_from == (B, 1)
    bench.hear(C, StateRequest(incarnation=1, worker_round=5, model=MODEL, reason=""))
    for _ in range(4):  # every link lives, and C has spoken since
        bench.hear(C, report(bench, active=False, done_round=5))
        bench.handle(moving(B))
        bench.wait(SETTINGS.failure_timeout_s / 2)
    assert bench.machine.roster.restored_from == (B, 1)


def test_what_a_member_said_of_its_worker_before_this_site_stood_still_is_no_evidence() -> None:
    """Its messages lie unread when this site wakes (seed 26918 of the simulator, 4 sites)."""
    bench = leader_of(B, C)
    for site in (B, C):
        bench.hear(site, report(bench, active=False, done_round=5))
    bench.now_s += 3 * SETTINGS.failure_timeout_s
    bench.hear(C, report(bench, active=False, done_round=5))
    bench.hear(C, StateRequest(incarnation=1, worker_round=5, model=MODEL, reason=""))
    assert bench.machine.roster.restored_from is None
    bench.hear(B, report(bench, active=False, done_round=5))
    assert bench.machine.roster.restored_from == (C, 1)


@pytest.mark.parametrize("far", [ROUNDS_DONE_MAX + 1, ROUNDS_MAX])
@pytest.mark.parametrize("stored", [True, False])
def test_a_state_of_a_round_that_nobody_can_have_done_is_nobodys_and_ends_no_scheduler(far: int, stored: bool) -> None:
    """After the last number there is none: what it would have agreed on could be read by nobody, itself included."""
    disk = CheckpointFacts(lineage=0, round=far, spec_digest=MODEL.spec_digest)
    bench = leader_of(roster=roster_of(A, B, resolved_round=5, first_round=6))
    bench.hear(B, report(bench, active=False, done_round=5))
    for _ in range(2 * round(SETTINGS.restore_wait_s)):
        asked = request(0 if stored else far)
        bench.hear(B, msgspec.structs.replace(asked, trained=True, checkpoint=disk if stored else None))
        alive(bench, B, seconds=0.5, step_s=0.25)
    assert bench.machine.roster.restored_from is None and bench.machine.roster.resolved_round == 5
    order = RecoverRequest(request="o", origin="site b", round=far)
    assert [one.done for _, one in sent(bench.hear(B, order), RecoverAnswer)] == [False]
