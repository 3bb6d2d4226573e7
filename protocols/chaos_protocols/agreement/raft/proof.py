"""Whom the others believe that it leads: a leader shows the signed votes of a majority, and whoever was away, how the
voters that it knew became those of now.

Driven by `machine.py`. Without it a voter leads by saying so: Raft takes its members for honest. What is shown is
checked against the voters of this site's own log; from there along the *mandates*, one a leader: its votes, and whom
it left the vote, signed by it (spec 5.20 to 5.24). Source: Copeland and Zhong, "Tangaroa: a Byzantine Fault Tolerant
Raft", 2014 (election verification).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from chaos_protocols.agreement.raft.config import majority
from chaos_protocols.agreement.raft.core import Core
from chaos_protocols.agreement.raft.effects import Role, Unproven
from chaos_protocols.agreement.raft.messages import (
    VOTES_SHOWN_MAX,
    Configuration,
    LeaderProof,
    LogEntry,
    Mandate,
    ProofRequest,
    Vote,
    VoteRequest,
    VoteResponse,
)
from chaos_protocols.names import SiteId

VOTE_LABEL = b"chaos vote 1\x00"
CHANGE_LABEL = b"chaos voters 1\x00"


def vote_words(run_id: str, term: int, voter: SiteId, leader: SiteId) -> bytes:
    """What a vote signs. It names the run: one key may be used in two."""
    return VOTE_LABEL + msgspec.msgpack.encode((run_id, term, voter, leader))


def change_words(run_id: str, term: int, leader: SiteId, index: int, voters: tuple[SiteId, ...]) -> bytes:
    """What a leader signs that changes who votes."""
    return CHANGE_LABEL + msgspec.msgpack.encode((run_id, term, leader, index, voters))


# --- votes


def vote_for(core: Core, leader: SiteId) -> Vote | None:
    """This site's vote for `leader` in the present term, as durable as `Core.vote` is; None: it has no key, or knows of
    no run."""
    if core.keys is None or not core.run_id:
        return None
    signature = core.keys.sign(vote_words(core.run_id, core.term, core.site, leader))
    return Vote(voter=core.site, public_key=core.keys.public_key, signature=signature)


def vote_answer(core: Core, source: SiteId, *, granted: bool) -> VoteResponse:
    vote = vote_for(core, source) if granted else None
    if vote is None:
        return VoteResponse(term=core.term, granted=granted)
    return VoteResponse(term=core.term, granted=granted, public_key=vote.public_key, signature=vote.signature)


def take_vote(core: Core, source: SiteId, message: VoteResponse) -> bool:
    """Keeps a vote for this site that can be shown; False: it cannot."""
    vote = Vote(voter=source, public_key=message.public_key, signature=message.signature)
    if not _is_vote(core, core.term, core.site, vote):
        return False
    core.keep_vote(vote)
    return True


def confirms(core: Core, source: SiteId, message: VoteRequest) -> bool:
    """The leader of this term asks for a vote that it can show: this site has given it none, or this one. It follows
    that leader, so no other was elected in the term, nor can be by this vote."""
    return (
        message.term == core.term
        and core.role is Role.FOLLOWER
        and core.leader == source
        and core.vote in (None, source)
    )


def gather(core: Core, now_s: float) -> None:
    """A leader that was elected with votes that cannot be shown asks for some that can, once a heartbeat interval."""
    if now_s < core.gathered_s + core.settings.heartbeat_interval_s:
        return
    core.gathers(now_s)
    own = vote_for(core, core.site)
    if own is None:
        return
    core.keep_vote(own)
    last_index, last_term = core.log.last_index, core.log.last_term
    request = VoteRequest(term=core.term, last_index=last_index, last_term=last_term, transfer=False)
    for site in core.voters:
        if site not in core.ballots:
            core.send(site, request)


def keys_changed(core: Core, now_s: float) -> None:
    """Of some site another key counts: a leader asks once more for a vote that was given with the former one, as
    nobody would take it any more who has heard of that."""
    keys = core.keys
    if keys is None or not core.ballots:
        return
    stale = [vote.voter for vote in core.ballots.values() if not keys.counts(vote.voter, vote.public_key)]
    core.drop_votes(stale)
    if stale and core.role is Role.LEADER:
        gather(core, now_s)


def shows_votes(core: Core) -> bool:
    """A leader that can show the votes of a majority of those who vote now."""
    return core.role is Role.LEADER and core.has_majority(set(core.ballots))


# --- what a leader shows


def mandate_for(core: Core, index: int, configuration: Configuration | None) -> Mandate | None:
    """What goes with an entry that changes who votes."""
    if configuration is None or core.keys is None or not core.run_id:
        return None
    voters = tuple(sorted(configuration.voters))
    if voters == core.voters:
        return None
    signature = core.keys.sign(change_words(core.run_id, core.term, core.site, index, voters))
    return Mandate(
        term=core.term,
        leader=core.site,
        votes=_votes(core),
        index=index,
        voters=voters,
        public_key=core.keys.public_key,
        signature=signature,
    )


def show(core: Core, site: SiteId, since: int | None) -> None:
    """To a follower: the votes; with `since` the mandates after that index, too."""
    mandates = () if since is None else core.log.mandates_between(since, core.log.last_index)
    proof = LeaderProof(term=core.term, leader=core.site, votes=_votes(core), mandates=mandates)
    core.send(site, proof)


def _votes(core: Core) -> tuple[Vote, ...]:
    """In the order in which they came: those that elected it first, for who was away since before knows no others."""
    return tuple(core.ballots.values())[:VOTES_SHOWN_MAX]


def fault_of_mandate(entry: LogEntry) -> str | None:
    """Why this cannot be the mandate of who proposed the entry, or None. One for a term to come would do in place of
    the votes for that."""
    mandate, configuration = entry.mandate, entry.configuration
    if mandate is None:
        return None
    voters = () if configuration is None else tuple(sorted(configuration.voters))
    if (mandate.term, mandate.index, mandate.voters) == (entry.term, entry.index, voters):
        return None
    return f"entry {entry.index} has a mandate of something else"


def receive_proof_request(core: Core, source: SiteId, message: ProofRequest, now_s: float) -> None:
    """Answered once a heartbeat interval: what is shown is much longer than the question."""
    progress = core.progress.get(source)
    if core.role is not Role.LEADER or message.term != core.term or progress is None:
        return
    if now_s >= progress.proof_sent_s + core.settings.heartbeat_interval_s:
        progress.proof_sent(now_s)
        show(core, source, message.since)


# --- what a follower believes


def is_believed(core: Core, leader: SiteId, term: int) -> bool:
    """Where leaders show their votes, one that has shown them; elsewhere, too, where nobody vouches for it."""
    if core.proven == (term, leader) or (core.vouched and not core.proof_needed):
        return True
    return core.term == term and core.leader == leader


def ask(core: Core, leader: SiteId, term: int, now_s: float) -> None:
    """Once a heartbeat interval, since its next words come so often."""
    if core.asked[:2] == (term, leader) and now_s < core.asked[2] + core.settings.heartbeat_interval_s / 2:
        return
    core.asks(term, leader, now_s)
    core.send(leader, ProofRequest(term=term, since=min(index for index, _ in core.log.in_force(core.commit_index))))


def receive_proof(core: Core, source: SiteId, message: LeaderProof, now_s: float) -> None:
    """Looked at once a heartbeat interval if it was in vain: to check signatures is work."""
    if source != message.leader:
        core.breaks_rules(source, f"it shows votes for {message.leader}")
        return
    if message.term < core.term or is_believed(core, source, message.term):
        return
    kind = (source, bool(message.mandates))
    if now_s < core.in_vain.get(kind, float("-inf")) + core.settings.heartbeat_interval_s / 2:
        return
    if is_elected(core, message):
        core.believe(message.term, source)
        return
    core.looked_in_vain(kind, now_s)
    if message.mandates or core.asked[:2] == (message.term, source):
        core.emit(Unproven(leader=source, term=message.term))


def is_elected(core: Core, message: LeaderProof) -> bool:
    """By the voters that this site knows of: the newest, or those before where these may not be agreed; or by those
    who have followed them, as the mandates show."""
    in_force = core.log.in_force(core.commit_index)
    return any(_leads_from(core, index, configuration, message) for index, configuration in in_force)


def _leads_from(core: Core, index: int, configuration: Configuration, message: LeaderProof) -> bool:
    voters = frozenset(configuration.voters)
    led = next(((one.term, one.leader) for one in reversed(core.log.mandates) if one.index <= index), None)
    newest = _newest_term(core, index)
    for mandate in message.mandates:
        if mandate.index <= max(index, core.commit_index):
            continue  # what is agreed on here is known here: votes up to there may be of keys that count no more
        leader = (mandate.term, mandate.leader)
        if mandate.term < newest:
            return False  # its votes are true ones, of a leader whose time is over: it changed nothing after this
        if leader != led and not _majority_for(core, *leader, mandate.votes, voters):
            return False
        if not _is_signed(core, mandate):
            return False
        index, voters, led, newest = mandate.index, frozenset(mandate.voters), leader, mandate.term
    claim = (message.term, message.leader)
    if message.term < newest:
        return False
    return claim == led or _majority_for(core, *claim, message.votes, voters)


def _newest_term(core: Core, index: int) -> int:
    """What follows in a log that has the entry at `index` is of no earlier term than what is agreed on in it."""
    log = core.log
    terms = (log.term_at(one) for one in (index, core.commit_index, core.noted_agreed))
    return max(term for term in terms if term is not None)


def _majority_for(core: Core, term: int, leader: SiteId, votes: Iterable[Vote], voters: Collection[SiteId]) -> bool:
    wanted, found = majority(len(voters)), set[SiteId]()
    for vote in votes:
        if vote.voter in voters and vote.voter not in found and _is_vote(core, term, leader, vote):
            found.add(vote.voter)
            if len(found) >= wanted:
                return True
    return False


def _is_vote(core: Core, term: int, leader: SiteId, vote: Vote) -> bool:
    if core.keys is None or not core.run_id:
        return False
    words = vote_words(core.run_id, term, vote.voter, leader)
    return core.keys.verify(vote.voter, vote.public_key, vote.signature, words)


def _is_signed(core: Core, mandate: Mandate) -> bool:
    if core.keys is None:
        return False
    words = change_words(core.run_id, mandate.term, mandate.leader, mandate.index, mandate.voters)
    return core.keys.verify(mandate.leader, mandate.public_key, mandate.signature, words)
