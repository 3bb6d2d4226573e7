"""What a site keeps of its worker's state beside its worker, and where a worker that comes without it gets it back:
first from the mirror in its daemon's memory, then from neighbours, and only when no live site has it from disk
(protocols.md section 5, decision 0011).

The worker copies the state of a named round into its state region, as it does for a joiner; the daemon copies that to
its own memory on a thread (the mirror), and writes checkpoints from there. Nobody waits for either. A joiner comes
first: while this site serves a state, or is asked to, the region belongs to that transfer, and a copy that was not
finished before counts for nothing.

Driven by `Standing`; effects are carried out by `chaosd.mirror` and `chaosd.checkpoints`. Interval of checkpoints:
FlashRecovery, equation (3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos_protocols import asking
from chaos_protocols.effects import DropCopy, KeepCopy, LoadCheckpoint, RestoreCopy, ToWorker, WriteCheckpoint
from chaos_protocols.events import CheckpointWritten
from chaos_protocols.plans import CheckpointFacts
from chaos_protocols.worker import LoadState, TakeSnapshot

if TYPE_CHECKING:
    from chaos_protocols.site import SiteMachine
    from chaos_protocols.standing import Standing

MIRROR_ATTEMPTS_MAX = 3
"""A worker that dies so often over one copy may die of it: then its neighbours' state is taken."""

OFFERS_MAX = 64
"""Checkpoints that a site remembers having; it keeps fewer (`checkpoints_kept`)."""

SMOOTHING = 0.2


@dataclass(slots=True)
class Restoring:
    """A worker is given a state that lay in this site. `ready`: it lies in the worker's region, verified; `loaded`: the
    worker has it, and applies the results since."""

    attempt: int
    round: int
    checkpoint: CheckpointFacts | None
    cause: str
    started_s: float
    ready: bool = False
    loaded: bool = False
    cancelled: bool = False


class Keeping:
    """See the module. `copy`: the round whose state lies in the daemon's memory; `restoring`: see there; `pause_s`: how
    long a worker takes to copy its state (k0 of equation 3), smoothed; None: not measured yet."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._machine: SiteMachine = standing.machine
        self._settings = standing.machine.settings.keep
        self.copy: int | None = None
        self.restoring: Restoring | None = None
        self.pause_s: float | None = None
        self.offers: list[CheckpointFacts] = []
        self._spec_digest = ""
        self._due: int | None = None
        self._copying: int | None = None
        self._void = False
        self._writing: CheckpointFacts | None = None
        self._attempts = 0
        self._tries = 0
        self._lost_because = "the worker was restarted"
        self._applied = (0, 0.0)
        self._checkpoint_s = standing.machine.now_s
        self._checkpoint_round = 0

    # -- taking copies

    def applied(self, round_number: int) -> None:
        """The worker's state is that of `round_number`; before it gets the next result, say whether to copy that."""
        machine, rounds = self._machine, self._machine.rounds
        self._applied = (round_number, machine.now_s)
        standing = self._standing
        free = self._due is None and self._copying is None and not standing.serving.busy
        if not free or standing.transfer is not None or self.restoring is not None:
            return
        if not rounds.active or standing.leaving or standing.worker is None:
            return
        if self._mirrors(round_number + 1) or self._checkpoint_is_due(round_number + 1):
            self._due = round_number + 1
            machine.emit([ToWorker(message=TakeSnapshot(round=self._due))])

    def _mirrors(self, round_number: int) -> bool:
        every = min(self._settings.mirror_every_rounds, self._machine.rounds.results_max)
        return every > 0 and round_number % every == 0

    @property
    def interval_s(self) -> float:
        """Between two checkpoints; 0: as often as rounds and disk allow. t* = sqrt(2 d k0 / m)."""
        if self._settings.checkpoint == "optimum":
            return math.sqrt(2 * self._settings.mean_time_between_failures_s * (self.pause_s or 0.0))
        return self._settings.checkpoint_every_s

    def _checkpoint_is_due(self, round_number: int) -> bool:
        settings = self._settings
        if settings.checkpoint == "off" or self._writing is not None:
            return False
        if settings.checkpoint == "fixed" and settings.checkpoint_every_rounds > 0:
            if round_number - self._checkpoint_round >= settings.checkpoint_every_rounds:
                return True
            if settings.checkpoint_every_s <= 0:
                return False
        return self._machine.now_s - self._checkpoint_s >= self.interval_s

    def yields(self) -> None:
        """The worker's region is wanted for a transfer: no copy is taken from it any more."""
        self._due = None
        self._void = self._copying is not None

    def snapshot_taken(self, round_number: int) -> None:
        machine = self._machine
        if self._due != round_number or self._standing.worker is None:
            return
        self._due = None
        if self._applied[0] == round_number:
            took_s = machine.now_s - self._applied[1]
            self.pause_s = took_s if self.pause_s is None else self.pause_s + SMOOTHING * (took_s - self.pause_s)
        assert not self._standing.serving.busy  # a transfer makes every copy that is due void (`yields`)
        self._copying, self._void = round_number, False
        self.copy = None  # its memory is overwritten
        self._spec_digest = self._standing.worker.spec_digest
        machine.rounds.kept.after = round_number
        machine.emit([KeepCopy(round=round_number)])

    def snapshot_missed(self, round_number: int) -> None:
        if self._due == round_number:
            self._due = None

    def copy_kept(self, round_number: int, reason: str) -> None:
        """It is in the daemon's memory, unless the region was given away meanwhile, or there is none (`reason`)."""
        if self._copying != round_number:
            return
        if reason:
            machine = self._machine
            machine.record("restore", machine.facts.name, f"mirror of round {round_number}", "failed", None, reason)
            self._void = True
        kept = self._machine.rounds.kept
        self._copying = None
        self.copy, self._tries = round_number, 0
        if self._void or kept.after != round_number:  # overwritten meanwhile, or the run went on from another state
            self.drop()
            return
        if self._checkpoint_is_due(round_number):
            self._write(round_number)
        if self._settings.mirror_every_rounds <= 0:
            self.copy = kept.after = None

    def round_completed(self) -> None:
        """Memory for results is bounded: a mirror that needs more of them is given up."""
        rounds = self._machine.rounds
        after = rounds.kept.after
        stale = self.copy != after and self._copying is None
        if stale or (after is not None and rounds.done - after > rounds.results_max):
            self.drop()

    def drop(self) -> None:
        """The copy is of no use any more: too old, or of a history that this site has left."""
        self._void = self._copying is not None
        self._machine.rounds.kept.after = None
        if self._copying is None and self.copy is not None:
            self._machine.emit([DropCopy()])
        self.copy = None

    # -- giving them back

    def worker_lost(self, reason: str) -> None:
        self._due = None
        self.restoring = None
        self._lost_because = reason

    def restore_mirror(self) -> bool:
        """A worker without the state is here: whether it gets it from this daemon's memory."""
        machine, standing = self._machine, self._standing
        record, worker = machine.own_record, standing.worker
        if self.copy is None or worker is None or standing.leaving or not standing.in_roster or not standing.begun:
            return False
        if record is None or record.state != "member" or worker.spec_digest != self._spec_digest:
            return False
        if standing.transfer is not None or self._tries >= MIRROR_ATTEMPTS_MAX:
            return False
        if not machine.rounds.replay_after(self.copy):
            return False
        self._tries += 1
        attempt = self._begin(self.copy, None, self._lost_because)
        machine.emit([RestoreCopy(attempt=attempt)])
        return True

    def restore_checkpoint(self, round_number: int) -> bool:
        """The run was agreed to go on from this site's checkpoint of that round."""
        offer = self.offer(round_number)
        if offer is None:
            return False
        attempt = self._begin(round_number, offer, "no site has the training state")
        self._machine.emit([LoadCheckpoint(attempt=attempt, checkpoint=offer)])
        return True

    def _begin(self, round_number: int, checkpoint: CheckpointFacts | None, cause: str) -> int:
        self._attempts += 1
        self.restoring = Restoring(self._attempts, round_number, checkpoint, cause, self._machine.now_s)
        return self._attempts

    @property
    def region_is_written(self) -> bool:
        """A thread still writes into the worker's region: nothing else may."""
        return self.restoring is not None and not self.restoring.ready

    def abandon(self) -> None:
        """The state comes from elsewhere; what is being copied ends first (see `state_restored`)."""
        if self.restoring is None:
            return
        self.restoring.cancelled = True
        if self.restoring.ready:
            self.restoring = None

    def state_restored(self, attempt: int) -> None:
        restoring, standing = self.restoring, self._standing
        if restoring is None or restoring.attempt != attempt or standing.worker is None:
            return
        standing.region_filled = True
        restoring.ready = True
        if restoring.cancelled:
            self.restoring = None
            self._look_elsewhere()
            return
        standing.worker_round = 0  # half overwritten until it says that it has loaded
        self._machine.emit([ToWorker(message=LoadState(round=restoring.round))])

    def restore_failed(self, attempt: int, reason: str) -> None:
        """The next best offer is asked for."""
        restoring, machine = self.restoring, self._machine
        if restoring is None or restoring.attempt != attempt:
            return
        self.restoring = None
        where = "mirror"
        if restoring.checkpoint is not None:
            where = "checkpoint"
            self.offers = [one for one in self.offers if one != restoring.checkpoint]
        else:
            self.drop()
        subject = f"{where} of round {restoring.round}"
        machine.record("restore", machine.facts.name, subject, "failed", restoring.started_s, reason)
        self._look_elsewhere()

    def _look_elsewhere(self) -> None:
        if self._standing.transfer is not None:
            self._standing.fetch_now()
        else:
            asking.ask(self._standing)

    def loaded(self, round_number: int) -> bool:
        """The worker has the state that it was given here."""
        restoring = self.restoring
        if restoring is None or not restoring.ready or restoring.round != round_number:
            return False
        restoring.loaded = True
        return True

    def level(self) -> bool:
        """Whether the worker got level by what lay here: then the restoring ends."""
        restoring, machine = self.restoring, self._machine
        if restoring is None or not restoring.loaded or not machine.rounds.level:
            return False
        self.restoring = None
        self._attempt_over(restoring)
        return True

    def _attempt_over(self, restoring: Restoring) -> None:
        machine = self._machine
        if restoring.checkpoint is None:
            replayed = machine.rounds.done - restoring.round
            reason = f"the state of round {restoring.round} from this daemon's mirror, {replayed} results since"
        else:
            reason = f"the state of round {restoring.round} from the checkpoint on this site's disk, verified"
        machine.record("restore", machine.facts.name, restoring.cause, "done", restoring.started_s, reason)

    # -- checkpoints on disk

    @property
    def writes(self) -> bool:
        return self._settings.checkpoint != "off"

    def offer(self, round_number: int | None = None) -> CheckpointFacts | None:
        """The newest checkpoint (of that round) that this worker could load."""
        worker = self._standing.worker
        fitting = [one for one in self.offers if worker is not None and one.spec_digest == worker.spec_digest]
        return max((one for one in fitting if round_number in (None, one.round)), default=None)

    def checkpoints_found(self, checkpoints: tuple[CheckpointFacts, ...]) -> None:
        self.offers = sorted(checkpoints)[-OFFERS_MAX:]

    def _write(self, round_number: int) -> None:
        machine = self._machine
        # Not the epoch alone: a run whose journals were lost goes on from checkpoints of its old epochs.
        lineage = max(machine.roster.adopted_epoch, *(one.lineage for one in self.offers), 0)
        checkpoint = CheckpointFacts(lineage=lineage, round=round_number, spec_digest=self._spec_digest)
        self._writing = checkpoint
        self._checkpoint_s, self._checkpoint_round = machine.now_s, round_number
        machine.emit([WriteCheckpoint(checkpoint=checkpoint, epoch=machine.roster.epoch)])

    def checkpoint_written(self, event: CheckpointWritten) -> None:
        machine = self._machine
        if event.checkpoint != self._writing:
            return
        self._writing = None
        subject = f"round {event.checkpoint.round}"
        if event.reason:
            machine.record("checkpoint", subject, "due", "failed", None, event.reason)
            return
        self.offers = sorted({*self.offers, event.checkpoint})[-OFFERS_MAX:]
        next_s = f"; the next one in {self.interval_s:.0f} s at the earliest" if self.interval_s > 0 else ""
        reason = f"{event.size_bytes:,} bytes in {event.took_s:.2f} s, beside training{next_s}"
        machine.record("checkpoint", subject, "due", "done", self._checkpoint_s, reason)
