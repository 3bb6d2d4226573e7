"""Checkpoints for other programs, and from them: plain safetensors out of a site's folder, and into it.

A checkpoint is safetensors as it is; what leaves is verified first. What comes in is a checkpoint of any site, or a
file of another program with exactly the arrays of a checkpoint that lies in the folder: names, types and shapes, in any
order. It is written anew in the order of the state, with a hash, and counts from the next start of the daemon. Called
by `cli/checkpoint.py`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

import msgspec
from blake3 import blake3

from chaos_protocols.wire.plans import CheckpointFacts
from chaosd.storage.checkpoint_file import (
    HASH_MARK,
    HEADER_BYTES_MAX,
    LENGTH_BYTES,
    NAMES,
    PIECE_BYTES,
    CheckpointError,
    Entry,
    Head,
    header_of,
    read_head,
    verify_file,
)
from chaosd.storage.checkpoints import FILES_LOOKED_AT_MAX, PARTIAL, SUFFIX
from chaosd.storage.durable import told_of
from chaosd.storage.finite import holds_nan
from chaosd.storage.journal.files import make_durable_folder, sync_data, sync_folder

TYPES = {there: here for here, there in NAMES.items() if here != "complex128"}
"""Of the numbers in a file, as this package calls them; pairs of float64 are as those."""
IMPORTED = "imported"
"""In place of the site that wrote it: such a file is not removed to make room for newer ones."""


def export_file(source: Path, target: Path) -> Head:
    """A verified copy. Raises CheckpointError, OSError; an existing file is not touched."""
    with source.open("rb") as file:
        try:
            head = verify_file(file)
        except CheckpointError as error:
            raise CheckpointError(
                f"{source}: {error}; `chaosd checkpoint list` shows which are whole, --round names one of them"
            ) from None
        if target.exists():
            raise CheckpointError(f"{target} exists already; name another file, or remove it")
        file.seek(0)
        _write_durably(target, iter(lambda: file.read(PIECE_BYTES), b""))
    return head


def newest_in(folder: Path, round_number: int | None) -> Path:
    """The newest checkpoint (of that round). Raises CheckpointError where there is none, OSError."""
    known = [(head.facts, path) for path, head in _heads(folder) if round_number in (None, head.facts.round)]
    if not known:
        wanted = "no checkpoint" if round_number is None else f"no checkpoint of round {round_number}"
        raise CheckpointError(f"there is {wanted} in {folder}; `chaosd checkpoint list` lists what there is")
    return max(known, key=lambda one: one[0])[1]


def import_file(source: Path, folder: Path, *, run: str, round_number: int | None) -> tuple[Path, CheckpointFacts]:
    """Into the folder of this site; where it lies, and as what. Raises CheckpointError, OSError."""
    with source.open("rb") as file:
        try:
            own: Head | None = verify_file(file)
        except CheckpointError:
            own = None
            file.seek(0)
            if HASH_MARK in file.read(LENGTH_BYTES + min(HEADER_BYTES_MAX, source.stat().st_size)):
                raise  # a checkpoint, and damaged: its bytes must not come in as those of another program
        file.seek(0)
        entries, begin = _entries(file)
        known = _heads(folder)
        template = own or next((head for _, head in known if _shapes(head.entries) == _shapes(entries)), None)
        if template is None:
            raise CheckpointError(
                f"{source.name} is no checkpoint, and no checkpoint in {folder} has its arrays (names, types and "
                "shapes): train until this site has written one, export that, and put the numbers into its arrays"
            )
        if own is None:  # what a site has written was looked at then
            _demand_numbers(file, begin, entries)
        number = own.facts.round if round_number is None and own is not None else round_number
        if number is None or number < 1:
            raise CheckpointError("say which round it is: --round N, from 1 on")
        lineage = max([template.facts.lineage, *(head.facts.lineage for _, head in known)])
        facts = CheckpointFacts(lineage=lineage, round=number, spec_digest=template.facts.spec_digest)
        header = header_of(
            template.entries, template.pairs, facts=facts, run=run, run_id="", site=IMPORTED, epoch=template.epoch
        )
        target = folder / f"round-{number:010d}-lineage-{lineage}-{IMPORTED}{SUFFIX}"
        make_durable_folder(folder)
        digest = blake3(header)
        for piece in _pieces(file, begin, entries, list(template.entries)):
            digest.update(piece)
        signed = header.replace(HASH_MARK + b"0" * 64, HASH_MARK + digest.hexdigest().encode())
        _write_durably(target, _all(signed, _pieces(file, begin, entries, list(template.entries))))
    return target, facts


def _all(header: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield header
    yield from pieces


def _pieces(file: BufferedReader, begin: int, entries: dict[str, Entry], order: list[str]) -> Iterator[bytes]:
    """The arrays of a file in this order."""
    for name in order:
        start, stop = entries[name].data_offsets
        file.seek(begin + start)
        left = stop - start
        while left > 0:
            piece = file.read(min(PIECE_BYTES, left))
            if not piece:
                raise CheckpointError(f"it ends in the middle of {name}")
            left -= len(piece)
            yield piece


def _demand_numbers(file: BufferedReader, begin: int, entries: dict[str, Entry]) -> None:
    """Raises CheckpointError where an array holds a NaN. An infinity may be meant (a mask)."""
    for name, entry in entries.items():
        dtype = TYPES.get(entry.dtype, "")
        if any(holds_nan(piece, dtype) for piece in _pieces(file, begin, entries, [name])):
            raise CheckpointError(
                f"{name} holds NaN: no site could train on from it; bring an earlier state of that model"
            )


def _entries(file: BufferedReader) -> tuple[dict[str, Entry], int]:
    """The arrays of any safetensors file, and where their bytes begin. Raises CheckpointError."""
    size_bytes = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    if size_bytes < LENGTH_BYTES or length > min(HEADER_BYTES_MAX, size_bytes - LENGTH_BYTES):
        raise CheckpointError("it is no safetensors file, or cut off")
    try:
        parts = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        parts.pop("__metadata__", None)
        found = {name: msgspec.json.decode(part, type=Entry) for name, part in parts.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CheckpointError(f"its header is damaged: {error}") from None
    begin = LENGTH_BYTES + length
    for name, entry in found.items():
        start, stop = entry.data_offsets
        if not 0 <= start <= stop <= size_bytes - begin:
            raise CheckpointError(f"{name} lies outside the file")
    return found, begin


def _shapes(entries: dict[str, Entry]) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """What must be equal: not where the bytes lie."""
    return {name: (one.dtype, one.shape, one.data_offsets[1] - one.data_offsets[0]) for name, one in entries.items()}


def _heads(folder: Path) -> list[tuple[Path, Head]]:
    """Checkpoints of the folder that can be read, newest first; none where there is no folder. Raises OSError where it
    cannot be looked into: nobody must be told that there are none."""
    names: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    found = []
    for path in [folder / name for name in names[-FILES_LOOKED_AT_MAX:]]:
        try:
            with path.open("rb") as file:
                found.append((path, read_head(file)))
        except (CheckpointError, OSError):
            continue  # `chaosd checkpoint list` says what is wrong with it
    return sorted(found, key=lambda one: one[1].facts, reverse=True)


def _write_durably(target: Path, pieces: Iterator[bytes]) -> None:
    """Whole or not there."""
    partial = target.with_name(f".{target.name}{PARTIAL}")
    with told_of(target):
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                sync_data(file.fileno())
            os.replace(partial, target)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                partial.unlink()
            raise
        sync_folder(target.parent)
