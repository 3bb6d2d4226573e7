"""Who alone has a vote needs no other: when it leads all the same only after a while (spec 5.4); and who had one before
asks it for none."""

from __future__ import annotations

from tests.unit.protocols.agreement.raft.cluster import SETTINGS, Cluster, configuration
from tests.unit.protocols.agreement.raft.test_election import resolved

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


def test_who_has_no_vote_in_the_newest_two_configurations_asks_for_none_whatever_is_known_to_be_committed() -> None:
    """Two such sites were elected in turn by the sole voter, which believed neither of them (seed 9053595 of the
    simulator, 5 sites)."""
    cluster, leader, (other,) = resolved("ab")
    for learners, may in ((other, True), (other + "c", False)):
        assert cluster.propose(leader, configuration(leader, learners)) is not None
        cluster.run(1.0)
        cluster.crash(other)
        cluster.start(other)
        assert cluster[other].commit_index < cluster[other].last_index, "it knows of nothing that is committed"
        assert cluster[other]._core.may_campaign is may
        cluster.run(1.0)
