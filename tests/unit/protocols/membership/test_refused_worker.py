"""A worker is judged before anything of it is taken: who is refused changes nothing (spec 12.12)."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.protocols.follower import finish_round, of, to_worker, training_member
from tests.unit.protocols.one_site import MODEL, A, B, Bench, D, heartbeat, records, roster_of, sent

from chaos_protocols import events
from chaos_protocols.effects import (
    Contribute,
    DeliverResult,
    DropResults,
    RefuseWorker,
    StopRound,
    TakeWorker,
    ToWorker,
    VoidResults,
)
from chaos_protocols.wire.control import JoinAnswer, JoinRequest, SiteStatus, StateRequest
from chaos_protocols.wire.worker import TrainFrom, WorkerRefused

OTHER = msgspec.structs.replace(MODEL, spec_digest="0f" * 32)
OTHER_MODEL = JoinAnswer(incarnation=1, accepted=False, final=True, reason="another model", cause="other-model")
TOUCHING = (TakeWorker, StopRound, DropResults, VoidResults, ToWorker, Contribute)


def knocks(bench: Bench, model: Any = OTHER, *, rival_pid: int | None = None) -> list[Any]:
    return bench.handle(events.WorkerReady(model=model, round=0, rival_pid=rival_pid))


def test_a_worker_with_another_model_is_refused_in_standby_and_the_open_round_goes_on() -> None:
    bench = training_member()
    bench.handle(events.WorkerLost(reason="killed"))
    running, completed = bench.machine.rounds.running, bench.machine.rounds.completed_round
    out = knocks(bench)
    (refused,) = of(out, RefuseWorker)
    assert "the model or optimizer differs" in refused.reason and "in standby" in refused.reason
    assert not [one for one in out if isinstance(one, TOUCHING)]
    assert records(out, "worker")[-1].outcome == "refused"
    assert not bench.machine.state.session.present and bench.machine.rounds.running == running
    assert not sent(bench.alive(1.0), StateRequest), "nobody is asked for a state that nobody here can use"
    finish_round(bench)
    assert bench.machine.rounds.completed_round == completed + 1
    assert of(knocks(bench, MODEL), TakeWorker)
    assert sent(bench.taken(), StateRequest)


def test_a_worker_with_another_model_does_not_take_the_place_of_one_that_trains() -> None:
    bench = training_member()
    (refused,) = of(knocks(bench), RefuseWorker)
    assert "standby" not in refused.reason
    assert bench.machine.state.session.present and bench.machine.rounds.active
    bench.handle(events.WorkerContributed(round=2, weight=1.0))
    assert of(bench.taken(), Contribute)


def test_a_restarted_daemon_judges_by_the_roster_of_its_journal() -> None:
    bench = Bench(D, roster_of(A, B, D), voters=(A,), incarnation=2)
    assert of(knocks(bench), RefuseWorker) and of(knocks(bench, MODEL), TakeWorker)


def test_a_site_that_knows_of_no_model_takes_any_worker() -> None:
    assert of(knocks(Bench(D)), TakeWorker)


def test_a_new_start_of_the_process_replaces_the_session_and_begins_without_the_state() -> None:
    bench = training_member()
    bench.handle(events.WorkerContributed(round=2, weight=1.0))
    bench.taken()
    out = knocks(bench, MODEL)
    assert of(out, TakeWorker) and not bench.machine.rounds.active
    assert "a newer start of its script" in records(out, "worker")[0].cause
    assert [status.active for _, status in sent(out, SiteStatus)] == [False]
    assert sent(out, StateRequest)
    finish_round(bench)
    assert not of(bench.taken(), DeliverResult) and not to_worker(bench.taken(), TrainFrom)


def test_another_process_is_turned_away_with_the_number_of_the_one_that_trains() -> None:
    bench = training_member()
    (refused,) = of(knocks(bench, MODEL, rival_pid=4711), RefuseWorker)
    assert "process 4711" in refused.reason and bench.machine.rounds.active
    bench.handle(events.WorkerLost(reason="killed"))
    assert of(knocks(bench, MODEL, rival_pid=4711), TakeWorker), "its session is over, whatever was seen of its socket"


def test_the_refusal_of_a_former_workers_model_does_not_send_away_one_that_has_the_runs() -> None:
    """It was asked for with another script, and the answer came by a slow way, or twice."""
    bench = training_member()
    assert not to_worker(bench.hear(A, OTHER_MODEL), WorkerRefused)
    assert bench.machine.state.session.present and bench.machine.rounds.active
    assert not records(bench.taken(), "scale-out")


def test_the_refusal_of_a_former_workers_model_does_not_send_away_a_newcomer_that_was_not_asked_for_yet() -> None:
    bench = Bench(D, peers=(A,)).up(A)
    knocks(bench, MODEL)
    assert not to_worker(bench.hear(A, OTHER_MODEL), WorkerRefused)
    bench.hear(A, heartbeat(scheduler=A, knows_you=False))
    assert sent(bench.taken(), JoinRequest)
    assert to_worker(bench.hear(A, OTHER_MODEL), WorkerRefused), "the run has another one"


def test_a_worker_of_the_run_that_is_sent_away_takes_its_state_with_it() -> None:
    """Nobody says afterwards that it is gone. The next one would be given results for a state that it has not."""
    bench = training_member()
    refusal = JoinAnswer(incarnation=1, accepted=False, final=True, reason="banned", cause="banned")
    out = bench.hear(A, refusal)
    assert to_worker(out, WorkerRefused) and not bench.machine.rounds.active
    assert [status.active for _, status in sent(out, SiteStatus)] == [False]
    assert of(knocks(bench, MODEL), TakeWorker)
    finish_round(bench)
    assert not of(bench.taken(), DeliverResult)
