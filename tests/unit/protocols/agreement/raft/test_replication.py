"""Replication and commitment: Ongaro's thesis 3.5 (log matching), 3.6.2 (entries of earlier terms), 10.2.1
(pipelining)."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.agreement.raft.cluster import SETTINGS, Cluster, configuration
from tests.unit.protocols.agreement.raft.test_election import TENURE, resolved

from chaos_protocols.agreement.raft import HardState, LogEntry, Persist, RaftMessage, RaftSettings, Role, Send
from chaos_protocols.agreement.raft.config import IN_FLIGHT_APPENDS_MAX
from chaos_protocols.agreement.raft.log import entry_bytes
from chaos_protocols.agreement.raft.messages import COMMAND_BYTES_MAX, AppendRequest, AppendResponse, PreVoteRequest
from chaos_protocols.agreement.raft.progress import Mode, Progress
from chaos_protocols.names import SiteId

A, B = SiteId("a"), SiteId("b")


def noop(index: int, term: int) -> LogEntry:
    return LogEntry(index=index, term=term, command=b"")


def with_log(terms: list[int]) -> Cluster:
    """Site a of (a, b, c) with entries 2, 3, ... of these terms on its disk."""
    cluster = Cluster(1)
    cluster.form("abc")
    cluster.crash("a")
    disk = cluster.nodes[A].disk
    disk.hard_state = HardState(max(terms, default=1), None)
    disk.entries = [noop(index, term) for index, term in enumerate(terms, 2)]
    cluster.start("a")
    return cluster


def append(
    previous: tuple[int, int], entries: tuple[LogEntry, ...] = (), *, term: int = 9, commit_index: int = 0
) -> AppendRequest:
    return AppendRequest(
        term=term,
        leader=B,
        previous_index=previous[0],
        previous_term=previous[1],
        entries=entries,
        commit_index=commit_index,
        tenure=1,
    )


def answer(cluster: Cluster, message: RaftMessage) -> AppendResponse:
    effects = cluster["a"].receive(B, message, now_s=cluster.now_s)
    cluster.act("a", effects)
    assert isinstance(effects[-1], Send)
    assert isinstance(effects[-1].message, AppendResponse)
    return effects[-1].message


def test_committed_commands_reach_every_state_machine_in_order_and_once() -> None:
    cluster, leader, _ = resolved("abcde")
    for _ in range(50):
        cluster.propose(leader)
        cluster.run(0.003)
    cluster.run(0.5)
    expected = [b"command %d" % number for number in range(1, 51)]
    assert all(cluster.applied(name) == expected for name in "abcde")


def test_a_commit_is_known_everywhere_two_round_trips_after_the_proposal() -> None:
    """Not only with the next heartbeat: the primitives of the overlay have 20 ms for everything."""
    cluster, leader, _ = resolved("abc")
    cluster.delay_s = (0.001, 0.001)
    cluster.propose(leader)
    elapsed_s = cluster.run_until(lambda: all(len(cluster.applied(name)) == 1 for name in "abc"))
    assert elapsed_s == pytest.approx(0.003)


def test_entries_are_durable_before_they_are_acknowledged() -> None:
    cluster = with_log([])
    effects = cluster["a"].receive(B, append((1, 1), (noop(2, 9),)), now_s=cluster.now_s)
    assert isinstance(effects[0], Persist)
    assert effects[0].entries == (noop(2, 9),)
    assert effects[0].hard_state == HardState(9, None)


@pytest.mark.parametrize(
    ("log", "previous", "conflict_index"),
    [
        ([1, 1, 1], (9, 5), 5),
        ([4, 4, 5, 5, 5], (6, 6), 4),
        ([4, 4, 5, 5, 5], (3, 3), 2),
        ([4], (2, 6), 2),
    ],
)
def test_a_follower_that_lacks_the_previous_entry_says_where_to_go_on(
    log: list[int], previous: tuple[int, int], conflict_index: int
) -> None:
    """Thesis 3.5: one step for each conflicting term, not for each entry."""
    cluster = with_log(log)
    response = answer(cluster, append(previous))
    assert not response.success
    assert response.conflict_index == conflict_index
    assert response.previous_index == previous[0]
    assert response.last_index == len(log) + 1


def test_conflicting_entries_are_overwritten_and_equal_ones_kept() -> None:
    """Thesis 3.5; and an old, shorter append must not cut off what came after it."""
    cluster = with_log([2, 3, 3])
    response = answer(cluster, append((1, 1), (noop(2, 2), noop(3, 4)), term=4))
    assert response.success
    assert response.match_index == 3
    assert [entry.term for entry in cluster.nodes[A].disk.entries] == [2, 4]
    answer(cluster, append((1, 1), (noop(2, 2),), term=4))
    assert cluster["a"].last_index == 3


def test_a_heartbeat_vouches_only_for_the_log_up_to_its_previous_entry() -> None:
    """What follows may be another leader's: neither acknowledged nor committed."""
    cluster = with_log([2, 3])
    response = answer(cluster, append((2, 2), commit_index=9))
    assert response.match_index == 2
    assert cluster["a"].commit_index == 2


def test_an_old_leader_is_told_the_term_and_changes_nothing() -> None:
    cluster = with_log([2, 3])
    response = answer(cluster, append((1, 1), (noop(2, 1),), term=2))
    assert not response.success
    assert response.term == 3
    assert cluster["a"].last_index == 3
    assert cluster["a"].leader is None


def test_entries_of_an_earlier_term_are_committed_only_with_one_of_the_present_term() -> None:
    """Thesis figure 3.7: a majority that stores an entry of an earlier term does not commit it."""
    cluster = Cluster(1)
    cluster.form("abc")
    cluster.crash("a")
    cluster.nodes[A].disk.hard_state = HardState(2, None)
    cluster.nodes[A].disk.entries = [noop(2, 2)]
    cluster.start("a")
    cluster.filter = lambda source, _destination, message: (
        not isinstance(message, AppendResponse) and (source == A or not isinstance(message, PreVoteRequest))
    )
    cluster.run_until(lambda: cluster["a"].role is Role.LEADER)
    tenure = cluster["a"].last_index
    old = AppendResponse(
        term=cluster["a"].term,
        success=True,
        match_index=2,
        previous_index=1,
        conflict_index=0,
        last_index=2,
        tenure=tenure,
    )
    cluster.act("a", cluster["a"].receive(B, old, now_s=cluster.now_s))
    assert cluster["a"].match_index(B) == 2
    assert cluster["a"].commit_index == 1
    cluster.filter = lambda _source, _destination, _message: True
    cluster.run(1.0)
    assert cluster["a"].commit_index == 3


def test_a_follower_with_another_history_is_brought_up_to_date() -> None:
    """Thesis figure 3.6."""
    cluster = with_log([2] * 12)
    cluster.crash("a")
    for name in "bc":
        cluster.crash(name)
        cluster.nodes[SiteId(name)].disk.hard_state = HardState(4, None)
        cluster.nodes[SiteId(name)].disk.entries = [noop(2, 3), noop(3, 3), *(noop(index, 4) for index in range(4, 20))]
    for name in "abc":
        cluster.start(name)
    cluster.run_until(lambda: all(machine.commit_index >= 20 for machine in cluster.up))
    assert cluster["a"].last_index == 20
    cluster.check_logs()


def test_a_dead_follower_costs_heartbeats_and_a_bounded_number_of_appends() -> None:
    cluster, leader, (one, other) = resolved("abc")
    cluster.run(0.5)
    cluster.crash(other)
    cluster.keep_sent = True
    for _ in range(300):
        cluster.propose(leader, command=b"x" * 1000)
        cluster.run(0.01)
    lost = [message for _, _, destination, message in cluster.sent if destination == other]
    loaded = [message for message in lost if isinstance(message, AppendRequest) and message.entries]
    assert len(loaded) <= IN_FLIGHT_APPENDS_MAX
    silent = [
        sent_s for sent_s, _, destination, _ in cluster.sent if destination == other and sent_s > cluster.now_s - 1.5
    ]
    assert len(silent) <= 11
    cluster.run(0.05)
    assert cluster[leader].commit_index == cluster[leader].last_index
    cluster.start(other)
    cluster.run_until(lambda: len(cluster.applied(other)) == 300, 2.0)
    assert cluster.applied(other) == cluster.applied(one)


def test_a_follower_whose_log_is_not_known_is_sent_entries_once_for_each_answer() -> None:
    """Where its log ends is being found out: more of the same would only be refused, too."""
    cluster, leader, (_, other) = resolved("abc")
    cluster.run(0.5)
    core = cluster[leader]._core
    core.progress[SiteId(other)] = Progress(next_index=core.log.last_index + 1, tenure=TENURE, contact_s=cluster.now_s)
    cluster.crash(other)
    cluster.keep_sent = True
    for _ in range(5):
        cluster.propose(leader)
    lost = [message for _, _, destination, message in cluster.sent if destination == other]
    assert len([message for message in lost if isinstance(message, AppendRequest) and message.entries]) == 1


def test_lost_appends_are_noticed_at_the_next_heartbeat() -> None:
    cluster, leader, (_, other) = resolved("abc")
    cluster.run(0.5)
    cluster.part("".join(set("abc") - {other}))
    for _ in range(3):
        cluster.propose(leader)
    cluster.run(0.02)
    cluster.heal()
    elapsed_s = cluster.run_until(lambda: len(cluster.applied(other)) == 3)
    assert elapsed_s < SETTINGS.heartbeat_interval_s + 0.06


def test_one_append_respects_both_limits_but_carries_at_least_one_entry() -> None:
    settings = RaftSettings(entries_per_append_max=3, append_bytes_max=1000)
    cluster = Cluster(2, settings=settings)
    cluster.form("ab")
    cluster.run_until(lambda: cluster.leader() is not None)
    leader = cluster.leader()
    assert leader is not None
    cluster.run(0.1)
    cluster.part()
    for size in (10, 10, 10, 10, 600, 600, 5000, 10):
        cluster.propose(leader.site, command=b"x" * size)
    cluster.run(1.0)
    cluster.keep_sent = True
    cluster.heal()
    cluster.run(2.0)
    batches = [message.entries for _, _, _, message in cluster.sent if isinstance(message, AppendRequest)]
    assert max(map(len, batches)) == 3
    assert all(len(batch) == 1 or sum(map(entry_bytes, batch)) <= 1000 for batch in batches)
    assert any(sum(map(entry_bytes, batch)) > 5000 for batch in batches)
    assert leader.commit_index == leader.last_index


def test_a_configuration_counts_towards_the_size_of_an_entry() -> None:
    plain = noop(1, 1)
    other = LogEntry(index=1, term=1, command=b"", configuration=configuration("abc", "de"))
    assert entry_bytes(other) - entry_bytes(plain) >= 5 * 32


def test_a_voter_that_lost_its_log_is_sent_it_again() -> None:
    cluster, leader, (_, other) = resolved("abc")
    for _ in range(5):
        cluster.propose(leader)
    cluster.run(0.5)
    cluster.crash(other)
    disk = cluster.nodes[SiteId(other)].disk
    disk.entries = []
    cluster.start(other)
    cluster.run_until(lambda: len(cluster.applied(other)) == 5, 2.0)


def test_a_follower_that_has_other_entries_in_the_place_of_those_it_acknowledged_is_sent_them_again() -> None:
    """Its machine had been copied a moment before it acknowledged them, and its log is as long as it was (seed 9128535,
    5 sites)."""
    cluster, former, (_, other) = resolved("abc")
    cluster.crash(former)
    cluster.run_until(lambda: cluster.leader() is not None)
    leading = cluster.leader()
    assert leading is not None
    leader = leading.site
    cluster.start(former)
    for _ in range(5):
        cluster.propose(leader)
    cluster.run(0.5)
    behind = next(one for one in (former, other) if one != leader)
    cluster.crash(behind)
    disk = cluster.nodes[SiteId(behind)].disk
    assert disk.entries[-1].index == leading.match_index(SiteId(behind)) == leading.last_index
    disk.entries = [msgspec.structs.replace(one, term=min(one.term, leading.term - 1)) for one in disk.entries]
    cluster.start(behind)
    cluster.run_until(lambda: len(cluster.applied(behind)) == 5, 2.0)
    assert cluster.nodes[SiteId(behind)].disk.entries[-1].term == leading.term


def test_old_and_impossible_rejections_change_nothing() -> None:
    cluster, leader, (one, _) = resolved("abc")
    cluster.run(0.5)
    for previous_index in (1, 99):
        rejection = AppendResponse(
            term=cluster[leader].term,
            success=False,
            match_index=0,
            previous_index=previous_index,
            conflict_index=1,
            last_index=5,
            tenure=TENURE,
        )
        effects = cluster[leader].receive(SiteId(one), rejection, now_s=cluster.now_s)
        assert effects == []
        assert cluster[leader].match_index(SiteId(one)) == 2


def test_answers_that_overtake_each_other_never_take_a_follower_back() -> None:
    progress = Progress(next_index=5, tenure=1, contact_s=0.0)
    assert progress.matched(4)
    assert progress.mode is Mode.REPLICATE
    progress.next_index = 9
    progress.in_flight.extend([6, 8])
    progress.rejected(previous_index=8, conflict_index=5, last_index=4)
    assert (progress.mode, progress.next_index) == (Mode.PROBE, 5)
    assert not progress.matched(4)
    assert progress.matched(8)
    assert progress.next_index == 9
    assert not progress.matched(6)
    assert (progress.match_index, progress.next_index) == (8, 9)


def test_only_the_leader_takes_proposals_and_the_refusal_names_it() -> None:
    cluster, leader, (one, _) = resolved("abc")
    assert cluster.propose(one) is None
    assert cluster[one].refusal == f"this site does not lead; {leader} does"
    assert cluster[one].match_index(SiteId(leader)) == 0
    assert cluster[leader].match_index(SiteId(leader)) == cluster[leader].last_index
    cluster.add("x")
    assert cluster.propose("x") is None
    assert cluster["x"].refusal == "this site does not lead; nobody known does"


def test_a_command_beyond_the_limit_is_an_error_of_the_caller() -> None:
    cluster, leader, _ = resolved("abc")
    with pytest.raises(ValueError, match="1048577 bytes"):
        cluster.propose(leader, command=b"x" * (COMMAND_BYTES_MAX + 1))
    assert cluster.propose(leader, command=b"x" * COMMAND_BYTES_MAX) is not None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("heartbeat_interval_s", 0.0),
        ("heartbeat_interval_s", float("nan")),
        ("election_timeout_s", 0.2),
        ("election_timeout_s", float("inf")),
        ("entries_per_append_max", 0),
        ("entries_per_append_max", 5000),
        ("append_bytes_max", 0),
        ("snapshot_after_entries", 0),
    ],
)
def test_settings_check_themselves(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        RaftSettings(**{field: value})  # type: ignore[arg-type]
