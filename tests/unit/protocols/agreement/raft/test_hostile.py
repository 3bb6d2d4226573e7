"""Bytes from a peer are hostile until checked: what no honest site sends is dropped with a reason, and nothing
changes."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.agreement.raft.cluster import Cluster, configuration
from tests.unit.protocols.agreement.raft.test_election import TENURE, resolved

from chaos_protocols.agreement.raft import Configuration, LogEntry, RaftMessage, Role, Snapshot
from chaos_protocols.agreement.raft.config import NOBODY
from chaos_protocols.agreement.raft.messages import (
    COMMAND_BYTES_MAX,
    AppendRequest,
    AppendResponse,
    PreVoteRequest,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteResponse,
)
from chaos_protocols.names import SiteId

X = SiteId("x")


def dropped(cluster: Cluster, name: str, source: str, message: RaftMessage) -> str:
    """The reason why the message was dropped; fails if anything happened."""
    machine = cluster[name]
    before = (machine.term, machine.role, machine.last_index, machine.commit_index)
    assert machine.receive(SiteId(source), message, now_s=cluster.now_s) == []
    assert (machine.term, machine.role, machine.last_index, machine.commit_index) == before
    return machine.violation or ""


def append(leader: str, term: int, entries: tuple[LogEntry, ...], previous: tuple[int, int] = (2, 2)) -> AppendRequest:
    return AppendRequest(
        term=term,
        leader=SiteId(leader),
        previous_index=previous[0],
        previous_term=previous[1],
        entries=entries,
        commit_index=0,
        tenure=0,
    )


def entry(index: int, term: int, new: Configuration | None = None) -> LogEntry:
    return LogEntry(index=index, term=term, command=b"", configuration=new)


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ((entry(4, 2),), "entry 4 follows entry 2"),
        ((entry(3, 2), entry(3, 2)), "entry 3 follows entry 3"),
        ((entry(3, 1),), "entry 3 has term 1, the one before it 2"),
        ((entry(3, 3),), "an entry of term 3 in an append of term 2"),
        ((entry(3, 2, NOBODY),), "entry 3 has an impossible configuration: 0 voters"),
    ],
)
def test_entries_that_no_leader_could_have_are_dropped(entries: tuple[LogEntry, ...], why: str) -> None:
    cluster, leader, (one, _) = resolved("abc")
    assert cluster[leader].term == 2
    assert why in dropped(cluster, one, leader, append(leader, 2, entries))


def test_a_second_leader_of_a_term_is_a_liar() -> None:
    cluster, leader, (one, other) = resolved("abc")
    assert f"which {leader} leads" in dropped(cluster, one, other, append(other, 2, ()))
    assert f"which {leader} leads" in dropped(cluster, leader, other, append(other, 2, ()))
    assert f"it speaks for {leader}" in dropped(cluster, one, other, append(leader, 2, ()))


def test_a_leader_that_contradicts_a_committed_entry_is_a_liar() -> None:
    cluster, _, (one, other) = resolved("abc")
    request = append(other, 9, (entry(2, 9),), previous=(1, 1))
    effects = cluster[one].receive(SiteId(other), request, now_s=cluster.now_s)
    assert "differs from a committed one" in (cluster[one].violation or "")
    cluster.act(one, effects)
    assert cluster[one].last_index == 2


def test_a_violation_is_forgotten_with_the_next_message() -> None:
    cluster, leader, (one, other) = resolved("abc")
    assert dropped(cluster, one, other, append(leader, 2, ()))
    cluster[one].receive(SiteId(leader), append(leader, 2, ()), now_s=cluster.now_s)
    assert cluster[one].violation is None


def test_messages_in_the_name_of_the_site_itself_are_dropped() -> None:
    cluster, leader, _ = resolved("abc")
    assert "came from outside" in dropped(cluster, leader, leader, TimeoutNow(term=2))


def test_an_acknowledgement_of_entries_that_do_not_exist_is_dropped() -> None:
    cluster, leader, (one, _) = resolved("abc")
    lie = AppendResponse(
        term=2, success=True, match_index=99, previous_index=1, conflict_index=0, last_index=99, tenure=TENURE
    )
    assert "it acknowledges entry 99" in dropped(cluster, leader, one, lie)
    assert "it acknowledges entry 99" in dropped(
        cluster, leader, one, SnapshotResponse(term=2, match_index=99, tenure=TENURE)
    )


@pytest.mark.parametrize(
    ("snapshot", "why"),
    [
        (Snapshot(index=9, term=3, configuration=configuration("abc"), state=b""), "a snapshot of term 3 in term 2"),
        (Snapshot(index=9, term=0, configuration=configuration("abc"), state=b""), "a snapshot of term 0 in term 2"),
        (Snapshot(index=9, term=2, configuration=configuration("aab"), state=b""), "listed twice"),
    ],
)
def test_snapshots_that_no_leader_could_have_are_dropped(snapshot: Snapshot, why: str) -> None:
    cluster, leader, (one, _) = resolved("abc")
    request = SnapshotRequest(term=2, leader=SiteId(leader), snapshot=snapshot, tenure=0)
    assert why in dropped(cluster, one, leader, request)


def test_a_snapshot_in_the_name_of_another_is_dropped() -> None:
    cluster, leader, (one, other) = resolved("abc")
    snapshot = Snapshot(index=9, term=2, configuration=configuration("abc"), state=b"")
    request = SnapshotRequest(term=2, leader=SiteId(leader), snapshot=snapshot, tenure=0)
    assert "it speaks for" in dropped(cluster, one, other, request)


def test_what_is_no_message_of_the_agreement_is_an_error_of_the_caller() -> None:
    cluster, leader, (one, _) = resolved("abc")
    with pytest.raises(AssertionError):
        cluster[leader].receive(SiteId(one), object(), now_s=cluster.now_s)  # type: ignore[arg-type]


def test_answers_of_strangers_reach_nothing() -> None:
    cluster, leader, (one, _) = resolved("abc")
    for message in (
        SnapshotResponse(term=99, match_index=2, tenure=TENURE),
        VoteResponse(term=99, granted=True),
    ):
        assert dropped(cluster, leader, X, message) == ""
        assert dropped(cluster, one, X, message) == ""
    assert cluster[leader].role is Role.LEADER


def test_the_wire_types_bound_every_field() -> None:
    decoder: msgspec.msgpack.Decoder[RaftMessage] = msgspec.msgpack.Decoder(RaftMessage)
    for good in (
        PreVoteRequest(term=1, last_index=1, last_term=1),
        append("a", 2, (entry(3, 2, configuration("ab")),)),
    ):
        assert decoder.decode(msgspec.msgpack.encode(good)) == good
    bad: list[RaftMessage] = [
        PreVoteRequest(term=-1, last_index=1, last_term=1),
        PreVoteRequest(term=1 << 60, last_index=1, last_term=1),
        append("x" * 33, 2, ()),
        append("a", 2, (entry(3, 2, configuration("abcdefgh")),)),
        append("a", 2, (LogEntry(index=3, term=2, command=b"x" * (COMMAND_BYTES_MAX + 1)),)),
        append("a", 2, (entry(3, 2),) * 1025),
    ]
    for message in bad:
        with pytest.raises(msgspec.ValidationError):
            decoder.decode(msgspec.msgpack.encode(message))
