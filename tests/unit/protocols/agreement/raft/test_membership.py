"""Who belongs: Ongaro's thesis chapter 4, one voter at a time, and the correction of 2015 (no change before the
leader's own entry)."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.agreement.raft.cluster import SETTINGS, Cluster, configuration
from tests.unit.protocols.agreement.raft.test_election import TENURE, resolved

from chaos_protocols.agreement.raft import Configuration, Role, RoleChanged
from chaos_protocols.agreement.raft.config import NOBODY, fault_of, majority
from chaos_protocols.agreement.raft.messages import AppendRequest, AppendResponse, TimeoutNow
from chaos_protocols.names import SITES_MAX, SiteId


def grown() -> Cluster:
    """The founder a, with b, c and d admitted one after the other, as learners first."""
    cluster = Cluster(5)
    cluster.bootstrap("a")
    cluster.step()
    for voters, name in (("a", "b"), ("ab", "c"), ("abc", "d")):
        cluster.add(name)
        assert cluster.propose("a", configuration(voters, name)) is not None
        cluster.run(0.5)
        assert cluster.propose("a", configuration(voters + name)) is not None
        cluster.run(0.5)
    return cluster


def test_a_run_grows_from_one_site_to_four_and_survives_its_founder() -> None:
    cluster = grown()
    cluster.crash("a")
    cluster.run_until(lambda: cluster.leader() is not None)
    leader = cluster.leader()
    assert leader is not None
    cluster.propose(leader.site, command=b"after the founder")
    cluster.run(0.5)
    assert all(cluster.applied(name)[-1] == b"after the founder" for name in "bcd")


def test_learners_get_the_log_but_neither_vote_nor_count() -> None:
    """Thesis 4.2.1."""
    cluster, leader, others = resolved("abc", learners="d")
    cluster.part(leader + "d", "".join(others))
    cluster.propose(leader)
    cluster.run(0.2)
    assert cluster[leader].match_index(SiteId("d")) == cluster[leader].last_index
    assert cluster[leader].commit_index < cluster[leader].last_index
    cluster.run(5.0)
    assert cluster[leader].role is not Role.LEADER
    assert cluster["d"].role is Role.FOLLOWER


def test_a_configuration_is_used_as_soon_as_it_is_in_the_log() -> None:
    """Thesis 4.1: committed or not."""
    cluster, leader, others = resolved("abc")
    cluster.part(leader, others[0], others[1])
    cluster.propose(leader, configuration(leader + others[0]))
    assert cluster[leader].configuration == configuration(leader + others[0])
    assert cluster[leader].configuration_pending


def test_a_configuration_that_is_overwritten_is_forgotten() -> None:
    """Thesis 4.1: a server falls back to the previous configuration in its log."""
    cluster, leader, others = resolved("abc")
    cluster.part(leader, "".join(others))
    assert cluster.propose(leader, configuration(leader + others[0])) is not None
    cluster.run_until(lambda: any(cluster[name].role is Role.LEADER for name in others))
    assert cluster[leader].configuration == configuration(leader + others[0])
    cluster.heal()
    cluster.run(2.0)
    assert cluster[leader].configuration == configuration("abc")


def test_no_change_before_the_leaders_first_own_entry_is_committed() -> None:
    """The correction of 2015 (raft-dev, "bug in single-server membership changes")."""
    cluster = Cluster(1)
    cluster.form("abc")
    cluster.filter = lambda _source, _destination, message: not isinstance(message, AppendRequest)
    cluster.run_until(lambda: cluster.leader() is not None)
    leader = cluster.leader()
    assert leader is not None
    assert cluster.propose(leader.site, configuration("ab")) is None
    assert leader.refusal == "this leader has not committed an entry of its term yet"
    assert cluster.propose(leader.site) is not None


def test_one_change_at_a_time() -> None:
    cluster, leader, others = resolved("abc")
    cluster.part(leader, "".join(others))
    assert cluster.propose(leader, configuration("abc", "d")) == 3
    assert cluster.propose(leader, configuration("abc", "de")) is None
    assert cluster[leader].refusal == "the configuration change at index 3 is not committed yet"
    assert cluster.propose(leader) == 4
    assert cluster[leader].refusal == ""


def test_one_voter_at_a_time() -> None:
    cluster, leader, _ = resolved("abcd")
    assert cluster.propose(leader, configuration("abef")) is None
    assert cluster[leader].refusal == "more than one voter would change at once"
    assert cluster.propose(leader, configuration(leader)) is None


def test_a_voter_must_have_caught_up_as_a_learner() -> None:
    cluster, leader, _ = resolved("abc")
    assert cluster.propose(leader, configuration("abcd")) is None
    assert cluster[leader].refusal == "d must catch up as a learner before it votes"
    cluster.add("d")
    assert cluster.propose(leader, configuration("abc", "d")) is not None
    cluster.run(1.0)
    assert cluster.propose(leader, configuration("abcd")) is not None
    cluster.run(1.0)
    assert not cluster[leader].configuration_pending


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (NOBODY, "0 voters"),
        (configuration("abcdefgh"), "8 voters"),
        (configuration("ab", "b"), "listed twice"),
        (configuration("aa"), "listed twice"),
        (Configuration(voters=(SiteId("a"),), learners=tuple(SiteId(f"{n}") for n in range(SITES_MAX))), "4097 sites"),
    ],
)
def test_impossible_configurations_are_refused_with_the_reason(wrong: Configuration, why: str) -> None:
    assert why in (fault_of(wrong) or "")
    cluster, leader, _ = resolved("abc")
    with pytest.raises(ValueError, match=why):
        cluster.propose(leader, wrong)


def test_a_configuration_may_have_as_many_sites_as_a_run() -> None:
    learners = tuple(SiteId(f"{n}") for n in range(SITES_MAX - 1))
    assert fault_of(Configuration(voters=(SiteId("a"),), learners=learners)) is None


def test_majorities() -> None:
    assert [majority(voters) for voters in range(1, 8)] == [1, 2, 2, 3, 3, 4, 4]


def test_a_removed_follower_learns_of_it_and_falls_silent() -> None:
    cluster, leader, (one, other) = resolved("abc")
    cluster.propose(leader, configuration(leader + one), command=b"remove")
    cluster.run(1.0)
    assert cluster.applied(other)[-1] == b"remove"
    cluster.keep_sent = True
    cluster.run(5.0)
    assert all(other not in (source, destination) for _, source, destination, _ in cluster.sent)
    assert cluster[other].leader is None
    assert cluster[other].deadline_s is None
    assert cluster[leader].match_index(SiteId(other)) == 0


def test_a_removed_follower_that_does_not_know_it_disturbs_nobody() -> None:
    """Thesis 4.2.3."""
    cluster, leader, (one, other) = resolved("abc")
    cluster.part(leader + one, other)
    cluster.run(3.0)
    term = cluster[leader].term
    assert cluster.propose(leader, configuration(leader + one)) is not None
    cluster.run(1.0)
    assert not cluster[leader].configuration_pending
    cluster.heal()
    cluster.run(10.0)
    assert cluster[leader].role is Role.LEADER
    assert cluster[leader].term == term
    assert cluster[other].role is Role.PRE_CANDIDATE


def test_a_higher_term_in_the_answer_of_a_removed_site_deposes_nobody() -> None:
    cluster, leader, (one, other) = resolved("abc")
    cluster.part(leader, one, other)
    cluster.propose(leader, configuration(leader + one))
    answer = AppendResponse(
        term=50, success=False, match_index=0, previous_index=2, conflict_index=1, last_index=0, tenure=TENURE
    )
    cluster.act(leader, cluster[leader].receive(SiteId(other), answer, now_s=cluster.now_s))
    cluster.act(leader, cluster[leader].receive(SiteId("x"), answer, now_s=cluster.now_s))
    assert cluster[leader].role is Role.LEADER
    cluster.act(leader, cluster[leader].receive(SiteId(one), answer, now_s=cluster.now_s))
    assert cluster[leader].role is Role.FOLLOWER


def test_a_removed_leader_leads_until_its_removal_is_committed_then_hands_over() -> None:
    """Thesis 4.2.2: it does not count itself meanwhile."""
    cluster, leader, others = resolved("abc")
    cluster.keep_sent = True
    cluster.propose(leader, configuration("".join(others)))
    assert cluster[leader].role is Role.LEADER
    elapsed_s = cluster.run_until(lambda: any(cluster[name].role is Role.LEADER for name in others))
    assert elapsed_s < SETTINGS.heartbeat_interval_s
    assert any(isinstance(message, TimeoutNow) for _, _, _, message in cluster.sent)
    cluster.run(5.0)
    assert cluster[leader].role is Role.FOLLOWER
    assert cluster[leader].deadline_s is None
    stepped_down = [c for c in cluster.nodes[SiteId(leader)].changes if c.reason == "this site is no voter any more"]
    assert [c.role for c in stepped_down] == [Role.FOLLOWER]


def test_a_removed_leader_does_not_count_itself() -> None:
    cluster, leader, others = resolved("abc")
    cluster.part(leader + others[0], others[1])
    cluster.propose(leader, configuration("".join(others)))
    cluster.run(0.3)
    assert cluster[leader].commit_index < cluster[leader].last_index


def test_a_leader_whose_own_removal_is_unknown_to_the_rest_can_still_be_elected() -> None:
    """Thesis 4.2.2: only it has the entry that the last voter lacks; without it nobody could ever be elected."""
    cluster, leader, (other,) = resolved("ab")
    cluster.part(leader, other)
    cluster.propose(leader, configuration(other))
    cluster.crash(leader)
    cluster.run(3.0)
    cluster.start(leader)
    cluster.heal()
    cluster.run_until(lambda: cluster[other].role is Role.LEADER and not cluster[other].configuration_pending)
    assert cluster[other].configuration == configuration(other)
    assert cluster[leader].role is Role.FOLLOWER


def test_a_sole_voter_takes_back_the_promotion_of_a_site_that_died() -> None:
    """Every majority before and after contains it, so the overlap that one change at a time protects is not lost."""
    cluster = Cluster(1)
    cluster.bootstrap("a")
    cluster.step()
    cluster.add("b")
    cluster.propose("a", configuration("a", "b"))
    cluster.run(0.5)
    cluster.crash("b")
    assert cluster.propose("a", configuration("ab")) is not None
    cluster.run(2.0)
    assert cluster["a"].configuration_pending
    assert cluster.propose("a", configuration("ab", "c")) is None
    assert cluster.propose("a", configuration("a")) is not None
    assert cluster["a"].commit_index == cluster["a"].last_index
    cluster.start("b")
    cluster.run(5.0)
    assert cluster["a"].role is Role.LEADER


def test_three_voters_may_not_skip_a_pending_change() -> None:
    cluster, leader, others = resolved("abc")
    cluster.part(leader, "".join(others))
    cluster.propose(leader, configuration(leader + others[0]))
    assert cluster.propose(leader, configuration(leader)) is None
    assert "not committed yet" in cluster[leader].refusal


def test_answers_of_an_earlier_membership_count_for_nothing() -> None:
    """A site that was removed, lost its log and came back must not be believed to hold what it once acknowledged."""
    cluster, leader, (one, other) = resolved("abc")
    cluster.run(1.0)
    site = SiteId(other)
    old = AppendResponse(
        term=cluster[leader].term,
        success=True,
        match_index=2,
        previous_index=1,
        conflict_index=0,
        last_index=2,
        tenure=TENURE,
    )
    cluster.act(leader, cluster[leader].receive(site, old, now_s=cluster.now_s))
    assert cluster[leader].match_index(site) == 2
    cluster.propose(leader, configuration(leader + one))
    cluster.run(0.5)
    cluster.part(leader + one, other)
    cluster.propose(leader, configuration(leader + one, other))
    cluster.run(0.5)
    cluster.act(leader, cluster[leader].receive(site, old, now_s=cluster.now_s))
    assert cluster[leader].match_index(site) == 0
    new = msgspec.structs.replace(old, tenure=cluster[leader].last_index)
    cluster.act(leader, cluster[leader].receive(site, new, now_s=cluster.now_s))
    assert cluster[leader].match_index(site) == 2


def test_a_new_learner_is_served_at_once_not_with_the_next_heartbeat() -> None:
    cluster, leader, _ = resolved("abc")
    cluster.add("d")
    cluster.propose(leader, configuration("abc", "d"))
    elapsed_s = cluster.run_until(lambda: cluster["d"].commit_index == cluster[leader].last_index)
    assert elapsed_s < 0.08


def test_role_changes_carry_a_reason() -> None:
    cluster = grown()
    changes: list[RoleChanged] = [change for node in cluster.nodes.values() for change in node.changes]
    assert changes
    assert all(change.reason for change in changes)


def test_a_removed_learner_hears_the_log_until_its_removal_is_committed() -> None:
    """Thesis 4.2.2: it may have to hear that it is removed, and a removal that is not committed may yet be void."""
    cluster, leader, others = resolved("abc", learners="d")
    first = cluster.propose(leader, command=b"before")
    second = cluster.propose(leader, configuration("abc"))
    assert first is not None and second is not None
    machine = cluster[leader]

    def holds(index: int) -> None:
        said = AppendResponse(
            term=machine.term, success=True, match_index=index, previous_index=index, conflict_index=0,
            last_index=index, tenure=machine._core.progress[SiteId(others[0])].tenure,
        )  # fmt: skip
        cluster.act(leader, machine.receive(SiteId(others[0]), said, now_s=cluster.now_s))

    holds(first)
    assert machine.commit_index == first and SiteId("d") in machine._core.progress
    holds(second)
    assert machine.commit_index == second and SiteId("d") not in machine._core.progress
