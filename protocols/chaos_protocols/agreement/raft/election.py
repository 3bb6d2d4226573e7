"""Who leads: pre-vote, vote, hand-over. Nobody disturbs a leader that a majority hears.

Driven by `machine.py`. Sources: Ongaro's thesis, 3.4 and 3.6.1 (votes), 4.2.3 (a site that hears a leader grants
nothing), 9.6 (pre-vote), 3.10 (TimeoutNow).
"""

from __future__ import annotations

from chaos_protocols.agreement.raft import proof
from chaos_protocols.agreement.raft.core import Core
from chaos_protocols.agreement.raft.effects import Role
from chaos_protocols.agreement.raft.messages import (
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from chaos_protocols.agreement.raft.replication import lead, quorum_contact
from chaos_protocols.names import SiteId

LOST_JITTER = 0.2
"""Share of a heartbeat interval within which the neighbours of a dead leader start: with 30 ms most pre-votes do not
meet."""


def tick_election(core: Core, now_s: float) -> None:
    if now_s < core.election_at_s:
        return
    if core.may_campaign:
        start_pre_vote(core, silence(core, now_s), now_s)
        return
    core.stop_election_timer()
    if core.leader is not None:
        core.change_role(core.role, None, silence(core, now_s))


def silence(core: Core, now_s: float) -> str:
    if core.role is not Role.FOLLOWER:
        return f"no answer from {', '.join(unheard(core)) or 'enough voters'}"
    if core.leader is None:
        return "no leader known"
    if core.leader_lost_s is not None:
        return f"leader {core.leader} was lost"
    return f"nothing heard from leader {core.leader} for {now_s - core.leader_contact_s:.3g} s"


def unheard(core: Core) -> tuple[SiteId, ...]:
    """Voters that have not answered in the present campaign."""
    return tuple(site for site in core.voters if site != core.site and site not in core.heard)


def start_pre_vote(core: Core, reason: str, now_s: float) -> None:
    """Asks whether an election could be won, without changing anything anywhere (thesis 9.6)."""
    core.become_candidate(Role.PRE_CANDIDATE, reason, now_s)
    if core.has_majority(core.votes):
        campaign(core, "no other vote is needed", now_s, transfer=False)
        return
    request = PreVoteRequest(term=core.term + 1, last_index=core.log.last_index, last_term=core.log.last_term)
    for site in core.voters:
        if site != core.site:
            core.send(site, request)


def campaign(core: Core, reason: str, now_s: float, *, transfer: bool) -> None:
    core.set_term(core.term + 1, core.site)
    core.become_candidate(Role.CANDIDATE, reason, now_s)
    own = proof.vote_for(core, core.site)
    if own is not None:
        core.keep_vote(own)
    if core.has_majority(core.votes):
        lead(core, "no other vote is needed", now_s)
        return
    last_index, last_term = core.log.last_index, core.log.last_term
    request = VoteRequest(term=core.term, last_index=last_index, last_term=last_term, transfer=transfer)
    for site in core.voters:
        if site != core.site:
            core.send(site, request)


def hears_leader(core: Core, now_s: float) -> bool:
    """Then an election is a disturbance (thesis 4.2.3). A leader hears itself while a majority answers it."""
    if core.role is Role.LEADER:
        return quorum_contact(core, now_s)
    if core.leader is None or core.leader_lost_s is not None:
        return False
    return now_s - core.leader_contact_s < core.settings.election_timeout_s


def log_serves(core: Core, last_index: int, last_term: int) -> bool:
    """The candidate has all that we have (thesis 3.6.1). A site without any log was never a voter, or has forgotten
    what it promised as one: it has no say."""
    if core.log.last_index == 0:
        return False
    return (last_term, last_index) >= (core.log.last_term, core.log.last_index)


def receive_pre_vote(core: Core, source: SiteId, message: PreVoteRequest, now_s: float) -> None:
    granted = (
        message.term > core.term
        and core.role is not Role.LEADER
        and not hears_leader(core, now_s)
        and log_serves(core, message.last_index, message.last_term)
        and not goes_first(core, source, message, now_s)
    )
    if granted and core.role is Role.FOLLOWER:
        # Let it try first: two campaigns at once split the votes.
        core.elect_not_before(now_s + core.settings.heartbeat_interval_s)
    core.send(source, PreVoteResponse(term=message.term if granted else core.term, granted=granted))


def goes_first(core: Core, source: SiteId, message: PreVoteRequest, now_s: float) -> bool:
    """Two sites that noticed at the same time would split the votes: the lower id goes on, for as long as its question
    may be under way (one heartbeat interval), no longer: it may be one that nobody can hear."""
    return (
        core.role is Role.PRE_CANDIDATE
        and core.site < source
        and core.site in core.voters
        and (message.last_term, message.last_index) == (core.log.last_term, core.log.last_index)
        and now_s - core.campaign_started_s < core.settings.heartbeat_interval_s
    )


def receive_pre_vote_answer(core: Core, source: SiteId, message: PreVoteResponse, now_s: float) -> None:
    if core.role is not Role.PRE_CANDIDATE or source not in core.voters:
        return
    if message.granted:
        if message.term != core.term + 1:
            return
        core.hear_voter(source, granted=True)
        if core.has_majority(core.votes):
            campaign(core, f"pre-vote won with {', '.join(sorted(core.votes))}", now_s, transfer=False)
    elif message.term > core.term:
        core.become_follower(message.term, None, f"{source} is in term {message.term}", now_s)
    else:
        core.hear_voter(source, granted=False)


def receive_vote(core: Core, source: SiteId, message: VoteRequest, now_s: float) -> None:
    """A vote is durable before it is sent (`Persist`). A site need not know the candidate: its own configuration may
    be an old one (thesis 4.2.3); unknown and removed sites fail by the length of their log or by a leader that is
    heard."""
    if message.term > core.term:
        handed_over = message.transfer and source in core.voters  # a leader hands over to a voter
        if not handed_over and hears_leader(core, now_s):
            return
        core.become_follower(message.term, None, f"{source} asks for votes in term {message.term}", now_s)
    granted = proof.confirms(core, source, message) or (
        message.term == core.term
        and core.role is Role.FOLLOWER
        and core.leader is None
        and core.vote in (None, source)
        and log_serves(core, message.last_index, message.last_term)
    )
    if granted:
        if core.vote is None:
            core.set_term(core.term, source)
        core.restart_election_timer(now_s)
    core.send(source, proof.vote_answer(core, source, granted=granted))


def receive_vote_answer(core: Core, source: SiteId, message: VoteResponse, now_s: float) -> None:
    """Where leaders show their votes, one that cannot be shown is none."""
    if core.role not in (Role.CANDIDATE, Role.LEADER) or source not in core.voters:
        return
    shown = message.granted and message.term == core.term and proof.take_vote(core, source, message)
    if core.role is Role.LEADER:
        if message.term == core.term and not message.granted:
            denied(core, source, now_s)
        return
    if message.term > core.term:
        core.become_follower(message.term, None, f"{source} is in term {message.term}", now_s)
    elif message.term == core.term:
        granted = shown or (message.granted and not core.proof_needed)
        core.hear_voter(source, granted=granted)
        if granted:
            if core.has_majority(core.votes):
                lead(core, f"elected by {', '.join(sorted(core.votes))}", now_s)
        else:
            # Votes are split, or another has won and will be heard within a round trip: to ask again soon harms
            # nobody, for it begins with a pre-vote. Drawn from [1, 2) heartbeat intervals.
            retry_s = core.settings.heartbeat_interval_s * (1.0 + core.rng.random())
            core.elect_not_after(now_s + retry_s)


def denied(core: Core, source: SiteId, now_s: float) -> None:
    """A leader cannot show votes of a majority of those who vote now (`proof.gather`), and one of them, who follows it,
    gives it none: it voted for another in this term, before it was a voter here. In a new term it can, so this site
    hands over to itself. Otherwise it would lead for ever, and could never change who votes."""
    followed = source in core.progress and core.progress[source].match_index > 0
    if not core.proof_needed or not followed or core.site not in core.voters or proof.shows_votes(core):
        return
    reason = f"{source} has voted for another in term {core.term}"
    core.become_follower(core.term, None, reason, now_s)
    campaign(core, reason, now_s, transfer=True)


def receive_timeout_now(core: Core, source: SiteId, message: TimeoutNow, now_s: float) -> None:
    """From the leader of this term only. It says that its successor's log is long enough, so no pre-vote is needed."""
    if message.term == core.term and source == core.leader and core.site in core.voters:
        campaign(core, f"leader {source} hands over", now_s, transfer=True)


def leader_lost(core: Core, now_s: float) -> None:
    """The leader is known to be gone: no need to wait for its silence. Told again, it is gone since the first time."""
    if core.leader is None or core.role is Role.LEADER or core.leader_lost_s is not None:
        return
    core.lose_leader(now_s)
    if core.may_campaign:
        core.elect_at(now_s + core.rng.random() * LOST_JITTER * core.settings.heartbeat_interval_s)
