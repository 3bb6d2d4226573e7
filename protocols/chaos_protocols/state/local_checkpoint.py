"""What a site keeps of its worker's state beside its worker: a checkpoint in its daemon's memory, checkpoints on disk
(spec 12.8, decision 0011). How a worker gets them back is in `restore.py`.

The worker copies the state of a named round into its state region, as it does for a joiner; the daemon copies that to
its own memory on a thread (the in-memory checkpoint), and writes files from there. Nobody waits for either. A joiner
comes first: while this site serves a state, or is asked to, the region belongs to that transfer, and a copy that was
not finished before counts for nothing.

Driven by `WorkerState`; effects are carried out by `chaosd.storage.checkpoint_keeper` and `chaosd.storage.checkpoints`.
In-memory checkpoints: Gemini (SOSP 2023). Interval of those on disk: FlashRecovery, equation (3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from chaos_protocols.effects import DropMemoryCheckpoint, SaveMemoryCheckpoint, SetCheckpointsAside, WriteCheckpoint
from chaos_protocols.events import CheckpointWritten
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.smoothing import smoothed
from chaos_protocols.state.worker_session import WorkerSession
from chaos_protocols.wire.plans import CheckpointFacts

OFFERS_MAX = 64
"""Checkpoints that a site remembers having; it keeps fewer (`checkpoints_kept`)."""

DOUBTS_MAX = 8
"""Spans of rounds whose files are not offered; these are renamed, so that older spans concern none that is left."""

AUTO_PAUSE_SHARE = 0.01
"""Of the time, that the workers' copies may take: all sites copy in the same round where they can."""

AUTO_WRITING_SHARE = 0.1
"""Of the time, that the disk may be written to, beside training."""

AUTO_INTERVAL_MIN_S = 10.0
"""However small the state: more often nobody needs it, and disks wear."""


class MemoryCheckpoint:
    """The copy of the worker's state in this daemon's memory."""

    def __init__(self, outbox: Outbox, rounds: RoundMachine, session: WorkerSession) -> None:
        self.round: int | None = None
        """Whose state lies in the daemon's memory; None: none."""
        self.pause_s: float | None = None
        """How long a worker takes to copy its state (k0 of equation 3), smoothed; None: not measured yet."""
        self.spec_digest = ""
        """Of the state that was copied last."""
        self._outbox = outbox
        self._rounds = rounds
        self._session = session
        self._due: int | None = None
        """The worker was asked for its state of this round."""
        self._copying: int | None = None
        """A thread copies the state of this round."""
        self._discarded = False
        """What is being copied is of no use: the region was given away meanwhile."""
        self._applied = (0, 0.0)
        """The newest round that the worker has applied, and when."""

    @property
    def idle(self) -> bool:
        """Nothing is being copied, or will be."""
        return self._due is None and self._copying is None

    @property
    def is_copying(self) -> bool:
        """The daemon takes a copy from the worker's region."""
        return self._copying is not None

    def is_due(self, round_number: int) -> bool:
        """The state of that round is to be kept in memory."""
        every = min(self._outbox.settings.keep.memory_checkpoint_every_rounds, self._rounds.delivery.results_max)
        return every > 0 and round_number % every == 0

    def applied(self, round_number: int) -> None:
        """The worker's state is that of `round_number`."""
        self._applied = (round_number, self._outbox.now_s)

    def ask_for(self, round_number: int, *, alone: bool = False) -> None:
        """Before the worker gets the result of that round: it is to copy its state then. `alone`: and none that it was
        asked for before; who was asked for that one already copies it once."""
        self._due = round_number
        if not (alone and self._session.region.is_asked_for(round_number)):
            self._session.copy(round_number, alone=alone)

    def yield_region(self) -> None:
        """The worker's region is wanted for a transfer: no copy is taken from it any more."""
        self._due = None
        self._discarded = self._copying is not None

    def state_lost(self) -> None:
        """The worker is gone, or cannot catch up: it takes no snapshot, or one whose later results nobody keeps."""
        self._due = None

    def snapshot_taken(self, round_number: int) -> bool:
        """The worker's region holds its state of that round. Whether it was asked for, and is copied now."""
        if self._due != round_number or not self._session.present:
            return False
        self._due = None
        if self._applied[0] == round_number:
            took_s = self._outbox.now_s - self._applied[1]
            self.pause_s = smoothed(self.pause_s, took_s)
        self._copying, self._discarded = round_number, False
        self.round = None  # its memory is overwritten
        self.spec_digest = self._session.spec_digest
        self._rounds.delivery.log.keep_after(round_number)
        self._outbox.emit([SaveMemoryCheckpoint(round=round_number)])
        return True

    def snapshot_missed(self, round_number: int) -> None:
        """The worker has gone on."""
        if self._due == round_number:
            self._due = None

    def copied(self, round_number: int, reason: str, *, last: bool = False) -> bool:
        """The thread has ended. Whether the copy is whole: the region may have been given away meanwhile, or there is
        none (`reason`). `last`: it is for a file alone, and needs no results after it."""
        if self._copying != round_number:
            return False
        if reason:
            name, subject = self._outbox.facts.name, f"in-memory checkpoint of round {round_number}"
            self._outbox.record("restore", name, subject, "failed", None, reason)
            self._discarded = True
        self._copying = None
        self.round = round_number
        followed = last or self._rounds.delivery.log.after == round_number  # or the run went on from another state
        if self._discarded or not followed:
            self.drop()
            return False
        return True

    def written(self) -> None:
        """Where only files are kept, or the results since are too many, the copy is of no use beyond the one that is
        written from it."""
        if self._outbox.settings.keep.memory_checkpoint_every_rounds <= 0 or not self._rounds.delivery.log.complete:
            self.round = None
            self._rounds.delivery.log.keep_after(None)
            self._outbox.emit([DropMemoryCheckpoint()])

    def round_completed(self) -> None:
        """Memory for results is bounded: a checkpoint that needs more of them is given up. One that is still copied
        goes on, for a file, which needs none: else a large state would never be written where rounds are short."""
        log, copying = self._rounds.delivery.log, self._copying is not None
        after = log.after
        stale = self.round != after and not copying
        too_many = after is not None and self._rounds.completed_round - after > self._rounds.delivery.results_max
        if too_many and copying and not self._discarded:
            log.keep_none()
        elif stale or too_many:
            self.drop()

    def drop(self) -> None:
        """The copy is of no use any more: too old, or of a history that this site has left."""
        self._discarded = self._copying is not None
        self._rounds.delivery.log.keep_after(None)
        if self._copying is None and self.round is not None:
            self._outbox.emit([DropMemoryCheckpoint()])
        self.round = None


@dataclass(frozen=True, slots=True)
class Doubt:
    """Files of one lineage that may hold another state than the run's: those of rounds above `after`, up to `until`."""

    lineage: int
    after: int
    until: int

    def concerns(self, checkpoint: CheckpointFacts) -> bool:
        return checkpoint.lineage == self.lineage and self.after < checkpoint.round <= self.until


class CheckpointFiles:
    """The checkpoints on this site's disk."""

    def __init__(self, outbox: Outbox) -> None:
        self.offers: list[CheckpointFacts] = []
        """Those that can be loaded, as far as is known."""
        self._outbox = outbox
        self._settings = outbox.settings.keep
        self.writing: CheckpointFacts | None = None
        """The file that is being made, which may be whole soon: its state is copied from the worker's region, then
        written."""
        self._copied = False
        """That state lies in the daemon's memory."""
        self._last_s = outbox.now_s
        self._last_round = 0
        self._writing_s = 0.0
        """How long writing the last file took."""
        self._told: str | None = None
        """What the history was last told of a file: why it could not be written, empty: it was; None: nothing yet."""
        self._doubts: list[Doubt] = []
        """The latest last."""

    @property
    def failure(self) -> str:
        """Why the newest file could not be written; empty: it could."""
        return self._told or ""

    @property
    def enabled(self) -> bool:
        return self._settings.checkpoint != "off"

    def interval_s(self, pause_s: float | None) -> float:
        """Between two checkpoints; 0: as often as rounds and disk allow. FlashRecovery, equation (3): t* =
        sqrt(2 d k0 / m), where k0 is `pause_s`, what a worker's copy costs, and d / m the mean time between failures.
        `auto`: that, but so seldom that the copies take AUTO_PAUSE_SHARE of the time at most."""
        kind, pause_s = self._settings.checkpoint, pause_s or 0.0
        optimum_s = math.sqrt(2 * self._settings.mean_time_between_failures_s * pause_s)
        if kind == "auto":
            writing_s = self._writing_s / AUTO_WRITING_SHARE
            return max(optimum_s, pause_s / AUTO_PAUSE_SHARE, writing_s, AUTO_INTERVAL_MIN_S)
        return optimum_s if kind == "optimum" else self._settings.checkpoint_every_s

    def is_due(self, round_number: int, pause_s: float | None) -> bool:
        """The state of that round is to be written."""
        settings = self._settings
        if settings.checkpoint == "off" or self.writing is not None:
            return False
        if settings.checkpoint == "fixed" and settings.checkpoint_every_rounds > 0:
            if round_number - self._last_round >= settings.checkpoint_every_rounds:
                return True
            if settings.checkpoint_every_s <= 0:
                return False
        if settings.checkpoint == "auto":
            return self._is_due_by_itself(round_number, pause_s)
        return self._outbox.now_s - self._last_s >= self.interval_s(pause_s)

    def _is_due_by_itself(self, round_number: int, pause_s: float | None) -> bool:
        """The first one at once; a later one in a round whose number is a multiple of the highest power of two that is
        at most a quarter of the rounds since: so that sites copy, and everybody waits, in the same round."""
        if not self._last_round:
            return True
        if self._outbox.now_s - self._last_s < self.interval_s(pause_s):
            return False
        quarter = max(1, (round_number - self._last_round) // 4)
        return round_number % (1 << (quarter.bit_length() - 1)) == 0

    def best(self, spec_digest: str) -> CheckpointFacts | None:
        """The newest that fits a state of these arrays."""
        return _newest(self.offers, spec_digest)

    def offered(self, spec_digest: str, round_number: int | None = None) -> CheckpointFacts | None:
        """The newest (of that round), as others are told of it: also of the one that is being made. Else they may go
        on from an older state, because this one was not whole yet in the moment in which they asked."""
        writing = self.writing
        soon = () if writing is None or self._is_doubtful(writing) else (writing,)
        there = (one for one in (*self.offers, *soon) if round_number in (None, one.round))
        return _newest(there, spec_digest)

    def found(self, checkpoints: tuple[CheckpointFacts, ...]) -> None:
        """What lies on the disk."""
        self.offers = sorted(one for one in checkpoints if not self._is_doubtful(one))[-OFFERS_MAX:]

    def damaged(self, checkpoint: CheckpointFacts) -> None:
        """It could not be loaded: it is offered no more."""
        self.offers = [one for one in self.offers if one != checkpoint]

    def doubt(self, doubt: Doubt) -> None:
        """This site's state was not that of the others: its files of these rounds may hold what differs (spec 12.17).
        They are offered no more; nor is the one that is being written, if it is among them."""
        soon = () if self.writing is None else (self.writing,)
        doubtful = [one for one in (*self.offers, *soon) if doubt.concerns(one)]
        self._doubts = [*self._doubts, doubt][-DOUBTS_MAX:]
        if not doubtful:
            return
        self.offers = [one for one in self.offers if not doubt.concerns(one)]
        aside = SetCheckpointsAside(lineage=doubt.lineage, after=doubt.after, until=doubt.until)
        self._outbox.emit([aside])
        rounds = ", ".join(str(one.round) for one in doubtful)
        reason = (
            f"written after round {doubt.after}, since when this site's state may have differed from that of the "
            "others: offered no more, and renamed (docs/operating.md, Checkpoints)"
        )
        self._outbox.record("checkpoint", f"round {rounds}", "drift", "set aside", None, reason)

    def _is_doubtful(self, checkpoint: CheckpointFacts) -> bool:
        return any(one.concerns(checkpoint) for one in self._doubts)

    def lineage(self, restore_epoch: int) -> int:
        """Of a state that was made when the run had last taken over one in that epoch. Not the epoch alone: a run whose
        journals were lost goes on from checkpoints of its old epochs."""
        doubted = (one.lineage for one in self._doubts)  # what was written of that history stands for it all the same
        return max(restore_epoch, *(one.lineage for one in self.offers), *doubted, 0)

    def begin(self, round_number: int, spec_digest: str, lineage: int) -> None:
        """The state of that round and lineage is being copied, for a file."""
        self.writing, self._copied = (
            CheckpointFacts(lineage=lineage, round=round_number, spec_digest=spec_digest),
            False,
        )

    def copied(self, round_number: int, *, epoch: int) -> None:
        """The daemon's memory holds the state of that round: write it, if it was copied for a file. `epoch`: the
        roster's."""
        checkpoint = self._being_copied(round_number)
        if checkpoint is not None:
            self._copied, self._last_s, self._last_round = True, self._outbox.now_s, round_number
            self._outbox.emit([WriteCheckpoint(checkpoint=checkpoint, epoch=epoch)])

    def not_copied(self, round_number: int) -> CheckpointFacts | None:
        """The copy of that round is of no use. The file that was to be made of it; None: none."""
        checkpoint = self._being_copied(round_number)
        if checkpoint is not None:
            self.writing = None
        return checkpoint

    def _being_copied(self, round_number: int) -> CheckpointFacts | None:
        writing = self.writing
        return writing if writing is not None and not self._copied and writing.round == round_number else None

    def history_changed(self) -> None:
        """The run goes on from another state: of its present history there is no checkpoint, the next is the first."""
        self._last_round = 0

    def written(self, event: CheckpointWritten, pause_s: float | None) -> None:
        """The file is whole, or could not be written."""
        if event.checkpoint != self.writing:
            return
        self.writing = None
        subject, self._writing_s = f"round {event.checkpoint.round}", event.took_s
        news = event.reason != self._told or self._settings.checkpoint != "auto"  # that writes often
        self._told = event.reason
        if event.reason:
            if news:
                self._outbox.record("checkpoint", subject, "due", "failed", None, event.reason)
            return
        if self._is_doubtful(event.checkpoint):
            return  # found to be meanwhile, and told
        self.offers = sorted({*self.offers, event.checkpoint})[-OFFERS_MAX:]
        if not news:
            return
        interval_s = self.interval_s(pause_s)
        next_s = f"; the next one in {interval_s:.0f} s at the earliest" if interval_s > 0 else ""
        reason = f"{event.size_bytes:,} bytes in {event.took_s:.2f} s, beside training{next_s}"
        self._outbox.record("checkpoint", subject, "due", "done", self._last_s, reason)


def _newest(checkpoints: Iterable[CheckpointFacts], spec_digest: str) -> CheckpointFacts | None:
    return max((one for one in checkpoints if one.spec_digest == spec_digest), default=None)
