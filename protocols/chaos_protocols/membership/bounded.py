"""What was clipped, weighed less or left out for the bounds of the run, told once for as long as it lasts (spec 19.1).

Training that works may be clipped for many rounds: of a streak the first round is told, and how many there were at its
end. Driven by `Participation`.
"""

from __future__ import annotations

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.events import ReduceFinished
from chaos_protocols.outbox import Outbox

STREAK_ENDS_AFTER = 100
"""Rounds in a row without clipping: a part that is too long every other time is told once."""


class Bounded:
    """See the module."""

    def __init__(self, outbox: Outbox, replica: RosterReplica) -> None:
        self.clipped_rounds = 0
        """Parts of this site that were clipped, since its daemon began."""
        self.void_rounds = 0
        """Results that were longer than the run allows, and that nobody applied."""
        self._outbox = outbox
        self._replica = replica
        self._heavy = False
        self._in_streak = self._without = 0
        self._void_round = 0

    def weighed(self, weight: float) -> None:
        """The worker gives its part with this weight."""
        counts = self._replica.roster.bounds.weighed(weight)
        heavy, self._heavy = self._heavy, counts < weight
        if self._heavy and not heavy:
            cause = f"a weight of {weight:g} is above weight_max"
            self._record(self._outbox.facts.name, cause, f"its parts count with {counts:g}")

    def reduced(self, event: ReduceFinished) -> None:
        """The result of a round is here."""
        if event.clipped:
            self.clipped_rounds += 1
            self._in_streak, self._without = self._in_streak + 1, 0
            if self._in_streak == 1:
                cause = f"the norm of its part of round {event.tag.round} was {event.clipped:.4g}"
                limit = self._replica.roster.bounds.norm_max
                self._record(self._outbox.facts.name, cause, f"clipped to norm_max, {limit:g}")
        elif self._in_streak:
            self._without += 1
            if self._without == STREAK_ENDS_AFTER:
                told = f"{self._in_streak} of its parts were clipped, none of the last {STREAK_ENDS_AFTER}"
                self._record(self._outbox.facts.name, "its parts are not longer than norm_max", told)
                self._in_streak = self._without = 0
        if not event.bounded and event.finite:
            self.void(event.tag.round)

    def void(self, round_number: int) -> None:
        """The result of this round is longer than the run allows. Every part was clipped and every sum was looked at by
        honest sites: so one that adds up at a root has not."""
        self.void_rounds += 1
        before, self._void_round = self._void_round, round_number
        if before == round_number - 1:
            return
        roster = self._replica.roster
        view = roster.view_of(round_number)
        roots = sorted({tree.root for tree in view.plan.trees}) if view is not None else []
        told = ", ".join(roster.called(root) for root in roots)
        cause = f"the result is longer than the run allows; it was added up at {told or 'a site that is gone'}"
        self._record(
            f"round {round_number}", cause, "it is applied nowhere; the state stays. Again and again: chaosd ban"
        )

    def _record(self, subject: str, cause: str, reason: str) -> None:
        self._outbox.record("bound", subject, cause, "", None, reason)
