"""Scale-in: a site leaves gracefully, or is removed because it failed (Chaos IV-B, figure 5b).

`left` is never `failed`: a leaver takes part until the last round that was agreed for it, and goes when everybody has
that round. A failed site is removed at once, and the round that it left half-finished is settled.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar

from chaos_protocols.messages import LeaveAnswer
from chaos_protocols.names import SiteId, short
from chaos_protocols.negotiation.base import (
    Committed,
    DeadlinePassed,
    EverybodyDone,
    Intent,
    LevelReached,
    LinkAnswered,
    Negotiation,
    Order,
    ProposalLost,
    Propose,
    Settlement,
    SubjectGone,
    Tell,
)


class ScaleInState(Enum):
    REMOVING = "removing"
    FINISHING = "finishing"
    SETTLING = "settling"
    RELEASING = "releasing"
    DONE = "done"
    FAILED = "failed"


S = ScaleInState


class ScaleIn(Negotiation):
    """See the module. `last_round`: the last one of a leaver, known when its removal is committed.
    `left`: recorded as left, not as failed.
    `bridged`: sites that a link was tried to, and when, that keeps the overlay together without the leaver."""

    KIND = "scale-in"
    TABLE: ClassVar[Mapping[tuple[Enum, type], str | None]] = {
        (S.REMOVING, Committed): "_removed",
        (S.REMOVING, ProposalLost): "_not_removed",
        (S.REMOVING, SubjectGone): "_failed_meanwhile",
        (S.REMOVING, Settlement): None,
        (S.FINISHING, EverybodyDone): "_finished",
        (S.FINISHING, SubjectGone): "_gone_early",
        (S.FINISHING, Settlement): None,
        (S.SETTLING, Settlement): "_settled",
        (S.SETTLING, SubjectGone): None,
        (S.RELEASING, Committed): "_released",
        (S.RELEASING, ProposalLost): "_not_released",
        (S.RELEASING, SubjectGone): None,
        (S.RELEASING, Settlement): None,
        (S.RELEASING, EverybodyDone): None,
        (S.REMOVING, EverybodyDone): None,
        (S.SETTLING, EverybodyDone): None,
        **{(state, LevelReached): None for state in ScaleInState},
        **{(state, LinkAnswered): None for state in ScaleInState},
        **{(state, DeadlinePassed): None for state in ScaleInState},
    }

    def __init__(
        self,
        identifier: str,
        *,
        site: SiteId,
        incarnation: int,
        graceful: bool,
        settle: bool,
        cause: str,
        now_s: float,
        state: ScaleInState = ScaleInState.REMOVING,
    ) -> None:
        super().__init__(identifier, state=state, subject=short(site), cause=cause, now_s=now_s)
        self.site = site
        self.incarnation = incarnation
        self.graceful = graceful
        self.settle = settle
        self.last_round = 0
        self.bridged: dict[SiteId, float] = {}
        self.left = graceful

    def begin(self) -> list[Order]:
        return [Propose(intent=Intent.REMOVE_SITE)]

    def _removed(self, event: Committed) -> list[Order]:
        if self.graceful:
            self.state = S.FINISHING
            answer = LeaveAnswer(incarnation=self.incarnation, last_round=self.last_round, finished=False)
            return [Tell(site=self.site, message=answer)]
        if self.settle:
            self.state = S.SETTLING
            return []
        return self._conclude(S.DONE, "done", self.cause)

    def _not_removed(self, event: ProposalLost) -> list[Order]:
        if event.final:
            return self._conclude(S.FAILED, "refused", event.reason)
        return [Propose(intent=Intent.REMOVE_SITE)]

    def _failed_meanwhile(self, event: SubjectGone) -> list[Order]:
        """A leaver that is lost before its removal is known to be committed: this negotiation ends, and whether the
        site left or failed is for the roster to say (a scheduler that was deposed does not know)."""
        if not self.graceful:
            return []
        return self._conclude(S.FAILED, "", f"{event.reason} before its leave was agreed")

    def _finished(self, event: EverybodyDone) -> list[Order]:
        self.state = S.RELEASING
        answer = LeaveAnswer(incarnation=self.incarnation, last_round=self.last_round, finished=True)
        return [Tell(site=self.site, message=answer), Propose(intent=Intent.RELEASE_SITE)]

    def _gone_early(self, event: SubjectGone) -> list[Order]:
        return self._conclude(S.DONE, "done", f"left; gone before its last round was everywhere ({event.reason})")

    def _settled(self, event: Settlement) -> list[Order]:
        return self._conclude(S.DONE, "done", self.cause)

    def _not_released(self, event: ProposalLost) -> list[Order]:
        if event.final:
            return self._released(Committed())
        return [Propose(intent=Intent.RELEASE_SITE)]

    def _released(self, event: Committed) -> list[Order]:
        return self._conclude(S.DONE, "done", f"left after round {self.last_round}")
