"""The run waits for a joiner whose links cannot carry rounds beside the state, and for a site that the rounds have
outrun (spec 8.13, 8.16).

Agreed with its transfer: every site gives nothing to the rounds after the transfer's one, until the joiner is promoted,
is gone, or the time is over at some site. Each site counts for itself, from when that round is done there: no round is
done without everybody, so the run waits no longer than its most patient site. Driven by `Participation`.
"""

from __future__ import annotations

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.causes import Cause, Why
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.wire.plans import ReplicationPlan

CANNOT_FOLLOW = "it cannot follow the rounds while it gets the state"


class JoinHold:
    """See the module."""

    def __init__(self, outbox: Outbox, replica: RosterReplica, rounds: RoundMachine) -> None:
        self._outbox = outbox
        self._replica = replica
        self._rounds = rounds
        self._plan: ReplicationPlan | None = None
        """The transfer that is waited for."""
        self._over = ""
        """The transfer that was waited for long enough."""
        self._since_s: float | None = None
        """Since when a round waits."""
        self._has_waited = False

    def roster_changed(self) -> None:
        """A transfer that is to be waited for may have been agreed on, or be over."""
        plan = self._replica.roster.replication
        wanted = plan if plan is not None and plan.hold_s > 0.0 and plan.transfer != self._over else None
        if wanted is None:
            self._let_go()  # what follows comes with the roster
        elif self._plan is None or self._plan.transfer != wanted.transfer:
            self._plan, self._since_s = wanted, None
            self._rounds.own.hold(wanted.round + 1)

    def beat(self) -> None:
        """Not longer than was agreed."""
        plan, now_s = self._plan, self._outbox.now_s
        if plan is None or self._rounds.completed_round < plan.round:
            return
        if self._since_s is None:
            self._since_s = now_s
            reason = f"rounds wait for it, {plan.hold_s:g} s at most: {plan.reason}"
            self._outbox.record("scale-out", self._name(plan), CANNOT_FOLLOW, "", None, reason)
        elif now_s >= self._since_s + plan.hold_s:
            reason = f"rounds go on after {plan.hold_s:g} s; it has not got the state in that time"
            self._outbox.record("scale-out", self._name(plan), CANNOT_FOLLOW, "failed", None, reason)
            self._over = plan.transfer
            self._let_go()
            self._outbox.emit(self._rounds.advance())

    def why(self) -> Why | None:
        """Whom the rounds wait for; None: nobody."""
        plan, since_s = self._plan, self._since_s
        if plan is None or since_s is None:
            return None
        return Cause.JOIN_HOLD.told(site=self._name(plan), seconds=f"{plan.hold_s:g}")

    def take_waited(self) -> bool:
        """Whether rounds have waited since this was asked: then the time between two of them says nothing."""
        waited, self._has_waited = self._has_waited or self._since_s is not None, False
        return waited

    def _name(self, plan: ReplicationPlan) -> str:
        return self._replica.roster.called(plan.joiner)

    def _let_go(self) -> None:
        if self._plan is None:
            return
        self._has_waited = self._has_waited or self._since_s is not None
        self._plan, self._since_s = None, None
        self._rounds.own.hold(None)
