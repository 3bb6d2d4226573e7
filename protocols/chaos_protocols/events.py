"""Everything that can happen to a site, as its machine sees it: facts, in the past tense.

The driver and the simulator make them; `SiteMachine.handle` takes them, one at a time, with the time `now_s`."""

from __future__ import annotations

import msgspec

from chaos_protocols.agreement.roster import ModelFacts
from chaos_protocols.causes import Why
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import Envelope
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.plans import CheckpointFacts, Tag
from chaos_protocols.wire.versions import NEWEST, SPOKEN, Version, Versions
from chaos_protocols.wire.worker import StateDigests
from chaos_protocols.wishes import Wish


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon runs, with the neighbours of its configuration. `sponsors`: believed while in no run (spec 4.12)."""

    peers: tuple[tuple[SiteId, str], ...]
    sponsors: tuple[SiteId, ...] | None = None


class PeersChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration was read again; `peers` are the neighbours that it names now; `sponsors` as in `Started`."""

    peers: tuple[tuple[SiteId, str], ...]
    sponsors: tuple[SiteId, ...] | None = None


class TimerFired(msgspec.Struct, frozen=True, kw_only=True):
    """The time asked for by `SetTimer` has come."""


class LinkUp(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated connection to `site` is ready (whoever dialled). `versions`: protocol versions that it speaks.
    `software`: its release, for people. `chain`: what it showed of its key; None: not told."""

    site: SiteId
    incarnation: int
    address: str
    versions: Versions = SPOKEN
    software: str = ""
    chain: KeyChain | None = None


class LinkLost(msgspec.Struct, frozen=True, kw_only=True):
    """`broke_a_rule`: this site has closed it for that (spec 1.10)."""

    site: SiteId
    incarnation: int
    reason: str
    broke_a_rule: bool = False


class DialFailed(msgspec.Struct, frozen=True, kw_only=True):
    """`reason`: a few words, as the system has them; `why`: what that means, in a sentence; None: nothing more is
    known."""

    site: SiteId
    reason: str
    why: Why | None = None


class SiteRefused(msgspec.Struct, frozen=True, kw_only=True):
    """A site that has proven who it is was not let in."""

    site: SiteId
    why: Why


class ConnectionProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One connection of a link since the last look. `received`: bytes arrived; `acknowledged`: the far end's system
    confirmed some of what was sent; `waiting`: some of it is not confirmed yet."""

    stream: int | None
    """Of a bulk connection; None: the control connection."""
    received: bool = False
    acknowledged: bool = False
    waiting: bool = False


class RatesMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """What this site's links carried lately in rounds: neighbours and bytes per second, by ascending site."""

    rates: tuple[tuple[SiteId, float], ...]


class LinkProgressed(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes moved over connections of a link, or wait to be acknowledged (spec 3.5, 3.13). A connection that is not
    named has nothing to move."""

    site: SiteId
    connections: tuple[ConnectionProgress, ...]


class LinkProbed(msgspec.Struct, frozen=True, kw_only=True):
    """A probe ended. Rate 0: it failed, and why."""

    site: SiteId
    rate_bytes_per_s: float
    reason: str


class EnvelopeReceived(msgspec.Struct, frozen=True, kw_only=True):
    """A checked envelope from a neighbour: decoded, and its signature verified if it was relayed. (A Struct for the
    same reason as `SendEnvelope`.)"""

    neighbour: SiteId
    envelope: Envelope


class WorkerReady(msgspec.Struct, frozen=True, kw_only=True):
    """A worker said hello, and waits to be taken or refused. `round`: whose end its state belongs to (0: fresh).
    `contribution_bytes`: of a result. `rival_pid`: of the process whose session runs, where that is another one;
    None: none does, or the same process makes a new start. `version`: the newest protocol that its script speaks.
    `held`: what its state region holds may be of use. `damaged_round`: it has no state, but a part of the one of the
    end of that round (0: none), which it can bring forward by results."""

    model: ModelFacts
    round: int
    contribution_bytes: int = 0
    version: Version = NEWEST
    rival_pid: int | None = None
    held: bool = False
    damaged_round: int = 0


class WorkerLost(msgspec.Struct, frozen=True, kw_only=True):
    reason: str


class WorkerStopped(msgspec.Struct, frozen=True, kw_only=True):
    """The worker stands still, and does not know it: its process was stopped (SIGSTOP), or hangs. `reason`: what was
    seen. Told once; what follows from it is decided by the machine (`settings.worker_stopped_s`)."""

    reason: str


class WorkerContinued(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that stood still goes on."""


class WorkerContributed(msgspec.Struct, frozen=True, kw_only=True):
    """The worker gives its part of `round`, or (`weight` 0) nothing, and why. `ready_bytes`: only so many of its bytes
    so far; None: all."""

    round: int
    weight: float
    reason: str = ""
    ready_bytes: int | None = None


class ScriptPaused(msgspec.Struct, frozen=True, kw_only=True):
    """Its script gives nothing for a while, on purpose, and is not to be waited for."""

    reason: str


class ScriptResumed(msgspec.Struct, frozen=True, kw_only=True):
    """It goes on."""


class WorkerUpdating(msgspec.Struct, frozen=True, kw_only=True):
    round: int


class WorkerApplied(msgspec.Struct, frozen=True, kw_only=True):
    """Its state is that of the end of the round. `digests`: of what it was asked for."""

    round: int
    digests: StateDigests | None = None


class WorkerSnapshotTaken(msgspec.Struct, frozen=True, kw_only=True):
    round: int


class WorkerSnapshotMissed(msgspec.Struct, frozen=True, kw_only=True):
    round: int
    now: int


class WorkerLoaded(msgspec.Struct, frozen=True, kw_only=True):
    round: int


class ReduceFinished(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result of the tag's round is here. `finite` false: nobody applies it, and `culprits` are the sites
    whose sums were no finite numbers when they came here. `bounded` false: nobody applies it, it is longer than the run
    allows. `clipped`: the norm that this site's part had before it was clipped; 0: it was not. `away`: how far from the
    centre it was before it was drawn in to `clip_radius`; 0: there is none. `encoding_error`: what the encoding lost
    here in the last round that counts, over what was encoded (norms); None: nothing is encoded."""

    tag: Tag
    digest: str
    weights: tuple[tuple[SiteId, float], ...]
    checks: tuple[tuple[SiteId, bytes], ...] = ()
    finite: bool = True
    culprits: tuple[SiteId, ...] = ()
    bounded: bool = True
    clipped: float = 0.0
    away: float = 0.0
    encoding_error: float | None = None


class RoundCameUpEmpty(msgspec.Struct, frozen=True, kw_only=True):
    """Every site of the round contributed weight 0."""

    tag: Tag


class ResultFetched(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a round that this site had missed is here, and has the digest that was agreed. `finite` false,
    or `bounded`: nobody applies it."""

    round: int
    digest: str
    finite: bool = True
    bounded: bool = True


class ResultMissed(msgspec.Struct, frozen=True, kw_only=True):
    """The neighbour that was to send the result of this round has dropped it: this site is too far behind."""

    tag: Tag


class TransferProgressed(msgspec.Struct, frozen=True, kw_only=True):
    transfer: str
    verified_bytes: int


class TransferFinished(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state is here; each of its blocks was checked when it came. `held_bytes`: not sent, since they were
    here already."""

    transfer: str
    held_bytes: int = 0


class TransferFailed(msgspec.Struct, frozen=True, kw_only=True):
    transfer: str
    reason: str


class MemoryCheckpointSaved(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon's memory holds the state of the end of `round`, or (`reason` not empty) could not take it."""

    round: int
    reason: str = ""


class StateRestored(msgspec.Struct, frozen=True, kw_only=True):
    """What `RestoreMemoryCheckpoint` or `LoadCheckpoint` asked for lies in the worker's state region, verified."""

    attempt: int


class RestoreFailed(msgspec.Struct, frozen=True, kw_only=True):
    """It does not: the checkpoint is damaged, or gone. It is offered no more."""

    attempt: int
    reason: str


class CheckpointsFound(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in the checkpoint folder, as far as a look at the heads of the files tells."""

    checkpoints: tuple[CheckpointFacts, ...]


class CheckpointWritten(msgspec.Struct, frozen=True, kw_only=True):
    """It is on disk, or (`reason` not empty) could not be written. `size_bytes`, `took_s`: of the file."""

    checkpoint: CheckpointFacts
    size_bytes: int
    took_s: float
    reason: str = ""


class LinkChangeRequested(msgspec.Struct, frozen=True, kw_only=True):
    """A user asks for connect-link or disconnect-link; answered by `AnswerRequest(request)`."""

    request: str
    other: SiteId
    add: bool


class RecoverRequested(msgspec.Struct, frozen=True, kw_only=True):
    """An operator decides from which state a run that stands goes on: that of `round` at `origin` (id, its beginning,
    or name; empty: it begins anew); answered by `AnswerRequest(request)`."""

    request: str
    origin: str
    round: int


class LeaveRequested(msgspec.Struct, frozen=True, kw_only=True):
    """A user wants this site to leave: Ctrl+C in the daemon or the script, `chaosd leave`. `contributes` false: its
    worker gives nothing more. `by_worker`: the script asks, which knows nothing of what its daemon shall do next."""

    request: str
    reason: str
    contributes: bool = True
    by_worker: bool = False


class ForcedStop(msgspec.Struct, frozen=True, kw_only=True):
    """A user insists (Ctrl+C again): this daemon ends now, whoever waits for it. To the run it is a failure."""

    reason: str


Event = (
    Started
    | TimerFired
    | LinkUp
    | LinkLost
    | PeersChanged
    | Wish
    | DialFailed
    | SiteRefused
    | LinkProgressed
    | RatesMeasured
    | LinkProbed
    | EnvelopeReceived
    | WorkerReady
    | WorkerLost
    | WorkerStopped
    | WorkerContinued
    | WorkerContributed
    | ScriptPaused
    | ScriptResumed
    | WorkerUpdating
    | WorkerApplied
    | WorkerSnapshotTaken
    | WorkerSnapshotMissed
    | WorkerLoaded
    | ReduceFinished
    | RoundCameUpEmpty
    | ResultFetched
    | ResultMissed
    | TransferProgressed
    | TransferFinished
    | TransferFailed
    | MemoryCheckpointSaved
    | StateRestored
    | RestoreFailed
    | CheckpointsFound
    | CheckpointWritten
    | LinkChangeRequested
    | RecoverRequested
    | LeaveRequested
    | ForcedStop
)
