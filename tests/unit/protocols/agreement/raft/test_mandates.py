"""Whom leaders have left the vote, and what who has led once can make of that (spec 5.23)."""

from __future__ import annotations

import msgspec
from tests.rigs.keys import RigKeys
from tests.unit.protocols.agreement.raft.cluster import RUN, Cluster, configuration
from tests.unit.protocols.agreement.raft.test_proofs import SignedVote, away, believes, claim, led, shown, vote

from chaos_protocols.agreement.raft import Role
from chaos_protocols.agreement.raft.messages import (
    MANDATES_MAX,
    VOTES_SHOWN_MAX,
    AppendRequest,
    LeaderProof,
    LogEntry,
    Mandate,
    Snapshot,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
)
from chaos_protocols.agreement.raft.proof import change_words
from chaos_protocols.names import SiteId


def left_to(leader: str, term: int, index: int, voters: str, *votes: SignedVote) -> Mandate:
    """A leader of `term` signs that it has left the vote to these."""
    keys, after = RigKeys(leader), tuple(SiteId(name) for name in voters)
    return Mandate(
        term=term,
        leader=SiteId(leader),
        votes=votes,
        index=index,
        voters=after,
        public_key=keys.public_key,
        signature=keys.sign(change_words(RUN, term, SiteId(leader), index, after)),
    )


def deposed(*, changed: bool) -> tuple[Cluster, str, str, str]:
    """A cluster that a has led, and the next one leads; its name, and that of the third voter. `changed`: a has changed
    the voters in its term."""
    cluster, leader, (one, other) = led("abc", "d")
    if changed:
        for voters, learners in (("abcd", ""), ("abc", "d")):
            cluster.propose(leader, configuration(voters, learners))
            cluster.run(1.0)
    cluster.act(leader, cluster[leader].transfer_leadership(SiteId(one), now_s=cluster.now_s))
    cluster.run_until(lambda: all(machine.leader == one for machine in cluster.up))
    cluster.run(1.0)
    return cluster, leader, one, other


def leads_again(cluster: Cluster, leader: str, one: str, other: str) -> bool:
    """Whether the third voter believes a former leader that it has left the vote to itself alone in its own term."""
    victim = cluster[other]
    forged = left_to(leader, 2, victim.last_index + 9, leader, vote("a", "a", 2), vote(one, "a", 2))
    proof = shown(leader, 9, vote(leader, leader, 9), mandates=(forged,))
    cluster.act(other, victim.receive(SiteId(leader), proof, now_s=cluster.now_s))
    return believes(cluster, other, leader, 9)


def test_who_has_led_once_gives_itself_no_mandate_later() -> None:
    """The votes for its term are true ones for good; what others have agreed on in a later one cannot follow from
    it."""
    for changed in (False, True):
        cluster, leader, one, other = deposed(changed=changed)
        assert cluster[other].term == 3 == cluster[other].term_at(cluster[other].commit_index)
        assert not leads_again(cluster, leader, one, other)
        assert [(told.leader, told.term) for told in cluster.unproven] == [("a", 9)]


def test_nor_does_it_where_a_site_was_started_anew() -> None:
    """That has noted up to where the log is agreed on."""
    for changed in (False, True):
        cluster, leader, one, other = deposed(changed=changed)
        agreed = cluster[other].commit_index
        cluster.crash(other)
        cluster.start(other)
        assert cluster[other].commit_index == 1
        cluster[other].in_run(RUN, proof_needed=True, agreed=agreed)
        assert not leads_again(cluster, leader, one, other)


def test_terms_never_go_back_along_the_mandates() -> None:
    """Who has led once puts its own after that of a later leader; and it claims no term before the last of them."""
    for terms, claimed in (((4, 3), 9), ((9,), 4)):
        cluster, _, (one, other) = led()
        index = cluster[one].commit_index
        mandates = tuple(
            left_to(other, term, index + at, "abc"[: 3 - at], *(vote(name, other, term) for name in "abc"))
            for at, term in enumerate(terms, 1)
        )
        votes = tuple(vote(name, other, claimed) for name in "abc")
        cluster.run(1.0)
        proof = shown(other, claimed, *votes, mandates=mandates)
        cluster.act(one, cluster[one].receive(SiteId(other), proof, now_s=cluster.now_s))
        assert not believes(cluster, one, other, claimed)


def test_a_leader_leaves_no_mandate_for_a_term_to_come() -> None:
    """It would lead that one without a vote, when it has long lost its own."""
    votes = (vote("a", "a", 2), vote("b", "a", 2), vote("c", "a", 2))
    fewer = configuration("ab", "c")
    for of_term, further, voters, in_snapshot in (
        (9, 0, "ab", False),
        (2, 9, "ab", False),
        (2, 0, "a", False),
        (9, 0, "ab", True),
        (2, 9, "ab", True),
    ):
        cluster, _, (one, _) = led()
        victim = cluster[one]
        index = victim.last_index + 1
        given = left_to("a", of_term, index + further, voters, *votes)
        message: AppendRequest | SnapshotRequest
        if in_snapshot:
            snapshot = Snapshot(index=index, term=2, configuration=fewer, state=b"", mandates=(given,))
            message = SnapshotRequest(term=2, leader=SiteId("a"), snapshot=snapshot, tenure=2)
        else:
            entry = LogEntry(index=index, term=2, command=b"", configuration=fewer, mandate=given)
            message = msgspec.structs.replace(claim(cluster, one, "a", 2), entries=(entry,))
        assert victim.receive(SiteId("a"), message, now_s=cluster.now_s) == []
        assert "mandate" in (victim.violation or "")
        assert not believes(cluster, one, "a", 9)


def test_a_leader_shows_the_votes_that_elected_it_however_many_have_confirmed_it_since() -> None:
    """Who was away since before knows these voters alone. Their names come last here."""
    names = "abcdefghijklmnopqrst"
    cluster, leader, others = led("arst", names[1:-3])
    gone = others[0]
    cluster.crash(gone)
    voters = "arst"
    for newcomer in names[1:-3]:
        for step in (voters + newcomer, (voters + newcomer).replace(voters[1], "")):
            learners = "".join(one for one in names if one not in step)
            assert cluster.propose(leader, configuration("".join(sorted(step)), learners)), cluster[leader].refusal
            cluster.run(1.0)
        voters = step
    assert cluster[leader].role is Role.LEADER and len(cluster[leader]._core.ballots) > VOTES_SHOWN_MAX
    cluster.compact(leader)
    cluster.start(gone)
    cluster.run_until(lambda: cluster[gone].leader == leader)
    assert not cluster.unproven


def test_a_leader_that_changes_the_voters_often_leaves_room_for_those_before_it() -> None:
    """Two mandates a leader are shown: who was away knows none of the others."""
    cluster, leader, _ = led("abc", "defg")
    gone = away(cluster, leader)
    for _ in range(MANDATES_MAX // 2 + 1):
        for voters, learners in (("def", "abcg"), ("defg", "abc")):
            assert cluster.propose("d", configuration(voters, learners)), cluster["d"].refusal
            cluster.run(0.1)
    cluster.start(gone)
    cluster.run_until(lambda: cluster[gone].leader == "d")
    assert not cluster.unproven


def test_a_leader_shows_the_votes_that_elected_it_though_some_count_no_more() -> None:
    """The voter has another key since, or is gone: with the last change they are not there any more (seed 664, 6 sites,
    with operators). So it is after a restart of all, from a snapshot."""
    for compacted in (False, True):
        cluster, leader, (one, gone) = led("abc", "defg")
        cluster.crash(gone)
        cluster.act(leader, cluster[leader].transfer_leadership(SiteId(one), now_s=cluster.now_s))
        cluster.run_until(lambda at=cluster, site=one: at[site].role is Role.LEADER)  # type: ignore[misc]
        cluster.run(1.0)
        voters = {"a", "b", "c"}
        for changed in "dceaf":
            voters ^= {changed}
            if changed == "f":
                cluster[one]._core.drop_votes({SiteId("a")})
            change = configuration("".join(sorted(voters)), "".join(sorted({*"abcdefg"} - voters)))
            assert cluster.propose(one, change), cluster[one].refusal
            cluster.run(1.0)
        if compacted:
            cluster.compact(one)
        cluster.start(gone)
        cluster.run_until(lambda at=cluster, site=gone, by=one: at[site].leader == by)  # type: ignore[misc]
        assert not cluster.unproven


def test_a_leader_that_is_elected_again_shows_no_vote_of_its_former_term() -> None:
    cluster, leader, _ = led()
    machine = cluster[leader]
    former = next(name for name in machine._core.ballots if name != leader)
    (other,) = {"a", "b", "c"} - {leader, former}
    cluster.filter = lambda _, destination, message: not (isinstance(message, VoteRequest) and destination == leader)
    cluster.act(leader, machine.transfer_leadership(SiteId(other), now_s=cluster.now_s))
    cluster.run_until(lambda: cluster[other].role is Role.LEADER)
    cluster.run(1.0)
    cluster.filter = lambda source, _, message: not (isinstance(message, VoteResponse) and source == former)
    cluster.keep_sent = True
    cluster.act(other, cluster[other].transfer_leadership(SiteId(leader), now_s=cluster.now_s))
    cluster.run_until(lambda: machine.role is Role.LEADER)
    said = [message for _, source, _, message in cluster.sent if source == leader]
    proofs = [{one.voter for one in message.votes} for message in said if isinstance(message, LeaderProof)]
    assert proofs == [{leader, other}] * 2
