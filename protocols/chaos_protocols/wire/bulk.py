"""Headers of bulk frames: what two daemons say on the bulk streams of a link (stream 0 averages, stream 1 replicates).

A frame is a header and a payload of raw bytes; the transport frames both. A header is a msgpack map whose `kind` tells
what it is, so that a driver can tell it from a link probe without knowing more. Everything is typed and bounded here;
whether a header fits the plan in force is decided by the machines of `reduce` and `transfer`.

    averaging     chunk.grant, chunk.want, chunk.up, chunk.down, chunk.gone             carry the tag of the round
    results       result.want, result.held, result.pull, result.data, result.gone      named by round and digest
    replication   block.want, block.data, block.same, block.wait, block.ready, block.drop, block.gone,
                  witness.want, witness.hash                                           named by the transfer

How they may change (docs/decisions/0015): a field may be added with a default; a site that does not know it leaves it
out of account. A new kind goes only to sites that speak its version, or has `optional: true` in its header: then
whoever does not know it reads it and forgets it. Anything else that is unknown closes the link.
"""

from __future__ import annotations

from typing import Annotated, get_args

import msgspec

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import BULK_HEADER_BYTES_MAX, SITES_MAX, STATE_BYTES_MAX, WEIGHT_MAX
from chaos_protocols.wire.plans import TREES_MAX, Tag
from chaos_protocols.wire.probe import IPERF_KINDS, MODEL_KINDS, PROBE_KINDS, SEEN_KINDS

CHUNKS_MAX = 1 << 24
"""Chunks of one tree: a vector of 8 TiB in chunks of 512 KiB."""

BLOCK_BYTES_MAX = 1 << 20
"""Hashing and framing cost nothing much at this size, and a wrong or lost block is soon fetched again."""

BLOCK_BYTES_MIN = 64 << 10
"""A slow source's. Of smaller ones a joiner could have a source cut its state into millions, at once."""

CELL_BYTES = BLOCK_BYTES_MAX
"""States are compared cell by cell: multiples of this size, the last one shorter."""

HASH_BYTES = 32

CELLS_COMPARED_MAX = 1024
"""In one BlockWant: 32 KiB of hashes."""

STREAM_AVERAGING = 0
STREAM_REPLICATION = 1

TreeIndex = Annotated[int, msgspec.Meta(ge=0, lt=TREES_MAX)]
Chunk = Annotated[int, msgspec.Meta(ge=0, le=CHUNKS_MAX)]
Weights = Annotated[
    tuple[Annotated[float, msgspec.Meta(ge=0, le=WEIGHT_MAX)], ...],
    msgspec.Meta(max_length=SITES_MAX),
]
"""4,096 numbers of 9 bytes: fits into a header with room to spare. Whose they are follows from the plan."""
CHECK_BYTES = 28
"""Offsets of a piece of the state (6 bytes each) and the digests of its halves (8 bytes each)."""
CHECK_SIGNATURE_BYTES = 64
"""Behind it, of the site that says it (since version 11)."""
CHECK_SIZES = (0, CHECK_BYTES, CHECK_SIGNATURE_BYTES, CHECK_BYTES + CHECK_SIGNATURE_BYTES)
"""Of a word: nothing is said; not signed; signed, that there is no state to speak of; signed."""
Check = Annotated[bytes, msgspec.Meta(max_length=CHECK_BYTES + CHECK_SIGNATURE_BYTES)]
Checks = Annotated[tuple[Check, ...], msgspec.Meta(max_length=1024)]
"""Of the state of the end of the round before; empty for a site that says nothing. Former releases had them without
signatures, of twice as many sites as CHECKED_SITES_MAX."""
CHECKED_SITES_MAX = 512
"""With more sites the digests of all, signed, do not fit into the header of a chunk beside the weights (53 kB)."""
Round = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
Digest = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[0-9a-f]*\Z")]
Transfer = Annotated[str, msgspec.Meta(max_length=64)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=STATE_BYTES_MAX)]
BlockHash = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class ChunkGrant(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="chunk.grant"):
    """Parent to child: chunks below `next` are here (forget them), those below `limit` may be sent."""

    tag: Tag
    tree: TreeIndex
    next: Chunk
    limit: Chunk


class ChunkWant(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="chunk.want"):
    """Child to parent: it has opened the round; send the chunks of the result from `next` on, as they come."""

    tag: Tag
    tree: TreeIndex
    next: Chunk


class ChunkUp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="chunk.up"):
    """Child to parent: the weighted sum over its subtree. Chunk 0 has the weights, by ascending site of the subtree,
    and, if there are any, the checks of their states (on the first tree only). `empty`: nobody in the subtree has any
    weight; stands for all its chunks."""

    tag: Tag
    tree: TreeIndex
    chunk: Chunk
    empty: bool = False
    weights: Weights = ()
    checks: Checks = ()


class ChunkDown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="chunk.down"):
    """Parent to child: a chunk of the result. Chunk 0 has weights and checks, by ascending site of all members. `hash`:
    of the chunk's bytes (BLAKE3, 32 bytes), added where they are: a replica that takes a wrong byte would differ for
    ever."""

    tag: Tag
    tree: TreeIndex
    chunk: Chunk
    weights: Weights = ()
    checks: Checks = ()
    hash: Annotated[bytes, msgspec.Meta(max_length=HASH_BYTES)] = b""


class ChunkGone(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="chunk.gone"):
    """Parent to child: the round was finished so long ago that its result is no longer held."""

    tag: Tag


class ResultWant(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="result.want"):
    """Tell me when you hold the result of `round` with this digest."""

    round: Round
    digest: Digest


class ResultHeld(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="result.held"):
    """It lies here. `fine`: it is cut into more chunks, as the plan of its round said (since version 9)."""

    round: Round
    digest: Digest
    fine: bool = False


class ResultPull(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="result.pull"):
    """Send its chunks from `next` on (chunks of the whole vector, trees do not matter)."""

    round: Round
    digest: Digest
    next: Chunk


class ResultData(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="result.data"):
    """One chunk."""

    round: Round
    digest: Digest
    chunk: Chunk


class ResultGone(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="result.gone"):
    """This site does not hold that result (any more), or holds another one."""

    round: Round
    digest: Digest


class BlockWant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="block.want"):
    """Joiner to source: send bytes [start, stop) of the state, cut at the multiples of `block_bytes` (a power of two).

    `have`: hashes of what the joiner holds in the cells from `start` on (a multiple of CELL_BYTES then), one after the
    other; a cell that has this hash here is answered by BlockSame instead of blocks."""

    transfer: Transfer
    start: Offset
    stop: Offset
    block_bytes: Annotated[int, msgspec.Meta(ge=BLOCK_BYTES_MIN, le=BLOCK_BYTES_MAX)]
    have: Annotated[bytes, msgspec.Meta(max_length=CELLS_COMPARED_MAX * HASH_BYTES)] = b""


class BlockData(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="block.data"):
    """Source to joiner: the payload lies at `start`; `hash` is its BLAKE3 (32 bytes)."""

    transfer: Transfer
    start: Offset
    hash: BlockHash


class BlockSame(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="block.same"):
    """Source to joiner: the cell at `start` has the hash that the joiner told; its bytes are not sent."""

    transfer: Transfer
    start: Offset


class BlockWait(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="block.wait"):
    """Source to joiner: the snapshot is not taken yet; what was asked for is remembered."""

    transfer: Transfer


class BlockReady(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="block.ready"):
    """Source to joiner, after BlockWait: the snapshot is there now; what was dropped meanwhile may be asked again."""

    transfer: Transfer


class BlockDrop(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="block.drop"):
    """Joiner to source: forget what was asked for and is not sent yet."""

    transfer: Transfer


class BlockGone(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="block.gone"):
    """Source to joiner: the snapshot is not here (any more)."""

    transfer: Transfer


class WitnessWant(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="witness.want"):
    """Joiner to another source: what is the hash of bytes [start, stop) in your own snapshot? (at most a block)"""

    transfer: Transfer
    start: Offset
    stop: Offset


class WitnessHash(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="witness.hash"):
    """Source to joiner: this (BLAKE3, 32 bytes)."""

    transfer: Transfer
    start: Offset
    stop: Offset
    hash: BlockHash


ChunkHeader = ChunkGrant | ChunkWant | ChunkUp | ChunkDown | ChunkGone
ResultHeader = ResultWant | ResultHeld | ResultPull | ResultData | ResultGone
ReduceHeader = ChunkHeader | ResultHeader
WantHeader = BlockWant | BlockDrop | WitnessWant
"""What a joiner says to a source."""
StandHeader = BlockSame | BlockWait | BlockReady | BlockGone | WitnessHash
"""What a source says to a joiner, without bytes."""
TransferHeader = WantHeader | StandHeader | BlockData
BulkHeader = ReduceHeader | TransferHeader


class _Kind(msgspec.Struct, frozen=True):
    """What any header of any version has."""

    kind: Annotated[str, msgspec.Meta(max_length=32)]
    optional: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[BulkHeader] = msgspec.msgpack.Decoder(BulkHeader)
_kind_decoder = msgspec.msgpack.Decoder(_Kind)
KINDS = frozenset(one.__struct_config__.tag for one in get_args(BulkHeader)).union(
    PROBE_KINDS, IPERF_KINDS, MODEL_KINDS, SEEN_KINDS
)
"""All that this site knows, those of `wire/probe.py` among them."""


def encode_bulk_header(header: BulkHeader) -> bytes:
    """At most BULK_HEADER_BYTES_MAX bytes: the longest has 4,096 weights, which take 37 kB."""
    return _encoder.encode(header)


def decode_bulk_header(data: bytes) -> BulkHeader:
    """Raises RemoteProtocolError on anything that is not a header of ours."""
    if len(data) > BULK_HEADER_BYTES_MAX:
        raise RemoteProtocolError(f"bulk header of {len(data)} bytes; at most {BULK_HEADER_BYTES_MAX} are allowed")
    try:  # ValueError: msgspec's own errors, and the UnicodeDecodeError that it lets through
        return _decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"not a bulk header: {error}") from None


def may_be_skipped(data: bytes) -> bool:
    """Whether this is a header of a newer version that its sender does not mind unread: then frame and payload are
    forgotten. Asked of every frame, so it looks for the mark first."""
    if b"optional" not in data:
        return False
    try:
        header = _kind_decoder.decode(data)
    except (ValueError, RecursionError):
        return False
    return header.optional and header.kind not in KINDS


def bulk_kind(data: bytes) -> str:
    """The `kind` of any header on a bulk stream, probes included. Raises RemoteProtocolError if it has none."""
    try:
        return _kind_decoder.decode(data).kind
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a bulk header without a kind: {error}") from None
