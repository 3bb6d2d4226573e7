"""How a worker that comes without the state gets it back from this site: from the checkpoint in its daemon's memory,
or, when no live site has the state and the run was agreed to go on from it, from one on its disk (spec 12.8 and 13.6,
decision 0011).

Driven by `WorkerState`, which says when the state comes from elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.effects import LoadCheckpoint, RestoreMemoryCheckpoint
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.state.local_checkpoint import CheckpointFiles, MemoryCheckpoint
from chaos_protocols.state.worker_session import WorkerSession
from chaos_protocols.wire.plans import CheckpointFacts

MEMORY_ATTEMPTS_MAX = 3
"""A worker that dies so often over one copy may die of it: then its neighbours' state is taken."""


@dataclass(slots=True)
class Restoring:
    """A worker is given a state that lay in this site."""

    attempt: int
    round: int
    checkpoint: CheckpointFacts | None
    """None: the one in memory."""
    cause: str
    started_s: float
    begun: bool = False
    """A thread writes it into the worker's region; before, that is not free yet."""
    ready: bool = False
    """It lies in the worker's region, verified."""
    lineage: int = 0
    """Of the run's history to which it belonged when it lay there."""
    loaded: bool = False
    """The worker has it, and applies the results since."""
    cancelled: bool = False
    """The state comes from elsewhere: what is being copied ends first."""


class StateRestore:
    """See the module."""

    def __init__(
        self,
        outbox: Outbox,
        rounds: RoundMachine,
        session: WorkerSession,
        memory: MemoryCheckpoint,
        files: CheckpointFiles,
    ) -> None:
        self.running: Restoring | None = None
        self._called_off: Restoring | None = None
        """It had been given to the worker, which loads it all the same."""
        self._outbox = outbox
        self._rounds = rounds
        self._session = session
        self._memory = memory
        self._files = files
        self._attempts = 0
        self._tries = 0
        """Of the copy that lies in memory."""
        self._lost_because = "the worker was restarted"

    @property
    def region_is_written(self) -> bool:
        """A thread still writes into the worker's region: nothing else may."""
        return self.running is not None and self.running.begun and not self.running.ready

    def worker_lost(self, reason: str) -> None:
        """Nothing is restored to a worker that is gone; the next one is told why."""
        self.running = self._called_off = None
        self._lost_because = reason

    def new_copy(self) -> None:
        """Another state lies in memory: no worker has died of it."""
        self._tries = 0

    def from_memory(self) -> bool:
        """A member's worker without the state is here: whether it gets it from this daemon's memory."""
        memory = self._memory
        if memory.round is None or self._session.spec_digest != memory.spec_digest:
            return False
        if self._tries >= MEMORY_ATTEMPTS_MAX or not self._rounds.replay_after(memory.round):
            return False
        self._tries += 1
        self._begin(memory.round, None, self._lost_because)
        return True

    def from_disk(self, round_number: int) -> None:
        """The run was agreed to go on from this site's checkpoint of that round, once it is whole."""
        checkpoint = self._files.offered(self._session.spec_digest, round_number) if self._session.present else None
        if checkpoint is not None:
            self._begin(round_number, checkpoint, "no site has the training state")

    def _begin(self, round_number: int, checkpoint: CheckpointFacts | None, cause: str) -> None:
        self._attempts += 1
        self.running = Restoring(self._attempts, round_number, checkpoint, cause, self._outbox.now_s)
        self.go_on()

    def waits_for(self, checkpoint: CheckpointFacts) -> int | None:
        """The attempt that has not begun, since this file was not whole; None: there is none."""
        restoring = self.running
        if restoring is None or restoring.begun or restoring.checkpoint != checkpoint:
            return None
        return restoring.attempt

    def go_on(self) -> None:
        """Begin what has not begun, if its file is whole and the worker gives its region."""
        restoring = self.running
        if restoring is None or restoring.begun:
            return
        unfinished = restoring.checkpoint is not None and restoring.checkpoint == self._files.writing
        if unfinished or not self._session.gives_region():
            return
        restoring.begun = True
        attempt, checkpoint = restoring.attempt, restoring.checkpoint
        if checkpoint is None:
            self._outbox.emit([RestoreMemoryCheckpoint(attempt=attempt)])
        else:
            self._outbox.emit([LoadCheckpoint(attempt=attempt, checkpoint=checkpoint)])

    def abandon(self) -> None:
        """The state comes from elsewhere; what is being copied ends first (see `ready`)."""
        if self.running is None:
            return
        self.running.cancelled = True
        if self.running.ready and not self.running.loaded:
            self._called_off = self.running
        if self.running.ready or not self.running.begun:
            self.running = None

    def is_running(self, attempt: int) -> bool:
        """It is the present one, and not one of before."""
        return self.running is not None and self.running.attempt == attempt

    def ready(self, lineage: int) -> bool:
        """The state lies in the worker's region: it loads it. False: it was abandoned meanwhile, the region is free.
        `lineage`: of the run's present history."""
        restoring = self.running
        assert restoring is not None
        restoring.ready, restoring.lineage = True, lineage
        if restoring.cancelled:
            self.running = None
            return False
        self._session.load(restoring.round)
        return True

    def failed(self, reason: str) -> None:
        """It is damaged, or gone. The next best is asked for."""
        restoring, self.running = self.running, None
        assert restoring is not None
        where = "in-memory checkpoint"
        if restoring.checkpoint is not None:
            where = "checkpoint"
            self._files.damaged(restoring.checkpoint)
        else:
            self._memory.drop()
        subject = f"{where} of round {restoring.round}"
        self._outbox.record("restore", self._outbox.facts.name, subject, "failed", restoring.started_s, reason)

    def loaded(self, round_number: int) -> Restoring | None:
        """What the worker was given here and has now, `cancelled` if that was called off meanwhile; None: nothing."""
        restoring = self.running
        if restoring is not None and restoring.ready and restoring.round == round_number:
            restoring.loaded = True
            return restoring
        called_off = self._called_off
        if called_off is None or called_off.round != round_number:
            return None
        self._called_off = None
        return called_off

    def caught_up(self) -> bool:
        """Whether the worker caught up by what lay here: then the restoring ends."""
        restoring, outbox = self.running, self._outbox
        if restoring is None or not restoring.loaded or not self._rounds.caught_up:
            return False
        self.running = None
        if restoring.checkpoint is None:
            replayed = self._rounds.completed_round - restoring.round
            where = "this daemon's in-memory checkpoint"
            reason = f"the state of round {restoring.round} from {where}, {replayed} results since"
        else:
            reason = f"the state of round {restoring.round} from the checkpoint on this site's disk, verified"
        outbox.record("restore", outbox.facts.name, restoring.cause, "done", restoring.started_s, reason)
        return True
