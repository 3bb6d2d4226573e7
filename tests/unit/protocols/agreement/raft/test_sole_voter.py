"""Who alone has a vote needs no other: when it leads all the same only after a while (spec 5.4)."""

from __future__ import annotations

from tests.unit.protocols.agreement.raft.cluster import SETTINGS, Cluster

from chaos_protocols.agreement.raft import Role

TIMEOUT_S = SETTINGS.election_timeout_s


def restarted(voters: str, learners: str = "") -> tuple[Cluster, str]:
    """A cluster whose leader was started anew a moment ago, and that site's name."""
    cluster = Cluster(1)
    cluster.form(voters, learners)
    cluster.run_until(lambda: all(machine.commit_index == 2 for machine in cluster.up))
    leader = cluster.leader()
    assert leader is not None
    cluster.crash(leader.site)
    cluster.start(leader.site)
    return cluster, leader.site


def test_a_sole_founder_leads_at_once_and_commits_alone() -> None:
    cluster = Cluster(1)
    cluster.bootstrap("a")
    assert cluster["a"].deadline_s == cluster.now_s
    cluster.step()
    assert cluster["a"].role is Role.LEADER
    assert cluster["a"].commit_index == 2
    assert cluster.propose("a") == 3
    assert cluster.applied("a") == [b"command 1"]


def test_a_sole_voter_that_was_started_anew_leads_when_it_reaches_all_that_it_is_to_lead() -> None:
    cluster, _ = restarted("a", learners="bc")
    anew = cluster["a"]
    assert anew.deadline_s == cluster.now_s + TIMEOUT_S
    cluster.act("a", anew.all_reached(now_s=cluster.now_s))
    assert anew.role is Role.LEADER


def test_a_sole_voter_waits_one_election_timeout_for_those_that_it_is_to_lead() -> None:
    cluster, _ = restarted("a", learners="bc")
    cluster.run(TIMEOUT_S * 0.9)
    assert cluster["a"].role is Role.FOLLOWER
    cluster.run(TIMEOUT_S * 0.2)
    assert cluster["a"].role is Role.LEADER


def test_who_is_not_the_only_voter_does_not_lead_because_it_reaches_the_others() -> None:
    cluster, leader = restarted("abc")
    assert cluster[leader].all_reached(now_s=cluster.now_s) == []
    assert cluster[leader].role is Role.FOLLOWER
