"""Connect-link and disconnect-link (Chaos IV-B, figures 5c and 5d). Training never pauses for a link that somebody
adds or removes; a link that fails under a running round makes that round settle on the links that are left."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar

from chaos_protocols.messages import ConnectOrder, LinkAnswer
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


class LinkState(Enum):
    CONNECTING = "connecting"
    COMMITTING = "committing"
    SETTLING = "settling"
    DONE = "done"
    FAILED = "failed"


S = LinkState
_NEVER_MATTERS: dict[tuple[Enum, type], str | None] = {
    **{(state, LevelReached): None for state in LinkState},
    **{(state, EverybodyDone): None for state in LinkState},
}


class _LinkNegotiation(Negotiation):
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
        self.one, self.other = (one, other) if one <= other else (other, one)
        self.request = request

    def answer(self, outcome: str, reason: str) -> list[Order]:
        """The answer to the site that asked for this, if one did."""
        if self.request is None:
            return []
        site, request = self.request
        return [Tell(site=site, message=LinkAnswer(request=request, done=outcome == "done", reason=reason))]

    def _end(self, state: LinkState, outcome: str, reason: str) -> list[Order]:
        return [*self.answer(outcome, reason), *self._conclude(state, outcome, reason)]

    def _lost(self, event: SubjectGone) -> list[Order]:
        return self._end(S.FAILED, "failed", event.reason)


class ConnectLink(_LinkNegotiation):
    """See the module. `rtt_s`, `rate_bytes_per_s`: what the ends measured (0: nothing)."""

    KIND = "connect-link"
    TABLE: ClassVar[Mapping[tuple[Enum, type], str | None]] = {
        (S.CONNECTING, LinkAnswered): "_answered",
        (S.CONNECTING, DeadlinePassed): "_too_late",
        (S.CONNECTING, SubjectGone): "_lost",
        (S.CONNECTING, Settlement): None,
        (S.COMMITTING, LinkAnswered): None,
        (S.COMMITTING, Committed): "_committed",
        (S.COMMITTING, ProposalLost): "_not_proposed",
        (S.COMMITTING, SubjectGone): "_lost",
        (S.COMMITTING, Settlement): None,
        **_NEVER_MATTERS,
    }

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
        self.rate_bytes_per_s = 0.0
        self._ready: set[SiteId] = set()

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
        return [Propose(intent=Intent.ADD_LINK)]

    def _too_late(self, event: DeadlinePassed) -> list[Order]:
        silent = ", ".join(short(site) for site in (self.one, self.other) if site not in self._ready)
        return self._end(S.FAILED, "failed", f"no link in time; no word from {silent}")

    def _committed(self, event: Committed) -> list[Order]:
        return self._end(S.DONE, "done", "connected")

    def _not_proposed(self, event: ProposalLost) -> list[Order]:
        if event.final:
            return self._end(S.FAILED, "refused", event.reason)
        return [Propose(intent=Intent.ADD_LINK)]


class DisconnectLink(_LinkNegotiation):
    """See the module. `settle`: the link failed while a round depended on it."""

    KIND = "disconnect-link"
    TABLE: ClassVar[Mapping[tuple[Enum, type], str | None]] = {
        (S.COMMITTING, Committed): "_committed",
        (S.COMMITTING, ProposalLost): "_not_proposed",
        (S.COMMITTING, SubjectGone): "_lost",
        (S.COMMITTING, Settlement): None,
        (S.COMMITTING, LinkAnswered): None,
        (S.COMMITTING, DeadlinePassed): None,
        (S.SETTLING, Settlement): "_settled",
        (S.SETTLING, SubjectGone): None,
        (S.SETTLING, LinkAnswered): None,
        (S.SETTLING, DeadlinePassed): None,
        **_NEVER_MATTERS,
    }

    def __init__(
        self,
        identifier: str,
        *,
        one: SiteId,
        other: SiteId,
        request: tuple[SiteId, str] | None,
        settle: bool,
        cause: str,
        now_s: float,
    ) -> None:
        super().__init__(
            identifier, one=one, other=other, request=request, cause=cause, now_s=now_s, state=S.COMMITTING
        )
        self.settle = settle

    def begin(self) -> list[Order]:
        return [Propose(intent=Intent.REMOVE_LINK)]

    def _committed(self, event: Committed) -> list[Order]:
        if self.settle:
            self.state = S.SETTLING
            return []
        return self._end(S.DONE, "done", "disconnected")

    def _not_proposed(self, event: ProposalLost) -> list[Order]:
        if event.final:
            return self._end(S.FAILED, "refused", event.reason)
        return [Propose(intent=Intent.REMOVE_LINK)]

    def _settled(self, event: Settlement) -> list[Order]:
        return self._end(S.DONE, "done", self.cause)
