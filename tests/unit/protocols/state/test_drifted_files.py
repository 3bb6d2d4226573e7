"""What lies on the disk of a site whose state was found to differ (spec 12.17)."""

from __future__ import annotations

import pytest
from tests.unit.protocols.follower import Follower, of, training_member
from tests.unit.protocols.one_site import MODEL, A, B, D, records

from chaos_protocols import events
from chaos_protocols.effects import DeliverResult, SetCheckpointsAside
from chaos_protocols.membership.drift import rounds_looked_back
from chaos_protocols.rounds.notices import StatesDiffer
from chaos_protocols.rounds.state_check import CHECK_EVERY_ROUNDS, QUIET_ROUNDS_MAX, QUIET_ROUNDS_MIN, encode_check
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.worker import StateDigests

BACK = rounds_looked_back(MODEL.state_bytes)


def digests(second: bytes, array: str = "fc.weight") -> StateDigests:
    return StateDigests(start=0, stop=8, first=b"s" * 8, second=second, array=array)


def file_of(round_number: int, lineage: int = 1) -> CheckpointFacts:
    return CheckpointFacts(lineage=lineage, round=round_number, spec_digest=MODEL.spec_digest)


def files(bench: Follower, *found: CheckpointFacts) -> None:
    bench.handle(events.CheckpointsFound(checkpoints=found))


def offered(bench: Follower) -> CheckpointFacts | None:
    return bench.machine.state.files.offered(MODEL.spec_digest)


def trained_until(bench: Follower, last: int) -> None:
    """Rounds go on until the one after `last` is open."""
    while (tag := bench.machine.rounds.running) is not None and tag.round <= last:
        bench.handle(events.WorkerContributed(round=tag.round, weight=1.0))
        out = bench.handle(
            events.ReduceFinished(tag=tag, digest=f"d{tag.round}", weights=((A, 1.0), (B, 1.0), (D, 1.0)))
        )
        (delivered,) = of(out, DeliverResult)
        told = digests(b"o" * 8) if delivered.digest is not None else None
        bench.handle(events.WorkerApplied(round=tag.round, digests=told))


def outvoted(bench: Follower, *, odd: str = D) -> list[object]:
    """The next round in which digests are told shows that the state of `odd` differs."""
    last = bench.machine.rounds.completed_round
    trained_until(bench, last + (-last) % CHECK_EVERY_ROUNDS)
    tag = bench.machine.rounds.running
    assert tag is not None and tag.round % CHECK_EVERY_ROUNDS == 1
    bench.handle(events.WorkerContributed(round=tag.round, weight=1.0))
    said = tuple((one, encode_check(digests(b"o" * 8 if one == odd else b"s" * 8))) for one in (A, B, D))
    weights = ((A, 1.0), (B, 1.0), (D, 1.0))
    return bench.handle(events.ReduceFinished(tag=tag, digest="x", weights=weights, checks=said))


def test_a_file_of_a_state_that_was_found_to_differ_is_offered_no_more() -> None:
    bench = training_member()
    trained_until(bench, 4)
    files(bench, file_of(4))
    out = outvoted(bench)
    assert bench.machine.rounds.worker_round is None, "it is outvoted"
    assert offered(bench) is None
    assert of(out, SetCheckpointsAside) == [SetCheckpointsAside(lineage=1, after=0, until=4)]
    (record,) = records(out, "checkpoint")
    assert (record.subject, record.outcome) == ("round 4", "set aside")
    files(bench, file_of(4))
    assert offered(bench) is None, "a list of files that was on its way brings it back"


def test_files_from_before_a_difference_can_have_begun_and_those_of_another_history_stay() -> None:
    bench = training_member()
    last = 2 * BACK
    trained_until(bench, last)
    found = last + (-last) % CHECK_EVERY_ROUNDS
    before, first = file_of(found - BACK), file_of(found - BACK + 1)
    files(bench, file_of(found, lineage=0), before, first, file_of(found))
    out = outvoted(bench)
    assert of(out, SetCheckpointsAside) == [SetCheckpointsAside(lineage=1, after=before.round, until=found)]
    assert bench.machine.state.files.offers == [file_of(found, lineage=0), before]
    assert offered(bench) == before


def test_whose_state_is_that_of_most_keeps_its_files() -> None:
    bench = training_member()
    trained_until(bench, 4)
    files(bench, file_of(4))
    out = outvoted(bench, odd=B)
    assert offered(bench) == file_of(4) and not of(out, SetCheckpointsAside)


def test_where_there_is_no_file_nothing_is_said_of_any() -> None:
    bench = training_member()
    out = outvoted(bench)
    assert not of(out, SetCheckpointsAside) and not records(out, "checkpoint")


def test_a_file_that_is_being_written_is_set_aside_too_and_never_offered() -> None:
    bench = training_member()
    trained_until(bench, 4)
    written = file_of(4, lineage=0)
    bench.machine.state.files.begin(4, MODEL.spec_digest, 0)
    bench.machine.state.files.copied(4, epoch=1)
    assert offered(bench) == written, "others are told of it"
    out = outvoted(bench)
    assert of(out, SetCheckpointsAside) and offered(bench) is None
    bench.handle(events.CheckpointWritten(checkpoint=written, size_bytes=1, took_s=0.1))
    assert offered(bench) is None


def test_the_file_of_the_state_that_was_taken_again_is_offered() -> None:
    bench = training_member()
    trained_until(bench, 4)
    files(bench, file_of(4))
    outvoted(bench)
    later = file_of(6)
    bench.machine.state.files.begin(6, MODEL.spec_digest, 1)
    bench.machine.state.files.copied(6, epoch=1)
    bench.handle(events.CheckpointWritten(checkpoint=later, size_bytes=1, took_s=0.1))
    assert offered(bench) == later


def test_files_that_were_set_aside_make_the_history_no_older() -> None:
    """Its next file is of that history still, and counts for more than those of earlier ones."""
    bench = training_member()
    trained_until(bench, 4)
    files(bench, file_of(3, lineage=5), file_of(4, lineage=7))
    assert bench.machine.state.files.lineage(1) == 7
    outvoted(bench)
    assert bench.machine.state.files.offers == [file_of(3, lineage=5)]
    assert bench.machine.state.files.lineage(1) == 7


@pytest.mark.parametrize(("later", "stay"), [(QUIET_ROUNDS_MIN + 4, False), (2 * QUIET_ROUNDS_MAX, True)])
def test_of_who_was_outvoted_not_long_before_all_files_since_are_doubtful(later: int, stay: bool) -> None:
    """What differed again soon after was not told."""
    assert later > BACK
    bench = training_member()
    drift, kept = bench.machine.participation.drift, bench.machine.state.files
    files(bench, file_of(1), file_of(100))
    drift.found(StatesDiffer(round=100, array="fc.weight", outvoted=(D,), majority=(A, B)))
    assert kept.offers == [file_of(1)]
    files(bench, file_of(1), file_of(101))
    drift.found(StatesDiffer(round=100 + later, array="fc.weight", outvoted=(D,), majority=(A, B)))
    assert kept.offers == ([file_of(1), file_of(101)] if stay else [file_of(1)])
