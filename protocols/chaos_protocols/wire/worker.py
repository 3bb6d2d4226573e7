"""What a worker and the daemon beside it say to each other over the unix socket (docs/architecture.md).

Bulk data never crosses the socket: it lies in the arena, a shared memory file that the worker makes and hands over
with its first message; which regions it has is said in `wire.arena`.

A frame is a 4-byte big-endian length and a msgpack map tagged with the message's name.

How this may change (docs/decisions/0015): the script's package and the daemon may be of different releases. The
hello says which versions the worker speaks, the welcome which one both use. Fields may be added with defaults; a
message that has `optional: true` is skipped by whoever does not know it; any other new one is sent only in its version.
"""

from __future__ import annotations

from typing import Annotated, Final, get_args

import msgspec

from chaos_protocols.names import PARTS_MAX, STATE_BYTES_MAX, TENSORS_MAX, WEIGHT_MAX, WORKER_FRAME_BYTES_MAX
from chaos_protocols.wire.encodings import FP32
from chaos_protocols.wire.user_words import Name, Round, RunPaused, RunResumed, RunWarned, StateDiffered, Text
from chaos_protocols.wire.versions import Software, Version, Versions

Digest = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[0-9a-f]*\Z")]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=STATE_BYTES_MAX)]
Encoding = Annotated[str, msgspec.Meta(max_length=16)]
HalfDigest = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One named array: `name`, `dtype` (numpy name, or `bfloat16`), `shape`, byte `offset` in its region. Not followed
    by the collector of cycles, which would look through a million of them while they are decoded."""

    name: Name
    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Annotated[tuple[int, ...], msgspec.Meta(max_length=16)]
    offset: Bytes
    size_bytes: Bytes


class StateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The state, canonically: every array a joiner needs, in one fixed order. `digest` is BLAKE3 over names, dtypes,
    shapes."""

    tensors: Annotated[tuple[TensorSpec, ...], msgspec.Meta(max_length=TENSORS_MAX)]
    size_bytes: Bytes
    shard_bytes: Annotated[int, msgspec.Meta(ge=1, le=STATE_BYTES_MAX)]
    digest: Digest


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A run of equal numbers inside a contribution. `dtype` is `float32` or `float64`: the type in which it is
    summed."""

    dtype: Annotated[str, msgspec.Meta(pattern=r"^float(32|64)\Z")]
    count: Annotated[int, msgspec.Meta(ge=0, le=STATE_BYTES_MAX)]


class ContributionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The vector averaged in a round: segments one behind the other without padding; float64 segments come first.
    `bounded` (since version 6): bytes [start, stop), ascending, whose numbers a bound of their norm concerns (gradients
    and differences, not buffers nor notes); none: all do. `encoding`: in which its float32 numbers travel
    between sites (since version 6). `parts` (since version 6): so many vectors of this form make up what is averaged,
    in turn: round r carries the one of number (r - 1) mod `parts` (spec 9.36)."""

    segments: Annotated[tuple[Segment, ...], msgspec.Meta(max_length=16)]
    size_bytes: Bytes
    bounded: Annotated[tuple[tuple[Bytes, Bytes], ...], msgspec.Meta(max_length=16)] = ()
    encoding: Encoding = FP32
    parts: Annotated[int, msgspec.Meta(ge=1, le=PARTS_MAX)] = 1


# ---- worker -> daemon


class WorkerHello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First frame; carries the arena's file descriptor as ancillary data (SCM_RIGHTS).

    `round` is the round whose end the worker's state belongs to: 0 for a fresh model, more when it reconnects after a
    restart of its daemon (its state is then only a hint: the daemon decides whether it must be replaced).
    """

    version: Version
    """The newest version that the worker speaks."""
    pid: int
    round: Round
    state: StateSpec
    contribution: ContributionSpec
    arena_bytes: Bytes
    oldest: Version = 0
    """The oldest one; 0: from before versions were negotiated, it speaks `version` alone."""
    software: Software = ""
    """Its release, for people."""
    held: bool = False
    """The state region was handed to a daemon before: what a transfer had brought when that was restarted may lie
    there. It is compared by hashes, and believed in nothing."""
    damaged_round: Round = 0
    """Beside `round` 0: it has a part of the state of the end of this round, brings that forward by results, and writes
    what it has when it is asked for a snapshot. 0: it has nothing of the kind (spec 11.18)."""

    @property
    def versions(self) -> Versions:
        """The range that the worker speaks."""
        return Versions(oldest=self.oldest or self.version, newest=self.version)


class RoundContributed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The contribution to `round` lies in the arena, finite, with `weight` samples behind it, and stays there until the
    result was applied. The worker's state is still that of the end of `round - 1`; it waits for the result now, or goes
    on with what is its own and applies the result when it next looks (spec 9.37)."""

    round: Round
    weight: Annotated[float, msgspec.Meta(gt=0, le=WEIGHT_MAX)]


class PartReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first `ready_bytes` of the contribution to `round` lie in the arena, finite, for good; the rest is being
    computed. `RoundContributed` with the same weight, or `RoundSkipped`, says how it ends (spec 9.38)."""

    round: Round
    weight: Annotated[float, msgspec.Meta(gt=0, le=WEIGHT_MAX)]
    ready_bytes: Bytes
    optional: bool = True


class RoundSkipped(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """This site gives nothing to `round` (weight 0), and why: what it has computed is not finite, or its user skips a
    step. The worker waits for the result all the same, or for `TrainFrom` of the same round, which asks it to compute
    another contribution. Since version 4."""

    round: Round
    reason: Text


class WorkerPaused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The script does something else for a while (it evaluates, a person looks at something): this site counts with
    weight 0, nobody waits for it, and its daemon keeps the results. An older daemon may skip this: it waits."""

    reason: Text
    optional: bool = True


class WorkerResumed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The script goes on: it waits for results, then for `TrainFrom`. Sent to a daemon that knows `WorkerPaused`."""

    optional: bool = True


FIGURES_MAX = 32
"""Names of figures that a daemon keeps of its script."""
Figure = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.]{0,31}\Z")]


class FiguresLogged(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the script tells its operator (`Coordinator.log`), such as its loss: shown by status, page and metrics of
    this site, and nothing follows from it (spec 16.3). None: not finite. An older daemon may skip this."""

    round: Round
    figures: Annotated[dict[Figure, float | None], msgspec.Meta(max_length=FIGURES_MAX)]
    optional: bool = True


class UpdateStarted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The optimizer step of `round` begins: the state is of no round until `ResultApplied` (spec 9.18)."""

    round: Round


class StateDigests(msgspec.Struct, frozen=True, kw_only=True):
    """Of bytes [start, stop) of the state: the first 8 bytes of the BLAKE3 of each half (`state_check.middle`), and in
    which array they lie, if in one alone."""

    start: Bytes
    stop: Bytes
    first: HalfDigest
    second: HalfDigest
    array: Name = ""


class ResultApplied(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The state is now that of the end of `round`. `digests`: of what `ApplyResult` asked for."""

    round: Round
    digests: StateDigests | None = None


class SnapshotTaken(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The state region holds the state of the end of `round`."""

    round: Round


class SnapshotMissed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A snapshot of `round` was asked for, but the state is already that of `now`."""

    round: Round
    now: Round


class StateLoaded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The worker took over the state of the end of `round` from the state region. Its blocks were hashed there, one by
    one, before `LoadState`: the copy is not hashed again."""

    round: Round


class WorkerLeaveRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The user wants to leave (Ctrl+C in the script, `request_node_exit`). The worker goes on until `Dismissed`: it
    applies results, and if `contributes`, it gives contributions too; if not, its site takes part with weight 0 from
    now on."""

    reason: Text
    contributes: bool = True


WorkerMessage = (
    WorkerHello
    | RoundContributed
    | PartReady
    | RoundSkipped
    | WorkerPaused
    | WorkerResumed
    | FiguresLogged
    | UpdateStarted
    | ResultApplied
    | SnapshotTaken
    | SnapshotMissed
    | StateLoaded
    | WorkerLeaveRequest
)

# ---- daemon -> worker


class WorkerWelcome(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The daemon accepts the worker. It must not contribute before `TrainFrom`."""

    site: Name
    run: Name
    version: Version = 0
    """The version that both use from now on; 0: from before versions were negotiated."""


class WorkerRefused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Why not, and what to do now. The daemon closes the socket after this."""

    reason: Text


class TrainFrom(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Begin (or go on) training: the state is right; the next contribution is to `round`. Sent to a founder at once,
    to a joiner when it was promoted."""

    round: Round


class LoadState(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The state region holds the verified state of the end of `round`: load it, answer `StateLoaded`."""

    round: Round


class ApplyResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The result of `round` lies in the result region: apply it, answer `ResultApplied`. Also sent to a joiner that
    catches up, which contributed nothing to that round. `void`: that result is not finite, so nobody applies it: the
    state becomes that of the end of `round` as it is. (A worker of a version before 4 is not told that: it is sent
    away.)"""

    round: Round
    sites: int
    weight: float
    void: bool = False
    digest: tuple[Bytes, Bytes] | None = None
    """Afterwards say the digests of these bytes of the state; None: of none."""


class TakeSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Copy the state into the state region as soon as it is that of the end of `round`; answer `SnapshotTaken` or
    `SnapshotMissed`. May arrive while the worker waits for a result: its state is untouched then. `alone`: forget
    other snapshots that were asked for, so that none overwrites this one."""

    round: Round
    alone: bool = False


class LeaveOrdered(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`chaosd leave`, or Ctrl+C in the daemon: `capture_exit_event()` becomes true."""

    reason: Text


class FallenBehind(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The others went on without this worker, from `round` on: it is to say that it is here (`WorkerResumed`), and to
    serve what has come since, until `TrainFrom`, before it contributes again. An older worker may skip this: it then
    applies one result at each step."""

    round: Round
    optional: bool = True


class Dismissed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The site is out of the roster (or the daemon stops): stop training. `last_round` is the last one applied by the
    run with this site in it; `graceful` is false when the site was removed or the daemon had to give up."""

    last_round: Round
    graceful: bool
    reason: Text


DaemonMessage = (
    WorkerWelcome
    | WorkerRefused
    | TrainFrom
    | LoadState
    | ApplyResult
    | TakeSnapshot
    | LeaveOrdered
    | RunPaused
    | RunResumed
    | FallenBehind
    | StateDiffered
    | RunWarned
    | Dismissed
)

WORKER_KINDS: Final = frozenset(one.__struct_config__.tag for one in get_args(WorkerMessage))
DAEMON_KINDS: Final = frozenset(one.__struct_config__.tag for one in get_args(DaemonMessage))


class _Kind(msgspec.Struct, frozen=True):
    """What a message of any version has."""

    type: Annotated[str, msgspec.Meta(max_length=64)]
    optional: bool = False


_kind_decoder = msgspec.msgpack.Decoder(_Kind)
_worker_decoder: msgspec.msgpack.Decoder[WorkerMessage] = msgspec.msgpack.Decoder(WorkerMessage)
_daemon_decoder: msgspec.msgpack.Decoder[DaemonMessage] = msgspec.msgpack.Decoder(DaemonMessage)
_encoder = msgspec.msgpack.Encoder()


def encode(message: WorkerMessage | DaemonMessage) -> bytes:
    """One frame: length and body. Raises ValueError above WORKER_FRAME_BYTES_MAX."""
    body = _encoder.encode(message)
    if len(body) > WORKER_FRAME_BYTES_MAX:
        raise ValueError(f"worker frame of {len(body)} bytes exceeds the limit of {WORKER_FRAME_BYTES_MAX}")
    return len(body).to_bytes(4, "big") + body


def decode_from_worker(body: bytes) -> WorkerMessage | None:
    """None: of a newer version, and may be skipped. Raises msgspec.ValidationError or msgspec.DecodeError on anything
    that is not a worker's message."""
    try:
        return _worker_decoder.decode(body)
    except msgspec.ValidationError:
        if _may_be_skipped(body, WORKER_KINDS):
            return None
        raise


def decode_from_daemon(body: bytes) -> DaemonMessage | None:
    """None: of a newer version, and may be skipped. Raises msgspec.ValidationError or msgspec.DecodeError on anything
    that is not a daemon's message."""
    try:
        return _daemon_decoder.decode(body)
    except msgspec.ValidationError:
        if _may_be_skipped(body, DAEMON_KINDS):
            return None
        raise


def _may_be_skipped(body: bytes, known: frozenset[str | int | None]) -> bool:
    try:
        message = _kind_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return message.optional and message.type not in known
