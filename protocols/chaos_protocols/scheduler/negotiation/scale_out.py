"""Scale-out: a joiner is connected, admitted as a learner, given the state, and promoted when it has caught up (Chaos
IV-B, figure 5a).

Also restores a site of the roster whose worker has lost the state: the same without the first half. No round waits for
any of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar

from chaos_protocols.agreement.commands import AddSite, PromoteSite, Replicate
from chaos_protocols.agreement.roster import LinkRecord
from chaos_protocols.names import SiteId, link_key, short
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
    SubjectGone,
    Tell,
)
from chaos_protocols.scheduler.proposals import Proposal, Situation
from chaos_protocols.wire.control import ConnectOrder, JoinAnswer, JoinRequest


class ScaleOutState(Enum):
    CONNECTING = "connecting"
    ADMITTING = "admitting"
    REPLICATING = "replicating"
    PROMOTING = "promoting"
    DONE = "done"
    FAILED = "failed"


S = ScaleOutState


class ScaleOut(Negotiation):
    """One site is given the state, and becomes a member if it is none."""

    KIND = "scale-out"
    TABLE: ClassVar[Mapping[tuple[Enum, type], str | None]] = {
        (S.CONNECTING, LinkAnswered): "_answered",
        (S.CONNECTING, DeadlinePassed): "_enough_waited",
        (S.CONNECTING, SubjectGone): "_lost",
        (S.CONNECTING, Resolution): None,
        (S.ADMITTING, LinkAnswered): "_late_answer",
        (S.ADMITTING, Committed): "_admitted",
        (S.ADMITTING, ProposalLost): "_not_proposed",
        (S.ADMITTING, SubjectGone): "_lost",
        (S.ADMITTING, Resolution): None,
        (S.REPLICATING, LinkAnswered): None,
        (S.REPLICATING, LearnerCaughtUp): "_caught_up",
        (S.REPLICATING, SubjectGone): "_lost",
        (S.REPLICATING, Resolution): None,
        (S.PROMOTING, LinkAnswered): None,
        (S.PROMOTING, LearnerCaughtUp): "_caught_up_again",
        (S.PROMOTING, Committed): "_promoted",
        (S.PROMOTING, ProposalLost): "_not_promoted",
        (S.PROMOTING, SubjectGone): "_lost",
        (S.PROMOTING, Resolution): None,
        **{(state, EverybodyDone): None for state in ScaleOutState},
    }
    COMMANDS: ClassVar[Mapping[Enum, str]] = {S.ADMITTING: "_admit", S.PROMOTING: "_promote"}

    def __init__(
        self,
        identifier: str,
        *,
        joiner: SiteId,
        request: JoinRequest | None,
        cause: str,
        now_s: float,
        state: ScaleOutState = ScaleOutState.CONNECTING,
        outrun: bool = False,
        may_hold: bool = True,
    ) -> None:
        subject = request.name if request else short(joiner)
        super().__init__(identifier, state=state, subject=subject, cause=cause, now_s=now_s)
        self.joiner = joiner
        self.request = request
        """None: the site is in the roster, and is only given the state once more."""
        self.outrun = outrun
        """The rounds are to wait for it."""
        self.may_hold = may_hold
        """The rounds wait for it where the figures say so."""
        self.links: dict[SiteId, LinkAnswered] = {}
        """The neighbours that consented, with what they measured."""
        self._refusals: dict[SiteId, str] = {}
        self._waits = False
        """Not caught up yet: its first round as a member is to wait for it."""

    @property
    def transfers(self) -> bool:
        """The state is on its way to the joiner, or has just got there."""
        return self.state in (S.REPLICATING, S.PROMOTING)

    def concerns(self, site: SiteId) -> bool:
        return site == self.joiner

    def begin(self, *, deadline_s: float) -> list[Order]:
        """Ask the named neighbours to have, and measure, a link to the joiner: all at the same time, since they will
        also send at the same time. A restored site has its links already."""
        if self.request is None:
            self.state = S.ADMITTING
            return [Propose(command=Replicate)]
        self.deadline_s = deadline_s
        return [
            Tell(
                site=neighbour,
                message=ConnectOrder(
                    negotiation=self.identifier, other=self.joiner, address=self.request.address, probe=True
                ),
            )
            for neighbour in self.request.neighbours
        ]

    def _answered(self, event: LinkAnswered) -> list[Order]:
        self._note(event)
        assert self.request is not None
        if len(self.links) + len(self._refusals) < len(self.request.neighbours):
            return []
        return self._admit_or_fail("")

    def _note(self, event: LinkAnswered) -> None:
        assert self.request is not None
        if event.site not in self.request.neighbours or event.other != self.joiner:
            return
        if event.ready:
            self.links[event.site] = event
        else:
            self._refusals[event.site] = event.reason

    def _late_answer(self, event: LinkAnswered) -> list[Order]:
        if self.request is not None:
            self._note(event)
        return []

    def _enough_waited(self, event: DeadlinePassed) -> list[Order]:
        return self._admit_or_fail(" in time")

    def _admit_or_fail(self, when: str) -> list[Order]:
        self.deadline_s = None
        if self.links:
            self.state = S.ADMITTING
            return [Propose(command=AddSite)]
        told = "; ".join(f"{short(site)}: {reason}" for site, reason in sorted(self._refusals.items())) or "no answer"
        return self._conclude(S.FAILED, "failed", f"no neighbour has a link to the joiner{when} ({told})")

    def _admitted(self, event: Committed) -> list[Order]:
        self.state = S.REPLICATING
        return []

    def _not_proposed(self, event: ProposalLost) -> list[Order]:
        if event.refused and self.request is not None:
            answer = JoinAnswer(incarnation=self.request.incarnation, accepted=False, final=False, reason=event.reason)
            return [Tell(site=self.joiner, message=answer), *self._conclude(S.FAILED, "refused", event.reason)]
        if event.final:
            return self._conclude(S.FAILED, "failed", event.reason)
        return [Propose(command=Replicate if self.request is None else AddSite)]

    def _caught_up(self, event: LearnerCaughtUp) -> list[Order]:
        self.state = S.PROMOTING
        self._waits = event.waits
        return [Propose(command=PromoteSite)]

    def _caught_up_again(self, event: LearnerCaughtUp) -> list[Order]:
        """It says so at every beat; the last word counts when its turn comes."""
        self._waits = event.waits
        return []

    def _not_promoted(self, event: ProposalLost) -> list[Order]:
        if event.final:
            return self._conclude(S.FAILED, "failed", event.reason)
        return [Propose(command=PromoteSite)]

    def _promoted(self, event: Committed) -> list[Order]:
        if self.request is None:
            reason = "caught up and promoted; links to its neighbours (or it has no worker by now)"
            return self._conclude(S.DONE, "done", reason)
        sources = ", ".join(short(site) for site in sorted(self.links))
        return self._conclude(S.DONE, "done", f"caught up and promoted; links to {sources}")

    def _lost(self, event: SubjectGone) -> list[Order]:
        return self._conclude(S.FAILED, "failed", event.reason)

    def _admit(self, situation: Situation) -> Proposal:
        if self.request is None:
            return proposals.replicate(
                situation, self.identifier, self.joiner, outrun=self.outrun, may_hold=self.may_hold
            )
        links = [_as_record(self.joiner, site, self.links[site]) for site in sorted(self.links)]
        return proposals.add_site(situation, self.identifier, self.joiner, self.request, links)

    def _promote(self, situation: Situation) -> Proposal:
        return proposals.promote_site(situation, self.joiner, waits=self._waits)


def _as_record(joiner: SiteId, site: SiteId, measured: LinkAnswered) -> LinkRecord:
    one, other = link_key(site, joiner)
    return LinkRecord(one=one, other=other, rate_bytes_per_s=measured.rate_bytes_per_s, rtt_s=measured.rtt_s)
