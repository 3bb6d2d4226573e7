"""Elections: Ongaro's thesis 3.4 (votes), 3.6.1 (up-to-date logs), 4.2.3 (disturbers), 6.2 (majority lost), 9.6
(pre-vote)."""

from __future__ import annotations

import pytest
from tests.unit.protocols.agreement.raft.cluster import SETTINGS, Cluster, Disk, configuration

from chaos_protocols.agreement.raft import HardState, LogEntry, Persist, RaftMessage, Role, Send
from chaos_protocols.agreement.raft.messages import (
    AppendRequest,
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
)
from chaos_protocols.names import SiteId

TIMEOUT_S = SETTINGS.election_timeout_s
TENURE = 2
"""Of the first members under the first leader: the index of its no-op."""
A, B, C, X = SiteId("a"), SiteId("b"), SiteId("c"), SiteId("x")


def resolved(voters: str, seed: int = 1, learners: str = "") -> tuple[Cluster, str, list[str]]:
    """A cluster with a leader and everything committed; the leader's name, and the other voters'."""
    cluster = Cluster(seed)
    cluster.form(voters, learners)
    cluster.run_until(lambda: all(machine.commit_index == 2 for machine in cluster.up))
    leader = cluster.leader()
    assert leader is not None
    return cluster, leader.site, [name for name in voters if name != leader.site]


def role(cluster: Cluster, name: str) -> Role:
    return cluster[name].role


def until_led(cluster: Cluster) -> float:
    return cluster.run_until(lambda: cluster.leader() is not None)


def ask(cluster: Cluster, name: str, source: SiteId, message: RaftMessage) -> list[RaftMessage]:
    """Hands the message to the site and returns its answers."""
    effects = cluster[name].receive(source, message, now_s=cluster.now_s)
    cluster.act(name, effects)
    return [effect.message for effect in effects if isinstance(effect, Send) and effect.destination == source]


def test_the_election_timeout_is_drawn_from_one_to_two_times_the_setting() -> None:
    waits = []
    for seed in range(50):
        cluster = Cluster(seed)
        cluster.form("abc")
        waits.append((cluster["a"].deadline_s or 0.0) - cluster.now_s)
    assert TIMEOUT_S <= min(waits) < 1.2 * TIMEOUT_S
    assert 1.8 * TIMEOUT_S < max(waits) < 2 * TIMEOUT_S


def test_three_sites_elect_one_leader_and_all_know_it() -> None:
    cluster, leader, _ = resolved("abc")
    assert {machine.leader for machine in cluster.up} == {leader}
    assert all(machine.missing_voters(cluster.now_s) == () for machine in cluster.up)
    assert [machine.role for machine in cluster.up].count(Role.LEADER) == 1


def test_a_joiner_without_a_log_is_passive_for_ever() -> None:
    cluster = Cluster(1)
    cluster.add("x")
    assert cluster["x"].deadline_s is None
    assert not cluster["x"].can_propose
    assert cluster["x"].leader_lost(now_s=cluster.now_s) == []


def test_a_site_without_any_log_grants_nothing() -> None:
    cluster = Cluster(1)
    cluster.add("x")
    assert ask(cluster, "x", A, PreVoteRequest(term=2, last_index=9, last_term=1)) == [
        PreVoteResponse(term=0, granted=False)
    ]
    answer = ask(cluster, "x", A, VoteRequest(term=2, last_index=9, last_term=1, transfer=False))
    assert answer == [VoteResponse(term=2, granted=False)]


def test_one_vote_in_a_term_and_it_survives_a_crash() -> None:
    """Thesis 3.8: the vote is durable before the answer."""
    cluster = Cluster(1)
    cluster.form("abc")
    request = VoteRequest(term=5, last_index=1, last_term=1, transfer=False)
    effects = cluster["a"].receive(B, request, now_s=cluster.now_s)
    assert isinstance(effects[0], Persist)
    assert effects[0].hard_state == HardState(5, B)
    cluster.act("a", effects)
    cluster.crash("a")
    cluster.start("a")
    assert ask(cluster, "a", C, request) == [VoteResponse(term=5, granted=False)]
    again = cluster["a"].receive(B, request, now_s=cluster.now_s)
    assert again == [Send(destination=B, message=VoteResponse(term=5, granted=True))]


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"), [(3, 2, True), (4, 2, True), (2, 3, True), (2, 2, False), (9, 1, False)]
)
def test_votes_go_to_logs_that_are_at_least_as_up_to_date(last_index: int, last_term: int, granted: bool) -> None:
    """Thesis 3.6.1: the later last term wins; with equal terms the longer log."""
    cluster = Cluster(1)
    cluster.form("abc")
    disk = cluster.nodes[A].disk
    cluster.crash("a")
    disk.hard_state = HardState(2, None)
    disk.entries = [LogEntry(index=index, term=2, command=b"") for index in (2, 3)]
    cluster.start("a")
    pre_vote = PreVoteRequest(term=4, last_index=last_index, last_term=last_term)
    assert ask(cluster, "a", B, pre_vote) == [PreVoteResponse(term=4 if granted else 2, granted=granted)]
    vote = VoteRequest(term=4, last_index=last_index, last_term=last_term, transfer=False)
    assert ask(cluster, "a", B, vote) == [VoteResponse(term=4, granted=granted)]


def test_a_cut_off_site_does_not_raise_its_term_and_disturbs_nobody_when_it_returns() -> None:
    """Thesis 9.6: without pre-vote its higher term would depose the leader."""
    cluster, leader, (one, other) = resolved("abc")
    term = cluster[leader].term
    cluster.part(leader + one, other)
    cluster.run(10.0)
    assert cluster[other].term == term
    assert cluster[other].role is Role.PRE_CANDIDATE
    assert set(cluster[other].missing_voters(cluster.now_s)) == {leader, one}
    cluster.heal()
    cluster.run(3.0)
    assert cluster[leader].role is Role.LEADER
    assert cluster[other].leader == leader
    assert cluster[leader].term == term


def test_who_hears_a_leader_grants_no_vote_and_keeps_its_term() -> None:
    """Thesis 4.2.3: a removed or unknown site with a high term cannot depose a working leader."""
    cluster, leader, (one, _) = resolved("abc")
    for name in (leader, one):
        term = cluster[name].term
        assert ask(cluster, name, X, VoteRequest(term=99, last_index=99, last_term=98, transfer=False)) == []
        refused = PreVoteResponse(term=term, granted=False)
        assert ask(cluster, name, X, PreVoteRequest(term=99, last_index=99, last_term=98)) == [refused]
        assert cluster[name].term == term


def test_silent_leader_is_replaced_within_three_election_timeouts() -> None:
    for seed in range(20):
        cluster, leader, _ = resolved("abcde", seed)
        cluster.crash(leader)
        assert TIMEOUT_S * 0.75 < until_led(cluster) < 3 * TIMEOUT_S


def test_leader_whose_daemon_is_known_to_be_dead_is_replaced_in_a_fraction_of_the_timeout() -> None:
    """Spec 5.9: end-of-file starts a pre-vote at once. Split votes may cost one retry within two
    heartbeats."""
    times = []
    for seed in range(40):
        cluster, leader, others = resolved("abc" if seed % 2 else "abcde", seed)
        cluster.crash(leader)
        for name in others:
            cluster.act(name, cluster[name].leader_lost(now_s=cluster.now_s))
        times.append(until_led(cluster))
    times.sort()
    assert times[len(times) // 2] < SETTINGS.heartbeat_interval_s / 2
    assert times[-1] < TIMEOUT_S


def test_a_wrong_report_of_the_leaders_death_ends_with_its_next_sign_of_life() -> None:
    cluster, leader, (one, _) = resolved("abc")
    term = cluster[leader].term
    cluster.act(one, cluster[one].leader_lost(now_s=cluster.now_s))
    cluster.run(2.0)
    assert cluster[leader].role is Role.LEADER
    assert cluster[leader].term == term
    assert cluster[one].leader == leader
    assert cluster[one].quorum_contact(cluster.now_s)


def test_a_late_message_of_a_dead_leader_is_no_sign_of_life_but_its_entries_are_taken() -> None:
    cluster, leader, (one, other) = resolved("abc")
    cluster.propose(leader)
    cluster.crash(leader)
    cluster.act(one, cluster[one].leader_lost(now_s=cluster.now_s))
    assert not cluster[one].quorum_contact(cluster.now_s)
    before = cluster[one].last_index
    cluster.act(other, cluster[other].leader_lost(now_s=cluster.now_s))
    elapsed = cluster.run_until(lambda: cluster.leader() is not None)
    assert elapsed < TIMEOUT_S
    assert cluster[one].last_index > before


def test_who_lost_the_leader_grants_votes_although_it_was_heard_just_now() -> None:
    cluster, leader, (one, other) = resolved("abc")
    request = PreVoteRequest(term=cluster[one].term + 1, last_index=9, last_term=9)
    assert ask(cluster, one, SiteId(other), request) == [PreVoteResponse(term=cluster[one].term, granted=False)]
    cluster.act(one, cluster[one].leader_lost(now_s=cluster.now_s))
    assert ask(cluster, one, SiteId(other), request) == [PreVoteResponse(term=request.term, granted=True)]
    assert cluster.leader() is cluster[leader]
    assert cluster[leader].leader_lost(now_s=cluster.now_s) == []


def test_a_learner_that_lost_the_leader_does_not_campaign() -> None:
    cluster, leader, _ = resolved("abc", learners="d")
    cluster.crash(leader)
    cluster.act("d", cluster["d"].leader_lost(now_s=cluster.now_s))
    cluster.part("d")
    cluster.run(5.0)
    assert cluster["d"].role is Role.FOLLOWER
    assert cluster["d"].leader is None
    assert cluster["d"].deadline_s is None


def test_leader_without_a_majority_steps_down_and_names_whom_it_lacks() -> None:
    """Thesis 6.2: so that clients do not wait for a leader that cannot commit."""
    cluster, leader, others = resolved("abcde")
    cluster.part(leader + others[0], "".join(others[1:]))
    cluster.run_until(lambda: cluster[leader].role is not Role.LEADER, TIMEOUT_S + 2 * SETTINGS.heartbeat_interval_s)
    reason = cluster.nodes[SiteId(leader)].changes[-1].reason
    assert all(name in reason.split(" heard from ")[1] for name in others[1:])
    assert f"{TIMEOUT_S}" in reason
    assert not cluster[leader].quorum_contact(cluster.now_s)


def test_one_of_two_voters_keeps_the_lead_alone_and_the_other_cannot_take_it() -> None:
    """Spec 5.10, 5.13: the leader may remove the other, the other cannot remove the leader."""
    cluster, leader, (other,) = resolved("ab")
    cluster.part(leader, other)
    cluster.run(10.0)
    assert cluster[leader].role is Role.LEADER
    assert cluster[leader].missing_voters(cluster.now_s) == (other,)
    assert not cluster[leader].quorum_contact(cluster.now_s)
    assert cluster[other].role is Role.PRE_CANDIDATE
    commit_index = cluster[leader].commit_index
    cluster.propose(leader)
    assert cluster[leader].commit_index == commit_index
    assert cluster.propose(other) is None
    assert cluster.propose(leader, configuration(leader)) is not None
    assert cluster[leader].commit_index == cluster[leader].last_index
    cluster.heal()
    cluster.run(10.0)
    assert cluster[leader].role is Role.LEADER
    assert cluster[other].role is Role.PRE_CANDIDATE


def test_one_of_two_voters_by_an_uncommitted_change_steps_down_without_a_majority() -> None:
    """The others may not know the change, and elect somebody else."""
    cluster, leader, others = resolved("abc")
    cluster.part(leader, "".join(others))
    assert cluster.propose(leader, configuration(leader + others[0])) is not None
    cluster.run(3.0)
    assert cluster[leader].role is not Role.LEADER
    assert any(cluster[name].role is Role.LEADER for name in others)


def test_the_first_message_of_a_new_leader_is_a_sign_of_life() -> None:
    """However shortly before the death of the former one was reported."""
    cluster, leader, others = resolved("abc")
    cluster.crash(leader)
    for name in others:
        cluster.act(name, cluster[name].leader_lost(now_s=cluster.now_s))
    elapsed_s = cluster.run_until(lambda: all(cluster[name].leader in others for name in others))
    assert elapsed_s < SETTINGS.heartbeat_interval_s
    assert all(cluster[name].quorum_contact(cluster.now_s) for name in others)


def test_who_denied_another_candidate_its_vote_follows_the_new_leader_at_its_first_message_all_the_same() -> None:
    """What was known of the former leader's death says nothing of the new term."""
    cluster, leader, (one, other, third, _) = resolved("abcde")
    cluster.crash(leader)
    cluster.act(one, cluster[one].leader_lost(now_s=cluster.now_s))
    term = cluster[one].term + 1
    request = VoteRequest(term=term, last_index=1, last_term=1, transfer=False)
    assert ask(cluster, one, SiteId(other), request) == [VoteResponse(term=term, granted=False)]
    first = AppendRequest(
        term=term, leader=SiteId(third), previous_index=2, previous_term=2, entries=(), commit_index=2, tenure=2
    )
    ask(cluster, one, SiteId(third), first)
    assert cluster[one].leader == third and cluster[one].quorum_contact(cluster.now_s)


def test_a_leader_with_an_older_term_learns_of_the_newer_one_and_steps_down() -> None:
    cluster, leader, (one, other) = resolved("abc")
    request = VoteRequest(term=7, last_index=0, last_term=0, transfer=True)
    assert ask(cluster, one, SiteId(other), request) == [VoteResponse(term=7, granted=False)]
    cluster.run_until(lambda: cluster[leader].term >= 7)
    cluster.run_until(lambda: all(machine.leader is not None for machine in cluster.up))
    assert cluster.leader() is not None


def test_split_votes_are_tried_again_within_two_heartbeats() -> None:
    cluster = Cluster(1)
    cluster.form("abcd")
    cluster.filter = lambda _source, _destination, message: not isinstance(message, VoteRequest)
    cluster.run_until(lambda: cluster["a"].role is Role.CANDIDATE)
    before = cluster["a"].deadline_s
    assert ask(cluster, "a", B, VoteResponse(term=cluster["a"].term, granted=False)) == []
    after = cluster["a"].deadline_s
    assert before is not None
    assert after is not None
    assert after < before
    assert after - cluster.now_s < 2 * SETTINGS.heartbeat_interval_s
    assert cluster["a"].missing_voters(cluster.now_s) == (C, SiteId("d"))


def test_of_two_pre_candidates_with_equal_logs_the_lower_id_goes_first_but_not_for_ever() -> None:
    cluster = Cluster(1)
    cluster.form("abc")
    cluster.part()
    cluster.run_until(lambda: cluster["b"].role is Role.PRE_CANDIDATE)
    higher = PreVoteRequest(term=2, last_index=1, last_term=1)
    assert ask(cluster, "b", C, higher) == [PreVoteResponse(term=1, granted=False)]
    assert ask(cluster, "b", A, higher) == [PreVoteResponse(term=2, granted=True)]
    longer = PreVoteRequest(term=2, last_index=2, last_term=1)
    assert ask(cluster, "b", C, longer) == [PreVoteResponse(term=2, granted=True)]
    cluster.now_s += SETTINGS.heartbeat_interval_s
    assert ask(cluster, "b", C, higher) == [PreVoteResponse(term=2, granted=True)]


def test_who_grants_a_pre_vote_lets_the_other_try_first() -> None:
    cluster = Cluster(1)
    cluster.form("abc")
    deadline_s = cluster["a"].deadline_s
    assert deadline_s is not None
    cluster.now_s = deadline_s - 0.001
    ask(cluster, "a", B, PreVoteRequest(term=2, last_index=1, last_term=1))
    assert cluster["a"].deadline_s == cluster.now_s + SETTINGS.heartbeat_interval_s


def test_answers_of_strangers_and_of_other_terms_count_for_nothing() -> None:
    cluster = Cluster(1)
    cluster.form("abcde")
    cluster.part()
    for source in (B, C):
        ask(cluster, "a", source, PreVoteResponse(term=2, granted=True))
        ask(cluster, "a", source, VoteResponse(term=1, granted=True))
    assert role(cluster, "a") is Role.FOLLOWER
    cluster.run_until(lambda: role(cluster, "a") is Role.PRE_CANDIDATE)
    for source, term in ((X, 2), (SiteId("y"), 2), (B, 1), (C, 3)):
        ask(cluster, "a", source, PreVoteResponse(term=term, granted=True))
    assert role(cluster, "a") is Role.PRE_CANDIDATE
    for source in (B, C):
        ask(cluster, "a", source, PreVoteResponse(term=2, granted=True))
    assert role(cluster, "a") is Role.CANDIDATE
    for source, term in ((X, 2), (SiteId("y"), 2), (B, 1), (C, 1)):
        ask(cluster, "a", source, VoteResponse(term=term, granted=True))
    assert role(cluster, "a") is Role.CANDIDATE
    ask(cluster, "a", B, VoteResponse(term=2, granted=True))
    assert role(cluster, "a") is Role.CANDIDATE
    ask(cluster, "a", B, VoteResponse(term=6, granted=False))
    assert role(cluster, "a") is Role.FOLLOWER
    assert cluster["a"].term == 6


def test_a_pre_candidate_adopts_a_higher_term() -> None:
    cluster = Cluster(1)
    cluster.form("abc")
    cluster.part()
    cluster.run_until(lambda: role(cluster, "a") is Role.PRE_CANDIDATE)
    ask(cluster, "a", B, PreVoteResponse(term=1, granted=False))
    assert role(cluster, "a") is Role.PRE_CANDIDATE
    assert cluster["a"].missing_voters(cluster.now_s) == (C,)
    ask(cluster, "a", B, PreVoteResponse(term=8, granted=False))
    assert role(cluster, "a") is Role.FOLLOWER
    assert cluster["a"].term == 8


def test_a_candidate_nobody_answers_goes_back_to_asking() -> None:
    cluster = Cluster(1)
    cluster.form("abc")
    cluster.filter = lambda _source, _destination, message: not isinstance(message, VoteResponse)
    cluster.run_until(lambda: cluster["a"].role is Role.CANDIDATE)
    cluster.part()
    cluster.run_until(lambda: cluster["a"].role is Role.PRE_CANDIDATE)
    assert "no answer from b, c" in cluster.nodes[A].changes[-1].reason


def test_tick_before_the_deadline_does_nothing() -> None:
    cluster, leader, (one, _) = resolved("abc")
    assert cluster[leader].tick(now_s=cluster.now_s) == []
    assert cluster[one].tick(now_s=cluster.now_s) == []
    assert Cluster(1).next_s() is None


def test_damaged_storage_is_refused_with_the_reason() -> None:
    cluster = Cluster(1)
    with pytest.raises(ValueError, match="entry 3 follows entry 0"):
        cluster.add("a", Disk(HardState(1, None), None, [LogEntry(index=3, term=1, command=b"")]))
    with pytest.raises(ValueError, match="stored term 1 is below"):
        cluster.add("a", Disk(HardState(1, None), None, [LogEntry(index=1, term=4, command=b"")]))
