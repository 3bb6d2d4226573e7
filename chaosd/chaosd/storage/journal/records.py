"""How the journal's frames look on disk, and how a file of them is read back after any crash.

Driven by `storage/journal/journal.py`; pure but for the salt of a new file. Decides one thing: whether damage is the
torn end of a write that was never acknowledged (tolerated) or damage to what was (an error).

File = header, then frames. Integers are little-endian.

    header, 64 bytes   8 magic "CHAOSJNL" | 2 version | 6 zero | 32 salt | 16 check = BLAKE3(first 48 bytes)
    frame              4 magic "CJF\\xa5" | 4 body length | 8 sequence, from 1 | 8 header check | body | 16 body check

Both checks of a frame are BLAKE3 keyed with the file's salt (header check over the first 16 bytes, body check over
header and body), so that no command that a peer made us store can look like a frame. One `persist` is one frame, and
a frame is only begun when the one before is on the disk. Hence a frame that is not whole is the torn end of the last
write, unless a valid frame header follows it somewhere: then an acknowledged frame has been damaged. What cannot be
told from a torn write is damage to the last frame itself; the note of the recovery says that bytes were dropped.
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass

from blake3 import blake3

FILE_MAGIC = b"CHAOSJNL"
VERSION = 1
SALT_BYTES = 32
FILE_HEADER = struct.Struct("<8sH6s32s")
FILE_HEADER_BYTES = FILE_HEADER.size + 16

FRAME_MAGIC = b"CJF\xa5"
FRAME_HEADER = struct.Struct("<4sIQ")
FRAME_HEADER_BYTES = FRAME_HEADER.size + 8
FRAME_CHECK_BYTES = 16
FRAME_BODY_BYTES_MAX = 1 << 28
"""A frame holds at most a roster snapshot or a batch of entries of 4 MiB each; longer is a defect."""


class BadFileError(Exception):
    """The file is no journal, or one that this version cannot read. The text says which."""


class LaterError(Exception):
    """What stands there is whole, and another release has written it. The text says what is not known here."""


class DamagedError(Exception):
    """Frames that were acknowledged are damaged. The text says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """`bodies` of the whole frames, which end at `end`; the `torn_bytes` after it are of an unfinished write."""

    salt: bytes
    bodies: tuple[bytes, ...]
    end: int
    torn_bytes: int


def new_salt() -> bytes:
    """The secret of one file that keys its checks."""
    return secrets.token_bytes(SALT_BYTES)


def file_header(salt: bytes) -> bytes:
    """The first 64 bytes of a file."""
    head = FILE_HEADER.pack(FILE_MAGIC, VERSION, bytes(6), salt)
    return head + _check(head, None, 16)


def frame(body: bytes, sequence: int, salt: bytes) -> bytes:
    """One frame. Raises `ValueError` for a body longer than `FRAME_BODY_BYTES_MAX`."""
    if len(body) > FRAME_BODY_BYTES_MAX:
        raise ValueError(f"a frame of {len(body)} bytes is longer than the limit of {FRAME_BODY_BYTES_MAX}")
    head = FRAME_HEADER.pack(FRAME_MAGIC, len(body), sequence)
    head += _check(head, salt, 8)
    return head + body + _check(head + body, salt, FRAME_CHECK_BYTES)


def scan(data: bytes) -> Scan:
    """All whole frames of a file. Raises `BadFileError`, `LaterError`, `DamagedError`."""
    salt = _salt_of(data)
    bodies: list[bytes] = []
    at = FILE_HEADER_BYTES
    while at < len(data):
        body = _frame_at(data, at, len(bodies) + 1, salt)
        if body is None:
            _refuse_lost_frames(data, at, len(bodies) + 1, salt)
            break
        bodies.append(body)
        at += FRAME_HEADER_BYTES + len(body) + FRAME_CHECK_BYTES
    return Scan(salt=salt, bodies=tuple(bodies), end=at, torn_bytes=len(data) - at)


def _salt_of(data: bytes) -> bytes:
    if len(data) < FILE_HEADER_BYTES:
        raise BadFileError(f"it has {len(data)} bytes, fewer than its header of {FILE_HEADER_BYTES}")
    magic, version, _, salt = FILE_HEADER.unpack_from(data)
    if magic != FILE_MAGIC:
        raise BadFileError("it does not begin like a journal")
    if _check(data[: FILE_HEADER.size], None, 16) != data[FILE_HEADER.size : FILE_HEADER_BYTES]:
        raise BadFileError("its header is damaged")
    if version != VERSION:
        raise LaterError(f"it has format {version}, and this version of chaosd reads format {VERSION}")
    assert isinstance(salt, bytes)
    return salt


def _header_at(data: bytes, at: int, salt: bytes) -> tuple[int, int] | None:
    """Body length and sequence of the valid frame header here; None where there is none."""
    head = data[at : at + FRAME_HEADER_BYTES]
    if len(head) < FRAME_HEADER_BYTES or _check(head[: FRAME_HEADER.size], salt, 8) != head[FRAME_HEADER.size :]:
        return None
    magic, length, sequence = FRAME_HEADER.unpack_from(head)
    return (length, sequence) if magic == FRAME_MAGIC and length <= FRAME_BODY_BYTES_MAX else None


def _frame_at(data: bytes, at: int, sequence: int, salt: bytes) -> bytes | None:
    """The body of the whole, valid frame here with this sequence; None where there is none."""
    header = _header_at(data, at, salt)
    if header is None or header[1] != sequence:
        return None
    stop = at + FRAME_HEADER_BYTES + header[0]
    if stop + FRAME_CHECK_BYTES > len(data) or _check(data[at:stop], salt, 16) != data[stop : stop + FRAME_CHECK_BYTES]:
        return None
    return data[at + FRAME_HEADER_BYTES : stop]


def _refuse_lost_frames(data: bytes, broken_at: int, sequence: int, salt: bytes) -> None:
    """Raises `DamagedError` if a frame after the broken one was begun: then the broken one had been acknowledged."""
    header = _header_at(data, broken_at, salt)
    if header is not None and header[1] != sequence:
        raise DamagedError(f"frame {header[1]} stands at byte {broken_at}, where frame {sequence} should be")
    at = data.find(FRAME_MAGIC, broken_at + 1)
    while at != -1:
        header = _header_at(data, at, salt)
        if header is not None:
            raise DamagedError(f"the frame at byte {broken_at} is damaged, and frame {header[1]} follows at byte {at}")
        at = data.find(FRAME_MAGIC, at + 1)


def _check(data: bytes, key: bytes | None, length: int) -> bytes:
    return (blake3(data) if key is None else blake3(data, key=key)).digest(length=length)
