"""What all negotiations share: their events, their orders, and the table-driven machine itself.

`TABLE` maps (state, event type) to the method that handles it; `None` means that the event is expected there and
changes nothing. A pair that is not in the table is a defect of ours (`LocalProtocolError`), never silence. The
diagrams in docs/ are made from the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.messages import Message
from chaos_protocols.names import SiteId

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
    """The negotiation's command is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalLost:
    """The command could not be made or was not committed; `final`: it never can be."""

    reason: str
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelReached:
    """The learner's worker has applied all results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The running round was settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EverybodyDone:
    """Every site has completed the last round in which the leaver takes part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectGone:
    """The site that this is about is lost."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePassed:
    """`deadline_s` has come."""


NegotiationEvent = (
    LinkAnswered | Committed | ProposalLost | LevelReached | Settlement | EverybodyDone | SubjectGone | DeadlinePassed
)

# ---- orders


class Intent(Enum):
    """What a negotiation wants the scheduler to propose; the command is made when its turn has come, from the roster
    of then."""

    ADD_SITE = "add site"
    REPLICATE = "replicate"
    PROMOTE_SITE = "promote site"
    REMOVE_SITE = "remove site"
    RELEASE_SITE = "release site"
    ADD_LINK = "add link"
    REMOVE_LINK = "remove link"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    site: SiteId
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose:
    intent: Intent


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclude:
    """The end: `outcome` is done, failed or refused."""

    outcome: str
    reason: str


Order = Tell | Propose | Conclude


class Negotiation:
    """One negotiation. `subject` for people; `deadline_s` None while a later condition (progress) decides."""

    KIND: ClassVar[str] = ""
    TABLE: ClassVar[Mapping[tuple[Enum, type], str | None]] = {}

    def __init__(self, identifier: str, *, state: Enum, subject: str, cause: str, now_s: float) -> None:
        self.identifier = identifier
        self.state = state
        self.subject = subject
        self.cause = cause
        self.started_s = now_s
        self.deadline_s: float | None = None
        self.concluded = False

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

    def _conclude(self, state: Enum, outcome: str, reason: str) -> list[Order]:
        self.state = state
        self.concluded = True
        self.deadline_s = None
        return [Conclude(outcome=outcome, reason=reason)]
