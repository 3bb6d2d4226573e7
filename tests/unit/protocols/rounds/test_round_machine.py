"""A round machine by itself: the fence, results of older epochs, the resolving of a round."""

from __future__ import annotations

from tests.unit.protocols.one_site import round_machine

from chaos_protocols.agreement.roster import LinkRecord, ModelFacts, Roster, SiteRecord, View
from chaos_protocols.effects import Contribute, FetchResult, OpenRound
from chaos_protocols.names import SiteId
from chaos_protocols.rounds.machine import StateLost
from chaos_protocols.state.result_log import RESULTS_BYTES_MAX, results_max
from chaos_protocols.wire.plans import SyncPlan, Tag, Tree

A, B, C, D = (SiteId(name) for name in "abcd")
PLAN = SyncPlan(trees=(Tree(weight=1.0, root=A, parent=((B, A),)),), reason="")
MODEL = ModelFacts(spec_digest="d", state_bytes=8, shard_bytes=4)


def link(one: SiteId, other: SiteId) -> LinkRecord:
    return LinkRecord(one=one, other=other, rate_bytes_per_s=0.0, rtt_s=0.0)


def roster(
    *views: View, epoch: int = 1, resolving: bool = False, resolved_round: int = 0, resolved_digest: str = ""
) -> Roster:
    sites = tuple(
        SiteRecord(site=site, name=site, address=site, public_key=b"", incarnation=1, state="member") for site in (A, B)
    )
    return Roster(
        run="r",
        epoch=epoch,
        min_sites=1,
        started=True,
        resolving=resolving,
        resolved_round=resolved_round,
        resolved_digest=resolved_digest,
        model=MODEL,
        sites=sites,
        links=(link(A, B),),
        views=views,
        replication=None,
        departed=(),
        banned=(),
    )


def view(epoch: int, first_round: int) -> View:
    return View(epoch=epoch, first_round=first_round, members=(A, B), listeners=(), plan=PLAN)


def test_a_held_round_is_opened_but_gets_no_contribution() -> None:
    rounds = round_machine(B, roster(view(1, 1)))
    rounds.takes_part = True
    rounds.fence(1)
    effects = rounds.advance()
    assert [type(effect) for effect in effects] == [OpenRound]
    assert rounds.lift_fence() == [Contribute(tag=Tag(epoch=1, round=1), weight=0.0, has_bytes=False)]


def test_a_result_of_an_older_epoch_changes_nothing() -> None:
    rounds = round_machine(B, roster(view(5, 1)))
    rounds.advance()
    assert rounds.reduce_finished(Tag(epoch=4, round=1), "x", ()) == []
    assert rounds.completed_round == 0


def test_while_resolving_no_round_is_open() -> None:
    rounds = round_machine(B, roster(view(1, 1)))
    rounds.advance()
    rounds.install(roster(view(1, 1), epoch=2, resolving=True))
    assert rounds.running is None
    assert rounds.reduce_finished(Tag(epoch=1, round=1), "x", ()) == []


def test_one_round_behind_the_resolved_one_its_result_is_fetched() -> None:
    rounds = round_machine(B, roster(view(1, 1)))
    resolved = roster(view(3, 2), epoch=3, resolved_round=1, resolved_digest="x")
    assert FetchResult(round=1, digest="x") in rounds.install(resolved)
    assert rounds.result_fetched(1, "other") == []
    rounds.result_fetched(1, "x")
    assert rounds.completed_round == 1


def test_further_behind_it_goes_on_in_standby_and_asks_for_the_state() -> None:
    rounds = round_machine(B, roster(view(1, 1)))
    effects = rounds.install(roster(view(3, 6), epoch=3, resolved_round=5, resolved_digest="x"))
    assert rounds.completed_round == 5
    assert any(isinstance(notice, StateLost) for notice in rounds.notices)
    assert any(isinstance(effect, Contribute) and not effect.has_bytes for effect in effects)


def test_who_counted_ahead_of_the_resolved_round_begins_there() -> None:
    rounds = round_machine(B, roster(view(1, 1)))
    rounds.begin_at(7)
    rounds.resolved(3)
    assert rounds.completed_round == 3


def test_how_many_results_may_wait_for_a_worker_follows_the_size_of_its_part() -> None:
    rounds = round_machine(B, roster(view(1, 1)))
    for contribution_bytes in (RESULTS_BYTES_MAX // 20, RESULTS_BYTES_MAX, 1):
        rounds.worker_came(contribution_bytes)
        assert rounds.delivery.results_max == results_max(contribution_bytes)
    assert results_max(1) > results_max(RESULTS_BYTES_MAX // 20) == 19 > results_max(RESULTS_BYTES_MAX)
