"""From which state a run goes on when no live member has it: workers first, disks last, nothing older in silence."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from tests.unit.protocols.one_site import MODEL, SETTINGS, A, B, Bench, C, D, leader_of, link, records, roster_of
from tests.unit.protocols.scheduler.scheduler_kit import alive, lose, report

from chaos_protocols import events
from chaos_protocols.agreement.roster import DEPARTED_KEPT_MAX, Departure
from chaos_protocols.names import SiteId
from chaos_protocols.rounds.reached import ANEW_ROUNDS_MAX
from chaos_protocols.scheduler.restore_point import CHECKPOINT_RATE_MIN_BYTES_PER_S
from chaos_protocols.wire.control import JoinRequest, StateRequest
from chaos_protocols.wire.plans import CheckpointFacts, Reached

LATEST = 7
"""The newest round that anybody has reported."""


def disk(round_number: int, lineage: int = 0, spec_digest: str = MODEL.spec_digest) -> CheckpointFacts:
    return CheckpointFacts(lineage=lineage, round=round_number, spec_digest=spec_digest)


def without_state(*others: SiteId, done: int = LATEST, **changes: Any) -> Bench:
    """A leads; nobody's worker has the state, and whoever may still report a living one has had the time to."""
    bench = leader_of(roster=roster_of(A, *others, **changes))
    for site in others:
        bench.hear(site, msgspec.structs.replace(report(bench, active=False), done_round=done, known_round=done))
    alive(bench, *others, seconds=2 * SETTINGS.failure_timeout_s)
    return bench


def asks(
    bench: Bench,
    site: SiteId,
    *,
    worker_round: int = 0,
    checkpoint: CheckpointFacts | None = None,
    incarnation: int = 1,
) -> None:
    bench.hear(
        site,
        StateRequest(incarnation=incarnation, worker_round=worker_round, model=MODEL, reason="", checkpoint=checkpoint),
    )


def joins(bench: Bench, site: SiteId, **offer: Any) -> None:
    """`offer`: of its worker and its disk; and what it speaks."""
    bench.up(site)
    base = JoinRequest(
        name="d", address="d:1", public_key=b"", incarnation=1, neighbours=(A,), model=MODEL, worker_round=0
    )
    bench.hear(site, msgspec.structs.replace(base, **offer))


def adopted(bench: Bench) -> tuple[SiteId, int] | None:
    """Whose state, of which round."""
    roster = bench.machine.roster
    return (roster.restored_from[0], roster.resolved_round) if records(bench.out, "restore-point") else None


def hello(bench: Bench, round_number: int = 0) -> None:
    bench.handle(events.WorkerReady(model=MODEL, round=round_number))


def patience(bench: Bench, *others: SiteId) -> None:
    """Until a state was chosen, or as long as newer ones are waited for."""
    for _ in range(round((SETTINGS.transfer_stall_s + 0.5) / 0.5)):
        if adopted(bench) is not None:
            return
        alive(bench, *others, seconds=0.5)


def test_when_every_worker_is_there_without_the_state_the_newest_checkpoint_is_loaded() -> None:
    bench = without_state(B, C)
    asks(bench, B, checkpoint=disk(LATEST - 1))
    asks(bench, C, checkpoint=disk(LATEST))
    assert adopted(bench) is None, "the worker of A may have it"
    hello(bench)
    assert adopted(bench) == (C, LATEST)
    assert "its checkpoint" in records(bench.out, "restore-point")[-1].reason


def test_a_checkpoint_older_than_the_newest_round_is_loaded_when_every_worker_has_said_what_it_has() -> None:
    bench = without_state(B, done=LATEST)
    asks(bench, B, checkpoint=disk(LATEST - 3))
    patience(bench, B)
    assert adopted(bench) is None, "the worker of A may have it"
    hello(bench)
    assert adopted(bench) == (B, LATEST - 3)
    assert f"rounds {LATEST - 2} to {LATEST} are done again" in records(bench.out, "restore-point")[-1].reason


def test_report_from_before_the_roster_of_now_says_nothing_of_a_worker() -> None:
    bench = without_state(B, C)
    told = report(bench, active=False, done_round=LATEST)
    bench.hear(C, msgspec.structs.replace(told, epoch=told.epoch - 1))
    asks(bench, B, checkpoint=disk(LATEST))
    asks(bench, C)
    hello(bench)
    assert adopted(bench) is None, "since then somebody may have been taken over, who trains"
    bench.hear(C, told)
    assert adopted(bench) == (B, LATEST)


def test_a_living_worker_with_the_newest_round_comes_before_a_checkpoint_of_it() -> None:
    bench = without_state(B, C)
    asks(bench, C, checkpoint=disk(LATEST))
    asks(bench, B, worker_round=LATEST)
    assert adopted(bench) == (B, LATEST)
    assert "its worker" in records(bench.out, "restore-point")[-1].reason


def test_a_checkpoint_that_is_whole_since_its_site_was_heard_is_waited_for() -> None:
    bench = without_state(B, C)
    asks(bench, C)
    asks(bench, B, checkpoint=disk(LATEST - 3))
    bench.hear(C, msgspec.structs.replace(report(bench, active=False), checkpoint=disk(LATEST - 1)))
    hello(bench)
    assert adopted(bench) is None, "C has a newer one, and has not offered it yet"
    asks(bench, C, checkpoint=disk(LATEST - 1))
    assert adopted(bench) == (C, LATEST - 1)


@pytest.mark.parametrize("lineage", [0, -1])
def test_a_newer_checkpoint_of_the_same_history_comes_before_an_older_worker(lineage: int) -> None:
    bench = without_state(B, C, restore_epoch=1)
    asks(bench, B, worker_round=LATEST - 1)
    asks(bench, C, checkpoint=disk(LATEST, lineage=1 + lineage))
    hello(bench)
    patience(bench, B, C)
    assert adopted(bench) == ((C, LATEST) if lineage == 0 else (B, LATEST - 1))


@pytest.mark.parametrize("lineage", [3, 2])
def test_a_fresh_worker_begins_anew_only_where_no_checkpoint_of_this_history_is_left(lineage: int) -> None:
    bench = without_state(B, done=0, restore_epoch=3)
    hello(bench)
    asks(bench, B, checkpoint=disk(5, lineage=lineage))
    assert adopted(bench) == ((B, 5) if lineage == 3 else (A, 0))


def test_a_fresh_worker_waits_for_disks_that_have_not_spoken_yet() -> None:
    bench = without_state(B, done=0)
    hello(bench)
    assert adopted(bench) is None
    patience(bench, B)
    assert adopted(bench) == (A, 0)


@pytest.mark.parametrize("done", [1, ANEW_ROUNDS_MAX, ANEW_ROUNDS_MAX + 1])
def test_a_run_whose_first_rounds_nobody_has_begins_anew_by_itself(done: int) -> None:
    """No checkpoint can be whole yet. One more round, and an operator decides (decision 0018)."""
    bench = without_state(B, done=done)
    hello(bench)
    alive(bench, B, seconds=1.0)
    assert adopted(bench) is None, "the worker of B may have it"
    asks(bench, B)
    patience(bench, B)
    if done > ANEW_ROUNDS_MAX:
        assert adopted(bench) is None
        assert "no site has another one" in bench.machine.scheduler.term.restore_point.waiting
        return
    assert adopted(bench) == (A, 0)
    told = records(bench.out, "restore-point")[-1].reason
    assert "begins anew" in told and ("round 1 is" if done == 1 else f"rounds 1 to {done} are") in told


FAILED = Departure(site=C, incarnation=0, last_round=30, cause="failed", reason="", newest_round=30, lineage=3)
LEFT = Departure(site=C, incarnation=0, last_round=30, cause="left", reason="")


@pytest.mark.parametrize(
    ("saved", "outside", "unsaved_in"),
    [
        ("", None, 0),
        ("a", None, 0),
        ("b", None, 0),
        ("c", FAILED, 0),
        ("c", FAILED, 2),
        ("c", LEFT, 0),
        ("c", LEFT, 3),
        ("", FAILED, 3),
        ("", FAILED, 5),
        ("", LEFT, 5),
    ],
)
def test_a_run_of_which_no_checkpoint_was_ever_whole_begins_anew_by_itself(
    saved: str, outside: Departure | None, unsaved_in: int
) -> None:
    """With a slow disk many rounds are done before the first one is (decision 0018). Each member has to say so, and so
    has who is outside and may have one: of the history in which it was there, or of the present one."""
    bench = without_state(B, done=40, restore_epoch=5, departed=(outside,) if outside else ())
    reached = bench.machine.participation.reached
    reached.noted = Reached(lineage=5, round=40, unsaved=saved != "a")
    hello(bench)
    asks(bench, B)
    if outside is not None and (outside is FAILED or unsaved_in):
        joins(bench, C, unsaved_in=unsaved_in)  # it has lost what it had
    bench.hear(B, msgspec.structs.replace(report(bench, active=False), known_round=40, unsaved=saved != "b"))
    patience(bench, B)
    if saved:
        assert adopted(bench) is None
        assert "no site has another one" in bench.machine.scheduler.term.restore_point.waiting
    else:
        assert adopted(bench) == (A, 0)
        assert "rounds 1 to 40 are" in records(bench.out, "restore-point")[-1].reason


@pytest.mark.parametrize("many", [DEPARTED_KEPT_MAX - 1, DEPARTED_KEPT_MAX])
def test_a_run_that_may_have_forgotten_who_left_with_a_checkpoint_does_not_begin_anew_by_itself(many: int) -> None:
    """Of few rounds each, these had none; but another one may have left before them."""
    gone = tuple(
        Departure(site=f"{1:02d}{k:062d}", incarnation=0, last_round=1, cause="left", reason="") for k in range(many)
    )
    bench = without_state(B, done=40, restore_epoch=5, departed=gone)
    bench.machine.participation.reached.noted = Reached(lineage=5, round=40, unsaved=True)
    hello(bench)
    asks(bench, B)
    bench.hear(B, msgspec.structs.replace(report(bench, active=False), known_round=40, unsaved=True))
    patience(bench, B)
    assert adopted(bench) == (None if many == DEPARTED_KEPT_MAX else (A, 0))


def test_a_run_of_few_rounds_does_not_begin_anew_while_a_checkpoint_or_a_site_is_away_that_may_have_them() -> None:
    gone = Departure(
        site=D, incarnation=0, last_round=2, cause="failed", reason="", newest_round=2, lineage=1, name="d"
    )
    bench = without_state(B, done=2, departed=(gone,), restore_epoch=1)
    hello(bench)
    asks(bench, B)
    patience(bench, B)
    assert adopted(bench) is None and "waiting for d" in bench.machine.scheduler.term.restore_point.waiting
    joins(bench, D, checkpoint=disk(2, lineage=1))
    assert adopted(bench) == (D, 2)


def test_a_site_that_reads_its_checkpoint_is_given_the_time_its_disk_may_take() -> None:
    model = msgspec.structs.replace(MODEL, state_bytes=int(10 * CHECKPOINT_RATE_MIN_BYTES_PER_S))
    bench = without_state(B, model=model)
    request = StateRequest(incarnation=1, worker_round=0, model=model, reason="")
    bench.handle(events.WorkerReady(model=model, round=0))
    bench.hear(B, msgspec.structs.replace(request, checkpoint=disk(LATEST)))
    assert adopted(bench) == (B, LATEST)
    bench.taken()
    bench.handle(events.WorkerLost(reason="killed"))
    bench.machine.state.files.offers = [disk(LATEST)]
    bench.handle(events.WorkerReady(model=model, round=0))
    alive(bench, B, seconds=SETTINGS.transfer_stall_s + 5.0, step_s=0.25)
    assert adopted(bench) is None, "its disk may take 10 s, and as long as any transfer besides"
    alive(bench, B, seconds=10.0, step_s=0.25)
    assert adopted(bench) is None, "a worker of B may still come back with it"
    bench.machine.settings = dataclasses.replace(bench.machine.settings, restore_wait_s=1.0)
    alive(bench, B, seconds=0.5)
    assert adopted(bench) == (A, LATEST)


def test_a_site_that_asks_again_has_not_got_it_from_its_disk_and_another_one_is_chosen() -> None:
    bench = without_state(B, C)
    hello(bench)
    asks(bench, C, checkpoint=disk(LATEST - 1))
    asks(bench, B, checkpoint=disk(LATEST))
    assert adopted(bench) == (B, LATEST)
    bench.taken()
    bench.hear(B, report(bench, active=False))  # it has heard of that
    asks(bench, B)
    asks(bench, C, checkpoint=disk(LATEST - 1))
    alive(bench, B, C, seconds=2 * SETTINGS.failure_timeout_s)
    patience(bench, B, C)
    assert adopted(bench) == (C, LATEST - 1)


def test_what_the_chosen_site_has_asked_before_it_heard_of_that_is_no_reason_to_choose_another_one() -> None:
    """Its worker died as it was chosen, and it went back to its disk; another site with the same state was chosen while
    it trained with that (seed 9059534, 4 sites)."""
    bench = without_state(B, C)
    hello(bench)
    asks(bench, B, worker_round=LATEST)
    asks(bench, C, checkpoint=disk(LATEST))
    alive(bench, B, C, seconds=0.5)
    assert adopted(bench) == (B, LATEST)
    bench.taken()
    before = msgspec.structs.replace(report(bench, active=False), epoch=bench.machine.roster.restore_epoch - 1)
    for _ in range(3):
        bench.hear(B, before)
        asks(bench, B)
        asks(bench, C, checkpoint=disk(LATEST))
        alive(bench, B, C, seconds=1.0)
    assert adopted(bench) is None, "its disk may take as long as any transfer"
    bench.hear(B, report(bench, active=False))
    asks(bench, B)
    alive(bench, B, C, seconds=2 * SETTINGS.failure_timeout_s)
    assert adopted(bench) == (C, LATEST), "it has heard of it, and asks again"


def test_a_request_of_a_former_start_offers_no_state() -> None:
    bench = without_state(B)
    old = StateRequest(incarnation=0, worker_round=LATEST, model=MODEL, reason="")
    bench.machine.scheduler.term.restore_point.offers.inside(B, old)
    alive(bench, B, seconds=1.0)
    assert adopted(bench) is None


def test_a_joiner_with_the_newest_checkpoint_may_bring_the_state() -> None:
    gone = Departure(site=D, incarnation=0, last_round=LATEST, cause="failed", reason="", newest_round=LATEST)
    bench = without_state(B, departed=(gone,))
    hello(bench)
    asks(bench, B)
    joins(bench, D, checkpoint=disk(LATEST))
    assert adopted(bench) == (D, LATEST)
    assert bench.machine.roster.link(A, D) is not None


def test_a_run_without_a_model_does_not_begin_with_rounds_that_it_never_did() -> None:
    bench = leader_of(roster=roster_of(A, model=None, started=False))
    joins(bench, D, worker_round=1 << 40)
    alive(bench, D, seconds=1.0)
    assert adopted(bench) is None and bench.machine.roster.member_ids() == (A,)
    hello(bench)
    assert bench.machine.roster.restored_from == (A, 1) and bench.machine.roster.resolved_round == 0


def test_a_joiner_that_cannot_be_reached_any_more_brings_nothing() -> None:
    bench = without_state(B)
    joins(bench, D)
    restore_point = bench.machine.scheduler.term.restore_point
    request = restore_point.offers.join_requests[D]
    lose(bench, D)
    newest = msgspec.structs.replace(request, worker_round=LATEST)
    restore_point.offers.outside(D, newest)
    alive(bench, B, seconds=1.0)
    assert adopted(bench) is None


def test_a_checkpoint_of_another_model_is_no_candidate() -> None:
    bench = without_state(B)
    hello(bench)
    asks(bench, B, checkpoint=disk(LATEST, spec_digest="00" * 32))
    patience(bench, B)
    assert adopted(bench) is None


def test_a_fresh_run_of_one_link_begins_with_its_founders_worker() -> None:
    bench = leader_of(roster=roster_of(A, model=None, started=False, links=(link(A, B),)))
    hello(bench)
    assert adopted(bench) == (A, 0)


def test_nobody_is_taken_over_while_a_memory_checkpoint_may_bring_a_worker_back() -> None:
    """A worker that its own daemon gave the state trains with no entry in the log (story 118)."""
    bench = without_state(B, C)
    bench.hear(B, msgspec.structs.replace(report(bench, active=False, done_round=LATEST), memory_checkpoint=True))
    asks(bench, C, worker_round=LATEST)
    alive(bench, B, C, seconds=SETTINGS.failure_timeout_s)
    assert adopted(bench) is None
    patience(bench, B, C)
    assert adopted(bench) == (C, LATEST)


def test_nobody_else_is_taken_over_while_a_site_reads_its_checkpoint() -> None:
    """It trains as soon as it has read it (seed 90254 of the simulator, 4 sites)."""
    bench = without_state(B, C)
    asks(bench, B)
    asks(bench, C, checkpoint=disk(LATEST))
    hello(bench)
    assert adopted(bench) == (C, LATEST)
    alive(bench, B, C, seconds=0.5)
    asks(bench, B, worker_round=LATEST)
    alive(bench, B, C, seconds=0.5)
    assert adopted(bench) == (C, LATEST)
