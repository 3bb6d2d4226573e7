"""Handing the leadership over, before the scheduler's site leaves: Ongaro's thesis 3.10."""

from __future__ import annotations

from tests.unit.protocols.agreement.raft.cluster import SETTINGS, Cluster, configuration
from tests.unit.protocols.agreement.raft.test_election import resolved

from chaos_protocols.agreement.raft import Role
from chaos_protocols.agreement.raft.messages import AppendRequest, TimeoutNow
from chaos_protocols.names import SiteId

X = SiteId("x")


def hand_over(cluster: Cluster, leader: str, target: str | None) -> str:
    site = None if target is None else SiteId(target)
    cluster.act(leader, cluster[leader].transfer_leadership(site, now_s=cluster.now_s))
    return cluster[leader].refusal


def test_the_successor_leads_within_two_round_trips_although_the_leader_lives() -> None:
    cluster, leader, (one, _) = resolved("abc")
    cluster.run(0.5)
    assert hand_over(cluster, leader, one) == ""
    assert cluster[leader].transfer_pending
    elapsed_s = cluster.run_until(lambda: cluster[one].role is Role.LEADER)
    assert elapsed_s < 0.04
    cluster.run(2.0)
    assert {machine.leader for machine in cluster.up} == {one}
    assert not cluster[leader].transfer_pending


def test_no_proposals_while_the_leadership_is_handed_over() -> None:
    cluster, leader, (one, _) = resolved("abc")
    cluster.run(0.5)
    assert cluster[leader].can_propose
    hand_over(cluster, leader, one)
    assert not cluster[leader].can_propose
    assert cluster.propose(leader) is None
    assert cluster[leader].refusal == f"the leadership is being handed over to {one}"
    assert hand_over(cluster, leader, one) == f"the leadership is already being handed over to {one}"


def test_the_successor_is_brought_up_to_date_first() -> None:
    cluster, leader, (one, _) = resolved("abc")
    cluster.filter = lambda _source, destination, message: destination != one or not isinstance(message, AppendRequest)
    cluster.propose(leader)
    cluster.run(0.1)
    cluster.keep_sent = True
    hand_over(cluster, leader, one)
    cluster.run(0.05)
    assert not any(isinstance(message, TimeoutNow) for _, _, _, message in cluster.sent)
    cluster.filter = lambda _source, _destination, _message: True
    cluster.run_until(lambda: cluster[one].role is Role.LEADER, 1.0)
    assert cluster.applied(one) == [b"command 1"]


def test_a_hand_over_to_a_dead_site_is_given_up_after_an_election_timeout() -> None:
    cluster, leader, (one, _) = resolved("abc")
    cluster.run(0.5)
    cluster.crash(one)
    hand_over(cluster, leader, one)
    assert cluster[leader].deadline_s is not None
    cluster.run(SETTINGS.election_timeout_s + 0.01)
    assert not cluster[leader].transfer_pending
    assert cluster.propose(leader) is not None


def test_without_a_name_the_voter_with_the_longest_log_is_chosen() -> None:
    cluster, leader, (one, other) = resolved("abc")
    cluster.run(0.5)
    cluster.crash(one)
    cluster.propose(leader)
    cluster.run(0.1)
    assert hand_over(cluster, leader, None) == ""
    cluster.run_until(lambda: cluster[other].role is Role.LEADER, 1.0)


def test_a_hand_over_to_nobody_fit_is_refused_with_the_reason() -> None:
    cluster, leader, (one, _) = resolved("abc", learners="d")
    assert hand_over(cluster, leader, "d") == "d is not another voter"
    assert hand_over(cluster, leader, leader) == f"{leader} is not another voter"
    assert hand_over(cluster, one, None) == f"this site does not lead; {leader} does"
    alone = Cluster(1)
    alone.bootstrap("a")
    alone.step()
    assert hand_over(alone, "a", None) == "there is no other voter"


def test_only_the_leader_of_the_term_can_name_a_successor() -> None:
    cluster, leader, (one, _) = resolved("abc", learners="d")
    term = cluster[leader].term
    for name, source, said in ((one, X, term), (one, SiteId(leader), term - 1), ("d", SiteId(leader), term)):
        cluster.act(name, cluster[name].receive(source, TimeoutNow(term=said), now_s=cluster.now_s))
        assert cluster[name].role is Role.FOLLOWER
        assert cluster[name].term == term


def test_leader_of_two_hands_over_and_is_then_removed() -> None:
    """Spec 5.14: the scheduler's site leaves a run of two."""
    cluster, leader, (other,) = resolved("ab")
    cluster.run(0.5)
    hand_over(cluster, leader, None)
    cluster.run_until(lambda: cluster[other].role is Role.LEADER)
    cluster.run_until(lambda: cluster[other].commit_index == cluster[other].last_index)
    assert cluster.propose(other, configuration(other), command=b"remove") is not None
    assert cluster[other].commit_index == cluster[other].last_index
    cluster.run(0.1)
    assert cluster.applied(leader) == [b"remove"]
