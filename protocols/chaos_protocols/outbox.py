"""What one event makes a site ask for: the effects in their order, the id of the event, and the time that it came at.

Every part of a site has the same one. It is filled while an event is handled, and emptied by `SiteMachine.handle`.
"""

from __future__ import annotations

from chaos_protocols.agreement.raft.effects import Persist
from chaos_protocols.effects import Effect, Record
from chaos_protocols.membership.facts import SiteFacts
from chaos_protocols.names import short
from chaos_protocols.settings import SiteSettings


class Outbox:
    """See the module. Read by every part, changed by `SiteMachine` and by what the parts emit."""

    def __init__(self, facts: SiteFacts, settings: SiteSettings, *, now_s: float) -> None:
        self.facts = facts
        self.settings = settings
        self.now_s = now_s
        """Time of the event that is being handled; it never goes back."""
        self.awake_s = now_s
        """The same without what is beyond `late_look_s` between two events: this site stood still, and what others did
        meanwhile may lie unread. By this clock it waits for others before it acts without them (spec 3.6)."""
        self._cause = ""
        """The event elsewhere that caused what is said now; empty: the one that is being handled."""
        self.events = 0
        """Taken so far in this life."""
        self._prefix = f"{short(facts.site)}-{facts.incarnation}-"
        self._effects: list[Effect] = []

    def begin(self, *, now_s: float) -> None:
        """An event comes."""
        if now_s > self.now_s:
            self.awake_s += min(now_s - self.now_s, self.settings.late_look_s)
            self.now_s = now_s
        self.events += 1
        self._cause = ""

    @property
    def event_id(self) -> str:
        """Of the event that is being handled, or of the one elsewhere that caused it: messages carry it."""
        return self._cause or f"{self._prefix}{self.events}"

    def caused_by(self, event_id: str) -> None:
        """What is said from here on was brought about by that event of another site."""
        self._cause = event_id

    def emit(self, effects: list[Effect]) -> None:
        """In the order in which they are to be carried out."""
        self._effects += effects

    def emit_first(self, effect: Effect) -> None:
        """Before everything that was asked for so far, but for what the agreement makes durable."""
        durable = 0
        while durable < len(self._effects) and isinstance(self._effects[durable], Persist):
            durable += 1
        self._effects.insert(durable, effect)

    def record(self, kind: str, subject: str, cause: str, outcome: str, started_s: float | None, reason: str) -> None:
        """A line for the event history."""
        duration_s = None if started_s is None else self.now_s - started_s
        self._effects.append(
            Record(kind=kind, subject=subject, cause=cause, outcome=outcome, duration_s=duration_s, reason=reason)
        )

    def take(self) -> list[Effect]:
        """Everything that was asked for; nothing is left."""
        effects, self._effects = self._effects, []
        return effects
