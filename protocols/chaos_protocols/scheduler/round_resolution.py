"""Resolves the round that was under way when a site or link failed: which result is the last that stands?

As a coordinator of two-phase commit that finds a transaction in doubt, it asks everybody how far they are. An answer is
a promise: who has given it takes nothing more of the older epoch. When all that are connected have answered, the
furthest result that anybody holds stands, and the views are made again over who is left. Who is connected and does not
answer is removed in the end. Also begins a round anew that ended without a result. Sources: spec 10; Gray and Lamport,
Consensus on Transaction Commit (2006).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from chaos_protocols.agreement.commands import RetryRound, RoundResolved
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.agreement.views import resolved_views
from chaos_protocols.names import ROUNDS_DONE_MAX, SiteId
from chaos_protocols.scheduler.decisions import Decision, Note, SiteFailed
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.scheduler.failures import connected_sites, restarted
from chaos_protocols.scheduler.negotiation import Tell
from chaos_protocols.scheduler.proposals import Proposal
from chaos_protocols.scheduler.reports import ROUNDS_MAX, Reports
from chaos_protocols.scheduler.voters import transfer_leadership
from chaos_protocols.wire.control import RoundStatusQuery, RoundStatusReply
from chaos_protocols.wire.waits import SITES_NAMED_MAX, UNANSWERED, RoundWaits, SiteWait

NOT_YET_S = float("-inf")
REPEATED_MAX = 20
"""So often a site is asked once more, every `retry_s`: answers are a matter of a daemon and of the ways to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """What all answers together say."""

    furthest: int
    """The last round that stands."""
    holders: tuple[SiteId, ...]
    """Who has its result, or the state after it; nobody: it is only known to have been done."""
    digests: Mapping[SiteId, str]
    """The results of those holders that have one."""
    pending: bool
    """Only members whose first round has not come hold anything: rounds may have been done without them."""


def outcome_of(roster: Roster, answers: Mapping[SiteId, RoundStatusReply]) -> RoundOutcome:
    """`answers`: of every site of the roster. Who has neither the result nor the state (a joiner that waits for it)
    counts from a round that may never have been done. If nobody has either, a worker that comes back may: of no older
    round than anybody knows to be done."""
    held = {site: answer.done_round for site, answer in answers.items() if answer.digest or answer.has_state}
    known = max(roster.resolved_round, *(answer.known_round for answer in answers.values()))
    furthest = max(held.values(), default=known)
    holders = tuple(sorted(site for site, done in held.items() if done == furthest))
    return RoundOutcome(
        furthest=furthest,
        holders=holders,
        digests={site: answers[site].digest for site in holders if answers[site].digest},
        pending=bool(holders) and not any(roster.counts(site, furthest + 1) for site in held),
    )


def beyond_belief(roster: Roster, scheduler: SiteId, answers: Mapping[SiteId, RoundStatusReply]) -> tuple[SiteId, ...]:
    """Who says that it holds a round that cannot be done: no round is without the scheduler's part, so where it counts
    and has the state, none is done but the one after its own (spec 9.5). One word would otherwise set the run to a
    round that nobody can reach; or to one after which no round has a number that others could read."""
    own = answers[scheduler]
    found = {site for site, answer in answers.items() if _newest_said(answer) > ROUNDS_DONE_MAX}
    if own.has_state and roster.counts(scheduler, own.done_round + 1):
        held = (site for site, answer in answers.items() if answer.digest or answer.has_state)
        found.update(site for site in held if answers[site].done_round > own.done_round + 1)
    return tuple(sorted(found - {scheduler}))


def _newest_said(answer: RoundStatusReply) -> int:
    return max(answer.done_round, answer.known_round)


class RoundResolution:
    """Of one term of the scheduler."""

    def __init__(self, facts: Facts, reports: Reports) -> None:
        self._facts, self._reports = facts, reports
        self._answers: dict[SiteId, RoundStatusReply] = {}
        """Of the present epoch."""
        self._asked_s = NOT_YET_S
        """When those were asked last that had not answered."""
        self._repeated: Counter[SiteId] = Counter()
        """How often each was asked once more since it answered last, in whatever epoch. Questions are counted, not
        seconds: in those a scheduler may have stood still itself."""
        self._told_s = float("-inf")
        """When everybody was told last who does not answer."""
        self._retried_s = float("-inf")
        """When an empty round was begun anew last."""

    @property
    def answers(self) -> Mapping[SiteId, RoundStatusReply]:
        return self._answers

    @property
    def asks_again_s(self) -> float:
        return max(self._asked_s, self._facts.now_s) + self._facts.settings.retry_s

    def answered(self, site: SiteId, answer: RoundStatusReply) -> None:
        roster = self._facts.roster
        if answer.epoch == roster.epoch and roster.resolving and roster.record(site) is not None:
            self._answers[site] = answer
            del self._repeated[site]

    def epoch_changed(self) -> None:
        """A promise is made for one epoch: under a new one everybody is asked anew."""
        self._answers.clear()
        self._asked_s = NOT_YET_S

    def step(self, now_s: float) -> Decision:
        """Ask everybody how far they are; when all have answered (and thereby promised), the furthest result stands."""
        facts, roster = self._facts, self._facts.roster
        connected = connected_sites(facts)
        asked = [site for site in roster.site_ids() if site in connected and site != facts.site]
        questions = self._questions(asked, now_s)
        if any(site not in connected for site in roster.site_ids()):
            return Decision(reason="a site that is cut off is removed first", tells=questions)
        if any(restarted(facts, record) is not None for record in roster.sites):
            reason = "a site was started again: the word of a start that the roster does not name counts for nothing"
            return Decision(reason=reason, tells=questions)
        answers = {**self._answers, facts.site: facts.round_status()}
        missing = [site for site in asked if site not in answers]
        if silent := [site for site in missing if self._repeated[site] > REPEATED_MAX]:
            return replace(self._give_up(silent), tells=questions)
        if missing:
            return Decision(reason=f"{len(missing)} of {len(asked) + 1} have not answered", tells=questions)
        return replace(self._resolve({site: answers[site] for site in (*asked, facts.site)}), tells=questions)

    def _questions(self, asked: list[SiteId], now_s: float) -> tuple[Tell, ...]:
        if now_s < self._asked_s + self._facts.settings.retry_s:
            return ()
        missing = [site for site in asked if site not in self._answers]
        if self._asked_s != NOT_YET_S:
            self._repeated.update(missing)
        self._asked_s = now_s
        question = RoundStatusQuery(epoch=self._facts.roster.epoch)
        return tuple(Tell(site=site, message=question) for site in missing)

    def unanswered(self, now_s: float) -> RoundWaits | None:
        """What everybody is to be told, now or again: who has been asked in vain for a while."""
        facts, settings = self._facts, self._facts.settings
        if not facts.roster.resolving or now_s < self._told_s + settings.failure_timeout_s:
            return None
        in_vain = {site: self._repeated[site] * settings.retry_s for site in facts.roster.site_ids()}
        waits = [
            SiteWait(site=site, seconds=seconds, reason=UNANSWERED)
            for site, seconds in in_vain.items()
            if seconds >= settings.waits_told_s
        ]
        if not waits:
            return None
        self._told_s = now_s
        number = min(max(facts.done_round, self._reports.newest_round()) + 1, ROUNDS_MAX)
        return RoundWaits(round=number, limit_s=0.0, waits=tuple(waits[:SITES_NAMED_MAX]))

    def _give_up(self, silent: list[SiteId]) -> Decision:
        """Its daemon lives, and what it should answer does not come: it does not follow what is agreed, or the other
        way round. That holds up itself, and not the run: it comes back as any site that failed."""
        waited_s = REPEATED_MAX * self._facts.settings.retry_s
        reason = f"{UNANSWERED}, for {waited_s:g} s now, though its links are up"
        return Decision(
            reason=reason, failed=tuple(SiteFailed(site=site, reason=reason) for site in silent), look_again=True
        )

    def _resolve(self, answers: Mapping[SiteId, RoundStatusReply]) -> Decision:
        facts, roster = self._facts, self._facts.roster
        if beyond := beyond_belief(roster, facts.site, answers):
            reason = f"it says that it has round {_newest_said(answers[beyond[0]])}, which cannot have been done"
            failed = tuple(SiteFailed(site=site, reason=reason) for site in beyond)
            return Decision(reason=reason, failed=failed, look_again=True)
        outcome = outcome_of(roster, answers)
        furthest = outcome.furthest
        others = tuple(site for site in roster.member_ids() if site not in outcome.holders)
        if outcome.pending and others:
            return self._let_go(outcome.holders, others)
        digests = set(outcome.digests.values())
        if len(digests) > 1:
            return self._outvote(outcome.digests, furthest)
        self._repeated.clear()
        views = resolved_views(roster, facts.planner, first_round=furthest + 1)
        digest = digests.pop() if digests else ""
        command = RoundResolved(round=furthest, digest=digest, holders=outcome.holders, views=views)
        reason = (
            f"round {furthest} stands, held by {len(outcome.holders)} of {len(answers)}; going on with {furthest + 1}"
        )
        if outcome.pending:  # nobody else is a member: what they have is what there is
            reason += "; if it was done before, its result died with those who did it"
        note = Note(
            kind="resolve", subject=f"round {furthest + 1}", cause="a site or link failed", outcome="done",
            reason=reason,
        )  # fmt: skip
        return Decision(reason=reason, proposal=Proposal(command=command), note=note)

    def _let_go(self, holders: tuple[SiteId, ...], others: tuple[SiteId, ...]) -> Decision:
        """The rounds after the furthest that anybody holds do not wait for those who hold it: learners, and pending
        members, which were promoted and have not reached their first round. All others were restarted, and a worker of
        theirs may have more. The holders come back with what they have, and the run goes on from whoever has the
        newest state (`RestorePoint`)."""
        if self._facts.site in holders:  # somebody else removes this site
            return transfer_leadership(self._facts, others, reason="what this site holds may be old")
        reason = "what it holds may be old: no round waits for it yet"
        failed = tuple(SiteFailed(site=site, reason=reason) for site in holders)
        return Decision(reason=reason, failed=failed, look_again=True)

    def _outvote(self, digest_of: Mapping[SiteId, str], number: int) -> Decision:
        """Two sites hold different results of one round, which no fault of a network can bring about: most members
        count, between equals those of the scheduler. The others are removed, and come back with the state of the
        run."""
        here, members = self._facts.site, self._facts.roster.member_ids()
        votes = Counter(digest_of[site] for site in members if site in digest_of) or Counter(digest_of.values())
        best = max(votes, key=lambda digest: (votes[digest], digest == digest_of.get(here), digest))
        if digest_of.get(here, best) != best:
            majority = [site for site in members if digest_of.get(site, best) == best]
            return transfer_leadership(self._facts, majority, reason="this site was outvoted")
        reason = f"its result of round {number} is not that of {votes[best]} other(s)"
        outvoted = sorted(site for site, digest in digest_of.items() if digest != best)
        failed = tuple(SiteFailed(site=site, reason=reason) for site in outvoted)
        return Decision(reason=reason, failed=failed, look_again=True)

    def retry_empty_round(self, now_s: float) -> Decision | None:
        """Everybody gave weight 0 to a round, and now a member has the state: it is done again under a new epoch, to
        which that member can contribute."""
        facts, roster = self._facts, self._facts.roster
        if self._reports.empty_round() is None:
            return None
        if now_s < self._retried_s + facts.settings.failure_timeout_s or not self._reports.anybody_active():
            return None
        self._retried_s = now_s
        reason = "every contribution had weight 0; now a member has the state"
        note = Note(
            kind="resolve", subject=f"round {facts.done_round + 1}", cause=reason, outcome="", reason="it is done again"
        )
        return Decision(
            reason=reason, proposal=Proposal(command=RetryRound(views=roster.views, reason=reason)), note=note
        )
