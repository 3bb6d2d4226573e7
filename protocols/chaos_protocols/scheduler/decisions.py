"""What the parts of the scheduler return: findings about negotiations, and decisions. The machine carries them out."""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.agreement.views import LinkKey
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.negotiation.base import NegotiationEvent, Tell
from chaos_protocols.scheduler.proposals import Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFailed:
    """The site is lost, or must go: whatever is negotiated about it ends, and it is removed."""

    site: SiteId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFailed:
    """The link between two sites of the roster is down: it is removed."""

    key: LinkKey
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreAgain:
    """A member still waits for a transfer that was given up: it gets a new plan, which replaces the old one there."""

    site: SiteId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inform:
    """A negotiation hears of this."""

    negotiation: str
    event: NegotiationEvent


Finding = SiteFailed | LinkFailed | RestoreAgain | Inform


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A record for the event history, of something that is no negotiation."""

    kind: str
    subject: str
    cause: str
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One step of a part, carried out in the order of the fields. `reason` says why nothing follows, where nothing
    does."""

    reason: str
    tells: tuple[Tell, ...] = ()
    failed: tuple[SiteFailed, ...] = ()
    """Sites that must go."""
    successor: SiteId | None = None
    """Who is to schedule instead of this site."""
    proposal: Proposal | None = None
    note: Note | None = None
    """Written once the proposal is in the log."""
    look_again: bool = False
    """A step was taken, whether or not something was proposed: look at everything anew."""
