"""Neighbours that have agreed on different things under one index and term find out, and only they (spec 5.25)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.protocols.one_site import EPOCH, A, B, Bench, C, D, heartbeat, records, roster_of

from chaos_protocols.agreement.chain import HEADS_KEPT, LogChain, linked
from chaos_protocols.agreement.commands import RetryRound, SetRules, encode_command, encode_roster
from chaos_protocols.agreement.raft.messages import (
    HEAD_BYTES,
    AppendRequest,
    Configuration,
    LogEntry,
    Mandate,
    Snapshot,
    SnapshotRequest,
)
from chaos_protocols.wire.control import Heartbeat, RaftEnvelope
from chaos_protocols.wire.versions import NAMES_SINCE, PROOFS_SINCE

RUN = "ab" * 16
ROSTER = msgspec.structs.replace(roster_of(A, B, C), run_id=RUN)
VOTERS = Configuration(voters=(A, B, C), learners=())


def entry(index: int, reason: str = "", *, term: int = 1, **changes: Any) -> LogEntry:
    command = encode_command(RetryRound(views=ROSTER.views, reason=reason)) if reason else b""
    return LogEntry(index=index, term=term, command=command, **changes)


def rules(version: int = NAMES_SINCE) -> LogEntry:
    command = encode_command(SetRules(version=version, views=ROSTER.views))
    return LogEntry(index=EPOCH + 1, term=1, command=command)


def follower(site: Any = B) -> Bench:
    return Bench(site, ROSTER, voters=(A, B, C)).up(*(one for one in (A, B, C) if one != site))


def told(bench: Bench, *entries: LogEntry, term: int = 1) -> list[Any]:
    """The scheduler, A, tells it these, and that they are agreed. Before the run has agreed on proofs."""
    last = entries[-1].index
    request = AppendRequest(
        term=term, leader=A, previous_index=entries[0].index - 1, previous_term=1, entries=entries, commit_index=last,
        tenure=0,
    )  # fmt: skip
    return bench.hear(A, RaftEnvelope(message=request))


def head_of(bench: Bench) -> tuple[int, bytes]:
    return bench.machine.replica.chain.index, bench.machine.replica.chain.head


def beat_of(bench: Bench) -> Heartbeat:
    index, head = head_of(bench)
    return msgspec.structs.replace(heartbeat(), run_id=RUN, log_index=index, log_head=head)


# -- the number


@pytest.mark.parametrize(
    "other",
    [
        entry(9, "x"),
        entry(8, "y"),
        entry(8, "x", term=2),
        entry(8, "x", configuration=VOTERS),
        entry(
            8, "x", mandate=Mandate(term=1, leader=A, votes=(), index=8, voters=(A,), public_key=b"k", signature=b"s")
        ),
    ],
)
def test_every_part_of_an_entry_counts(other: LogEntry) -> None:
    assert len({linked(b"", entry(8, "x")), linked(b"", other)}) == 2
    assert len(linked(b"", other)) == HEAD_BYTES


def test_what_came_before_counts() -> None:
    assert linked(linked(b"", entry(8, "x")), entry(9)) != linked(linked(b"", entry(8, "y")), entry(9))


def test_only_the_newest_are_kept_and_what_is_not_known_differs_from_nothing() -> None:
    chain = LogChain(None)
    for index in range(1, HEADS_KEPT + 3):
        chain.agreed(entry(index), begins=index == 1)
    assert chain.differs(3, b"x" * HEAD_BYTES) and not chain.differs(3, b"")
    assert not chain.differs(2, b"x" * HEAD_BYTES) and not chain.differs(chain.index + 1, b"x" * HEAD_BYTES)
    assert not chain.differs(chain.index, chain.head)


# -- where it begins


def test_entries_have_a_number_from_the_one_on_with_which_that_was_agreed() -> None:
    bench = follower()
    told(bench, rules(PROOFS_SINCE))
    assert head_of(bench) == (0, b"")
    bench = follower()
    told(bench, rules())
    assert head_of(bench) == (EPOCH + 1, linked(b"", rules()))


def test_two_sites_that_were_told_the_same_have_the_same_number_whatever_came_how() -> None:
    one, other = follower(B), follower(C)
    told(one, rules())
    told(one, entry(EPOCH + 2, "x"), entry(EPOCH + 3))
    told(other, rules(), entry(EPOCH + 2, "x"), entry(EPOCH + 3))
    assert head_of(one) == head_of(other) and head_of(one)[0] == EPOCH + 3
    assert not records(one.hear(C, beat_of(other)), "split")


def test_it_is_the_same_after_a_restart_from_the_log() -> None:
    entries = (rules(), entry(EPOCH + 2, "x"))
    before = follower()
    told(before, *entries)
    again = Bench(B, ROSTER, voters=(A, B, C), incarnation=2, entries=entries).up(A, C)
    told(again, entry(EPOCH + 3))
    told(before, entry(EPOCH + 3))
    assert head_of(again) == head_of(before)


def snapshot_of(chain: bytes) -> RaftEnvelope:
    state = encode_roster(msgspec.structs.replace(ROSTER, epoch=20, rules=NAMES_SINCE, needs=NAMES_SINCE))
    snapshot = Snapshot(index=20, term=1, configuration=VOTERS, state=state, chain=chain)
    return RaftEnvelope(message=SnapshotRequest(term=1, leader=A, snapshot=snapshot, tenure=0))


def test_a_snapshot_brings_it() -> None:
    bench = follower()
    bench.hear(A, snapshot_of(b"h" * HEAD_BYTES))
    assert head_of(bench) == (20, b"h" * HEAD_BYTES)


def test_a_snapshot_without_one_is_found_out() -> None:
    """Whoever schedules would have a newcomer compare nothing."""
    bench = follower()
    bench.hear(A, snapshot_of(b""))
    true = msgspec.structs.replace(heartbeat(), run_id=RUN, log_index=20, log_head=b"h" * HEAD_BYTES)
    assert records(bench.hear(C, true), "split")


def test_a_log_that_is_compacted_keeps_it() -> None:
    bench = follower()
    told(bench, rules())
    for index in range(EPOCH + 2, EPOCH + 300):
        told(bench, entry(index))
    snapshot = bench.machine.raft.snapshot
    assert snapshot is not None and snapshot.index > EPOCH + 1 and len(snapshot.chain) == HEAD_BYTES
    assert LogChain(snapshot).head == snapshot.chain


# -- what differs


def test_a_scheduler_that_tells_two_sites_different_things_is_found_out_by_both() -> None:
    one, other = follower(B), follower(C)
    told(one, rules(), entry(EPOCH + 2, "for one"))
    told(other, rules(), entry(EPOCH + 2, "for the other"))
    for bench, there, source in ((one, other, C), (other, one, B)):
        (found,) = records(bench.hear(source, beat_of(there)), "split")
        assert found.subject == source[:8] and f"entry {EPOCH + 2}" in found.cause
    one.taken()
    one.hear(C, beat_of(other))
    assert not records(one.out, "split"), "told once"


def test_what_differed_once_differs_for_good() -> None:
    one, other = follower(B), follower(C)
    told(one, rules(), entry(EPOCH + 2, "for one"), entry(EPOCH + 3))
    told(other, rules(), entry(EPOCH + 2, "for the other"), entry(EPOCH + 3))
    assert records(one.hear(C, beat_of(other)), "split")


def test_nothing_stops_for_a_number_that_a_neighbour_says() -> None:
    bench = follower()
    told(bench, rules())
    epoch, term = bench.machine.roster.epoch, bench.machine.term
    wrong = msgspec.structs.replace(beat_of(bench), log_head=b"x" * HEAD_BYTES)
    assert records(bench.hear(C, wrong), "split")
    assert (bench.machine.roster.epoch, bench.machine.term) == (epoch, term) and bench.machine.links.is_up(C)


def test_a_guest_cannot_raise_the_alarm() -> None:
    bench = follower().up(D)
    told(bench, rules())
    wrong = msgspec.structs.replace(beat_of(bench), log_head=b"x" * HEAD_BYTES)
    assert not records(bench.hear(D, wrong), "split")


def test_every_beat_tells_the_newest() -> None:
    bench = follower()
    told(bench, rules())
    beats = [one.envelope.message for one in bench.wait(1.0) if hasattr(one, "envelope")]
    said = {(one.log_index, one.log_head) for one in beats if isinstance(one, Heartbeat)}
    assert said == {head_of(bench)}
