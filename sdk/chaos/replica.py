"""This worker's copy of the training state, and the shared memory beside it: the only place where either is changed.

Decides nothing about who may do what when; that is the conversation's (`chaos.conversation`), which drives it inside
the signal guard, so that no change is cut in two.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from chaos.arena import WorkerArena
from chaos.encoding import encoded, facts
from chaos.errors import DaemonProtocolError
from chaos.finite import first_not_finite
from chaos.skipped import BY_THE_SCRIPT
from chaos.state import State
from chaos.sync import SyncSession
from chaos.sync.every_step import EveryStepSession
from chaos.sync.pieces import Pieces
from chaos_protocols.wire.encodings import ENCODINGS_SINCE, FP32
from chaos_protocols.wire.versions import NEWEST, OLDEST
from chaos_protocols.wire.worker import (
    RoundContributed,
    RoundSkipped,
    SnapshotMissed,
    SnapshotTaken,
    StateDigests,
    StateSpec,
    TakeSnapshot,
    WorkerHello,
)
from chaos_protocols.worker_group.snapshot_orders import SnapshotOrders

TEXT_CHARACTERS_MAX = 1024
"""Of a reason: a name may be long."""


class Replica:
    """`round`: the state is that of its end. `contributed`: what was handed over and has not been answered yet."""

    def __init__(self, session: SyncSession, encoding: str = FP32, tell: Callable[[str], None] | None = None) -> None:
        """`encoding`: in which the rounds travel between sites. `tell`: hears what takes its time. Raises
        SharedMemoryTooSmall, ValueError for an encoding that would change nothing."""
        self._session = session
        self.contribution = encoded(session.contribution, encoding)
        self._state = State([*facts(encoding), *session.items])
        self._snapshots = SnapshotOrders()
        self.arena = WorkerArena(session.contribution.size_bytes, self._state.spec.size_bytes, tell=tell)
        self.round = 0
        self._pieces: Pieces | None = None
        self._held = False
        """A daemon may have written into the arena's state region."""
        self.contributed: RoundContributed | RoundSkipped | None = None

    @property
    def spec(self) -> StateSpec:
        return self._state.spec

    def hello(self) -> WorkerHello:
        """What the daemon has to know of it. One that knows no encodings shares no version with a worker that uses one,
        and says so."""
        held, self._held = self._held, True
        return WorkerHello(
            held=held,
            version=NEWEST,
            oldest=OLDEST if self.contribution.encoding == FP32 else ENCODINGS_SINCE,
            pid=os.getpid(),
            round=self.round,
            state=self.spec,
            contribution=self.contribution,
            arena_bytes=self.arena.layout.size_bytes,
        )

    def warm_up(self) -> Iterator[None]:
        """See `State.warm_up`."""
        return self._state.warm_up()

    def begin(self, session: EveryStepSession, tell: Callable[[float, int], None]) -> None:
        """Put this site's part of the next round into the arena as it is computed; `tell`: its weight, and how many
        bytes of it are there, finite and for good. After a round that it made void this site gives some whole."""
        if session.pieces is not None and session.pieces.may_begin(self.round + 1):
            self._pieces = session.pieces
            session.begin(self.arena.contribution, tell)

    def break_off(self, reason: str) -> tuple[RoundSkipped, bool]:
        """What was begun is not given. Whether pieces of it were told."""
        pieces, self._pieces = self._pieces, None
        begun = pieces is not None and pieces.told_bytes > 0
        skipped = RoundSkipped(round=self.round + 1, reason=reason[:TEXT_CHARACTERS_MAX])
        self.contributed = skipped if begun else None
        if pieces is not None:
            pieces.drop(self.round + 1)
        return skipped, begun

    def contribute(self) -> tuple[RoundContributed | RoundSkipped, bool]:
        """Put this site's part of the next round into the arena, where it stays until that round is applied, and
        whether pieces of it were told already. One that holds a number that is not finite is not given: it would be
        every site's for ever."""
        weight = self._session.contribute(self.arena.contribution, self.round + 1)
        pieces, self._pieces = self._pieces, None
        looked = pieces.looked_bytes if pieces is not None and pieces.active else 0
        odd = first_not_finite(self.arena.contribution, self.contribution, looked) if weight else None
        if not weight:
            self.contributed = RoundSkipped(round=self.round + 1, reason=BY_THE_SCRIPT)
        elif odd is None:
            self.contributed = RoundContributed(round=self.round + 1, weight=weight)
        else:
            self._session.withheld()
            reason = f"{self._session.name_at(odd)} is not finite"
            self.contributed = RoundSkipped(round=self.round + 1, reason=reason[:TEXT_CHARACTERS_MAX])
        begun = pieces is not None and pieces.told_bytes > 0
        if pieces is not None and isinstance(self.contributed, RoundSkipped):
            pieces.drop(self.round + 1)
        return self.contributed, begun

    def skip(self) -> None:
        """What was computed for the next round is void; the round is still to come."""
        self._session.skip(self.round + 1)
        self.contributed = None

    def average(self, *, void: bool) -> None:
        """The result of the next round lies in the arena: let the script see it. The state does not change. `void`:
        there is nothing to see."""
        if not void:
            self._session.average(self.arena.result)

    def apply(self, round: int, *, weight: float, void: bool = False) -> None:
        """The result of `round`, the next one, lies in the arena. `weight`: what is behind it; 0: this site does not
        know. `void`: it is not finite, and nobody applies it. What goes wrong half-way leaves a state of no round."""
        if void:
            self._session.skip(round)
        else:
            self._session.apply(self.arena.result, round)
        self._session.averaged_over(weight)
        self.round = round
        self.contributed = None

    def digests(self, piece: tuple[int, int] | None) -> StateDigests | None:
        """What these bytes of the state look like; None: nobody asks."""
        return None if piece is None else self._state.digests(*piece)

    def load(self, round: int) -> None:
        """The state of the end of `round` lies in the arena. What goes wrong half-way leaves a state of no round."""
        self._state.load(self.arena.state)
        self._session.reset(round)
        self.round = round
        self.contributed = None

    # ---- snapshots

    def forget_snapshots(self) -> None:
        self._snapshots.forget()

    def snapshot(self, order: TakeSnapshot) -> SnapshotTaken | SnapshotMissed | None:
        """Copy the state of the end of that round into the arena; None: that round is still to come, and it will be
        copied then (`due_snapshot`). Raises DaemonProtocolError."""
        answer = self._snapshots.asked(order, now=self.round)
        if isinstance(answer, str):
            raise DaemonProtocolError(answer)
        return answer if answer is not None or order.round > self.round else self._copied()

    def due_snapshot(self) -> SnapshotTaken | SnapshotMissed | None:
        """The snapshot that was asked for of the round that was just applied, if there is one."""
        return self._copied() if self._snapshots.is_due(self.round) else None

    def _copied(self) -> SnapshotTaken:
        self._state.write(self.arena.state)
        self._snapshots.taken(self.round)
        return SnapshotTaken(round=self.round)
