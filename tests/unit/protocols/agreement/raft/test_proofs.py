"""A leader shows the votes that elected it, and is followed by nobody without (spec 5.20 to 5.24)."""

from __future__ import annotations

import msgspec
import pytest
from tests.rigs.keys import RigKeys
from tests.unit.protocols.agreement.raft.cluster import RUN, Cluster, configuration

from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.raft import Role
from chaos_protocols.agreement.raft.machine import TERMS_AHEAD_MAX
from chaos_protocols.agreement.raft.messages import (
    AppendRequest,
    LeaderProof,
    Mandate,
    ProofRequest,
    VoteRequest,
    VoteResponse,
)
from chaos_protocols.agreement.raft.messages import Vote as SignedVote
from chaos_protocols.agreement.raft.proof import change_words, vote_words
from chaos_protocols.names import SiteId
from chaos_protocols.wire.keys import KeyChain, SiteKeys, with_change


def led(voters: str = "abc", learners: str = "", *, rules: bool = True) -> tuple[Cluster, str, list[str]]:
    """A cluster whose leaders show their votes, led by a; the leader's name, and the other voters'. Not `rules`: they
    have not agreed on it."""
    for seed in range(100):
        cluster = Cluster(seed, proofs=True)
        if not rules:
            cluster.enter = lambda node: node.machine.in_run(RUN, proof_needed=False)  # type: ignore[method-assign]
        cluster.form(voters, learners)
        cluster.run_until(lambda at=cluster: all(machine.commit_index == 2 for machine in at.up))  # type: ignore[misc]
        if cluster["a"].role is Role.LEADER and cluster["a"].term == 2:
            return cluster, "a", [name for name in voters if name != "a"]
    raise AssertionError("a was never elected")


def claim(cluster: Cluster, name: str, by: str, term: int) -> AppendRequest:
    """What a leader of `term` would say."""
    machine = cluster[name]
    return AppendRequest(
        term=term,
        leader=SiteId(by),
        previous_index=machine.last_index,
        previous_term=machine.term_at(machine.last_index) or 0,
        entries=(),
        commit_index=machine.commit_index,
        tenure=2,
    )


def vote(voter: str, leader: str, term: int, *, run: str = RUN, signer: str = "") -> SignedVote:
    words = vote_words(run, term, SiteId(voter), SiteId(leader))
    keys = RigKeys(signer or voter)
    return SignedVote(voter=SiteId(voter), public_key=RigKeys(voter).public_key, signature=keys.sign(words))


def shown(leader: str, term: int, *votes: SignedVote, mandates: tuple[Mandate, ...] = ()) -> LeaderProof:
    return LeaderProof(term=term, leader=SiteId(leader), votes=votes, mandates=mandates)


def believes(cluster: Cluster, name: str, leader: str, term: int) -> bool:
    """Whether the site follows who claims to lead now."""
    cluster.act(name, cluster[name].receive(SiteId(leader), claim(cluster, name, leader, term), now_s=cluster.now_s))
    return cluster[name].leader == leader and cluster[name].term == term


def test_a_voter_does_not_lead_by_saying_so() -> None:
    cluster, leader, (one, other) = led()
    cluster.keep_sent = True
    before = (cluster[one].term, cluster[one].leader, cluster[one].last_index)
    assert not believes(cluster, one, other, 9)
    assert (cluster[one].term, cluster[one].leader, cluster[one].last_index) == before == (2, leader, 2)
    asked = [(destination, message) for _, source, destination, message in cluster.sent if source == one]
    assert asked == [(other, ProofRequest(term=9, since=1))]


@pytest.mark.parametrize(
    ("why", "votes"),
    [
        ("its own alone", [vote("c", "c", 9)]),
        ("one voter twice", [vote("c", "c", 9), vote("c", "c", 9)]),
        ("of another term", [vote("c", "c", 9), vote("a", "c", 8)]),
        ("for another site", [vote("c", "c", 9), vote("a", "b", 9)]),
        ("of another run", [vote("c", "c", 9), vote("a", "c", 9, run="cd" * 16)]),
        ("made by itself", [vote("c", "c", 9), vote("a", "c", 9, signer="c")]),
        ("of who has no vote", [vote("c", "c", 9), vote("d", "c", 9), vote("e", "c", 9)]),
        ("none", []),
    ],
)
def test_votes_that_do_not_elect_are_no_proof(why: str, votes: list[SignedVote]) -> None:
    cluster, leader, _ = led("abc", "de")
    victim = next(name for name in "ab" if name != leader)
    assert not believes(cluster, victim, "c", 9)
    effects = cluster[victim].receive(SiteId("c"), shown("c", 9, *votes), now_s=cluster.now_s)
    cluster.act(victim, effects)
    assert not believes(cluster, victim, "c", 9), why
    assert cluster[victim].leader == leader
    assert [(told.leader, told.term) for told in cluster.unproven] == [("c", 9)]


def test_a_majority_of_signed_votes_is_a_proof() -> None:
    """The test above can see."""
    cluster, leader, _ = led("abc", "de")
    victim = next(name for name in "ab" if name != leader)
    proof = shown("c", 9, vote("c", "c", 9), vote(leader, "c", 9))
    cluster.act(victim, cluster[victim].receive(SiteId("c"), proof, now_s=cluster.now_s))
    assert believes(cluster, victim, "c", 9)
    assert not cluster.unproven


def test_one_shows_only_its_own_votes() -> None:
    cluster, _, (one, other) = led()
    proof = shown("a", 9, vote("a", "a", 9), vote("b", "a", 9))
    liar = other if other != "a" else one
    victim = next(name for name in "abc" if name not in ("a", liar))
    assert cluster[victim].receive(SiteId(liar), proof, now_s=cluster.now_s) == []
    assert "shows votes for a" in (cluster[victim].violation or "")


def test_who_was_restarted_asks_and_follows() -> None:
    cluster, leader, (one, _) = led()
    cluster.crash(one)
    cluster.start(one)
    cluster.run_until(lambda: cluster[one].leader == leader)
    assert cluster[one].term == 2 and not cluster.unproven


def test_an_election_needs_no_more_messages_than_the_proof() -> None:
    """The new leader shows its votes before its first entry: nobody has to ask."""
    cluster, leader, _ = led()
    cluster.keep_sent, cluster.delay_s = True, (0.005, 0.005)
    cluster.crash(leader)
    cluster.run_until(lambda: any(machine.commit_index == 3 for machine in cluster.up))
    kinds = [type(message) for _, _, destination, message in cluster.sent if destination != leader]
    assert kinds.count(LeaderProof) == 1 and ProofRequest not in kinds


def away(cluster: Cluster, leader: str) -> str:
    """A voter that was away while all others that it knew lost their votes; its name. `d` to `g` vote now, and one of
    those leads."""
    (gone, last) = [name for name in "abc" if name != leader]
    cluster.crash(gone)
    voters = "abc"
    steps = [voters + "d", voters + "de", voters + "def", "abcdefg"]
    steps += ["".join(one for one in "abcdefg" if one not in out) for out in (gone, gone + last)]
    for step in steps:
        cluster.propose(leader, configuration(step, "".join(one for one in "abcdefg" if one not in step)))
        cluster.run(1.0)
    cluster.act(leader, cluster[leader].transfer_leadership(SiteId("d"), now_s=cluster.now_s))
    cluster.run_until(lambda: cluster["d"].role is Role.LEADER)
    cluster.run(1.0)
    without = configuration("defg", "abc")
    assert cluster.propose("d", without) is not None
    cluster.run(1.0)
    cluster.crash(leader)
    cluster.crash(last)
    return gone


def test_who_was_away_while_all_voters_changed_follows_those_of_now() -> None:
    cluster, leader, _ = led("abc", "defg")
    gone = away(cluster, leader)
    cluster.start(gone)
    cluster.run_until(lambda: cluster[gone].configuration == configuration("defg", "abc"))
    assert cluster[gone].leader == "d"


def test_who_was_away_follows_after_a_snapshot_too() -> None:
    cluster, leader, _ = led("abc", "defg")
    gone = away(cluster, leader)
    for name in "defg":
        cluster.compact(name)
    cluster.crash("d")
    cluster.run_until(lambda: cluster.leader() is not None and cluster.leader().term > 3)  # type: ignore[union-attr]
    cluster.start("d")
    cluster.start(gone)
    cluster.run_until(lambda: cluster[gone].leader is not None and cluster[gone].configuration.voters[0] == "d")
    assert cluster[gone].snapshot is not None and cluster[gone].snapshot.mandates


def test_nobody_else_uses_the_votes_of_a_former_leader() -> None:
    """Its votes are known to all; whom it gave the vote, it has signed itself."""
    cluster, leader, (one, other) = led()
    votes = tuple(vote(name, leader, 2) for name in (leader, one))
    words = change_words(RUN, 2, SiteId(leader), 3, (SiteId(other),))
    for signer in (other, leader):
        forged = Mandate(
            term=2,
            leader=SiteId(leader),
            votes=votes,
            index=3,
            voters=(SiteId(other),),
            public_key=RigKeys(leader).public_key,
            signature=RigKeys(signer).sign(words),
        )
        proof = shown(other, 9, vote(other, other, 9), mandates=(forged,))
        cluster.run(1.0)
        cluster.act(one, cluster[one].receive(SiteId(other), proof, now_s=cluster.now_s))
        assert believes(cluster, one, other, 9) is (signer == leader)


def test_who_was_never_elected_gives_itself_no_mandate() -> None:
    """It signs that in a term of its own it has left the vote to itself alone."""
    cluster, _, (one, other) = led()
    keys, index = RigKeys(other), cluster[one].commit_index + 1
    signature = keys.sign(change_words(RUN, 9, SiteId(other), index, (SiteId(other),)))
    own, forged = vote(other, other, 9), vote(one, other, 9, signer=other)
    for votes in ((), (own,), (own, forged)):
        made_up = Mandate(
            term=9,
            leader=SiteId(other),
            votes=votes,
            index=index,
            voters=(SiteId(other),),
            public_key=keys.public_key,
            signature=signature,
        )
        cluster.run(1.0)
        proof = shown(other, 9, *votes, mandates=(made_up,))
        cluster.act(one, cluster[one].receive(SiteId(other), proof, now_s=cluster.now_s))
        assert not believes(cluster, one, other, 9)


def test_a_vote_that_cannot_be_shown_elects_nobody() -> None:
    cluster, leader, (one, other) = led()
    cluster.crash(leader)
    cluster.filter = lambda _source, destination, message: (
        not (isinstance(message, VoteResponse) and destination == one)
    )
    cluster.run_until(lambda: cluster[one].role is Role.CANDIDATE or cluster[other].role is Role.CANDIDATE)
    name, voter = (one, other) if cluster[one].role is Role.CANDIDATE else (other, one)
    term = cluster[name].term
    signed = vote(voter, name, term)
    unsigned = VoteResponse(term=term, granted=True)
    wrong = VoteResponse(term=term, granted=True, public_key=signed.public_key, signature=b"x" * 64)
    for answer in (unsigned, wrong):
        cluster.act(name, cluster[name].receive(SiteId(voter), answer, now_s=cluster.now_s))
        assert cluster[name].role is Role.CANDIDATE
    right = msgspec.structs.replace(unsigned, public_key=signed.public_key, signature=signed.signature)
    cluster.act(name, cluster[name].receive(SiteId(voter), right, now_s=cluster.now_s))
    assert cluster[name].role is Role.LEADER


def test_a_leader_that_was_elected_without_signatures_gathers_them() -> None:
    cluster = Cluster(1, proofs=True)
    cluster.enter = lambda _node: None  # type: ignore[method-assign]
    cluster.form("abc")
    cluster.filter = lambda _source, _destination, message: not isinstance(message, VoteResponse)
    cluster.run_until(lambda: any(machine.role is Role.CANDIDATE for machine in cluster.up))
    candidate = next(machine for machine in cluster.up if machine.role is Role.CANDIDATE)
    cluster.filter = lambda _source, _destination, _message: True
    others = [machine.site for machine in cluster.up if machine is not candidate]
    for other in others:
        unsigned = VoteResponse(term=candidate.term, granted=True)
        cluster.act(candidate.site, candidate.receive(other, unsigned, now_s=cluster.now_s))
    assert candidate.role is Role.LEADER and not candidate.shows_votes
    cluster.run(1.0)
    for machine in cluster.up:
        machine.in_run(RUN, proof_needed=False)
    cluster.act(candidate.site, candidate.gather_votes(now_s=cluster.now_s))
    cluster.run_until(lambda: candidate.shows_votes)
    assert candidate.term == cluster[others[0]].term, "nobody has called an election"


def test_a_leader_whose_voter_has_voted_for_another_is_elected_anew() -> None:
    """No voter gives two votes in a term: it would lead for ever, and never change who votes (seed 710156)."""
    cluster, leader, (one, other) = led()
    machine, voter = cluster[leader], cluster[one]
    cluster.crash(other)
    machine._core.drop_votes([name for name in machine._core.ballots if name != leader])
    voter._core.vote = SiteId(other)
    cluster.act(leader, machine.gather_votes(now_s=cluster.now_s))
    cluster.run_until(lambda: machine.role is Role.LEADER and machine.term == 3)
    cluster.run_until(lambda: machine.commit_index == machine.last_index)
    assert machine.shows_votes and cluster.propose(leader, configuration(leader + one, other))


def test_who_does_not_follow_yet_denies_its_vote_to_no_harm() -> None:
    cluster, leader, (one, _) = led()
    machine = cluster[leader]
    machine._core.drop_votes([name for name in machine._core.ballots if name != leader])
    machine._core.progress[SiteId(one)].match_index = 0
    denial = VoteResponse(term=2, granted=False)
    cluster.act(leader, machine.receive(SiteId(one), denial, now_s=cluster.now_s))
    assert (machine.role, machine.term) == (Role.LEADER, 2)


def test_a_follower_confirms_nobody_but_its_leader() -> None:
    cluster, leader, (one, other) = led()
    request = VoteRequest(term=2, last_index=9, last_term=9, transfer=False)
    for source, granted in ((leader, True), (other, False)):
        effects = cluster[one].receive(SiteId(source), request, now_s=cluster.now_s)
        answers = [effect.message for effect in effects if hasattr(effect, "message")]
        assert [answer.granted for answer in answers if isinstance(answer, VoteResponse)] == [granted]


def test_nobody_uses_up_the_terms() -> None:
    cluster, _, (one, other) = led()
    for message in (
        VoteRequest(term=(1 << 53) - 1, last_index=9, last_term=9, transfer=True),
        VoteResponse(term=3 + TERMS_AHEAD_MAX, granted=False),
    ):
        assert cluster[one].receive(SiteId(other), message, now_s=cluster.now_s) == []
        assert cluster[one].term == 2 and "it is in term" in (cluster[one].violation or "")


def test_signatures_are_not_checked_for_nothing_again_and_again() -> None:
    """A member says a thousand wrong proofs a second: two kinds of them are looked at, each twice a heartbeat."""
    cluster, _, (one, other) = led()
    looked = 0
    keys = cluster[one]._core.keys
    assert keys is not None

    class Counting(RigKeys):
        def verify(self, *parts: object) -> bool:
            nonlocal looked
            looked += 1
            return False

    cluster[one]._core.keys = Counting(one)
    proof = shown(other, 9, vote(other, other, 9))
    for _ in range(1000):
        cluster.act(one, cluster[one].receive(SiteId(other), proof, now_s=cluster.now_s))
    assert looked == 1


def settled_key(cluster: Cluster, at: str, changed: str) -> None:
    """This site has heard that another one uses a new key."""
    chain = with_change(KeyChain(first=RigKeys(changed).public_key), RUN, RigKeys(changed), RigKeys(changed, 1))
    ring = KeyRing(RigKeys(at))
    ring.follow(RUN, (SiteKeys(site=SiteId(changed), chain=chain, settled=1),))
    cluster[at]._core.keys = ring


def test_a_leader_asks_once_more_for_the_vote_of_who_has_changed_its_key() -> None:
    """And changes no voters meanwhile: what it would have to show with that, nobody would take."""
    cluster, leader, _ = led()
    machine = cluster[leader]
    voter = next(name for name in machine._core.ballots if name != leader)
    assert machine.keys_changed(now_s=cluster.now_s) == [] and machine.shows_votes
    settled_key(cluster, leader, voter)
    cluster.filter = lambda _source, _destination, _message: False
    cluster.act(leader, machine.keys_changed(now_s=cluster.now_s))
    assert voter not in machine._core.ballots
    fewer = configuration("".join(name for name in "abc" if name != voter), voter)
    if not machine.shows_votes:
        assert cluster.propose(leader, fewer) is None and "lacks signed votes" in machine.refusal
    answer = VoteResponse(term=2, granted=True)
    by_former, by_new = (
        msgspec.structs.replace(
            answer, public_key=keys.public_key, signature=keys.sign(vote_words(RUN, 2, SiteId(voter), SiteId(leader)))
        )
        for keys in (RigKeys(voter), RigKeys(voter, 1))
    )
    machine.receive(SiteId(voter), by_former, now_s=cluster.now_s)
    assert voter not in machine._core.ballots
    machine.receive(SiteId(voter), by_new, now_s=cluster.now_s)
    assert voter in machine._core.ballots and machine.shows_votes


def test_a_former_key_elects_nobody_also_by_a_mandate_of_what_is_agreed() -> None:
    """A thief of it, and a member that lies, would be two of three."""
    cluster, leader, (one, other) = led()
    settled_key(cluster, one, leader)
    votes = (vote(leader, other, 9), vote(other, other, 9))
    cluster.act(one, cluster[one].receive(SiteId(other), shown(other, 9, *votes), now_s=cluster.now_s))
    assert not believes(cluster, one, other, 9)
    keys, index = RigKeys(other), cluster[one].commit_index
    alone = Mandate(
        term=2,
        leader=SiteId(other),
        votes=(vote(leader, other, 2), vote(other, other, 2)),
        index=index,
        voters=(SiteId(other),),
        public_key=keys.public_key,
        signature=keys.sign(change_words(RUN, 2, SiteId(other), index, (SiteId(other),))),
    )
    cluster.run(1.0)
    proof = shown(other, 9, vote(other, other, 9), mandates=(alone,))
    cluster.act(one, cluster[one].receive(SiteId(other), proof, now_s=cluster.now_s))
    assert not believes(cluster, one, other, 9)
