"""Connect-link and disconnect-link (Chaos IV-B, figures 5c and 5d). Training never pauses for a link that somebody
adds or removes; a link that fails under a running round makes that round resolve on the links that are left."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar

from chaos_protocols.agreement.commands import AddLink, RemoveLink
from chaos_protocols.agreement.roster import LinkRecord
from chaos_protocols.agreement.views import LinkKey
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
from chaos_protocols.wire.control import ConnectOrder, LinkAnswer
from chaos_protocols.wire.recovery import REASON_CHARACTERS_MAX


class LinkState(Enum):
    CONNECTING = "connecting"
    COMMITTING = "committing"
    SETTLING = "resolving"
    DONE = "done"
    FAILED = "failed"


S = LinkState
_NEVER_MATTERS: dict[tuple[Enum, type], str | None] = {
    **{(state, LearnerCaughtUp): None for state in LinkState},
    **{(state, EverybodyDone): None for state in LinkState},
}


class LinkNegotiation(Negotiation):
    """What is negotiated about one link."""

    def __init__(
        self,
        identifier: str,
        *,
        one: SiteId,
        other: SiteId,
        request: tuple[SiteId, str] | None,
        cause: str,
        now_s: float,
        state: LinkState,
    ) -> None:
        super().__init__(identifier, state=state, subject=f"{short(one)} - {short(other)}", cause=cause, now_s=now_s)
        self.one, self.other = link_key(one, other)
        self.request = request
        """Who asked for it, and the name of that request; None: nobody did."""

    @property
    def key(self) -> LinkKey:
        return (self.one, self.other)

    def answer(self, outcome: str, reason: str) -> list[Order]:
        """The answer to the site that asked for this, if one did."""
        if self.request is None:
            return []
        site, request = self.request
        told = reason[:REASON_CHARACTERS_MAX]  # an end may have given as long a one, before which its name was put
        return [Tell(site=site, message=LinkAnswer(request=request, done=outcome == "done", reason=told))]

    def _end(self, state: LinkState, outcome: str, reason: str) -> list[Order]:
        return [*self.answer(outcome, reason), *self._conclude(state, outcome, reason)]

    def _lost(self, event: SubjectGone) -> list[Order]:
        return self._end(S.FAILED, "failed", event.reason)


class ConnectLink(LinkNegotiation):
    """Two sites of the roster get a link."""

    KIND = "connect-link"
    TABLE: ClassVar[Mapping[tuple[Enum, type], str | None]] = {
        (S.CONNECTING, LinkAnswered): "_answered",
        (S.CONNECTING, DeadlinePassed): "_too_late",
        (S.CONNECTING, SubjectGone): "_lost",
        (S.CONNECTING, Resolution): None,
        (S.COMMITTING, LinkAnswered): None,
        (S.COMMITTING, Committed): "_committed",
        (S.COMMITTING, ProposalLost): "_not_proposed",
        (S.COMMITTING, SubjectGone): "_lost",
        (S.COMMITTING, Resolution): None,
        **_NEVER_MATTERS,
    }
    COMMANDS: ClassVar[Mapping[Enum, str]] = {S.COMMITTING: "_add"}

    def __init__(
        self,
        identifier: str,
        *,
        one: SiteId,
        other: SiteId,
        request: tuple[SiteId, str] | None,
        cause: str,
        now_s: float,
    ) -> None:
        super().__init__(
            identifier, one=one, other=other, request=request, cause=cause, now_s=now_s, state=S.CONNECTING
        )
        self.rtt_s = 0.0
        """The longer of what both ends measured; 0: nothing, as with the rate."""
        self.rate_bytes_per_s = 0.0
        self._ready: set[SiteId] = set()
        """The ends that have the link."""

    def concerns(self, site: SiteId) -> bool:
        return site in self.key

    def begin(self, addresses: Mapping[SiteId, str], *, deadline_s: float) -> list[Order]:
        """Both ends are told; either may dial. The rate is measured later, from real transfers or a probe: it overlaps
        with training."""
        self.deadline_s = deadline_s
        return [
            Tell(
                site=site,
                message=ConnectOrder(negotiation=self.identifier, other=far, address=addresses[far], probe=False),
            )
            for site, far in ((self.one, self.other), (self.other, self.one))
        ]

    def _answered(self, event: LinkAnswered) -> list[Order]:
        if {event.site, event.other} != {self.one, self.other}:
            return []
        if not event.ready:
            return self._end(S.FAILED, "failed", f"{short(event.site)}: {event.reason}")
        self._ready.add(event.site)
        self.rtt_s = max(self.rtt_s, event.rtt_s)
        self.rate_bytes_per_s = max(self.rate_bytes_per_s, event.rate_bytes_per_s)
        if len(self._ready) < 2:
            return []
        self.state = S.COMMITTING
        self.deadline_s = None
        return [Propose(command=AddLink)]

    def _too_late(self, event: DeadlinePassed) -> list[Order]:
        silent = ", ".join(short(site) for site in (self.one, self.other) if site not in self._ready)
        return self._end(S.FAILED, "failed", f"no link in time; no word from {silent}")

    def _committed(self, event: Committed) -> list[Order]:
        return self._end(S.DONE, "done", "connected")

    def _not_proposed(self, event: ProposalLost) -> list[Order]:
        if event.final:
            return self._end(S.FAILED, "refused", event.reason)
        return [Propose(command=AddLink)]

    def _add(self, situation: Situation) -> Proposal:
        link = LinkRecord(one=self.one, other=self.other, rate_bytes_per_s=self.rate_bytes_per_s, rtt_s=self.rtt_s)
        return proposals.add_link(situation, link)


class DisconnectLink(LinkNegotiation):
    """A link goes, because somebody wants it gone or because it is down."""

    KIND = "disconnect-link"
    TABLE: ClassVar[Mapping[tuple[Enum, type], str | None]] = {
        (S.COMMITTING, Committed): "_committed",
        (S.COMMITTING, ProposalLost): "_not_proposed",
        (S.COMMITTING, SubjectGone): "_lost",
        (S.COMMITTING, Resolution): None,
        (S.COMMITTING, LinkAnswered): None,
        (S.COMMITTING, DeadlinePassed): None,
        (S.SETTLING, Resolution): "_resolved",
        (S.SETTLING, SubjectGone): None,
        (S.SETTLING, LinkAnswered): None,
        (S.SETTLING, DeadlinePassed): None,
        **_NEVER_MATTERS,
    }
    COMMANDS: ClassVar[Mapping[Enum, str]] = {S.COMMITTING: "_remove"}

    def __init__(
        self,
        identifier: str,
        *,
        one: SiteId,
        other: SiteId,
        request: tuple[SiteId, str] | None,
        resolve: bool,
        cause: str,
        now_s: float,
    ) -> None:
        super().__init__(
            identifier, one=one, other=other, request=request, cause=cause, now_s=now_s, state=S.COMMITTING
        )
        self.resolve = resolve
        """A round depended on the link when it failed, and is resolved before this ends. Never taken back."""

    def begin(self) -> list[Order]:
        return [Propose(command=RemoveLink)]

    def _committed(self, event: Committed) -> list[Order]:
        if self.resolve:
            self.state = S.SETTLING
            return []
        return self._end(S.DONE, "done", "disconnected")

    def _not_proposed(self, event: ProposalLost) -> list[Order]:
        if event.final:
            return self._end(S.FAILED, "refused", event.reason)
        return [Propose(command=RemoveLink)]

    def _resolved(self, event: Resolution) -> list[Order]:
        return self._end(S.DONE, "done", self.cause)

    def _remove(self, situation: Situation) -> Proposal:
        proposal = proposals.remove_link(
            situation, self.key, asked=self.request is not None, resolve=self.resolve, reason=self.cause
        )
        assert isinstance(proposal.command, RemoveLink)
        self.resolve = proposal.command.resolve
        return proposal
