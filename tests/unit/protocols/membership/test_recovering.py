"""How an operator's word gets to the scheduler: asked again until it is answered, and never for ever."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.follower import Follower, finish_round, of, training_member
from tests.unit.protocols.one_site import MODEL, A, B, Bench, D, heartbeat, record, roster_of, sent

from chaos_protocols import events
from chaos_protocols.agreement.commands import RemoveSite, SetRestorePoint
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.agreement.views import make_view
from chaos_protocols.effects import AnswerRequest
from chaos_protocols.membership.recovering import RECOVER_TRIES_MAX
from chaos_protocols.wire.recovery import RecoverAnswer, RecoverRequest, RunWaits
from chaos_protocols.wire.versions import Versions

WORD = events.RecoverRequested(request="user-1", origin="b", round=7)


def member(*, speaks: int = 4) -> Follower:
    """D, without a worker; the scheduler is A."""
    bench = Follower(D, roster_of(A, B, D))
    newest = Versions(oldest=2, newest=speaks)
    bench.machine.network.versions.heard(A, 2, newest, "")
    bench.taken()
    return bench


def test_it_is_asked_again_until_it_is_answered_once() -> None:
    bench = member()
    asked = RecoverRequest(request="user-1", origin="b", round=7)
    assert sent(bench.handle(WORD), RecoverRequest) == [(A, asked)]
    assert sent(bench.alive(2.0), RecoverRequest)
    answer = RecoverAnswer(request="user-1", done=True, reason="the run goes on")
    told = of(bench.hear(A, answer), AnswerRequest)
    assert told == [AnswerRequest(request="user-1", done=True, reason="the run goes on")]
    assert not of(bench.hear(A, answer), AnswerRequest) and not sent(bench.alive(2.0), RecoverRequest)


def test_it_is_carried_out_by_an_entry_and_not_asked_again_whatever_comes_of_the_answer() -> None:
    """The answer may be lost with the scheduler, and another operator's word be carried out by then: the next scheduler
    would take it for a new one, over what the other one has decided since."""
    bench = member()
    bench.handle(WORD)
    view = make_view(bench.machine.planner, first_round=8, members=(A, B, D), listeners=(), links=bench.roster.links)
    taken = SetRestorePoint(record=record(B), links=(), round=7, model=MODEL, views=(view,), operator="user-1")
    later = msgspec.structs.replace(taken, operator="user-2")
    (told,) = of(bench.agreed(taken, later), AnswerRequest)
    assert told.request == "user-1" and told.done and "the state of round 7 of site b" in told.reason
    assert not sent(bench.alive(2.0), RecoverRequest)


def over(bench: Follower) -> str:
    """The word is answered, and not asked again: why."""
    (told,) = of(bench.taken(), AnswerRequest)
    assert told.request == "user-1" and not told.done and "not known here" in told.reason
    assert not sent(bench.alive(2.0), RecoverRequest)
    return told.reason


def test_it_is_over_when_the_run_goes_on_from_another_state() -> None:
    """No scheduler has answered, and the next one would take it for a word about the run as it stands by then: all that
    was done since would be undone."""
    bench = member()
    bench.handle(WORD)
    bench.taken()
    view = make_view(bench.machine.planner, first_round=7, members=(A, B, D), listeners=(), links=bench.roster.links)
    bench.agreed(SetRestorePoint(record=record(B), links=(), round=6, model=MODEL, views=(view,)))
    bench.alive(1.0)
    assert "from another state" in over(bench)


def test_it_is_over_when_a_round_is_done() -> None:
    bench = training_member()
    bench.machine.network.versions.heard(A, 2, Versions(oldest=2, newest=4), "")
    bench.handle(WORD)
    bench.taken()
    finish_round(bench)
    bench.alive(1.0)
    assert "round 2 of the run was done since" in over(bench)


def test_it_is_over_when_this_site_is_in_the_run_no_more() -> None:
    bench = member()
    bench.handle(WORD)
    bench.taken()
    gone = Departure(site=D, incarnation=record(D).incarnation, cause="failed", last_round=0, reason="")
    bench.agreed(RemoveSite(departure=gone, resolve=False, views=bench.roster.views))
    bench.alive(1.0)
    assert "in the run no more" in over(bench)


def test_a_site_outside_the_run_decides_nothing() -> None:
    (told,) = of(Bench(D).handle(WORD), AnswerRequest)
    assert not told.done and "not in the run" in told.reason


def test_an_older_scheduler_is_not_asked() -> None:
    bench = member(speaks=3)
    out = bench.handle(WORD)
    assert not sent(out, RecoverRequest)
    (told,) = of(out, AnswerRequest)
    assert not told.done and "older chaos-train" in told.reason


def test_a_user_does_not_wait_for_ever_for_a_scheduler() -> None:
    bench = member()
    bench.handle(WORD)
    seconds = 1.5 * RECOVER_TRIES_MAX * bench.machine.settings.retry_s
    bench.alive(seconds)
    told = of(bench.taken(), AnswerRequest)
    assert len(told) == 1 and not told[0].done and "no scheduler" in told[0].reason
    assert "not known here" in told[0].reason, "it may be carried out where this site is cut off from"


def test_without_a_scheduler_it_waits_for_one() -> None:
    bench = Bench(D, roster_of(A, B, D), voters=(A, B, D))
    assert not sent(bench.handle(WORD), RecoverRequest) and not of(bench.out, AnswerRequest)
    bench.machine.network.versions.heard(B, 2, Versions(oldest=2, newest=4), "")
    bench.up(B)
    bench.hear(B, heartbeat(scheduler=B))
    bench.wait(1.0)
    assert [site for site, _ in sent(bench.out, RecoverRequest)][:1] == [B]


@pytest.mark.parametrize("trains", [True, False])
def test_what_the_scheduler_waits_for_is_told_here_while_it_lasts_and_nothing_else_is_known(trains: bool) -> None:
    bench = training_member() if trains else member()
    bench.hear(A, RunWaits(reason="waiting for b (it is away)"))
    pause = bench.machine.participation.pause
    assert pause.reason() == ("" if trains else "waiting for b (it is away)")
    bench.alive(3.0)
    assert pause.reason() == "", "it is not said any more"


def test_what_the_run_waits_for_is_told_on_no_other_members_word() -> None:
    """It names commands that an operator may type."""
    bench = member()
    bench.hear(B, RunWaits(reason="chaosd recover --from evil:9"))
    assert bench.machine.participation.pause.reason() == ""
