"""Who votes in the agreement, and how the scheduler's role passes to another site.

An odd number of members votes, the scheduler among them; sites that left for good hear no more of the log. A scheduler
that leaves, or holds what others have outvoted, has another voter take the role first. Sources: spec 7.11, 7.12;
Ongaro's thesis, 3.10 (leadership transfer), chapter 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaos_protocols.agreement.commands import SetRules, SetVoters
from chaos_protocols.agreement.raft.messages import Configuration
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.names import VOTERS_MAX, SiteId
from chaos_protocols.scheduler.decisions import Decision, Note
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.scheduler.proposals import Proposal, with_learner, with_vote, without_site, without_vote
from chaos_protocols.scheduler.running import RunningNegotiations
from chaos_protocols.wire.versions import CHECKS_SINCE, NAMES_SINCE, PROOFS_SINCE, RULED, STARTS_SINCE

RULES_NEWEST = max(RULED)
RULES_VOTERS_MIN = 3
"""Fewer: one site votes, and nobody but that one leads."""

WHAT_RULES_BRING = {
    PROOFS_SINCE: "whoever schedules shows its votes",
    NAMES_SINCE: "what sites hand on for others counts only if it was said in this run",
    STARTS_SINCE: "a daemon ends for a newer start of its key in this run only; vectors are cut into more chunks",
    CHECKS_SINCE: "what a site says of its state counts only if it has signed it",
}


class VoterChoice:
    """Of one term of the scheduler."""

    def __init__(self, facts: Facts, negotiations: RunningNegotiations, *, led_since_s: float) -> None:
        self._facts, self._negotiations = facts, negotiations
        self._led_since_s = led_since_s
        self._fits: tuple[int, Configuration] | None = None
        """Epoch and configuration that were found to need no change."""
        self._ready: tuple[float, tuple[SiteId, ...], int] | None = None
        """Since when these vote, and all sites speak this version, whose rules the run does not have."""

    def step(self, now_s: float) -> Decision | None:
        """One change of the configuration, or who is to schedule instead of this site."""
        facts = self._facts
        if facts.leaving:
            return self._step_aside(now_s)
        roster, known = facts.roster, facts.configuration
        stranger = self._stranger(roster, known)
        if stranger is not None:
            return _change(without_site(known, stranger), "who has left hears the log no more")
        if self._fits is not None and self._fits[0] == roster.epoch and self._fits[1] is known:
            return None
        configuration = next_voters(roster, known, facts.site)
        if configuration is None:
            self._fits = (roster.epoch, known)
            return None
        return _change(configuration, "one step towards the voters wanted")

    def rules(self, now_s: float) -> Decision | None:
        """All sites have spoken a version for a while whose rules the run does not have yet, and some other than the
        scheduler votes: a rule on votes has something to hold."""
        facts, roster = self._facts, self._facts.roster
        voters = facts.configuration.voters
        due = rules_due(roster) if len(voters) >= RULES_VOTERS_MIN and roster.rules < RULES_NEWEST else 0
        if due <= roster.rules:
            self._ready = None
            return None
        if self._ready is None or self._ready[1:] != (voters, due):
            self._ready = (now_s, voters, due)
        if now_s < self._ready[0] + facts.settings.rules_after_s:
            return None
        news = "; ".join(what for since, what in WHAT_RULES_BRING.items() if roster.rules < since <= due)
        reason = f"all sites speak protocol {due}; from now on {news}"
        note = Note(kind="rules", subject=roster.run, cause="all sites speak it", outcome="done", reason=reason)
        command = SetRules(version=due, views=roster.views)
        return Decision(reason=reason, proposal=Proposal(command=command), note=note)

    def _stranger(self, roster: Roster, known: Configuration) -> SiteId | None:
        """A site that still hears the log, but has left for good: it was lost before it could be released."""
        if len(known.voters) + len(known.learners) <= len(roster.sites):
            return None
        leaving = self._negotiations.leaving_sites()
        return next((site for site in known.learners if roster.record(site) is None and site not in leaving), None)

    def _step_aside(self, now_s: float) -> Decision | None:
        """This site wants to leave, and leads: another voter must take the role first."""
        facts = self._facts
        if now_s < self._led_since_s + facts.settings.retry_s:
            return None  # another site that wants to leave says so first: the role must not go round in circles
        leaving = self._negotiations.leaving_sites()
        others = [site for site in facts.roster.member_ids() if site != facts.site and site not in leaving]
        return transfer_leadership(facts, others, reason="this site leaves")


def transfer_leadership(facts: Facts, others: Sequence[SiteId], *, reason: str) -> Decision:
    """One of these must schedule instead of this site: a voter, and if none is one, somebody gets a vote first."""
    voter = next((site for site in others if site in facts.configuration.voters), None)
    if voter is not None:
        return Decision(reason=reason, successor=voter)
    candidates = [site for site in others if site in facts.configuration.learners and site in facts.reachable()]
    if not candidates:
        return Decision(reason=f"{reason}; nobody in reach can take the role")
    return _change(with_vote(facts.configuration, candidates[0]), f"{reason}; a successor gets a vote")


def rules_due(roster: Roster) -> int:
    """The newest rules that all sites could keep; 0: none. A run without an id has nothing to name."""
    spoken = roster.version()
    return max((one for one in RULED if one <= spoken and (one < NAMES_SINCE or roster.run_id)), default=0)


def _change(configuration: Configuration, reason: str) -> Decision:
    return Decision(reason=reason, proposal=Proposal(command=SetVoters(), configuration=configuration))


def voters_wanted(members: int) -> int:
    """An odd number of voters, at most VOTERS_MAX. With two sites only the scheduler's votes: it may remove the other,
    the other can never remove it (spec 5.13)."""
    return max(1, min(VOTERS_MAX, members - 1 + members % 2))


def next_voters(roster: Roster, configuration: Configuration, scheduler: SiteId) -> Configuration | None:
    """One step towards the voters wanted, or None. Members of long standing are kept; the smallest ids come first."""
    members = [site for site in roster.member_ids() if site in {*configuration.voters, *configuration.learners}]
    unheard = [site for site in roster.site_ids() if site not in {*configuration.voters, *configuration.learners}]
    if unheard:
        return with_learner(configuration, unheard[0])
    wanted = voters_wanted(len(members))
    voters = list(configuration.voters)
    strangers = [site for site in voters if site not in members and site != scheduler]
    if strangers:
        return without_vote(configuration, strangers[0])
    if len(voters) > wanted:
        surplus = [site for site in voters if site != scheduler]
        return without_vote(configuration, surplus[-1]) if surplus else None
    candidates = [site for site in members if site not in voters]
    if len(voters) < wanted and candidates:
        return with_vote(configuration, candidates[0])
    return None
