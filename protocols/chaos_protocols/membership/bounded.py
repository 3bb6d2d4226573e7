"""What was clipped, weighed less or left out for the bounds of the run, told once for as long as it lasts (spec 19.1).

Training that works may be clipped for many rounds: of a streak the first round is told, and how many there were at its
end. Driven by `Participation`.
"""

from __future__ import annotations

from chaos_protocols.agreement.commands import Command, SetBounds
from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.events import ReduceFinished
from chaos_protocols.outbox import Outbox

STREAK_ENDS_AFTER = 100
"""Rounds in a row without clipping: a part that is too long every other time is told once."""


class _Streak:
    """Rounds in which something happens, until it has not for `STREAK_ENDS_AFTER`."""

    def __init__(self) -> None:
        self._with = self._without = 0

    def seen(self, happened: bool) -> tuple[bool, int]:
        """One more round. Does a streak begin? With how many did one end (0: none did)?"""
        if happened:
            self._with, self._without = self._with + 1, 0
            return self._with == 1, 0
        if not self._with:
            return False, 0
        self._without += 1
        if self._without < STREAK_ENDS_AFTER:
            return False, 0
        ended, self._with, self._without = self._with, 0, 0
        return False, ended


class Bounded:
    """See the module."""

    def __init__(self, outbox: Outbox, replica: RosterReplica) -> None:
        self.clipped_rounds = 0
        """Parts of this site that were clipped, since its daemon began."""
        self.drawn_in_rounds = 0
        """Parts of this site that were too far from the last result, and were drawn in."""
        self.away = 0.0
        """How far the last of its parts was, before."""
        self.void_rounds = 0
        """Results that were longer than the run allows, and that nobody applied."""
        self._outbox = outbox
        self._replica = replica
        self._heavy = False
        self._clipped, self._drawn_in = _Streak(), _Streak()
        self._void_round = 0

    def weighed(self, round_number: int, weight: float) -> None:
        """The worker gives its part of this round with this weight."""
        counts = self._replica.roster.bounds_of(round_number).weighed(weight)
        heavy, self._heavy = self._heavy, counts < weight
        if self._heavy and not heavy:
            cause = f"a weight of {weight:g} is above weight_max"
            self._record(self._outbox.facts.name, cause, f"its parts count with {counts:g}")

    def roster_changed(self, old: Roster, command: Command | None) -> None:
        """Did the run agree on other bounds? `command` made the roster; None: a snapshot brought it."""
        replica, roster = self._replica, self._replica.roster
        if replica.known:
            return
        by = command.by if isinstance(command, SetBounds) else ()
        if old.epoch and (roster.bounds, roster.bounds_from) != (old.bounds, old.bounds_from) and roster.bounds_from:
            reason = f"{roster.bounds} from round {roster.bounds_from} on, {roster.bounds_before} before{replica.late}"
            names = ", ".join(one.name for one in roster.sites if one.site in by) or "more than half of the members"
            self._record(roster.run, f"the operators of {names} want other bounds", reason)

    def left_out(self, round_number: int) -> None:
        """Its part of this round would be clipped around a result that is not here."""
        cause = f"its part of round {round_number} has nothing to be clipped around: the last result is not here"
        self._record(self._outbox.facts.name, cause, "that part is left out; from the next round on it counts again")

    def reduced(self, event: ReduceFinished) -> None:
        """The result of a round is here."""
        bounds = self._replica.roster.bounds_of(event.tag.round)
        self.clipped_rounds += bool(event.clipped)
        cause = f"the norm of its part of round {event.tag.round} was {event.clipped:.4g}"
        reason = f"clipped to norm_max, {bounds.norm_max:g}"
        self._tell(
            self._clipped, bool(event.clipped), cause, reason, "its parts are not longer than norm_max", "clipped"
        )
        drawn_in = event.away > bounds.clip_radius > 0
        self.drawn_in_rounds, self.away = self.drawn_in_rounds + drawn_in, event.away or self.away
        cause = f"its part of round {event.tag.round} was {event.away:.4g} away from the last result"
        reason = f"drawn in to clip_radius, {bounds.clip_radius:g}"
        ends = "its parts are within clip_radius"
        self._tell(self._drawn_in, drawn_in, cause, reason, ends, "drawn in")
        if not event.bounded and event.finite:
            self.void(event.tag.round)

    def _tell(self, streak: _Streak, happened: bool, cause: str, reason: str, ends: str, done: str) -> None:
        begins, ended = streak.seen(happened)
        if begins:
            self._record(self._outbox.facts.name, cause, reason)
        if ended:
            told = f"{ended} of its parts were {done}, none of the last {STREAK_ENDS_AFTER}"
            self._record(self._outbox.facts.name, ends, told)

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
