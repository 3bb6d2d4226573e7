"""Who may have a newer state than those that are there, and is waited for (spec 13.5)."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from tests.unit.protocols.one_site import MODEL, A, B, Bench, C, D, leader_of, link, roster_of, sent
from tests.unit.protocols.scheduler.scheduler_kit import alive, lose, report
from tests.unit.protocols.scheduler.test_operator import spoken, standing, waits
from tests.unit.protocols.scheduler.test_restore_point import LATEST, adopted, asks, disk, hello

from chaos_protocols import events
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.reports import ROUNDS_MAX
from chaos_protocols.wire.control import JoinAnswer, JoinRequest
from chaos_protocols.wire.versions import SPOKEN


def failed(cause: str = "failed", **changes: Any) -> Departure:
    known = {"lineage": 3, "newest_round": LATEST + 1, "name": "site d", **changes}
    return Departure(site=D, incarnation=1, last_round=1, cause=cause, reason="", **known)


def comes_back(bench: Bench) -> None:
    """D asks to join, with a checkpoint."""
    bench.up(D)
    request = JoinRequest(
        name="d", address="d:1", public_key=b"", incarnation=2, neighbours=(A,), model=MODEL, worker_round=0,
        checkpoint=disk(LATEST - 1, lineage=3), versions=SPOKEN,
    )  # fmt: skip
    bench.hear(D, request)


@pytest.mark.parametrize(
    ("gone", "awaited"),
    [
        (failed(), True),
        (failed(name=""), True),
        (failed(newest_round=ROUNDS_MAX), True),
        (failed(newest_round=LATEST - 3), False),
        (failed(lineage=2), False),
        (failed(lineage=0), False),
        (failed(cause="left"), True),
        (failed(cause="left", lineage=0), False),
        (failed(cause="banned"), False),
    ],
)
def test_a_site_that_went_is_waited_for_if_it_may_have_taken_a_newer_state_along(
    gone: Departure, awaited: bool
) -> None:
    bench = standing(B, departed=(gone,), restore_epoch=3)
    asks(bench, B, checkpoint=disk(LATEST - 3, lineage=3))
    hello(bench)
    alive(bench, B, seconds=1.0)
    assert (adopted(bench) is None) is awaited
    if awaited:
        assert f"waiting for {gone.name or 'ddd'}" in waits(bench, B)
        comes_back(bench)
        assert adopted(bench) == (D, LATEST - 1)


def test_a_site_that_asks_and_cannot_be_reached_is_still_waited_for() -> None:
    bench = standing(B, departed=(failed(),), restore_epoch=3)
    asks(bench, B, checkpoint=disk(LATEST - 3, lineage=3))
    comes_back(bench)
    lose(bench, D)
    hello(bench)
    assert "site d (no site of the run has a link with it; `chaosd peer add` makes one)" in waits(bench, B)


def test_a_site_that_came_back_with_nothing_newer_is_not_waited_for_though_no_link_leads_to_it() -> None:
    """It asks by way of a site that is outside as well (seed 771 of the simulator)."""
    bench = standing(B, departed=(failed(),), restore_epoch=3)
    asks(bench, B, checkpoint=disk(LATEST - 3, lineage=3))
    hello(bench)
    alive(bench, B, seconds=1.0)
    assert "site d (it is away" in waits(bench, B)
    request = JoinRequest(
        name="d", address="d:1", public_key=b"", incarnation=2, neighbours=(C,), model=MODEL, worker_round=0,
        checkpoint=disk(LATEST - 3, lineage=3), versions=SPOKEN,
    )  # fmt: skip
    bench.hear(D, request, by=B, incarnation=2)
    alive(bench, B, seconds=1.0)
    assert adopted(bench) == (B, LATEST - 3)


def test_a_fresh_worker_does_not_hide_the_older_checkpoint_on_its_sites_disk() -> None:
    """The run had gone on from it when every worker died; no link leads to its site yet (seed 4000511, 7 sites)."""
    bench = standing(B, departed=(failed(lineage=9),), restore_epoch=9)
    asks(bench, B)
    hello(bench)
    request = JoinRequest(
        name="d", address="d:1", public_key=b"", incarnation=2, neighbours=(C,), model=MODEL, worker_round=0,
        checkpoint=disk(LATEST - 3, lineage=3), versions=SPOKEN, lineage=9,
    )  # fmt: skip
    bench.hear(D, request, by=B, incarnation=2)
    alive(bench, B, seconds=1.0)
    assert adopted(bench) is None
    assert "site d (no site of the run has a link with it; `chaosd peer add` makes one)" in waits(bench, B)


def offered_by_a_leaver(cause: str, best: int) -> Bench:
    """D, with which nobody has a link, offers a newer state than B; others had it when it went."""
    bench = standing(B, departed=(failed(cause=cause, lineage=0),), restore_epoch=3)
    asks(bench, B, checkpoint=disk(best, lineage=3) if best else None)
    request = JoinRequest(
        name="d", address="d:1", public_key=b"", incarnation=2, neighbours=(C,), model=MODEL, worker_round=0,
        checkpoint=disk(LATEST - 1, lineage=3), versions=SPOKEN, lineage=3,
    )  # fmt: skip
    bench.hear(D, request, by=B, incarnation=2)
    hello(bench)
    alive(bench, B, seconds=1.0)
    return bench


def test_who_left_while_others_had_the_state_is_waited_for_if_it_offers_a_newer_one() -> None:
    """The others lost theirs since (seed 9437343, 5 sites)."""
    for best in (0, LATEST - 3):
        bench = offered_by_a_leaver("left", best)
        assert adopted(bench) is None
        assert "site d (no site of the run has a link with it; `chaosd peer add` makes one)" in waits(bench, B)


def test_nobody_waits_for_what_a_banned_site_offers() -> None:
    bench = offered_by_a_leaver("banned", LATEST - 3)
    assert adopted(bench) == (B, LATEST - 3)


def test_what_a_site_asked_before_it_was_let_in_says_nothing_when_it_comes_again() -> None:
    """D came back in the life in which it failed. Its first word, from before it was let in, is repeated to a scheduler
    that was started since (seed 4753, 3 sites)."""
    bench = standing(B, departed=(failed(),), restore_epoch=3)
    asks(bench, B, checkpoint=disk(LATEST - 3, lineage=3))
    hello(bench)
    first = JoinRequest(
        name="d", address="d:1", public_key=b"", incarnation=1, neighbours=(C,), model=MODEL, worker_round=0,
        versions=SPOKEN,
    )  # fmt: skip
    for answered_in in (0, bench.machine.raft.term - 1):
        out = bench.up(D).hear(D, msgspec.structs.replace(first, answered_in=answered_in))
        answers = [message for _, message in sent(out, JoinAnswer)]
        alive(bench, B, seconds=1.0)
        assert "site d (it is away" in waits(bench, B)
    assert answers[0].term == bench.machine.raft.term
    bench.hear(D, msgspec.structs.replace(first, answered_in=answers[0].term))
    alive(bench, B, seconds=1.0)
    assert adopted(bench) == (B, LATEST - 3)


@pytest.mark.parametrize("by", [B, D])
def test_what_a_site_said_of_itself_counts_no_more_once_it_has_said_something_later(by: SiteId) -> None:
    """D was let in and is out again, in one term; what it asked before that comes late (guest seed 6001608)."""
    bench = standing(B, departed=(failed(),), restore_epoch=3)
    hello(bench)
    request = JoinRequest(
        name="d", address="d:1", public_key=b"", incarnation=1, neighbours=(C,), model=MODEL, worker_round=0,
        versions=SPOKEN, answered_in=bench.machine.raft.term,
    )  # fmt: skip
    late = bench.envelope(D, request)
    newer = msgspec.structs.replace(request, worker_round=LATEST, lineage=3)
    bench.up(D).hear(D, newer)
    bench.handle(events.EnvelopeReceived(neighbour=by, envelope=late))
    assert bench.machine.scheduler.term.restore_point.offers.newest_of(D) == (3, LATEST)


def test_what_a_site_offered_before_it_was_let_in_says_nothing_when_it_has_failed() -> None:
    bench = standing(B, departed=(failed(),), restore_epoch=3)
    restore_point = bench.machine.scheduler.term.restore_point
    comes_back(bench)
    assert restore_point.offers.newest_of(D) is not None
    restore_point.offers.is_void(D)
    assert restore_point.offers.newest_of(D) is None


def test_a_removed_site_takes_along_what_may_be_known_of_it() -> None:
    """By what a daemon remembers that was there; where all were restarted, anything."""
    for lived, newest in ((True, LATEST), (False, ROUNDS_MAX)):
        roster = roster_of(A, B, C, restore_epoch=3, links=(link(A, B), link(A, C)))
        bench = leader_of(roster=msgspec.structs.replace(roster, **spoken(roster)))
        told = msgspec.structs.replace(report(bench, active=False), known_round=LATEST if lived else 0)
        bench.hear(B, told)
        lose(bench, C)
        alive(bench, B, seconds=2.0)
        (gone,) = bench.machine.roster.departed
        assert (gone.name, gone.lineage, gone.newest_round) == ("site c", 3, newest)


def test_a_site_whose_removal_was_proposed_long_before_has_what_was_done_until_then() -> None:
    """By a scheduler that was stopped then; the next one committed it."""
    gone = msgspec.structs.replace(failed(), newest_round=LATEST - 5)
    for witnessed in (True, False):
        bench = standing(B, departed=(gone,), restore_epoch=3)
        if witnessed:
            bench.machine.scheduler.removals.note(gone, LATEST, resolve=True)
        asks(bench, B, checkpoint=disk(LATEST - 3, lineage=3))
        hello(bench)
        alive(bench, B, seconds=1.0)
        assert (adopted(bench) == (B, LATEST - 3)) != witnessed
        assert ("site d (it is away" in waits(bench, B)) == witnessed


def test_a_worker_may_come_back_to_its_daemon_for_a_while() -> None:
    bench = standing(B)
    bench.machine.settings = dataclasses.replace(bench.machine.settings, restore_wait_s=8.0)
    asks(bench, B, checkpoint=disk(LATEST - 3))
    assert "site a (its worker is away)" in waits(bench, B)
    alive(bench, B, seconds=6.0)
    assert adopted(bench) == (B, LATEST - 3)


def test_a_state_in_a_daemons_memory_is_waited_for() -> None:
    bench = standing(B, C)
    bench.machine.settings = dataclasses.replace(bench.machine.settings, restore_wait_s=0.0)
    asks(bench, B, checkpoint=disk(LATEST - 3))
    hello(bench)
    bench.hear(C, msgspec.structs.replace(report(bench, active=False), memory_checkpoint=True))
    assert "its daemon has a state" in waits(bench, B, C, seconds=13.0)
    bench.handle(events.WorkerLost(reason="killed"))
    assert adopted(bench) is None


def test_what_the_scheduler_did_since_its_own_last_beat_may_have_gone_with_a_failed_site_too() -> None:
    """Its own report of that beat counted: a round less, and a void state of the same number came before the one that
    the failed site still had (seed 901052 of the simulator)."""
    roster = roster_of(A, B, C, restore_epoch=3, links=(link(A, B), link(A, C)))
    bench = leader_of(roster=msgspec.structs.replace(roster, **spoken(roster)))
    bench.machine.rounds.known_round = LATEST - 1
    alive(bench, B, C, seconds=1.0)
    told, _ = bench.machine.scheduler.term.reports.newest[A]
    assert told.known_round == LATEST - 1
    bench.machine.rounds.known_round = LATEST
    lose(bench, C)
    (gone,) = bench.machine.roster.departed
    assert gone.newest_round == LATEST
