"""Snapshots instead of a long log: Ongaro's thesis chapter 5."""

from __future__ import annotations

import pytest
from tests.unit.protocols.agreement.raft.cluster import SETTINGS, Cluster, Disk, configuration
from tests.unit.protocols.agreement.raft.test_election import resolved

from chaos_protocols.agreement.raft import HardState, LogEntry, Persist, RestoreSnapshot, Send, Snapshot
from chaos_protocols.agreement.raft.log import Log
from chaos_protocols.agreement.raft.messages import SNAPSHOT_BYTES_MAX, AppendRequest, SnapshotRequest, SnapshotResponse
from chaos_protocols.names import SiteId

A, B = SiteId("a"), SiteId("b")


def far_behind(seed: int = 1) -> tuple[Cluster, str, str]:
    """A cluster whose third site missed 40 commands that the others have compacted away."""
    cluster, leader, (one, other) = resolved("abc", seed)
    cluster.crash(other)
    for _ in range(40):
        cluster.propose(leader)
        cluster.run(0.02)
    for name in (leader, one):
        cluster.compact(name)
    return cluster, leader, other


def test_compaction_keeps_the_state_and_shortens_the_log() -> None:
    cluster, leader, _ = resolved("abc")
    for _ in range(20):
        cluster.propose(leader)
        cluster.run(0.02)
    cluster.run(0.5)
    assert cluster[leader].compaction_due
    cluster.compact(leader)
    assert not cluster[leader].compaction_due
    assert cluster.nodes[SiteId(leader)].disk.entries == []
    before = list(cluster.applied(leader))
    cluster.crash(leader)
    cluster.start(leader)
    assert cluster.applied(leader) == before
    assert cluster[leader].commit_index == 22
    snapshot = cluster[leader].snapshot
    assert snapshot is not None
    assert snapshot.configuration == configuration("abc")
    assert [cluster[leader].term_at(index) for index in (1, 22, 23)] == [None, 2, None]


def test_a_follower_far_behind_gets_the_snapshot_and_then_the_log() -> None:
    cluster, leader, other = far_behind()
    cluster.start(other)
    cluster.propose(leader)
    cluster.run_until(lambda: cluster.applied(other) == cluster.applied(leader), 2.0)
    assert len(cluster.applied(other)) == 41
    cluster.check_logs()


def test_a_snapshot_is_sent_once_to_a_dead_site_and_again_only_when_it_was_lost() -> None:
    cluster, leader, other = far_behind()
    cluster.keep_sent = True
    cluster.run(5.0)
    assert sum(isinstance(message, SnapshotRequest) for _, _, _, message in cluster.sent) <= 1
    cluster.sent.clear()
    cluster.filter = lambda _source, _destination, message: not isinstance(message, SnapshotRequest)
    cluster.start(other)
    cluster.run(5.0)
    again = [sent_s for sent_s, _, _, message in cluster.sent if isinstance(message, SnapshotRequest)]
    assert 2 <= len(again) <= 5.0 / SETTINGS.election_timeout_s + 1
    assert cluster[other].leader == leader
    cluster.filter = lambda _source, _destination, _message: True
    cluster.run_until(lambda: cluster.applied(other) == cluster.applied(leader), 2.0)


def test_a_leader_that_compacts_while_a_snapshot_is_on_its_way_sends_the_newer_one() -> None:
    cluster, leader, other = far_behind()
    cluster.delay_s = (0.2, 0.25)
    cluster.start(other)
    cluster.keep_sent = True
    cluster.run_until(lambda: any(isinstance(message, SnapshotRequest) for _, _, _, message in cluster.sent))
    cluster.delay_s = (0.005, 0.01)
    cluster.propose(leader)
    cluster.run(0.1)
    cluster.compact(leader)
    cluster.run_until(lambda: cluster.applied(other) == cluster.applied(leader), 2.0)


@pytest.mark.parametrize("dead", [True, False])
def test_compaction_beyond_what_a_follower_was_sent_leads_to_a_snapshot(dead: bool) -> None:
    cluster, leader, (_, other) = resolved("abc")
    cluster.run(0.5)
    cluster.part("".join(set("abc") - {other}))
    for _ in range(200):
        cluster.propose(leader)
        cluster.run(0.002)
    cluster.run(0.05 if not dead else 3.0)
    cluster.compact(leader)
    cluster.propose(leader)
    cluster.heal()
    cluster.run_until(lambda: cluster.applied(other) == cluster.applied(leader), 5.0)


def test_entries_after_the_snapshot_are_kept_if_they_follow_from_it() -> None:
    """Thesis 5.1, figure 5.3: a snapshot of a prefix of the follower's log."""
    snapshot = Snapshot(index=3, term=2, configuration=configuration("abc"), state=b"x")
    entries = [LogEntry(index=index, term=2, command=b"") for index in (2, 3, 4)]
    for last_term, kept in ((2, 4), (1, 3)):
        cluster = Cluster(1)
        cluster.form("abc")
        cluster.crash("a")
        disk = cluster.nodes[A].disk
        disk.hard_state = HardState(2, None)
        disk.entries = entries if last_term == 2 else [LogEntry(index=n, term=1, command=b"") for n in (2, 3, 4)]
        cluster.start("a")
        request = SnapshotRequest(term=2, leader=B, snapshot=snapshot, tenure=5)
        effects = cluster["a"].receive(B, request, now_s=cluster.now_s)
        assert isinstance(effects[0], Persist)
        assert RestoreSnapshot(snapshot=snapshot) in effects
        assert cluster["a"].last_index == kept
        assert cluster["a"].commit_index == 3
        disk.persist(effects[0])
        assert disk.last_index == kept


def test_an_old_snapshot_changes_nothing_but_is_acknowledged() -> None:
    cluster, leader, (one, _) = resolved("abc")
    term = cluster[leader].term
    old = Snapshot(index=1, term=1, configuration=configuration("abc"), state=b"")
    request = SnapshotRequest(term=term, leader=SiteId(leader), snapshot=old, tenure=7)
    effects = cluster[one].receive(SiteId(leader), request, now_s=cluster.now_s)
    assert effects == [Send(destination=SiteId(leader), message=SnapshotResponse(term=term, match_index=1, tenure=7))]


def test_a_snapshot_of_an_old_leader_is_refused_with_the_newer_term() -> None:
    cluster = Cluster(1)
    cluster.add("a", Disk(HardState(8, None), None, []))
    snapshot = Snapshot(index=3, term=2, configuration=configuration("bc"), state=b"")
    request = SnapshotRequest(term=3, leader=B, snapshot=snapshot, tenure=1)
    effects = cluster["a"].receive(B, request, now_s=cluster.now_s)
    assert effects == [Send(destination=B, message=SnapshotResponse(term=8, match_index=0, tenure=1))]


def test_an_append_that_begins_before_the_snapshot_is_taken_from_there_on() -> None:
    cluster = Cluster(1)
    snapshot = Snapshot(index=5, term=2, configuration=configuration("abc"), state=b"")
    cluster.add("a", Disk(HardState(2, None), snapshot, []))
    entries = tuple(LogEntry(index=index, term=2, command=b"") for index in range(3, 8))
    request = AppendRequest(
        term=2, leader=B, previous_index=2, previous_term=1, entries=entries, commit_index=0, tenure=1
    )
    cluster.act("a", cluster["a"].receive(B, request, now_s=cluster.now_s))
    assert cluster["a"].last_index == 7
    assert [entry.index for entry in cluster.nodes[A].disk.entries] == [6, 7]


def test_only_committed_entries_become_a_snapshot() -> None:
    cluster, leader, others = resolved("abc")
    cluster.part(leader, "".join(others))
    cluster.propose(leader)
    with pytest.raises(ValueError, match="only 2 is committed"):
        cluster[leader].compact(3, b"")
    with pytest.raises(ValueError, match="bytes; allowed"):
        cluster[leader].compact(2, b"x" * (SNAPSHOT_BYTES_MAX + 1))
    assert cluster[leader].compact(1, b"") == []
    assert cluster[leader].compact(0, b"") == []


def test_a_snapshot_holds_the_configuration_at_its_index_not_a_later_one() -> None:
    cluster, leader, others = resolved("abc")
    cluster.part(leader, "".join(others))
    cluster.propose(leader, configuration("abc", "x"))
    effects = cluster[leader].compact(2, b"")
    cluster.act(leader, effects)
    snapshot = cluster[leader].snapshot
    assert snapshot is not None
    assert snapshot.configuration == configuration("abc")
    assert cluster[leader].configuration == configuration("abc", "x")


def test_the_configuration_before_the_snapshot_is_not_known() -> None:
    log = Log(Snapshot(index=5, term=2, configuration=configuration("abc"), state=b""), ())
    with pytest.raises(ValueError, match="before the snapshot at 5"):
        log.configuration_at(4)
