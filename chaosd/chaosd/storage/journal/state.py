"""The records of the journal and what they add up to: replay, and the few records that hold a whole state.

Driven by `storage/journal/journal.py`, which documents the records; pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

import msgspec

from chaos_protocols.agreement.raft.effects import HardState
from chaos_protocols.agreement.raft.messages import LogEntry, Snapshot
from chaos_protocols.wire.plans import Reached
from chaos_protocols.wire.recovered import Origin
from chaosd.storage.journal.records import DamagedError, LaterError, frame

REWRITE_FRAME_BYTES = 8 << 20
"""Entries are gathered into frames of about this size when the file is written anew."""


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    """A daemon opened the journal; `incarnation` counts the times. `site`: whose it is; empty: written before that was
    recorded."""

    incarnation: int
    site: str = ""


class Persisted(msgspec.Struct, frozen=True, kw_only=True, tag="persisted"):
    """One durable change of the agreement's state."""

    hard_state: HardState | None
    truncate_from: int | None
    snapshot: Snapshot | None
    entries: tuple[LogEntry, ...]
    reached: Reached | None = None
    origin: Origin | None = None


NOTHING = Persisted(hard_state=None, truncate_from=None, snapshot=None, entries=())

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Opened | Persisted)


class JournalState:
    """What the records add up to so far."""

    def __init__(self) -> None:
        self.incarnation = 0
        self.site = ""
        self.hard_state = HardState(term=0, vote=None)
        self.snapshot: Snapshot | None = None
        self.entries: list[LogEntry] = []
        self.reached = Reached()
        self.origin: Origin | None = None

    def replay(self, bodies: Sequence[bytes]) -> None:
        """Applies the frames of a file in order. Raises `DamagedError` for content that no journal can have,
        `LaterError` for a record that is none here: its check was right, so it was written so."""
        if not bodies:
            raise DamagedError("it holds no whole record, not even its first")
        for number, body in enumerate(bodies, 1):
            try:
                record = _decoder.decode(body)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise LaterError(f"record {number} is whole but not understood ({error})") from error
            match record:
                case Opened(incarnation=incarnation, site=site):
                    self.incarnation, self.site = incarnation, site or self.site
                case Persisted():
                    problem = self.check(record)
                    if problem:
                        raise DamagedError(f"record {number} has {problem}")
                    self.apply(record)
                case _:
                    assert_never(record)

    def records(self) -> Iterator[Opened | Persisted]:
        """Records that hold the state, and nothing of how it came about."""
        yield Opened(incarnation=self.incarnation, site=self.site)
        pieces = list(_pieces(self.entries)) or [()]
        first = Persisted(hard_state=self.hard_state, truncate_from=None, snapshot=self.snapshot, entries=pieces[0])
        if self.reached != Reached():
            first = msgspec.structs.replace(first, reached=self.reached)
        yield first if self.origin is None else msgspec.structs.replace(first, origin=self.origin)
        for piece in pieces[1:]:
            yield Persisted(hard_state=None, truncate_from=None, snapshot=None, entries=piece)

    def check(self, record: Persisted) -> str:
        """Why this record cannot follow; empty if it can."""
        entries = self._after(record)
        expected = entries[-1].index + 1 if entries else self._base(record.snapshot) + 1
        for entry in record.entries:
            if entry.index != expected:
                return f"entry {entry.index} where entry {expected} should follow"
            expected += 1
        if record.snapshot is not None and record.snapshot.index < self._base(None):
            return f"a snapshot of entry {record.snapshot.index} after one of entry {self._base(None)}"
        return ""

    def apply(self, record: Persisted) -> None:
        kept = self._after(record)
        if kept is self.entries:
            self.entries.extend(record.entries)
        else:
            self.entries = [*kept, *record.entries]  # the list before stays whole: `persist` may have to go back to it
        self.hard_state = record.hard_state or self.hard_state
        self.snapshot = record.snapshot or self.snapshot
        self.reached = record.reached or self.reached
        self.origin = record.origin or self.origin

    def _base(self, newer: Snapshot | None) -> int:
        snapshot = newer or self.snapshot
        return snapshot.index if snapshot is not None else 0

    def _after(self, record: Persisted) -> list[LogEntry]:
        """The entries that stay before the record's own are appended."""
        entries = self.entries
        if record.snapshot is not None:
            entries = [entry for entry in entries if entry.index > record.snapshot.index]
        if record.truncate_from is not None:
            entries = [entry for entry in entries if entry.index < record.truncate_from]
        return entries


def framed(record: Opened | Persisted, sequence: int, salt: bytes) -> bytes:
    """The record's frame. Raises `ValueError` for one that could not be read back: that would stop the next start."""
    body = _encoder.encode(record)
    _decoder.decode(body)
    return frame(body, sequence, salt)


def _pieces(entries: Sequence[LogEntry]) -> Iterator[tuple[LogEntry, ...]]:
    piece: list[LogEntry] = []
    size = 0
    for entry in entries:
        piece.append(entry)
        size += len(entry.command)
        if size >= REWRITE_FRAME_BYTES:
            yield tuple(piece)
            piece, size = [], 0
    if piece:
        yield tuple(piece)
