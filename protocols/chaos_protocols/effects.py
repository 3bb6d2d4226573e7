"""Everything a site's machine can ask for. The driver executes effects in the order of the list, and decides nothing.

Ordering duty: `Persist` must be durable before any later effect of the same list is executed (Raft: an answer must not
outrun the vote or the log entry that it promises).
"""

from __future__ import annotations

import msgspec

from chaos_protocols.agreement.raft.effects import HardState, Persist
from chaos_protocols.agreement.raft.messages import Snapshot
from chaos_protocols.causes import Cause
from chaos_protocols.names import SiteId
from chaos_protocols.wire.bounds import UNBOUNDED, Bounds
from chaos_protocols.wire.control import Envelope
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.plans import CheckpointFacts, Reached, ReplicationPlan, SyncPlan, Tag
from chaos_protocols.wire.recovered import Origin
from chaos_protocols.wire.worker import DaemonMessage


class SendEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """Hand the envelope to `neighbour`. The driver signs it if it is ours and the destination is somebody else than
    `neighbour`. (A Struct like the envelope: made for every message, in a fifth of the time of a dataclass.)"""

    neighbour: SiteId
    envelope: Envelope


class SetTimer(msgspec.Struct, frozen=True, kw_only=True):
    """Fire `TimerFired` at `at_s`; replaces the timer before."""

    at_s: float


class Dial(msgspec.Struct, frozen=True, kw_only=True):
    """Try to connect to `site`; ends with LinkUp or DialFailed."""

    site: SiteId
    address: str
    timeout_s: float


class CloseLink(msgspec.Struct, frozen=True, kw_only=True):
    site: SiteId
    reason: str


class ProbeLink(msgspec.Struct, frozen=True, kw_only=True):
    """Measure the rate from this site to `site`; ends with LinkProbed."""

    site: SiteId


class OpenRound(msgspec.Struct, frozen=True, kw_only=True):
    """Be ready for the bulk messages of `tag`. `member`: this site will contribute; otherwise it only listens.
    `bounds`: what a site may give. `centred`: its `clip_radius` is around the result of the round before, else around
    zero."""

    tag: Tag
    plan: SyncPlan
    listeners: tuple[SiteId, ...]
    member: bool
    bounds: Bounds = UNBOUNDED
    centred: bool = False


class Contribute(msgspec.Struct, frozen=True, kw_only=True):
    """Give this site's part to the open round. `has_bytes` false: weight 0 and nothing in the arena (standby). `check`:
    what it says of its state. `ready_bytes`: only so many are in the arena, and another one follows, in which more are,
    or all (None); or, where `has_bytes` is false, whatever was not ready is no number (spec 9.39)."""

    tag: Tag
    weight: float
    has_bytes: bool
    check: bytes = b""
    ready_bytes: int | None = None


class StopRound(msgspec.Struct, frozen=True, kw_only=True):
    """Take nothing more of `tag`, drop what it had. Results of finished rounds stay."""

    tag: Tag


class FetchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Get the result of `round` with this digest from a neighbour that has it (or will have it)."""

    round: int
    digest: str
    bounds: Bounds = UNBOUNDED


class DeliverResult(msgspec.Struct, frozen=True, kw_only=True):
    """Copy the result of `round` into the arena and tell the worker to apply it. `digest`: afterwards it is to say the
    digests of these bytes of its state."""

    round: int
    sites: int
    weight: float
    digest: tuple[int, int] | None = None


class DropResults(msgspec.Struct, frozen=True, kw_only=True):
    """Results of rounds below `before_round` are not needed any more."""

    before_round: int


class ToWorker(msgspec.Struct, frozen=True, kw_only=True):
    message: DaemonMessage


class TakeWorker(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that said hello just now is this site's from now on: its vector is what is averaged, its arena where
    states go. One that was there before is told that its place is taken, and is not answered by `WorkerLost`."""


class RefuseWorker(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that said hello just now is sent away with this reason; nothing that is there is touched."""

    reason: str


class WorkerOverdue(msgspec.Struct, frozen=True, kw_only=True):
    """The others have waited so long for the worker's part, and wait no longer: who looks after the script may see what
    is wrong with it."""

    waited_s: float


class EndWorker(msgspec.Struct, frozen=True, kw_only=True):
    """Part with the worker without a word: it counts as gone, and may come back with a new hello. Not answered by
    `WorkerLost`."""

    reason: str


class ServeState(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot lies in the arena: serve it to the joiner of the transfer until `ReleaseState`."""

    plan: ReplicationPlan


class ReleaseState(msgspec.Struct, frozen=True, kw_only=True):
    transfer: str


class FetchState(msgspec.Struct, frozen=True, kw_only=True):
    """Get the state from the plan's sources into the arena; ends with TransferFinished or TransferFailed. `have`: an
    older state, or part of one, lies there: only what differs need be sent."""

    plan: ReplicationPlan
    have: bool = False


class VoidResults(msgspec.Struct, frozen=True, kw_only=True):
    """Results of rounds above `after_round` are not part of the run's history: this site begins after it, or the run
    goes on from an older state. What an encoding lost here before is owed no more (spec 9.32)."""

    after_round: int


class SaveMemoryCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The worker's state region holds the state of `round`: copy it to the daemon's own memory, in place of the copy
    before; ends with `MemoryCheckpointSaved`."""

    round: int


class DropMemoryCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The copy is of no use: give its memory back (a checkpoint that is being written from it goes on)."""


class RestoreMemoryCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Copy the kept state into the worker's state region; ends with `StateRestored` or `RestoreFailed`."""

    attempt: int


class WriteCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Write the copy to disk, on a thread; ends with `CheckpointWritten`. `epoch`: the roster's, for people."""

    checkpoint: CheckpointFacts
    epoch: int


class LoadCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Read a checkpoint into the worker's state region and verify it; ends with `StateRestored` or `RestoreFailed`."""

    attempt: int
    checkpoint: CheckpointFacts


class SetCheckpointsAside(msgspec.Struct, frozen=True, kw_only=True):
    """Of this lineage, those of rounds above `after` and up to `until`, also one that is being written: they are not to
    be found again, by no later start either. Durable."""

    lineage: int
    after: int
    until: int


class NoteReached(msgspec.Struct, frozen=True, kw_only=True):
    """Duty: durable before any later effect of the same list is executed, in place of the note before."""

    reached: Reached


CheckpointEffect = (
    SaveMemoryCheckpoint
    | DropMemoryCheckpoint
    | RestoreMemoryCheckpoint
    | WriteCheckpoint
    | LoadCheckpoint
    | SetCheckpointsAside
)


class CancelTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """The state is not wanted any more, or by another plan."""

    transfer: str


class DropSource(msgspec.Struct, frozen=True, kw_only=True):
    """This source of a transfer to this site is out of the roster, or began anew: it is not asked any more."""

    transfer: str
    source: SiteId


class KeyAgreed(msgspec.Struct, frozen=True, kw_only=True):
    """The run has agreed on a key that this site does not use yet: note it beside that key, for the next start."""

    chain: KeyChain


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A line for the event history. `kind`, `outcome`: see `chaosd.api.status.EventRecord`."""

    kind: str
    subject: str
    cause: str
    outcome: str
    duration_s: float | None
    reason: str


class AnswerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a user's request."""

    request: str
    done: bool
    reason: str


class StartOver(msgspec.Struct, frozen=True, kw_only=True):
    """The journal is to hold this in place of all that it held of the agreement, durably and at once: either the former
    content survives a crash, or this. `StopDaemon(again=True)` follows. `snapshot`: None: this site is to join."""

    hard_state: HardState
    snapshot: Snapshot | None
    reached: Reached
    origin: Origin


class StopDaemon(msgspec.Struct, frozen=True, kw_only=True):
    """This site is out of the run for good: end this life of the daemon. `for_script`: only its script has asked for
    that; the daemon may begin another life, outside the run, and wait for the next script. `again`: another life begins
    at once, with what the journal holds now. `cause`: where it ends for a cause of its own."""

    graceful: bool
    reason: str
    for_script: bool = False
    again: bool = False
    cause: Cause | None = None


Effect = (
    Persist
    | NoteReached
    | SendEnvelope
    | SetTimer
    | Dial
    | CloseLink
    | ProbeLink
    | OpenRound
    | Contribute
    | StopRound
    | FetchResult
    | DeliverResult
    | DropResults
    | ToWorker
    | TakeWorker
    | RefuseWorker
    | WorkerOverdue
    | EndWorker
    | ServeState
    | ReleaseState
    | FetchState
    | VoidResults
    | CheckpointEffect
    | CancelTransfer
    | DropSource
    | KeyAgreed
    | Record
    | AnswerRequest
    | StartOver
    | StopDaemon
)
