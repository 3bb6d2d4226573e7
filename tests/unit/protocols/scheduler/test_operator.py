"""An operator's word on the state that a run goes on from; and for whom the run waits until then."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from tests.unit.protocols.one_site import A, B, Bench, C, D, leader_of, records, roster_of, sent
from tests.unit.protocols.scheduler.scheduler_kit import alive, report
from tests.unit.protocols.scheduler.test_restore_point import LATEST, adopted, asks, disk, hello, joins, without_state

from chaos_protocols.agreement.roster import Departure, Roster
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.reports import ROUNDS_MAX
from chaos_protocols.wire.recovery import RecoverAnswer, RecoverRequest, RunWaits
from chaos_protocols.wire.versions import BEFORE, SPOKEN, Versions


def spoken(roster: Roster, versions: Versions = SPOKEN) -> dict[str, Any]:
    """All sites of the roster speak these."""
    return {"sites": tuple(msgspec.structs.replace(one, versions=versions) for one in roster.sites)}


def standing(*others: SiteId, versions: Versions = SPOKEN, **changes: Any) -> Bench:
    return without_state(*others, **{**spoken(roster_of(A, *others), versions), **changes})


def decides(bench: Bench, origin: str, round_number: int = 0, *, at: SiteId = B) -> RecoverAnswer | None:
    out = bench.hear(at, RecoverRequest(request="user-1", origin=origin, round=round_number))
    told = [message for _, message in sent(out, RecoverAnswer)]
    return told[0] if told else None


def waits(bench: Bench, *sites: SiteId, seconds: float = 3.0) -> str:
    """What everybody is told meanwhile."""
    bench.taken()
    alive(bench, *sites, seconds=seconds)
    told = {site: message.reason for site, message in sent(bench.taken(), RunWaits)}
    assert set(told) in ({*sites}, set())
    own = bench.machine.participation.pause.reason()
    assert not told or own in told.values()
    return next(iter(told.values()), "")


@pytest.mark.parametrize("named", [B, B[:4], "site b"])
def test_the_run_goes_on_from_an_older_state_on_an_operators_word(named: str) -> None:
    bench = standing(B, C)
    asks(bench, B, checkpoint=disk(LATEST - 3))
    assert adopted(bench) is None, "others may have more"
    assert decides(bench, named, LATEST - 3) is None, "it is under way"
    alive(bench, B, C, seconds=0.5)
    assert adopted(bench) == (B, LATEST - 3)
    assert "an operator decided it" in records(bench.out, "restore-point")[-1].cause
    assert bench.machine.roster.restored_by == "user-1" and bench.machine.roster.needs == 4
    answer = decides(bench, named, LATEST - 3)
    assert answer is not None and answer.done and f"round {LATEST - 3} of site b" in answer.reason


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_joiner_that_never_was_in_the_run_brings_a_state_on_an_operators_word_alone(on_disk: bool) -> None:
    bench = standing(B)
    asks(bench, B, checkpoint=disk(LATEST - 3))
    far: dict[str, Any] = {"checkpoint": disk(1 << 40)} if on_disk else {"worker_round": 1 << 40}
    joins(bench, D, versions=SPOKEN, **far)
    alive(bench, B, D, seconds=1.0)
    assert adopted(bench) is None
    told = bench.machine.scheduler.term.restore_point.waiting
    assert "d offers a state of round 1099511627776, but never was in this run" in told
    decides(bench, "d", 1 << 40)
    alive(bench, B, D, seconds=0.5)
    assert adopted(bench) == (D, 1 << 40)


def test_it_begins_anew_with_a_fresh_worker_of_the_site_where_that_was_decided() -> None:
    bench = standing(B, C)
    for site in (C, B):
        asks(bench, site, checkpoint=disk(LATEST - 3))
    decides(bench, "", at=C)
    alive(bench, B, C, seconds=0.5)
    assert adopted(bench) == (C, 0)


@pytest.mark.parametrize(
    ("origin", "round_number", "said"),
    [
        ("site b", LATEST, f"no state of round {LATEST}; there are: site b:{LATEST - 3} (checkpoint)"),
        ("site c", LATEST - 3, "there are: site b"),
        ("bbb", LATEST - 3, "there are: site b"),
    ],
)
def test_what_is_not_there_is_refused_with_what_there_is(origin: str, round_number: int, said: str) -> None:
    bench = standing(B, C)
    asks(bench, B, checkpoint=disk(LATEST - 3))
    answer = decides(bench, origin, round_number)
    assert answer is not None and not answer.done and said in answer.reason
    alive(bench, B, C, seconds=0.5)
    assert adopted(bench) is None


@pytest.mark.parametrize("name", ["site b", B[:8], B[:4]])
def test_a_stranger_is_not_taken_for_the_member_after_which_it_calls_itself(name: str) -> None:
    bench = standing(B, C)
    asks(bench, B, checkpoint=disk(LATEST - 3))
    joins(bench, D, name=name, versions=SPOKEN, worker_round=LATEST - 3)
    answer = decides(bench, name, LATEST - 3)
    assert answer is not None and not answer.done
    plain = "site b" if name != "site b" else B[:8] if name != B[:8] else B
    assert f"more than one site may be meant by {name}; there are: " in answer.reason
    assert f"{plain}:{LATEST - 3}" in answer.reason and f"{D[:8]}:{LATEST - 3}" in answer.reason
    alive(bench, B, C, seconds=0.5)
    assert adopted(bench) is None
    decides(bench, plain, LATEST - 3)
    alive(bench, B, C, seconds=0.5)
    assert adopted(bench) == (B, LATEST - 3)


def test_nothing_to_go_on_from_and_nothing_to_begin_with_is_said() -> None:
    bench = standing(B)
    for origin, said in (("", "no fresh worker"), ("site b", "none, or not yet")):
        answer = decides(bench, origin, 3 if origin else 0)
        assert answer is not None and said in answer.reason


def test_where_members_train_or_the_run_has_not_begun_there_is_nothing_to_recover() -> None:
    bench = leader_of(B)
    bench.hear(B, report(bench, active=True))
    answer = decides(bench, "")
    assert answer is not None and "members train" in answer.reason
    fresh = leader_of(roster=roster_of(A, B, model=None, started=False))
    answer = decides(fresh, "")
    assert answer is not None and "has not begun" in answer.reason
    assert decides(leader_of(B), "", at=D) is None, "no site of the run"


def test_where_a_site_has_an_older_release_an_operator_cannot_decide() -> None:
    bench = standing(B, versions=BEFORE)
    answer = decides(bench, "")
    assert answer is not None and "older chaos-train" in answer.reason


def test_while_a_round_is_in_doubt_the_operator_waits() -> None:
    bench = standing(B, C)
    asks(bench, B, checkpoint=disk(LATEST - 3))
    bench.pretend(msgspec.structs.replace(bench.machine.roster, resolving=True))
    restore_point = bench.machine.scheduler.term.restore_point
    request = RecoverRequest(request="user-1", origin="site b", round=LATEST - 3)
    assert restore_point.ordered(B, request) is None


def test_what_was_chosen_may_be_gone_before_it_is_taken() -> None:
    bench = standing(B, C)
    restore_point = bench.machine.scheduler.term.restore_point
    asks(bench, B, checkpoint=disk(LATEST - 3))
    restore_point.ordered(B, RecoverRequest(request="user-1", origin="site b", round=LATEST - 3))
    restore_point.offers.is_void(B)
    alive(bench, B, C, seconds=0.5)
    assert adopted(bench) is None


# ---- for whom the run waits


def test_everybody_is_told_whom_the_run_waits_for_and_at_last_what_can_be_decided() -> None:
    bench = standing(B, C)
    bench.machine.settings = dataclasses.replace(bench.machine.settings, restore_wait_s=10.0)
    asks(bench, B, checkpoint=disk(LATEST - 3))
    hello(bench)
    bench.hear(C, msgspec.structs.replace(report(bench, active=False), checkpoint=disk(LATEST - 1)))
    said = waits(bench, B, C)
    assert (
        f"the state of round {LATEST}; waiting for site c (its disk has round {LATEST - 1}, its worker is away)" in said
    )
    assert f"the newest here: round {LATEST - 3} at site b" in said and "chaosd recover" not in said
    said = waits(bench, B, C, seconds=12.0)
    assert f"chaosd recover --from 'site b:{LATEST - 3}'" in said and "--anew" in said
    assert adopted(bench) is None, "no time makes up for it"
    asks(bench, C, checkpoint=disk(LATEST - 1))
    assert adopted(bench) == (C, LATEST - 1)


def test_where_nobody_has_anything_it_is_said_that_nothing_is_here() -> None:
    bench = standing(B)
    bench.machine.settings = dataclasses.replace(bench.machine.settings, restore_wait_s=0.0)
    asks(bench, B)
    hello(bench)
    said = waits(bench, B)
    assert "no site has another one" in said and "(none is here)" in said and "recover --anew" in said
    assert "--from" not in said


def test_only_so_many_are_named() -> None:
    gone = tuple(
        Departure(
            site=SiteId(f"{number:032d}"), incarnation=1, last_round=1, cause="failed", reason="", lineage=9,
            newest_round=ROUNDS_MAX,
        )
        for number in range(20)
    )  # fmt: skip
    bench = standing(B, departed=gone, restore_epoch=9)
    asks(bench, B)
    hello(bench)
    assert "and 4 more" in waits(bench, B)
