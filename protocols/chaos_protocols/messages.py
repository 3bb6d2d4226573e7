"""Control messages between sites, and the envelope they travel in. The only place where they are declared.

Who handles what:

    neighbour to neighbour   Heartbeat, Farewell                                             liveness.py
    flooded                  LinkReport                                                      routing.py
    site -> scheduler        JoinRequest, StateRequest, LeaveRequest, LinkRequest, LinkReady,
                             Report, SettleAnswer, LevelReport                                scheduler/
    scheduler -> site        JoinAnswer, LeaveAnswer, LinkAnswer, ConnectOrder, SettleQuestion site.py, joining.py
    agreement                RaftEnvelope                                                     raft/

Every field is typed and bounded: the decoder refuses what does not fit, before a machine sees it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from chaos_protocols.names import CONTROL_FRAME_BYTES_MAX, PROTOCOL_VERSION, SITES_MAX, SiteId
from chaos_protocols.plans import CheckpointFacts, Site, Tag
from chaos_protocols.raft.messages import RaftMessage
from chaos_protocols.roster import Address, Count, Label, ModelFacts

Reason = Annotated[str, msgspec.Meta(max_length=4096)]
Identifier = Annotated[str, msgspec.Meta(max_length=96)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
HOPS_MAX = 32
EVERYBODY = SiteId("*")


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Sent over every link; `echo_*` let the receiver compute the round-trip time without comparing clocks:
    `echo_sequence` is the last one heard, `echo_delay_s` how long ago. `round`, `phase`: the step tag (FlashRecovery
    III-D). `member`, `epoch`, `scheduler`: how the sender sees the roster, and whether the receiver is in it."""

    sequence: Count
    echo_sequence: Count
    echo_delay_s: Seconds
    round: Count
    phase: Annotated[str, msgspec.Meta(pattern="^(compute|reduce|update|standby)$")]
    epoch: Count
    scheduler: Site | None
    knows_you: bool


class Farewell(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """This daemon ends on purpose, or closes this link on purpose: its end-of-file is no failure."""

    reason: Reason


class LinkReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One end of a link says that it came up or went down. Flooded, so that everybody routes around it and the
    scheduler knows. `incarnation` is that of `neighbour`'s daemon as seen by the reporter. `rtt_s`,
    `rate_bytes_per_s`: 0 where unknown."""

    neighbour: Site
    incarnation: Count
    up: bool
    rtt_s: Seconds
    rate_bytes_per_s: Rate
    reason: Reason


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A newcomer asks to be admitted with these neighbours. Its key must match its id."""

    name: Label
    address: Address
    public_key: Annotated[bytes, msgspec.Meta(max_length=32)]
    incarnation: Count
    neighbours: Annotated[tuple[Site, ...], msgspec.Meta(max_length=SITES_MAX)]
    model: ModelFacts
    worker_round: Count
    checkpoint: CheckpointFacts | None = None


class JoinAnswer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`accepted` only says that the negotiation runs. A refusal names the reason; `final`: asking again is useless."""

    incarnation: Count
    accepted: bool
    final: bool
    reason: Reason


class StateRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A site of the roster has a worker without the state (it was restarted, or its transfer failed): it asks for the
    state again. `checkpoint`: the newest that it could load from its disk, if nobody has the state."""

    incarnation: Count
    worker_round: Count
    model: ModelFacts
    reason: Reason
    checkpoint: CheckpointFacts | None = None


class LevelReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The learner's worker has applied every result that the learner has: it can be promoted. `waits`: it has not, and
    cannot as things are: the round from which it is promoted is to wait for it (leveling.py)."""

    round: Count
    transfer: Identifier
    waits: bool = False


class LeaveRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    incarnation: Count
    reason: Reason


class LeaveAnswer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`last_round`: the last one in which the leaver takes part. `finished`: everybody has it, the leaver may go."""

    incarnation: Count
    last_round: Count
    finished: bool


class LinkRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Connect-link or disconnect-link between the sender and `other`."""

    request: Identifier
    other: Site
    add: bool
    reason: Reason


class LinkAnswer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    request: Identifier
    done: bool
    reason: Reason


class ConnectOrder(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Scheduler to one end of a link: have a live link to `other`, measure it if asked, answer `LinkReady`."""

    negotiation: Identifier
    other: Site
    address: Address
    probe: bool


class LinkReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer to ConnectOrder. `ready` false: refused or failed, and why. `rate_bytes_per_s` 0: not measured."""

    negotiation: Identifier
    other: Site
    ready: bool
    rtt_s: Seconds
    rate_bytes_per_s: Rate
    reason: Reason


class Report(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How far a site is: for the scheduler's choice of rounds and sources. `active`: its worker has the state and
    trains. `stalled`: a round that it is the root of and to which everybody has given weight 0. `worker_round`: the
    last one that its worker has applied, 0 if it lacks the state. `known_round`: the newest that it knows to have been
    done; it may count from a later one that is still to come. `mirror`: its daemon has the state for a new worker."""

    incarnation: Count
    epoch: Count
    done_round: Count
    active: bool
    transfer_bytes: Count
    stalled: Tag | None = None
    worker_round: Count = 0
    known_round: Count = 0
    mirror: bool = False


class SettleQuestion(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How far are you? Asked in the settling epoch `epoch`."""

    epoch: Count


class SettleAnswer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A promise: from now on this site takes nothing more of an epoch older than `epoch`. It counts from `done_round`.
    `digest`: of the result of that round, empty where this site does not hold it; `has_state`: this site is a member
    whose worker has the state of the end of that round; `known_round`: as in `Report`."""

    epoch: Count
    done_round: Count
    digest: Annotated[str, msgspec.Meta(max_length=64)]
    has_state: bool = False
    known_round: Count = 0


class RaftEnvelope(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    message: RaftMessage


Message = (
    Heartbeat
    | Farewell
    | LinkReport
    | JoinRequest
    | JoinAnswer
    | StateRequest
    | LevelReport
    | LeaveRequest
    | LeaveAnswer
    | LinkRequest
    | LinkAnswer
    | ConnectOrder
    | LinkReady
    | Report
    | SettleQuestion
    | SettleAnswer
    | RaftEnvelope
)


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A message on its way. `source` made and (unless it goes to a direct neighbour) signed it; `incarnation` and
    `sequence` make it unique, and a replay visible. `hops` is the only field that a relay changes, and not signed."""

    version: int
    source: Site
    destination: Site
    incarnation: Count
    sequence: Count
    epoch: Count
    event_id: Identifier
    hops: Annotated[int, msgspec.Meta(ge=0, le=HOPS_MAX)]
    public_key: Annotated[bytes, msgspec.Meta(max_length=32)]
    signature: Annotated[bytes, msgspec.Meta(max_length=64)]
    message: Message


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Envelope] = msgspec.msgpack.Decoder(Envelope)


class CodecError(ValueError):
    """Bytes from a peer that are no envelope of ours."""


def encode_envelope(envelope: Envelope) -> bytes:
    data = _encoder.encode(envelope)
    if len(data) > CONTROL_FRAME_BYTES_MAX:
        raise CodecError(f"envelope of {len(data)} bytes exceeds the limit of {CONTROL_FRAME_BYTES_MAX}")
    return data


def decode_envelope(frame: bytes) -> Envelope:
    """Raises CodecError, whatever the bytes are; never anything else."""
    if len(frame) > CONTROL_FRAME_BYTES_MAX:
        raise CodecError(f"envelope of {len(frame)} bytes exceeds the limit of {CONTROL_FRAME_BYTES_MAX}")
    try:
        envelope = _decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"not an envelope: {error}") from None
    if envelope.version != PROTOCOL_VERSION:
        raise CodecError(f"protocol version {envelope.version}, this site speaks {PROTOCOL_VERSION}")
    return envelope


def signed_bytes(envelope: Envelope) -> bytes:
    """What the signature covers: everything but the hop count and the signature itself."""
    return b"chaos envelope" + _encoder.encode(msgspec.structs.replace(envelope, hops=0, signature=b""))
