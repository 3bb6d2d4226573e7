"""What the bounds of a run do to a site's part, and what is told of it (spec 19.1 to 19.3)."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.follower import Follower, of, training_member
from tests.unit.protocols.one_site import MODEL, A, B, D, records, roster_of

from chaos_protocols import events
from chaos_protocols.agreement.commands import RetryRound, RoundResolved, TooNew, decode_roster, encode_roster
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import Contribute, FetchResult, OpenRound, RefuseWorker, StopRound, TakeWorker
from chaos_protocols.membership.bounded import STREAK_ENDS_AFTER
from chaos_protocols.membership.facts import SiteFacts, bootstrap_roster
from chaos_protocols.wire.bounds import BOUNDS_SINCE, UNBOUNDED, Bounds, bounds_problem
from chaos_protocols.wire.versions import NEWEST, Versions

BOUNDS = Bounds(norm_max=2.0, weight_max=8.0)


def bounded_member() -> Follower:
    """D trains in round 2 of a run with bounds."""
    bench = training_member()
    bench.machine.replica.roster = bounded = msgspec.structs.replace(bench.roster, bounds=BOUNDS)
    bench.machine.rounds.learn(bounded)
    return bench


def finish(bench: Follower, **more: object) -> list[object]:
    """The running round's result comes, and its worker applies it."""
    tag = bench.machine.rounds.running
    assert tag is not None
    weights = ((A, 1.0), (B, 1.0), (D, 1.0))
    out = bench.handle(events.ReduceFinished(tag=tag, digest="d", weights=weights, **more))  # type: ignore[arg-type]
    bench.handle(events.WorkerApplied(round=tag.round))
    return out


def gives(bench: Follower, weight: float) -> list[object]:
    running = bench.machine.rounds.running
    assert running is not None
    return bench.handle(events.WorkerContributed(round=running.round, weight=weight))


@pytest.mark.parametrize(("said", "counts"), [(3.0, 3.0), (8.0, 8.0), (8.5, 8.0), (1e15, 8.0)])
def test_a_weight_counts_up_to_what_is_agreed(said: float, counts: float) -> None:
    bench = bounded_member()
    out = gives(bench, said)
    assert [one.weight for one in of(out, Contribute)] == [counts]
    assert bool(records(out, "bound")) == (counts < said)


def test_a_weight_that_is_too_much_is_told_once_for_as_long_as_it_lasts() -> None:
    bench = bounded_member()
    told = []
    for weight in (9.0, 10.0, 2.0, 9.0):
        told.append(len(records(gives(bench, weight), "bound")))
        finish(bench)
    assert told == [1, 0, 0, 1]


def test_rounds_and_fetches_are_begun_with_the_bounds_of_the_run() -> None:
    bench = bounded_member()
    (opened,) = of(finish(bench), OpenRound)
    assert opened.bounds == BOUNDS
    running = bench.machine.rounds.running
    assert running is not None
    bench.agreed(RetryRound(views=bench.roster.views, reason="by hand"))
    out = bench.agreed(
        RoundResolved(round=running.round, digest="dd", holders=(A,), views=bench.roster.views),
    )
    assert [one.bounds for one in of(out, FetchResult)] == [BOUNDS]


def test_a_streak_of_clipped_parts_is_told_at_its_beginning_and_its_end() -> None:
    bench = bounded_member()
    told = records(finish(bench, clipped=7.25), "bound")
    assert len(told) == 1 and "7.25" in told[0].cause and "2" in told[0].reason
    assert not records(finish(bench, clipped=3.0), "bound")
    ends = [one for _ in range(STREAK_ENDS_AFTER) for one in records(finish(bench), "bound")]
    assert len(ends) == 1 and ends[0].reason.startswith("2 of its parts")
    assert bench.machine.participation.bounded.clipped_rounds == 2


def test_a_result_that_is_too_long_is_told_with_the_site_that_added_it_up() -> None:
    bench = bounded_member()
    view = bench.roster.view_of(2)
    assert view is not None
    (told,) = records(finish(bench, bounded=False), "bound")
    root = bench.roster.record(view.plan.trees[0].root)
    assert root is not None and root.name in told.cause and told.subject == "round 2"
    assert not records(finish(bench, bounded=False), "bound"), "the next in a row is not told again"
    assert bench.machine.participation.bounded.void_rounds == 2


def test_a_result_that_is_not_finite_is_told_as_that_alone() -> None:
    out = finish(bounded_member(), bounded=False, finite=False)
    assert records(out, "skip") and not records(out, "bound")


@pytest.mark.parametrize(("version", "taken"), [(BOUNDS_SINCE - 1, False), (BOUNDS_SINCE, True)])
def test_a_script_that_does_not_say_what_is_bounded_is_not_taken(version: int, taken: bool) -> None:
    bench = Follower(D, roster_of(A, B, D, bounds=BOUNDS))
    out = bench.handle(events.WorkerReady(model=MODEL, round=0, version=version))
    assert bool(of(out, TakeWorker)) == taken
    assert taken or "norm_max = 2" in of(out, RefuseWorker)[0].reason


def test_a_run_with_bounds_is_for_sites_that_know_them() -> None:
    bench = bounded_member()

    def founded_with(bounds: Bounds) -> Roster:
        facts = SiteFacts(
            site=A, name="a", address="a.example:7400", public_key=b"", incarnation=1, run="hearts", bounds=bounds
        )
        return bootstrap_roster(facts, bench.machine.planner, "")

    founded = founded_with(BOUNDS)
    assert founded.bounds == BOUNDS and founded.needs == BOUNDS_SINCE
    old = Versions(oldest=2, newest=BOUNDS_SINCE - 1)
    assert str(BOUNDS_SINCE) in founded.version_problem(old)
    assert decode_roster(encode_roster(founded)) == founded
    with pytest.raises(TooNew):
        decode_roster(encode_roster(msgspec.structs.replace(founded, needs=NEWEST + 1)))
    without = founded_with(UNBOUNDED)
    assert without.needs == 0 and not without.version_problem(old)


def test_bounds_that_nobody_could_keep_are_named() -> None:
    assert not bounds_problem(UNBOUNDED) and not bounds_problem(BOUNDS)
    assert "norm_max is 1e-09" in bounds_problem(Bounds(norm_max=1e-9))
    assert "weight_max is 1e-20" in bounds_problem(Bounds(weight_max=1e-20))
    assert "clip_radius is 1e-09" in bounds_problem(Bounds(clip_radius=1e-9))


CLIPPED = Bounds(clip_radius=3.0)


def clipped_member() -> Follower:
    """D trains in round 2 of a run that clips around the last result."""
    bench = training_member()
    bench.machine.replica.roster = clipped = msgspec.structs.replace(bench.roster, bounds=CLIPPED)
    bench.machine.rounds.learn(clipped)
    return bench


def test_the_first_round_of_a_view_is_clipped_around_zero_and_later_ones_around_the_result_before() -> None:
    """Who came with the view has no earlier result; of those after it, every site of the view has the same."""
    bench = clipped_member()
    (first,) = of(bench.agreed(RetryRound(views=bench.roster.views, reason="by hand")), StopRound)
    views = tuple(msgspec.structs.replace(view, first_round=first.tag.round) for view in bench.roster.views[-1:])
    out = bench.agreed(RoundResolved(round=first.tag.round - 1, digest="", holders=(), views=views))
    assert [one.centred for one in of(out, OpenRound)] == [False]
    gives(bench, 1.0)
    assert [one.centred for one in of(finish(bench), OpenRound)] == [True]
    assert [one.bounds for one in of(finish(bench), OpenRound)] == [CLIPPED]


def test_without_a_radius_nothing_is_clipped_around_anything() -> None:
    bench = bounded_member()
    assert [one.centred for one in of(finish(bench), OpenRound)] == [False]


def test_who_lacks_the_last_result_gives_nothing_to_that_round_and_is_told() -> None:
    bench = clipped_member()
    finish(bench)
    bench.machine.rounds.digest = ""
    out = gives(bench, 2.0)
    assert [(one.weight, one.has_bytes) for one in of(out, Contribute)] == [(0.0, False)]
    (told,) = records(out, "bound")
    assert "nothing to be clipped around" in told.cause
    finish(bench)
    assert [one.weight for one in of(gives(bench, 2.0), Contribute)] == [2.0]


def test_parts_that_are_drawn_in_are_counted_and_a_streak_is_told_once() -> None:
    bench = clipped_member()
    (told,) = records(finish(bench, away=4.5), "bound")
    assert "4.5 away from the last result" in told.cause and "clip_radius, 3" in told.reason
    assert not records(finish(bench, away=5.0), "bound")
    finish(bench, away=2.5)
    bounded = bench.machine.participation.bounded
    assert (bounded.drawn_in_rounds, bounded.away, bounded.clipped_rounds) == (2, 2.5, 0)


@pytest.mark.parametrize(("version", "taken"), [(BOUNDS_SINCE - 1, False), (BOUNDS_SINCE, True)])
def test_a_script_that_does_not_say_what_is_clipped_is_not_taken(version: int, taken: bool) -> None:
    bench = Follower(D, roster_of(A, B, D, bounds=CLIPPED))
    out = bench.handle(events.WorkerReady(model=MODEL, round=0, version=version))
    assert bool(of(out, TakeWorker)) == taken
    assert taken or "clip_radius = 3" in of(out, RefuseWorker)[0].reason
