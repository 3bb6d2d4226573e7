"""One checkpoint as a file: safetensors, so that anyone can read it (`safetensors.torch.load_file`), with what a run
needs to trust it in its metadata.

Layout: 8 bytes length of the header (little endian), the header (JSON, padded with spaces to 8 bytes), the arrays
without gaps, those with the widest numbers first so that each lies aligned in its type. `chaos.hash` is BLAKE3 over
length, header (with zeros in place of the hash) and arrays: a wrong byte anywhere shows. `complex128` has no name in
the format: it is written as pairs of F64, and named in `chaos.complex128`. Entries of the state spec without bytes
("facts") are not arrays and left out; `chaos.spec` is the digest of the whole spec.

Called on a thread by `storage/checkpoints.py`. Reads nothing into memory but the header, which is bounded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader
from typing import BinaryIO

import msgspec
from blake3 import blake3

from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.state_spec import DTYPE_BYTES, FACT_DTYPE, FACT_SHAPE
from chaos_protocols.wire.worker import StateSpec, TensorSpec
from chaosd.storage.journal.files import sync_data

HEADER_BYTES_MAX = 100_000_000
"""The limit of the safetensors library."""

PIECE_BYTES = 4 << 20
"""Between two looks at whether the daemon ends."""

SYNC_EVERY_BYTES = 64 << 20
"""So that the last sync is short, and a slow disk does not collect gigabytes in the page cache."""

FORMAT = "1"
NO_HASH = "0" * 64
HASH_MARK = b'"chaos.hash":"'
LENGTH_BYTES = 8

NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "complex128": "F64",
}
"""What safetensors calls the types of `state_spec.DTYPE_BYTES`."""


class CheckpointError(Exception):
    """This file cannot be used; the text says why, and is meant for people."""


class Interrupted(Exception):
    """The daemon ends: what was begun is given up."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One array in the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What the header says; nothing of it is verified yet but its form."""

    facts: CheckpointFacts
    run: str
    run_id: str
    """Empty: an older release, or an import, wrote it."""
    site: str
    epoch: int
    hash: str
    size_bytes: int
    entries: dict[str, Entry]
    pairs: str
    """Names of the arrays of complex128, as JSON."""
    raw: bytes


def write_file(
    file: BinaryIO,
    state: memoryview,
    spec: StateSpec,
    *,
    facts: CheckpointFacts,
    run: str,
    run_id: str,
    site: str,
    epoch: int,
    stopped: Callable[[], bool],
) -> int:
    """Write `state`, laid out by `spec`, and sync it; the bytes written. Raises OSError, Interrupted."""
    entries, _ = _entries(spec)
    pairs = msgspec.json.encode([tensor.name for tensor in spec.tensors if tensor.dtype == "complex128"]).decode()
    header = header_of(entries, pairs, facts=facts, run=run, run_id=run_id, site=site, epoch=epoch)
    digest = blake3(header)
    file.write(header)
    written = synced = len(header)
    for tensor in _ordered(spec):
        for start in range(0, tensor.size_bytes, PIECE_BYTES):
            if stopped():
                raise Interrupted
            begin = tensor.offset + start
            piece = state[begin : begin + min(PIECE_BYTES, tensor.size_bytes - start)]
            file.write(piece)
            digest.update(piece)
            written += len(piece)
            if written - synced >= SYNC_EVERY_BYTES:
                file.flush()
                sync_data(file.fileno())
                synced = written
    file.flush()
    os.pwrite(file.fileno(), digest.hexdigest().encode(), header.index(HASH_MARK) + len(HASH_MARK))
    sync_data(file.fileno())
    return written


def read_head(file: BufferedReader) -> Head:
    """The header of an open file. Raises CheckpointError, OSError."""
    size_bytes = os.fstat(file.fileno()).st_size
    length = file.read(LENGTH_BYTES)
    header_bytes = int.from_bytes(length, "little")
    if len(length) < LENGTH_BYTES or header_bytes > min(HEADER_BYTES_MAX, size_bytes - LENGTH_BYTES):
        raise CheckpointError("it is no safetensors file, or cut off")
    raw = file.read(header_bytes)
    try:
        parts = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        told = msgspec.json.decode(parts.pop("__metadata__", msgspec.Raw(b"{}")), type=dict[str, str])
        entries = {name: msgspec.json.decode(part, type=Entry) for name, part in parts.items()}
        numbers = {name: int(told[f"chaos.{name}"]) for name in ("lineage", "round")}
        facts = msgspec.convert({**numbers, "spec_digest": told["chaos.spec"]}, type=CheckpointFacts)
        epoch = int(told["chaos.epoch"])
        known = told["chaos.format"], told["chaos.run"], told["chaos.site"], told["chaos.hash"]
    except KeyError as error:
        raise CheckpointError(f"it is a safetensors file, but no checkpoint of a run ({error} is missing)") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CheckpointError(f"its header is damaged: {error}") from None
    form, run, site, checksum = known
    if form != FORMAT:
        raise CheckpointError(f"it has format {form[:16]}, this version reads {FORMAT}")
    return Head(
        facts=facts, run=run, run_id=told.get("chaos.run_id", ""), site=site, epoch=epoch, hash=checksum,
        size_bytes=size_bytes, entries=entries, pairs=told.get("chaos.complex128", "[]"), raw=length + raw,
    )  # fmt: skip


def load_file(file: BufferedReader, state: memoryview, spec: StateSpec, *, stopped: Callable[[], bool]) -> Head:
    """Read a checkpoint of exactly this spec into `state`. Only when this returns is what lies there a state. Raises
    CheckpointError, OSError, Interrupted."""
    head = read_head(file)
    wanted, data_bytes = _entries(spec)
    if head.facts.spec_digest != spec.digest or head.entries != wanted:
        raise CheckpointError("it holds the state of another model or optimizer")
    if head.size_bytes != len(head.raw) + data_bytes:
        raise CheckpointError(f"it has {head.size_bytes:,} bytes where {len(head.raw) + data_bytes:,} belong")
    digest = blake3(_without_hash(head))
    end = 0
    for tensor in spec.tensors:
        state[end : tensor.offset] = bytes(tensor.offset - end)  # the gaps are zero
        end = tensor.offset + tensor.size_bytes
    state[end:] = bytes(len(state) - end)
    for tensor in _ordered(spec):
        for start in range(0, tensor.size_bytes, PIECE_BYTES):
            if stopped():
                raise Interrupted
            begin = tensor.offset + start
            piece = state[begin : begin + min(PIECE_BYTES, tensor.size_bytes - start)]
            _read_into(file, piece)
            digest.update(piece)
    if digest.hexdigest() != head.hash:
        raise CheckpointError("its bytes do not have the hash that was written with them")
    return head


def verify_file(file: BufferedReader) -> Head:
    """The same without the state: whether every byte is as it was written. Raises CheckpointError, OSError."""
    head = read_head(file)
    digest = blake3(_without_hash(head))
    while piece := file.read(PIECE_BYTES):
        digest.update(piece)
    if digest.hexdigest() != head.hash:
        raise CheckpointError("its bytes do not have the hash that was written with them")
    return head


def _read_into(file: BufferedReader, piece: memoryview) -> None:
    got = 0
    while got < len(piece):
        count = file.readinto(piece[got:])
        if not count:
            raise CheckpointError("it ends too early")
        got += count


def _without_hash(head: Head) -> bytes:
    if head.raw.count(HASH_MARK) != 1:
        raise CheckpointError("its header is damaged: it must name its hash once")
    at = head.raw.index(HASH_MARK) + len(HASH_MARK)
    return head.raw[:at] + NO_HASH.encode() + head.raw[at + len(NO_HASH) :]


def _ordered(spec: StateSpec) -> list[TensorSpec]:
    """Arrays in the order of the file: widest numbers first, else as in the state."""
    arrays = [tensor for tensor in spec.tensors if (tensor.dtype, tensor.shape) != (FACT_DTYPE, FACT_SHAPE)]
    return sorted(arrays, key=lambda tensor: -min(8, DTYPE_BYTES[tensor.dtype]))


def _entries(spec: StateSpec) -> tuple[dict[str, Entry], int]:
    entries: dict[str, Entry] = {}
    offset = 0
    for tensor in _ordered(spec):
        shape = (*tensor.shape, 2) if tensor.dtype == "complex128" else tensor.shape
        stop = offset + tensor.size_bytes
        entries[tensor.name] = Entry(dtype=NAMES[tensor.dtype], shape=shape, data_offsets=(offset, stop))
        offset = stop
    return entries, offset


def header_of(
    entries: dict[str, Entry], pairs: str, *, facts: CheckpointFacts, run: str, run_id: str, site: str, epoch: int
) -> bytes:
    """The header of a file with these arrays, `pairs` of them complex; without its hash."""
    told = {
        "format": "pt",
        "chaos.format": FORMAT,
        "chaos.run": run,
        "chaos.run_id": run_id,
        "chaos.site": site,
        "chaos.round": str(facts.round),
        "chaos.epoch": str(epoch),
        "chaos.lineage": str(facts.lineage),
        "chaos.spec": facts.spec_digest,
        "chaos.hash": NO_HASH,
        "chaos.complex128": pairs,
    }
    raw = msgspec.json.encode({"__metadata__": told, **entries})
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(LENGTH_BYTES, "little") + raw
