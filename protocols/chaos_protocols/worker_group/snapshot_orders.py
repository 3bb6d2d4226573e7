"""Of which rounds the daemon wants a copy of the common state, and has not had one.

Owned by whoever has that state: a script's replica, or the run's member of a site of several workers.
"""

from __future__ import annotations

from chaos_protocols.wire.worker import SnapshotMissed, TakeSnapshot

SNAPSHOTS_PENDING_MAX = 16
"""The daemon asks for one snapshot a join; more than this at once is a defect of it."""


class SnapshotOrders:
    """See the module."""

    def __init__(self) -> None:
        self._due: set[int] = set()

    def forget(self) -> None:
        """The connection that they came over has ended."""
        self._due.clear()

    def is_due(self, round_number: int) -> bool:
        """The state of that round is wanted."""
        return round_number in self._due

    def taken(self, round_number: int) -> None:
        """A copy of that round is there; those of earlier ones will never be."""
        self._due = {other for other in self._due if other > round_number}

    def asked(self, order: TakeSnapshot, *, now: int) -> SnapshotMissed | str | None:
        """The daemon asks. The answer, where the state is beyond that round; None: it can be had, now or later; a text:
        why it may not ask that."""
        if order.alone:
            self._due.clear()
        if order.round < now:
            return SnapshotMissed(round=order.round, now=now)
        if order.round > now:
            if len(self._due) >= SNAPSHOTS_PENDING_MAX:
                return f"the daemon asked for more than {SNAPSHOTS_PENDING_MAX} snapshots at once"
            self._due.add(order.round)
        return None
