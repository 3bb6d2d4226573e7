"""What a site says and does when the states of the sites are not the same any more (spec 11.17)."""

from __future__ import annotations

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.notices import StatesDiffer
from chaos_protocols.state.machine import WorkerState
from chaos_protocols.state.worker_session import WorkerSession
from chaos_protocols.wire.user_words import StateDiffered


class Drift:
    """See the module. That the state is taken again is the rounds' decision."""

    def __init__(self, outbox: Outbox, replica: RosterReplica, state: WorkerState, session: WorkerSession) -> None:
        self._outbox, self._replica = outbox, replica
        self._state, self._session = state, session

    def found(self, differ: StatesDiffer) -> None:
        """Every site hears whose state differs, and in what."""
        subject = ", ".join(map(self._replica.roster.called, differ.outvoted))
        reason = (
            f"its state of round {differ.round} is not that of {len(differ.majority)} other site(s), "
            f"first in {differ.array!r}; it takes theirs (docs/sdk.md: what may differ, and what must not)"
        )
        self._outbox.record("drift", subject, "digests of the states", "found", None, reason)
        if self._outbox.facts.site in differ.outvoted:
            self._state.memory.drop()  # a new worker must not begin with it
            self._state.last.outvoted()
            if self._session.present:
                self._session.tell(StateDiffered(round=differ.round, array=differ.array, reason=reason))
