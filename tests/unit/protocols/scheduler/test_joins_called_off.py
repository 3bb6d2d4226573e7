"""Joins that are called off, leaves that come early, requests that come late: what is answered, and remembered."""

from __future__ import annotations

from tests.unit.protocols.one_site import (
    MODEL,
    A,
    B,
    C,
    D,
    E,
    leader_of,
    link,
    records,
    sent,
)
from tests.unit.protocols.scheduler.scheduler_kit import (
    accepting,
    connected,
    down,
    join,
    leave,
    lose,
    refusing,
    report,
    training,
)

from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.admission import TURNED_BACK_MAX
from chaos_protocols.scheduler.negotiation import ScaleOut
from chaos_protocols.scheduler.negotiation.base import ProposalLost
from chaos_protocols.scheduler.negotiation.scale_out import ScaleOutState
from chaos_protocols.scheduler.running import REFUSED_MAX
from chaos_protocols.wire.control import (
    JoinRequest,
    LeaveAnswer,
    LeaveRequest,
    LinkRequest,
    StateRequest,
)


def test_two_sites_may_ask_to_join_at_the_same_time_and_come_in_one_after_the_other() -> None:
    bench = training(B)
    assert join(bench, D, B).accepted and join(bench, E, B).accepted
    connected(bench, B, E)
    connected(bench, B, D)
    assert bench.machine.roster.learner_ids() == (E,), "one state transfer at a time"


def test_a_joiner_does_not_wait_behind_a_transfer_when_no_member_trains_any_more() -> None:
    """It may have what the run waits for, which is heard when it asks again, and no negotiation of it runs."""
    bench = training(B)
    join(bench, D, B)
    join(bench, E, B)
    connected(bench, B, E)
    connected(bench, B, D)
    assert join(bench, D, B).accepted, "its turn comes after the transfer to E"
    bench.hear(B, report(bench, active=False))
    assert bench.machine.roster.learner_ids() == (E,), "nobody has ended the transfer before"
    told = join(bench, D, B)
    assert not told.accepted and "training state" in told.reason
    assert D in bench.machine.scheduler.term.restore_point.offers.join_requests


def test_a_joiner_that_leaves_while_it_is_being_connected_may_go_and_its_late_request_is_refused() -> None:
    bench = training(B)
    join(bench, E, B)
    join(bench, D, B)
    assert [one.finished for one in leave(bench, D)] == [True]
    assert [one.joiner for one in bench.machine.scheduler.negotiations.values() if isinstance(one, ScaleOut)] == [E]
    told = join(bench, D, B)
    assert not told.accepted and "under way for long" in told.reason
    assert join(bench, D, B, incarnation=2).accepted, "its next start is another one"


def test_a_joiner_that_leaves_while_its_admission_is_being_agreed_is_answered_when_that_is_clear() -> None:
    bench = training(B)
    join(bench, D, B)
    real = refusing(bench)
    connected(bench, B, D)
    assert leave(bench, D) == []
    accepting(bench, real)
    assert D in bench.machine.roster.learner_ids()
    leave(bench, D)
    assert bench.machine.roster.record(D) is None


def test_a_joiner_that_leaves_while_its_admission_is_in_the_log_is_answered_when_that_is_clear() -> None:
    """Its negotiation has failed since: nobody reached it. The entry may be agreed all the same, by the next scheduler
    (seed 6166017 of the simulator, 5 sites with a guest)."""
    bench = training(B)
    join(bench, D, B)
    machine = bench.machine
    machine.propose = lambda *_: machine.scheduler.appended(1 << 20) is None  # type: ignore[method-assign]
    connected(bench, B, D)
    lose(bench, D)
    down(bench, B, D)
    assert not machine.scheduler.negotiations and machine.scheduler.term.proposer.in_flight is not None
    bench.up(D)
    assert leave(bench, D) == []


def test_a_leaver_that_asks_once_more_to_join_by_an_old_request_is_not_let_in_again() -> None:
    bench = training(B, C)
    leave(bench, C)
    told = join(bench, C, A)
    assert not told.accepted and "has left the run" in told.reason


def test_a_restarted_daemon_that_leaves_is_answered_when_its_former_self_is_out() -> None:
    bench = training(B, C)
    real = refusing(bench)
    assert leave(bench, C, incarnation=2) == []
    accepting(bench, real)


def test_of_those_that_left_before_they_were_in_a_bounded_number_is_remembered_the_latest() -> None:
    bench = training(B)
    strangers = [SiteId(f"{number:032x}") for number in range(TURNED_BACK_MAX + 3)]
    for site in strangers:
        leave(bench, site)
    assert list(bench.machine.scheduler.turned_back.sites) == strangers[3:]


def test_a_member_none_of_whose_neighbours_has_the_state_is_told_why_it_gets_none() -> None:
    bench = training(B, C, links=(link(A, B), link(A, C)))
    bench.hear(C, StateRequest(incarnation=1, worker_round=0, model=MODEL, reason=""))
    told = records(bench.out, "scale-out")[-1]
    assert told.outcome == "failed" and "none of its neighbours has the training state" in told.reason


def test_a_leaver_whose_removal_is_not_agreed_yet_is_not_answered_yet() -> None:
    bench = leader_of(B, C)
    real = refusing(bench)
    bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    out = bench.hear(C, LeaveRequest(incarnation=1, reason="done"))
    assert not sent(out, LeaveAnswer)
    accepting(bench, real)
    assert sent(bench.out, LeaveAnswer)


def test_a_leave_and_a_link_do_not_disturb_somebody_elses_transfer() -> None:
    bench = leader_of(B, C, D)
    bench.hear(B, report(bench))
    bench.hear(C, StateRequest(incarnation=1, worker_round=0, model=MODEL, reason=""))
    bench.hear(D, LinkRequest(request="r", other=B, add=False, reason=""))
    bench.hear(D, LeaveRequest(incarnation=1, reason="done"))
    plan = bench.machine.roster.replication
    assert plan is not None and plan.joiner == C


def test_of_those_that_were_judged_and_not_let_in_a_bounded_number_is_remembered_the_latest() -> None:
    """Each is judged again after a while: who asks once more before that is told the same."""
    bench = training(B)
    running = bench.machine.scheduler.term.negotiations
    for number in range(REFUSED_MAX + 3):
        request = JoinRequest(
            name="d", address="d:1", public_key=b"", incarnation=1, neighbours=(B,), model=MODEL, worker_round=0
        )
        joining = ScaleOut(
            running.name("out"),
            joiner=SiteId(f"{number:032x}"),
            request=request,
            cause="it asked",
            now_s=bench.now_s,
            state=ScaleOutState.ADMITTING,
        )
        running.start(joining, [])
        running.feed(joining.identifier, ProposalLost(reason="its links are too slow", final=True, refused=True))
    told = [bool(running.refusal(SiteId(f"{number:032x}"))) for number in range(REFUSED_MAX + 3)]
    assert told == [False] * 3 + [True] * REFUSED_MAX
