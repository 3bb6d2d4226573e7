"""Whose turn it is with the worker's state region (spec 12.15): what the worker was told to do there, and has not
answered.

The worker reads the region when it loads a state, and writes it when it takes a snapshot, whenever it comes to that:
a script may be busy for minutes, or hang, with the order unread in its socket. Until it has answered nobody else writes
there: it would load a mixture, or copy its own state over another one. Every order to load is answered. A snapshot may
never be, if its round is passed over by a load; then a last one is asked for that every worker answers as soon as it
reads it, and that makes it forget the others: of round 0.

Driven by `WorkerSession`.
"""

from __future__ import annotations

from chaos_protocols.wire.worker import TakeSnapshot

ASK = TakeSnapshot(round=0, alone=True)
"""Whoever trains is beyond round 0 and answers that it missed it; a fresh worker copies its state, and says so."""


class WorkerRegion:
    """See the module."""

    def __init__(self) -> None:
        self._loads: set[int] = set()
        """Rounds whose state it was told to load, and has not."""
        self._snapshots: set[int] = set()
        """Rounds of which it may still copy its state."""
        self._again: set[int] = set()
        """Those of them that it was asked for twice: it answers once or twice."""
        self._maybe: set[int] = set()
        """Those that it has answered once since: it may copy the same state once more."""

    @property
    def free(self) -> bool:
        """It is the daemon's: the worker touches it only when it is told to."""
        return not self._loads and not self._snapshots and not self._maybe

    @property
    def loads(self) -> bool:
        """It was told to load a state, and has not."""
        return bool(self._loads)

    def began(self) -> None:
        """A new session: it knows of no order to the one before."""
        self._loads.clear()
        self._forget_snapshots()

    def to_load(self, round_number: int) -> None:
        """It is told to load the state of that round. Nothing is written there before it has, so there is one at a
        time."""
        self._loads.add(round_number)

    def loaded(self, round_number: int) -> None:
        """It has."""
        self._loads.discard(round_number)

    def to_copy(self, round_number: int, *, alone: bool) -> None:
        """It is told to, at the end of that round. `alone`: no other that was asked for is taken any more."""
        again = round_number in self._snapshots or round_number in self._maybe
        if alone:
            self._forget_snapshots()
        self._snapshots.add(round_number)
        if again:
            self._again.add(round_number)

    def is_asked_for(self, round_number: int) -> bool:
        """It was told to copy its state of that round, and has not answered."""
        return round_number in self._snapshots

    def answered(self, round_number: int) -> None:
        """It has copied the state of that round, or says that it cannot. Its answer may have been on its way when that
        was asked for once more: then it copies it again."""
        self._maybe.discard(round_number)
        self._snapshots.discard(round_number)
        if round_number in self._again:
            self._again.discard(round_number)
            self._maybe.add(round_number)

    def _forget_snapshots(self) -> None:
        for rounds in (self._snapshots, self._again, self._maybe):
            rounds.clear()

    def question(self) -> TakeSnapshot | None:
        """What has to be asked so that it becomes free at all; None: it will, or that was asked already."""
        if self._loads or 0 in self._snapshots or not (self._snapshots or self._maybe):
            return None
        return ASK
