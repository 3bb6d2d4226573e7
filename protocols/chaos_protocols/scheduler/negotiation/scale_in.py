"""Scale-in: a site leaves gracefully, or is removed because it failed (Chaos IV-B, figure 5b).

`left` is never `failed`: a leaver takes part until the last round that was agreed for it, and goes when everybody has
that round. A failed site is removed at once, and the round that it left half-finished is resolved.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar

from chaos_protocols.agreement.commands import RemoveSite, SetVoters
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.agreement.views import connected_with
from chaos_protocols.names import SiteId, short
from chaos_protocols.scheduler import proposals
from chaos_protocols.scheduler.negotiation.base import (
    Committed,
    DeadlinePassed,
    EverybodyDone,
    LearnerCaughtUp,
    LinkAnswered,
    Negotiation,
    Order,
    ProposalLost,
    Propose,
    Resolution,
    RoundNeverDone,
    SubjectGone,
    Tell,
)
from chaos_protocols.scheduler.proposals import Proposal, Situation
from chaos_protocols.scheduler.removals import Removal, removal_of, remove_site
from chaos_protocols.wire.control import LeaveAnswer
from chaos_protocols.wire.plans import CheckpointFacts


class ScaleInState(Enum):
    REMOVING = "removing"
    FINISHING = "finishing"
    SETTLING = "resolving"
    RELEASING = "releasing"
    DONE = "done"
    FAILED = "failed"


S = ScaleInState


class ScaleIn(Negotiation):
    """One site goes."""

    KIND = "scale-in"
    TABLE: ClassVar[Mapping[tuple[Enum, type], str | None]] = {
        (S.REMOVING, Committed): "_removed",
        (S.REMOVING, ProposalLost): "_not_removed",
        (S.REMOVING, SubjectGone): "_failed_meanwhile",
        (S.REMOVING, Resolution): None,
        (S.FINISHING, EverybodyDone): "_finished",
        (S.FINISHING, SubjectGone): "_gone_early",
        (S.FINISHING, RoundNeverDone): "_need_not_wait",
        (S.FINISHING, Resolution): None,
        (S.SETTLING, Resolution): "_resolved",
        (S.SETTLING, SubjectGone): None,
        (S.RELEASING, Committed): "_released",
        (S.RELEASING, ProposalLost): "_not_released",
        (S.RELEASING, SubjectGone): None,
        (S.RELEASING, Resolution): None,
        (S.RELEASING, EverybodyDone): None,
        (S.REMOVING, EverybodyDone): None,
        (S.SETTLING, EverybodyDone): None,
        **{(state, LearnerCaughtUp): None for state in ScaleInState},
        **{(state, LinkAnswered): None for state in ScaleInState},
        **{(state, DeadlinePassed): None for state in ScaleInState},
    }
    COMMANDS: ClassVar[Mapping[Enum, str]] = {S.REMOVING: "_remove", S.RELEASING: "_release"}

    def __init__(
        self,
        identifier: str,
        *,
        site: SiteId,
        incarnation: int,
        graceful: bool,
        resolve: bool,
        cause: str,
        now_s: float,
        left: bool | None = None,
        keeps: CheckpointFacts | None = None,
        last_round: int = 0,
        state: ScaleInState = ScaleInState.REMOVING,
    ) -> None:
        """`left`: as `graceful` where it is not given."""
        super().__init__(identifier, state=state, subject=short(site), cause=cause, now_s=now_s)
        self.site = site
        self.incarnation = incarnation
        self.graceful = graceful
        """It asked to leave, and takes part until its last round."""
        self.resolve = resolve
        """A round depended on it when it failed, and is resolved before this ends. Never taken back."""
        self.left = graceful if left is None else left
        """It is recorded as left, not as failed."""
        self.keeps = keeps
        """The newest state on its disk when it goes, as it says."""
        self.last_round = last_round
        """The last one of a leaver; known when its removal is committed."""
        self._bridged: dict[SiteId, float] = {}
        """Sites that a link was tried to, and when, that keeps the overlay together without the leaver."""

    @property
    def urgent(self) -> bool:
        return not self.graceful

    def concerns(self, site: SiteId) -> bool:
        return self.graceful and site == self.site

    def asked_again(self, incarnation: int, keeps: CheckpointFacts | None) -> None:
        """Its turn may come late, as where it holds the overlay together: of what it has its last word counts."""
        if self.graceful and incarnation == self.incarnation:
            self.keeps = keeps

    def next_bridge(self, roster: Roster, scheduler: SiteId, *, now_s: float, again_s: float) -> SiteId | None:
        """The leaver holds the overlay together: a site that would be apart from the scheduler without it, and is to be
        linked with it first. One that this was tried for has its next turn after `again_s`; None: nobody's turn."""
        members = [site for site in roster.member_ids() if site != self.site]
        learners = [site for site in roster.learner_ids() if site != self.site]
        left = [link.key for link in roster.links if self.site not in link.key]
        near = connected_with(scheduler, members, learners, left)
        apart = [site for site in (*members, *learners) if site not in near]
        untried = [site for site in apart if self._bridged.get(site, float("-inf")) < now_s - again_s]
        if not untried:
            return None
        self._bridged[untried[0]] = now_s
        return untried[0]

    def begin(self) -> list[Order]:
        return [Propose(command=RemoveSite)]

    def _removed(self, event: Committed) -> list[Order]:
        if self.graceful:
            self.state = S.FINISHING
            self.last_round = event.last_round
            answer = LeaveAnswer(incarnation=self.incarnation, last_round=self.last_round, finished=False)
            return [Tell(site=self.site, message=answer)]
        if self.resolve:
            self.state = S.SETTLING
            return []
        return self._conclude(S.DONE, "done", self.cause)

    def _not_removed(self, event: ProposalLost) -> list[Order]:
        if event.final:
            return self._conclude(S.FAILED, "refused", event.reason)
        return [Propose(command=RemoveSite)]

    def _failed_meanwhile(self, event: SubjectGone) -> list[Order]:
        """A leaver that is lost before its removal is known to be committed: this negotiation ends, and whether the
        site left or failed is for the roster to say (a scheduler that was deposed does not know)."""
        if not self.graceful:
            return []
        return self._conclude(S.FAILED, "", f"{event.reason} before its leave was agreed")

    def _finished(self, event: EverybodyDone) -> list[Order]:
        self.state = S.RELEASING
        answer = LeaveAnswer(incarnation=self.incarnation, last_round=self.last_round, finished=True)
        return [Tell(site=self.site, message=answer), Propose(command=SetVoters)]

    def _need_not_wait(self, event: RoundNeverDone) -> list[Order]:
        self.last_round = min(self.last_round, event.round - 1)
        return []

    def _gone_early(self, event: SubjectGone) -> list[Order]:
        return self._conclude(S.DONE, "done", f"left; gone before its last round was everywhere ({event.reason})")

    def _resolved(self, event: Resolution) -> list[Order]:
        return self._conclude(S.DONE, "done", self.cause)

    def _not_released(self, event: ProposalLost) -> list[Order]:
        if event.final:
            return self._released(Committed())
        return [Propose(command=SetVoters)]

    def _released(self, event: Committed) -> list[Order]:
        return self._conclude(S.DONE, "done", f"left after round {self.last_round}")

    def _remove(self, situation: Situation) -> Proposal:
        asked = Removal(
            site=self.site,
            incarnation=self.incarnation,
            graceful=self.graceful,
            left=self.left,
            keeps=self.keeps,
            resolve=self.resolve,
            reason=self.cause,
        )
        removal = removal_of(situation, asked)
        self.incarnation, self.left, self.resolve = removal.incarnation, removal.left, removal.resolve
        return remove_site(situation, removal)

    def _release(self, situation: Situation) -> Proposal:
        return proposals.release_site(situation, self.site)
