"""What a site says and does when the states of the sites are not the same any more (spec 11.17, 12.17)."""

from __future__ import annotations

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.notices import StatesDiffer
from chaos_protocols.rounds.state_check import CHECK_EVERY_ROUNDS, QUIET_ROUNDS_MAX, piece_bytes
from chaos_protocols.state.local_checkpoint import Doubt
from chaos_protocols.state.machine import WorkerState
from chaos_protocols.state.worker_session import WorkerSession
from chaos_protocols.wire.state_spec import ITEM_ALIGNMENT_BYTES
from chaos_protocols.wire.user_words import StateDiffered

TURNS_DOUBTED = 2
"""Every piece of a state is compared once in a turn, and a failure may spoil that once."""


class Drift:
    """See the module. That the state is taken again is the rounds' decision."""

    def __init__(self, outbox: Outbox, replica: RosterReplica, state: WorkerState, session: WorkerSession) -> None:
        self._outbox, self._replica = outbox, replica
        self._state, self._session = state, session
        self._last: tuple[int, int] | None = None
        """Lineage and round in which this site was outvoted last; None: it was not."""

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
            self._doubt_files(differ.round)
            if self._session.present:
                self._session.tell(StateDiffered(round=differ.round, array=differ.array, reason=reason))

    def _doubt_files(self, round_number: int) -> None:
        """Those that may have been written since the difference is there."""
        model = self._replica.roster.model
        if model is None:
            return
        lineage = self._state.files.lineage(self._replica.roster.restore_epoch)
        looked_at = rounds_looked_back(model.state_bytes)
        after, last = round_number - looked_at, self._last
        if last is not None and last[0] == lineage and round_number <= last[1] + QUIET_ROUNDS_MAX + looked_at:
            after = min(after, last[1])  # what differed again soon after that was not told (spec 11.17)
        self._last = (lineage, round_number)
        self._state.files.doubt(Doubt(lineage=lineage, after=max(0, after), until=round_number))


def rounds_looked_back(state_bytes: int) -> int:
    """So many rounds before it was found a difference may have begun: pieces come in turn, then they are halved."""
    size = piece_bytes(state_bytes)
    pieces = -(-state_bytes // size)
    return TURNS_DOUBTED * CHECK_EVERY_ROUNDS * pieces + (size // ITEM_ALIGNMENT_BYTES).bit_length()
