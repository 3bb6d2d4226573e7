"""How often the rounds have outrun this site while its worker got the state (spec 8.16).

A site whose figures say that it can follow may not: its system is slower than its links, or the rounds of those that
train are shorter than a message to it takes. It would fetch the state again for ever, and never count. So after a few
times it asks that the rounds wait. Whoever was waited for in vain asks only after twice as many.
"""

from __future__ import annotations

from chaos_protocols.wire.plans import ReplicationPlan

OUTRUN_MAX = 2
"""So many times in a row a site is outrun before it asks that the rounds wait."""

OUTRUN_DOUBLED_MAX = 64
"""As many at most."""


class Outrun:
    """See the module."""

    def __init__(self) -> None:
        self._times, self._needed = 0, OUTRUN_MAX

    @property
    def asks(self) -> bool:
        """That the rounds wait while its next transfer lasts."""
        return self._times >= self._needed

    def noted(self, plan: ReplicationPlan | None) -> None:
        """It was outrun once more. `plan`: by which its worker gets the state, if it does."""
        self._times += 1
        if plan is not None and plan.hold_s > 0.0:
            self._times, self._needed = 0, min(2 * self._needed, OUTRUN_DOUBLED_MAX)

    def counted(self) -> None:
        """A round has a part of this site in it."""
        self._times, self._needed = 0, OUTRUN_MAX
