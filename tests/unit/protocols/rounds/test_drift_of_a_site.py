"""What a site does about states that differ: it asks its worker for digests, says them, and takes the state again where
it is outvoted."""

from __future__ import annotations

from tests.unit.protocols.follower import Follower, finish_round, of, to_worker, training_member
from tests.unit.protocols.one_site import A, B, D, records, roster_of, round_machine

from chaos_protocols import events
from chaos_protocols.effects import Contribute, DeliverResult
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.rounds.state_check import CHECK_EVERY_ROUNDS, encode_check
from chaos_protocols.wire.plans import Tag
from chaos_protocols.wire.user_words import StateDiffered
from chaos_protocols.wire.worker import StateDigests

SAME, OTHER = b"s" * 8, b"o" * 8


def digests(piece: tuple[int, int], second: bytes = SAME, array: str = "fc.weight") -> StateDigests:
    return StateDigests(start=piece[0], stop=piece[1], first=SAME, second=second, array=array)


def asked(bench: Follower) -> tuple[int, int]:
    """Rounds go on until the worker is asked for digests; it has not answered yet."""
    for _ in range(CHECK_EVERY_ROUNDS + 1):
        running = bench.machine.rounds.running
        assert running is not None
        bench.handle(events.WorkerContributed(round=running.round, weight=1.0))
        (delivered,) = of(finish_round(bench), DeliverResult)
        if delivered.digest is not None:
            return delivered.digest
        bench.handle(events.WorkerApplied(round=delivered.round))
    raise AssertionError("it is never asked")


def applied(bench: Follower, own: StateDigests) -> bytes:
    """It answers and gives its part of the next round; what its site says there."""
    number = bench.machine.rounds.completed_round
    bench.handle(events.WorkerApplied(round=number, digests=own))
    (part,) = of(bench.handle(events.WorkerContributed(round=number + 1, weight=1.0)), Contribute)
    return part.check


def judged(bench: Follower, said: dict[str, bytes]) -> list[object]:
    tag = bench.machine.rounds.running
    assert tag is not None
    weights = ((A, 1.0), (B, 1.0), (D, 1.0))
    checks = tuple(sorted(said.items()))
    done = events.ReduceFinished(tag=tag, digest="x", weights=weights, checks=checks)  # type: ignore[arg-type]
    return bench.handle(done)


def test_digests_that_the_worker_was_asked_for_go_with_the_next_round() -> None:
    bench = training_member()
    piece = asked(bench)
    assert 0 <= piece[0] < piece[1]
    own = digests(piece)
    assert applied(bench, own) == encode_check(own)
    out = judged(bench, {A: encode_check(own), B: encode_check(own), D: encode_check(own)})
    assert of(out, DeliverResult) and not records(out, "drift")


def test_an_outvoted_site_tells_its_worker_and_takes_the_state_again() -> None:
    bench = training_member()
    piece = asked(bench)
    number = bench.machine.rounds.completed_round
    said = applied(bench, digests(piece, OTHER))
    most = encode_check(digests(piece))
    out = judged(bench, {A: most, B: most, D: said})
    (told,) = to_worker(out, StateDiffered)
    assert (told.round, told.array) == (number, "fc.weight") and "not that of 2 other" in told.reason
    (record,) = records(out, "drift")
    assert record.subject == "site d" and "first in 'fc.weight'" in record.reason
    assert not of(out, DeliverResult), "nothing more is built on that state"
    assert bench.machine.rounds.worker_round is None
    assert bench.machine.state.request() is not None, "it asks for the state of the run"


def test_the_others_hear_whose_state_differs_and_go_on() -> None:
    bench = training_member()
    piece = asked(bench)
    said = applied(bench, digests(piece))
    out = judged(bench, {A: said, B: encode_check(digests(piece, OTHER)), D: said})
    (record,) = records(out, "drift")
    assert record.subject == "site b" and of(out, DeliverResult) and not to_worker(out, StateDiffered)


def test_a_difference_is_narrowed_down_before_anybody_is_judged() -> None:
    bench = training_member()
    piece = asked(bench)
    said = applied(bench, digests(piece, OTHER, array=""))
    most = encode_check(digests(piece))
    out = judged(bench, {A: most, B: most, D: said})
    (delivered,) = of(out, DeliverResult)
    assert delivered.digest is not None and delivered.digest[0] > piece[0] and delivered.digest[1] == piece[1]
    assert not records(out, "drift")


def digested_after_round_4() -> RoundMachine:
    """Its worker has just said what it found of its state."""
    rounds = round_machine(B, roster_of(A, B))
    rounds.begin_from_worker(3)
    rounds.worker_contributed(4, 1.0)
    assert rounds.running is not None
    rounds.reduce_finished(rounds.running, "x", ((A, 1.0), (B, 1.0)))
    rounds.worker_applied(4, digests((0, 8), OTHER))
    return rounds


def test_what_was_found_of_a_state_is_not_said_of_another_of_the_same_round() -> None:
    """Its state was given up, and that of the same round came here by a transfer; where the run has gone on from an
    earlier state meanwhile, it has forgotten the digests before that (row 204)."""
    rounds = digested_after_round_4()
    rounds.fall_behind("a part of it was damaged")
    rounds.collect_from(4)
    rounds.worker_loaded(4)
    rounds.activate()
    (part,) = of(rounds.worker_contributed(5, 1.0), Contribute)
    assert part.has_bytes and not part.check


def test_who_stands_by_says_nothing_of_a_history_that_was_given_up() -> None:
    """Its worker had digested the state of round 4, and died; an operator had the run go on from round 1, and the
    others came to another round 4."""
    rounds = digested_after_round_4()
    rounds.worker_lost()
    rounds.begin_at(1)
    rounds.advance()
    for number in (2, 3, 4):
        assert rounds.running is not None and rounds.running.round == number
        rounds.reduce_finished(rounds.running, f"y{number}", ((A, 1.0), (B, 0.0)))
    parts = of(rounds.advance(), Contribute)
    assert rounds.check.part(rounds.roster, Tag(epoch=1, round=5)) == b"" and not any(part.check for part in parts)
