"""Control messages between sites, and the envelope they travel in. They are declared here and beside it: on links that
are to come or go in `wire/link_words.py`, on standstills in `wire/recovery.py`.

Who says what to whom; which part of a site handles it stands in `inbound.py`:

    neighbour to neighbour   Heartbeat, Goodbye, OlderStartRefused, KeysTold
    flooded                  LinkStateAdvertisement
    site -> scheduler        JoinRequest, StateRequest, LeaveRequest, LinkRequest, LinkReady, SiteStatus,
                             RoundStatusReply, CaughtUp, RecoverRequest
    scheduler -> site        JoinAnswer, LeaveAnswer, LinkAnswer, ConnectOrder, RoundStatusQuery, RoundWaits,
                             RecoverAnswer, RunWaits
    agreement                RaftEnvelope

Every field is typed and bounded: what does not fit reaches no machine. How they may change (docs/decisions/0015): a
message or a struct in one may get a field with a default; whoever does not know it leaves it out of account. Bounds and
meaning of a field stay. A new message that a site may miss stands in OPTIONAL: its envelope says so, and who does not
know it skips it. Any other new message goes only to sites that speak its version. A site hands on for others what it
cannot read itself, byte for byte.
"""

from __future__ import annotations

from typing import Annotated, Final, get_args

import msgspec

from chaos_protocols.agreement.raft.messages import Head, RaftMessage
from chaos_protocols.agreement.roster import Address, Count, Label, ModelFacts, RunId
from chaos_protocols.names import CONTROL_FRAME_BYTES_MAX, SITES_MAX, SiteId
from chaos_protocols.wire.keys import KeysTold as KeysTold
from chaos_protocols.wire.link_words import ConnectOrder as ConnectOrder
from chaos_protocols.wire.link_words import LinkAnswer as LinkAnswer
from chaos_protocols.wire.link_words import LinkReady as LinkReady
from chaos_protocols.wire.link_words import LinkRequest as LinkRequest
from chaos_protocols.wire.link_words import Rate as Rate
from chaos_protocols.wire.plans import CheckpointFacts, Site
from chaos_protocols.wire.recovery import Identifier, Reason, RecoverAnswer, RecoverRequest, RunWaits
from chaos_protocols.wire.site_status import SiteStatus as SiteStatus
from chaos_protocols.wire.starts import OlderStartRefused as OlderStartRefused
from chaos_protocols.wire.steps import STEPS_TOLD_MAX, Lost, Phase, SiteStep
from chaos_protocols.wire.versions import BEFORE, Software, Version, Versions
from chaos_protocols.wire.waits import RoundWaits as RoundWaits
from chaos_protocols.wire.waits import Seconds

HOPS_MAX = 32
EVERYBODY = SiteId("*")


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Sent over every link. The `echo` fields let the receiver compute the round-trip time without comparing clocks;
    `round` and `phase` are the step tag (FlashRecovery III-D); the rest is how the sender sees the roster."""

    sequence: Count
    """Of the sender's beats over this link."""
    echo_sequence: Count
    """The last beat that the sender has heard over this link; 0: none."""
    echo_delay_s: Seconds
    """How long ago that was."""
    round: Count
    """The last round that is done at the sender."""
    phase: Phase
    """What its worker does."""
    epoch: Count
    """Of the roster as the sender has it."""
    scheduler: Site | None
    """Who schedules, as far as the sender knows."""
    knows_you: bool
    """Whether the receiver is in the sender's roster."""
    late_s: Seconds = 0.0
    """By how much the sender was late itself lately: its silence is judged with that much more patience."""
    others: Annotated[tuple[SiteStep, ...], msgspec.Meta(max_length=STEPS_TOLD_MAX)] = ()
    """Where other sites stand, for those that have no link to them."""
    run_id: RunId = ""
    """Which run the sender is or was in, as its roster says; empty: in none, or its release does not say."""
    rules: Version = 0
    """The version whose rules that run has agreed on, as far as the sender knows; 0: none, or not said."""
    log_index: Count = 0
    log_head: Head = b""
    """What stands for all that was agreed up to that entry, as the sender has it; empty: not said."""
    encoding_error: Lost | None = None
    """What the encoding lost at the sender in its last round that counts; None: it encodes nothing, or does not say."""


class Goodbye(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """This daemon ends on purpose, or closes this link on purpose: its end-of-file is no failure."""

    reason: Reason


class LinkStateAdvertisement(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One end of a link says that it came up or went down. Flooded, so that everybody routes around it and the
    scheduler knows."""

    neighbour: Site
    incarnation: Count
    """Of the neighbour's daemon, as its handshake said."""
    up: bool
    rtt_s: Seconds
    """0: unknown."""
    rate_bytes_per_s: Rate
    """0: unknown."""
    reason: Reason
    versions: Versions | None = None
    """What that daemon speaks, as its handshake said; None: the link is down."""
    software: Software = ""
    """Its release, for people (since version 3); empty: not told, or the link is down."""


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A joiner asks to be admitted with these neighbours. Its key must match its id. `versions`: its daemon's."""

    name: Label
    address: Address
    public_key: Annotated[bytes, msgspec.Meta(max_length=32)]
    incarnation: Count
    neighbours: Annotated[tuple[Site, ...], msgspec.Meta(max_length=SITES_MAX)]
    model: ModelFacts
    worker_round: Count
    checkpoint: CheckpointFacts | None = None
    versions: Versions = BEFORE
    lineage: Count = 0  # as in StateRequest
    answered_in: Count = 0
    """Term of the scheduler whose answer it had last; 0: it had none."""
    unsaved_in: Count = 0
    """The lineage in whose first rounds it was there, as its journal knows, and of which no checkpoint was whole on its
    disk yet; 0: there is none, or it does not say."""


class JoinAnswer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`accepted` only says that the negotiation runs. A refusal names the reason; `final`: asking again is useless."""

    incarnation: Count
    accepted: bool
    final: bool
    reason: Reason
    cause: Label = ""
    """Code of the `Cause`, for programs; empty: not told."""
    term: Count = 0
    """Of the scheduler that answers; 0: not told."""


class StateRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A site of the roster has a worker without the state (it was restarted, or its transfer failed): it asks for the
    state again. `checkpoint`: the newest that it could load from its disk, if nobody has the state. Since version 4:
    `lineage` of its worker's state, 0: not told; `trained`: its worker did until its daemon ended. `outrun`: the rounds
    were too fast for it, several times; a scheduler of a former release skips it."""

    incarnation: Count
    worker_round: Count
    model: ModelFacts
    reason: Reason
    checkpoint: CheckpointFacts | None = None
    lineage: Count = 0
    trained: bool = False
    outrun: bool = False


class CaughtUp(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The learner's worker has applied every result that the learner has: it can be promoted. `waits`: it has not, and
    cannot as things are: the round from which it is promoted is to wait for it (membership/catch_up.py)."""

    round: Count
    transfer: Identifier
    waits: bool = False


class LeaveRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    incarnation: Count
    reason: Reason
    keeps: CheckpointFacts | None = None
    """The newest state that will be on its disk when it goes; None: none. Not said by releases that wait for nobody who
    left."""


class LeaveAnswer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`last_round`: the last one in which the leaver takes part. `finished`: everybody has it, the leaver may go."""

    incarnation: Count
    last_round: Count
    finished: bool


class RoundStatusQuery(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How far are you? Asked in the resolving epoch `epoch`."""

    epoch: Count


class RoundStatusReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A promise: from now on this site takes nothing more of an epoch older than `epoch`. It counts from `done_round`.
    `digest`: of the result of that round, empty where this site does not hold it; `has_state`: this site is a member
    whose worker has the state of the end of that round; `known_round`: as in `SiteStatus`."""

    epoch: Count
    done_round: Count
    digest: Annotated[str, msgspec.Meta(max_length=64)]
    has_state: bool = False
    known_round: Count = 0


class RaftEnvelope(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    message: RaftMessage


Message = (
    Heartbeat
    | Goodbye
    | LinkStateAdvertisement
    | JoinRequest
    | JoinAnswer
    | StateRequest
    | CaughtUp
    | LeaveRequest
    | LeaveAnswer
    | LinkRequest
    | LinkAnswer
    | ConnectOrder
    | LinkReady
    | SiteStatus
    | RoundStatusQuery
    | RoundStatusReply
    | RoundWaits
    | RunWaits
    | RecoverRequest
    | RecoverAnswer
    | RaftEnvelope
    | OlderStartRefused
    | KeysTold
)


OPTIONAL: Final[frozenset[type[msgspec.Struct]]] = frozenset((RoundWaits, RunWaits, OlderStartRefused, KeysTold))
"""Messages that a site may miss: one of an older version, which does not know them, skips them."""

KINDS: Final = frozenset(one.__struct_config__.tag for one in get_args(Message))
UNREADABLE_BYTES_MAX = 64 << 10
"""A message that this site cannot read is handed on for others up to this size. Longer than any message but those of
the agreement, which go only to sites that speak their version."""


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """Stands in an envelope for a message that this site cannot read. Never sent as such."""

    kind: str
    """What it calls itself."""
    problem: str = ""
    """What is wrong with it; empty: its kind is not known here."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A message on its way, as the machines see it; `_Frame` is how it travels."""

    version: Version
    """The newest protocol version that the maker speaks."""
    source: Site
    """Made the message, and signed it unless it goes to a direct neighbour."""
    destination: Site
    """EVERYBODY: flooded."""
    incarnation: Count
    """Of the source's daemon. With `sequence` it makes the message unique, and a replay visible."""
    sequence: Count
    epoch: Count
    """Of the roster as the source had it."""
    event_id: Identifier
    """The event at the source that caused the message."""
    hops: Annotated[int, msgspec.Meta(ge=0, le=HOPS_MAX)]
    """How often it was handed on: the only field that a relay changes, and not signed."""
    public_key: Annotated[bytes, msgspec.Meta(max_length=32)]
    signature: Annotated[bytes, msgspec.Meta(max_length=64)]
    message: Message | Unreadable
    optional: bool = False
    """Whoever does not know the message may skip it: it stands in OPTIONAL at the maker's."""
    raw: bytes = b""
    """The message as it came, where that is not what this site would make of it: a field or a kind of a newer version
    is handed on as it was signed. Empty: `message` says it all."""
    run: RunId = ""
    """The run that this was said in, where others hand it on; empty: not named (spec 4.19)."""


class _Frame(msgspec.Struct, frozen=True, kw_only=True):
    """An envelope on the wire. Its fields are those of every version: a relay of an older one must read them all."""

    version: Version
    source: Site
    destination: Site
    incarnation: Count
    sequence: Count
    epoch: Count
    event_id: Identifier
    hops: Annotated[int, msgspec.Meta(ge=0, le=HOPS_MAX)]
    public_key: Annotated[bytes, msgspec.Meta(max_length=32)]
    signature: Annotated[bytes, msgspec.Meta(max_length=64)]
    optional: bool = False
    message: msgspec.Raw


class _NamingFrame(_Frame, frozen=True, kw_only=True):
    """One that names its run. It goes to nobody who would leave that out: its signature covers it."""

    run: RunId = ""


class _Kind(msgspec.Struct, frozen=True):
    """What a message of any version has."""

    type: Annotated[str, msgspec.Meta(max_length=64)]


_encoder = msgspec.msgpack.Encoder()
_frames = msgspec.msgpack.Decoder(_NamingFrame)
_messages: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_kinds = msgspec.msgpack.Decoder(_Kind)


class CodecError(ValueError):
    """Bytes from a peer that are no envelope of ours."""


def encode_envelope(envelope: Envelope) -> bytes:
    """Raises CodecError above CONTROL_FRAME_BYTES_MAX."""
    data = _encoder.encode(_frame(envelope, hops=envelope.hops, signature=envelope.signature))
    if len(data) > CONTROL_FRAME_BYTES_MAX:
        raise CodecError(f"envelope of {len(data)} bytes exceeds the limit of {CONTROL_FRAME_BYTES_MAX}")
    return data


def decode_envelope(data: bytes) -> Envelope:
    """Raises CodecError for what is no envelope; never anything else. A message that is of an unknown kind, or does not
    fit its type, comes as `Unreadable`: it may be for somebody else."""
    if len(data) > CONTROL_FRAME_BYTES_MAX:
        raise CodecError(f"envelope of {len(data)} bytes exceeds the limit of {CONTROL_FRAME_BYTES_MAX}")
    try:
        frame = _frames.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"not an envelope: {error}") from None
    message, raw = _read(bytes(frame.message))
    return Envelope(
        version=frame.version,
        source=frame.source,
        destination=frame.destination,
        incarnation=frame.incarnation,
        sequence=frame.sequence,
        epoch=frame.epoch,
        event_id=frame.event_id,
        hops=frame.hops,
        public_key=frame.public_key,
        signature=frame.signature,
        message=message,
        optional=frame.optional,
        raw=raw,
        run=frame.run,
    )


def signed_bytes(envelope: Envelope) -> bytes:
    """What the signature covers: everything but the hop count and the signature itself. The message counts as it came,
    so that a field which this site does not know is covered too."""
    return b"chaos envelope" + _encoder.encode(_frame(envelope, hops=0, signature=b""))


def _read(body: bytes) -> tuple[Message | Unreadable, bytes]:
    """The message, and its bytes where they say more than it does. Raises CodecError for what is no message of any
    version."""
    try:
        message = _messages.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = str(error)
    else:
        return message, b"" if _encoder.encode(message) == body else body
    try:
        kind = _kinds.decode(body).type
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CodecError(f"not a message: {problem}") from None
    return Unreadable(kind=kind, problem=problem if kind in KINDS else ""), body


def _frame(envelope: Envelope, *, hops: int, signature: bytes) -> _Frame:
    plain = _Frame(
        version=envelope.version,
        source=envelope.source,
        destination=envelope.destination,
        incarnation=envelope.incarnation,
        sequence=envelope.sequence,
        epoch=envelope.epoch,
        event_id=envelope.event_id,
        hops=hops,
        public_key=envelope.public_key,
        signature=signature,
        optional=envelope.optional,
        message=msgspec.Raw(envelope.raw or _encoder.encode(envelope.message)),
    )
    return _NamingFrame(**msgspec.structs.asdict(plain), run=envelope.run) if envelope.run else plain
