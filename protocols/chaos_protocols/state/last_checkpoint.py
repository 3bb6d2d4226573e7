"""The last checkpoint of a site that leaves: its worker's state as the run had it when this site was let go.

Checkpoints are written now and then while a run trains, so that the newest is some rounds old when it ends. When all
sites leave, because their scripts have come to an end, no other has what was done since: the run would go on from the
older one, and an operator who exports the model would get that. So a site that keeps checkpoints writes one more before
it goes. Nobody else waits for that: the others have its last round.

Driven by `Leaving`, through `WorkerState`. Source: spec 14.10.
"""

from __future__ import annotations

from enum import Enum

from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.rounds.reached import ReachedRound
from chaos_protocols.state.fetch import StateFetch
from chaos_protocols.state.local_checkpoint import CheckpointFiles, MemoryCheckpoint
from chaos_protocols.state.restore import StateRestore
from chaos_protocols.state.snapshot_source import SnapshotSource
from chaos_protocols.state.worker_session import WorkerSession, is_unsure
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.user_words import RunPaused

TOLD_EVERY_S = 2.0
"""A script that leaves goes by itself when its daemon has said nothing for 5 s."""

TRIES_MAX = 3
"""A worker may have a round to apply when it is asked: then the state after that is wanted, too."""


class LastCheckpointStep(Enum):
    """How far it is."""

    UNBEGUN = "nothing was done for it yet"
    ASKED = "the worker was asked for a copy of its state"
    WRITING = "the copy is being made, and written"
    OVER = "it lies on the disk, or there will be none"


class LastCheckpoint:
    """See the module. `step` is the state; it begins anew where the worker has done one more round meanwhile."""

    def __init__(
        self,
        outbox: Outbox,
        rounds: RoundMachine,
        session: WorkerSession,
        reached: ReachedRound,
        source: SnapshotSource,
        fetch: StateFetch,
        restore: StateRestore,
        memory: MemoryCheckpoint,
        files: CheckpointFiles,
    ) -> None:
        self.step = LastCheckpointStep.UNBEGUN
        self._outbox = outbox
        self._rounds = rounds
        self._session = session
        self._reached = reached
        self._source, self._fetch, self._restore = source, fetch, restore
        self._memory, self._files = memory, files
        self._tries = TRIES_MAX
        self._asked: CheckpointFacts | None = None
        """The state that the worker was asked for, as it was known then; None: none yet."""
        self._waits_since_s: float | None = None
        """Since when the worker is waited for, by `Outbox.awake_s`: until it has answered a result, then until it has
        copied its state."""
        self._said_s = float("-inf")
        """When the script was last told."""
        self.void = False
        """The worker's state is not that of its round: the others have outvoted it."""

    def outvoted(self) -> None:
        """The worker's state is not what the others have of the same round."""
        self.void = True

    def state_came(self) -> None:
        """A worker came, or has loaded the state of the run."""
        self.void = False

    def begin_anew(self) -> None:
        """This site does not go yet: it serves its state again, and when it goes that is another one."""
        if self.step is LastCheckpointStep.ASKED:
            self._memory.yield_region()
        self.step, self._tries, self._waits_since_s = LastCheckpointStep.UNBEGUN, TRIES_MAX, None
        if self._rounds.own.stopped:
            self._rounds.own.stop(False)
            self._outbox.emit(self._rounds.advance())

    def kept(self, spec_digest: str) -> CheckpointFacts | None:
        """The newest state of these arrays that will be on the disk when this site goes; None: none."""
        best, have = self._files.best(spec_digest), self._state_of_worker()
        if have is None or have.spec_digest != spec_digest:
            return best
        return have if best is None else max(have, best)

    def is_over(self) -> bool:
        """Nothing of it is left to do, and the site may go. Begins it, and goes on with it; meanwhile this site gives
        nothing to a round: one that is alone would do some while its file is written."""
        self._rounds.own.stop(True)
        step = self.step
        if step is LastCheckpointStep.UNBEGUN:
            step = self._begun()
        elif step is LastCheckpointStep.ASKED:
            step = self._answered()
        elif step is LastCheckpointStep.WRITING and self._files.writing is None:
            step = self._ended()
        self.step = step
        if step in (LastCheckpointStep.ASKED, LastCheckpointStep.WRITING):
            self._say_so()
        return step is LastCheckpointStep.OVER

    @property
    def awaits_copy(self) -> bool:
        """The worker was asked for the copy that goes into the last file, which needs no results that follow it."""
        return self.step is LastCheckpointStep.ASKED and not self.void

    def takes(self, round_number: int) -> bool:
        """The copy of that round is the one to be written."""
        asked, at_work = self._asked, self.step in (LastCheckpointStep.ASKED, LastCheckpointStep.WRITING)
        return at_work and asked is not None and round_number == asked.round

    def _begun(self) -> LastCheckpointStep:
        """One that is being made goes first: it may be the one. So does an update that is under way."""
        self._waits_since_s = self._outbox.awake_s if self._waits_since_s is None else self._waits_since_s
        self._restore.abandon()
        awaited = is_unsure(self._rounds, self._session) and not self._waited_enough()
        if awaited or self._memory.is_copying or self._files.writing is not None or self._restore.region_is_written:
            return LastCheckpointStep.UNBEGUN
        have = self._unwritten()
        if have is None or not self._tries:
            return LastCheckpointStep.OVER
        self._tries -= 1
        self._asked = have
        self._source.release()  # who gets the state from here loses this source either way
        self._fetch.cancel()  # else it would begin as soon as the worker has answered, where the copy lies
        self._memory.ask_for(have.round, alone=True)
        self._waits_since_s = self._outbox.awake_s
        return LastCheckpointStep.ASKED

    def _say_so(self) -> None:
        """To a script that waits to be let go, and does not wait for a daemon that says nothing."""
        session, now_s = self._session, self._outbox.now_s
        at_work = self.step is LastCheckpointStep.WRITING or self._waited_s() >= TOLD_EVERY_S
        if session.present and at_work and now_s >= self._said_s + TOLD_EVERY_S:
            self._said_s = now_s
            words = f"before it leaves, this site writes its state of round {session.round} to its disk"
            session.tell(RunPaused(reason=words))

    def _unwritten(self) -> CheckpointFacts | None:
        """What is known of the worker's state, where that is newer than what the disk has; None: it is not, there is
        none, or no file is wanted."""
        have = self._state_of_worker()
        if have is None or is_unsure(self._rounds, self._session):
            return None  # it hangs with a result, or with the order to load: it has either state
        best = self._files.best(have.spec_digest)
        return have if best is None or have > best else None

    def _state_of_worker(self) -> CheckpointFacts | None:
        """As far as it is known; None: there is none that would be written."""
        session, files = self._session, self._files
        if self.void or not files.enabled or not session.present or session.in_part or not session.round:
            return None
        lineage = files.lineage(self._reached.held(session.round))
        return CheckpointFacts(lineage=lineage, round=session.round, spec_digest=session.spec_digest)

    def _answered(self) -> LastCheckpointStep:
        """A worker that says nothing is not waited for any longer than a site that says nothing."""
        if self._files.writing is not None:
            return LastCheckpointStep.WRITING
        silent = not self._memory.is_copying and self._waited_enough()
        if self._memory.idle or silent or not (self._session.present or self._memory.is_copying):
            self._memory.yield_region()
            return self._ended()
        return LastCheckpointStep.ASKED

    def _waited_s(self) -> float:
        return 0.0 if self._waits_since_s is None else self._outbox.awake_s - self._waits_since_s

    def _waited_enough(self) -> bool:
        return self._waited_s() > self._outbox.settings.negotiation_timeout_s

    def _ended(self) -> LastCheckpointStep:
        """There is a file, or none. A round that was under way may have been done meanwhile; or the run has gone on
        from this very state, which is of a later lineage then."""
        have, asked = self._unwritten(), self._asked
        newer = is_unsure(self._rounds, self._session) or (have is not None and asked is not None and have > asked)
        self._waits_since_s = None
        return LastCheckpointStep.UNBEGUN if newer else LastCheckpointStep.OVER
