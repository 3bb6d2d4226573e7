"""What all negotiations share: their events, their orders, and the table-driven machine itself.

`TABLE` maps (state, event type) to the method that handles it; `None` means that the event is expected there and
changes nothing. A pair that is not in the table is a defect of ours (`LocalProtocolError`), never silence. `COMMANDS`
maps a state to the method that makes the command which is to be proposed in it. The diagrams in docs/ are made from the
tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.proposals import Proposal, Situation
from chaos_protocols.wire.control import Message

# ---- events


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAnswered:
    """One end of a link answered a ConnectOrder."""

    site: SiteId
    other: SiteId
    ready: bool
    rtt_s: float
    rate_bytes_per_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The negotiation's command is committed. `last_round`: of a site that this removed, as was agreed; 0: of none."""

    last_round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalLost:
    """The command could not be made or was not committed; `final`: it never can be; `refused`: its site is not let
    in."""

    reason: str
    final: bool
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerCaughtUp:
    """The learner's worker has applied all results; or (`waits`) its first round as a member waits until it has."""

    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The running round was resolved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EverybodyDone:
    """Every site has completed the last round in which the leaver takes part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundNeverDone:
    """Nobody contributes to this round any more: it does not end under its tag, and no leaver need wait for it."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectGone:
    """The site that this is about is lost."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePassed:
    """`deadline_s` has come."""


NegotiationEvent = (
    LinkAnswered
    | Committed
    | ProposalLost
    | LearnerCaughtUp
    | Resolution
    | EverybodyDone
    | RoundNeverDone
    | SubjectGone
    | DeadlinePassed
)

# ---- orders


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    site: SiteId
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose:
    """The negotiation wants a command of this type proposed: it is asked for the command itself (`Negotiation.command`)
    when its turn has come, and so makes it from the roster of then."""

    command: type


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclude:
    """The end: `outcome` is done, failed or refused."""

    outcome: str
    reason: str


Order = Tell | Propose | Conclude


class Negotiation:
    """One negotiation: what all kinds have in common."""

    KIND: ClassVar[str] = ""
    TABLE: ClassVar[Mapping[tuple[Enum, type], str | None]] = {}
    COMMANDS: ClassVar[Mapping[Enum, str]] = {}
    """The method that makes the command, for each state in which something is to be proposed."""

    def __init__(self, identifier: str, *, state: Enum, subject: str, cause: str, now_s: float) -> None:
        self.identifier = identifier
        self.state = state
        self.subject = subject
        """What it is about, for people."""
        self.cause = cause
        self.started_s = now_s
        self.deadline_s: float | None = None
        """None: a later condition (progress) decides."""
        self.concluded = False

    @property
    def urgent(self) -> bool:
        """It mends a failure: its proposals go before all others, and may be made while a round is resolved."""
        return False

    def concerns(self, site: SiteId) -> bool:
        """Whether it comes to nothing when this site is lost."""
        return False

    def handle(self, event: NegotiationEvent) -> list[Order]:
        """Look the pair (state, event) up and run its handler. Raises LocalProtocolError on a pair that the table does
        not have."""
        key = (self.state, type(event))
        if key not in self.TABLE:
            raise LocalProtocolError(
                f"{self.KIND} {self.identifier}: {type(event).__name__} in state {self.state.value}"
            )
        name = self.TABLE[key]
        if name is None:
            return []
        handler: Any = getattr(self, name)
        orders: list[Order] = handler(event)
        return orders

    def command(self, situation: Situation) -> Proposal:
        """What it wants proposed now. Raises CannotPropose with the reason, ValueError where the overlay does not
        connect the members, LocalProtocolError in a state in which it wants nothing."""
        if self.state not in self.COMMANDS:
            raise LocalProtocolError(f"{self.KIND} {self.identifier} proposes nothing in state {self.state.value}")
        maker: Any = getattr(self, self.COMMANDS[self.state])
        proposal: Proposal = maker(situation)
        return proposal

    def _conclude(self, state: Enum, outcome: str, reason: str) -> list[Order]:
        self.state = state
        self.concluded = True
        return [Conclude(outcome=outcome, reason=reason)]
