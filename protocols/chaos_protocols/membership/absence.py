"""A worker that has the state and gives nothing for a while: its script pauses, or it was waited for too long.

Its site gives weight 0 at once, so that nobody waits, and keeps the results. When it is back it applies them, and
contributes from the next round on; if there were more than may be kept (spec 12.4), it takes the state again. As long
as it is away nothing is asked for it. Driven by `Participation`. Source: spec 9.22 to 9.24.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from chaos_protocols.changes import next_state
from chaos_protocols.effects import WorkerOverdue
from chaos_protocols.membership.own import Membership
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.state.fetch import StateFetch
from chaos_protocols.state.worker_session import WorkerSession
from chaos_protocols.wire.worker import FallenBehind


class Absence(Enum):
    """The words are those that are told."""

    HERE = "it contributes"
    PAUSED = "its script pauses"
    LATE = "it was waited for too long"
    RETURNING = "it is back, and catches up"


class AbsenceEvent(Enum):
    """What moves it."""

    PAUSES = "its script says that it gives nothing for a while"
    OVERDUE = "the scheduler says that its part is overdue"
    SPEAKS = "it said something, so it runs"
    RESUMES = "its script goes on"
    CAUGHT_UP = "it has applied all results, or has another state"
    GONE = "its session is over"


_STATE, _EVENT = Absence, AbsenceEvent

TABLE: Mapping[tuple[Absence, AbsenceEvent], Absence] = {
    (_STATE.HERE, _EVENT.PAUSES): _STATE.PAUSED,
    (_STATE.HERE, _EVENT.OVERDUE): _STATE.LATE,
    (_STATE.HERE, _EVENT.SPEAKS): _STATE.HERE,
    (_STATE.HERE, _EVENT.RESUMES): _STATE.HERE,
    (_STATE.HERE, _EVENT.CAUGHT_UP): _STATE.HERE,
    (_STATE.HERE, _EVENT.GONE): _STATE.HERE,
    (_STATE.PAUSED, _EVENT.PAUSES): _STATE.PAUSED,
    (_STATE.PAUSED, _EVENT.OVERDUE): _STATE.PAUSED,
    (_STATE.PAUSED, _EVENT.SPEAKS): _STATE.PAUSED,  # it may take a snapshot meanwhile
    (_STATE.PAUSED, _EVENT.RESUMES): _STATE.RETURNING,
    (_STATE.PAUSED, _EVENT.CAUGHT_UP): _STATE.PAUSED,
    (_STATE.PAUSED, _EVENT.GONE): _STATE.HERE,
    (_STATE.LATE, _EVENT.PAUSES): _STATE.PAUSED,
    (_STATE.LATE, _EVENT.OVERDUE): _STATE.LATE,
    (_STATE.LATE, _EVENT.SPEAKS): _STATE.RETURNING,
    (_STATE.LATE, _EVENT.RESUMES): _STATE.RETURNING,
    (_STATE.LATE, _EVENT.CAUGHT_UP): _STATE.LATE,
    (_STATE.LATE, _EVENT.GONE): _STATE.HERE,
    (_STATE.RETURNING, _EVENT.PAUSES): _STATE.PAUSED,
    (_STATE.RETURNING, _EVENT.OVERDUE): _STATE.RETURNING,
    (_STATE.RETURNING, _EVENT.SPEAKS): _STATE.RETURNING,
    (_STATE.RETURNING, _EVENT.RESUMES): _STATE.RETURNING,
    (_STATE.RETURNING, _EVENT.CAUGHT_UP): _STATE.HERE,
    (_STATE.RETURNING, _EVENT.GONE): _STATE.HERE,
}


class WorkerAbsence:
    """See the module."""

    def __init__(
        self, outbox: Outbox, membership: Membership, rounds: RoundMachine, session: WorkerSession, fetch: StateFetch
    ) -> None:
        self.state = Absence.HERE
        self._outbox = outbox
        self._membership = membership
        self._rounds = rounds
        self._session = session
        self._fetch = fetch
        self._reason = ""
        self._since_s = outbox.now_s

    @property
    def away(self) -> bool:
        """Nothing that is asked of it is answered soon."""
        return self.state in (Absence.PAUSED, Absence.LATE)

    @property
    def rests(self) -> str:
        """Why it is not waited for; empty: it is, or it has not the state."""
        if self.state is Absence.HERE or self._rounds.active or self._rounds.worker_round is None:
            return ""
        return self._reason if self.away else f"{self._reason}; {self.state.value}"

    @property
    def seconds(self) -> float:
        """Since when."""
        return self._outbox.now_s - self._since_s

    # -- what happens

    def paused(self, reason: str) -> None:
        """Its script says so."""
        if self._session.present:
            self._step(AbsenceEvent.PAUSES, reason or Absence.PAUSED.value)

    def resumed(self) -> None:
        """Its script goes on."""
        self._step(AbsenceEvent.RESUMES)
        self.look()

    def spoke(self) -> None:
        """It runs: whatever it said."""
        if self.state is Absence.LATE:
            self._step(AbsenceEvent.SPEAKS)
            self.look()

    def overdue(self, waited_s: float) -> None:
        """The others have waited for its part for as long as was agreed."""
        if self.state is not Absence.HERE:
            return
        self._step(AbsenceEvent.OVERDUE, f"its part was waited for {waited_s:.0f} s: its script hangs, or is too slow")
        self._session.tell(FallenBehind(round=self._rounds.completed_round + 1))
        self._outbox.emit([WorkerOverdue(waited_s=waited_s)])

    def gone(self) -> None:
        """Its session is over."""
        self._step(AbsenceEvent.GONE)

    def look(self) -> None:
        """After what the worker said, and at every beat: it contributes again once it has caught up."""
        rounds = self._rounds
        if self.state is not Absence.RETURNING:
            return
        if rounds.caught_up and not rounds.active and self._fetch.plan is None and not self._membership.leaving:
            took_s = self.seconds
            self._step(AbsenceEvent.CAUGHT_UP)
            self._outbox.emit(rounds.activate())
            self._told("done", f"after {took_s:.1f} s it has caught up, and contributes from now on")
        elif rounds.active:  # it was given another state
            self._step(AbsenceEvent.CAUGHT_UP)

    def _step(self, event: AbsenceEvent, reason: str = "") -> None:
        before, self.state = self.state, next_state(TABLE, self.state, event, "a script")
        if not self.away or self.state is before:
            return
        self._reason, self._since_s = reason, self._outbox.now_s
        self._told("", "it counts with weight 0 until it is back; the others do not wait for it")
        self._outbox.emit(self._rounds.worker_leaves())

    def _told(self, outcome: str, reason: str) -> None:
        self._outbox.record("rest", self._outbox.facts.name, self._reason, outcome, None, reason)
