"""The event history of one site: what happened, to whom, why, how long it took. For people, never for the agreement.

Driven by the daemon's driver, which appends; read by the local API for `chaosd events` and the dashboard. One SQLite
file in WAL mode with one writer (the daemon; threads of it may share the object) and any number of readers. Decides
nothing. Bounded: the oldest rows go first. It may lose its last rows at a loss of power, and drops rows while the disk
is full: a daemon must go on training when only its diary cannot be written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

log = logging.getLogger(__name__)

ROWS_MAX = 100_000
"""About 30 MB; months of a quiet run, a day of very heavy churn."""

TRIM_EVERY_ROWS = 256
"""Old rows are deleted in batches: one delete per append would double the writes."""

READ_ROWS_MAX = 10_000
"""Most rows of one `read`; a reader pages on with the last id that it has seen."""

TEXT_CHARACTERS_MAX = 4096
DETAIL_CHARACTERS_MAX = 64 << 10
BUSY_TIMEOUT_S = 1.0
"""A reader's checkpoint may hold the file for a moment; the daemon's loop must not wait longer."""

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS history (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at_unix_s REAL NOT NULL,
    event_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    cause TEXT NOT NULL,
    outcome TEXT NOT NULL,
    duration_s REAL,
    epoch INTEGER,
    round INTEGER,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL
)
"""


class HistoryError(Exception):
    """The history cannot be opened. The text says which file, why, and what to do now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRecord:
    """One event. `detail` is JSON text: `times`, where one entry stands for several; `id` is 0 until the record is
    stored, then ascending and never used again."""

    at_unix_s: float
    event_id: str
    kind: str
    subject: str
    cause: str = ""
    outcome: str = ""
    duration_s: float | None = None
    epoch: int | None = None
    round: int | None = None
    reason: str = ""
    detail: str = "{}"
    id: int = 0


_COLUMNS = tuple(field.name for field in fields(HistoryRecord) if field.name != "id")
_INSERT = f"INSERT INTO history ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608
_SELECT = f"SELECT {', '.join(_COLUMNS)}, id FROM history WHERE id > ? ORDER BY id LIMIT ?"  # noqa: S608
_LATEST = f"SELECT {', '.join(_COLUMNS)}, id FROM history ORDER BY id DESC LIMIT ?"  # noqa: S608


class History:
    """The open history. Made by `open`."""

    def __init__(self, connection: sqlite3.Connection, path: Path, rows_max: int) -> None:
        """Use `History.open`."""
        self._connection = connection
        self._path = path
        self._rows_max = rows_max
        self._lock = threading.Lock()
        self._since_trim = TRIM_EVERY_ROWS  # the first append trims: many short lives must not add up
        self._dropped = 0
        self._dropping = False

    @classmethod
    def open(cls, path: Path | str, *, rows_max: int = ROWS_MAX) -> History:
        """Opens or creates the history (mode 0600), keeping at most about `rows_max` rows.

        A file that is damaged is moved aside (`.damaged`) with a log line, and a new one begun: nothing depends on it.
        Raises `HistoryError` where the operating system refuses, or the file is of a newer version.
        """
        path = Path(path)
        try:
            return cls(_connect(path), path, rows_max)
        except sqlite3.OperationalError as error:
            raise HistoryError(f"the event history {path} cannot be opened: {error}. {_ADVICE}") from error
        except sqlite3.DatabaseError as error:
            aside = path.with_name(path.name + ".damaged")
            log.warning("the event history %s is damaged (%s); it is now %s, and a new one begins", path, error, aside)
        except OSError as error:
            raise HistoryError(f"the event history {path} cannot be opened: {error.strerror}. {_ADVICE}") from error
        try:
            _move_aside(path, aside)
            return cls(_connect(path), path, rows_max)
        except (OSError, sqlite3.Error) as error:
            raise HistoryError(f"the event history {path} cannot be begun anew: {error}. {_ADVICE}") from error

    @classmethod
    def open_to_read(cls, path: Path) -> History:
        """Opens the history of a daemon that does not run, and changes nothing: it may have ended for want of room.

        Raises `HistoryError`."""
        try:
            return cls(_connect_to_read(path), path, ROWS_MAX)
        except sqlite3.Error as error:
            raise HistoryError(f"the event history {path} cannot be read: {error}. {_ADVICE}") from error

    @property
    def dropped(self) -> int:
        """Records lost since `open` because they could not be written."""
        return self._dropped

    def append(self, record: HistoryRecord) -> int:
        """Stores the record and returns its id; 0 if it was dropped (full disk). Never raises for the disk's sake."""
        row = astuple(_bounded(record))[:-1]
        with self._lock:
            try:
                with self._connection:
                    stored = self._connection.execute(_INSERT, row).lastrowid or 0
                    self._trim(stored)
            except (sqlite3.Error, OverflowError) as error:
                self._dropped += 1
                if not self._dropping:
                    log.warning("the event history %s takes no records (%s); they are dropped", self._path, error)
                self._dropping = True
                return 0
            if self._dropping:
                log.warning("the event history %s works again; %d records were dropped", self._path, self._dropped)
            self._dropping = False
            return stored

    def read(self, after_id: int = 0, limit: int = 1000) -> tuple[HistoryRecord, ...]:
        """Records with an id above `after_id`, oldest first, at most `limit`."""
        return self._query(_SELECT, (after_id, _limit(limit)))

    def latest(self, limit: int = 100) -> tuple[HistoryRecord, ...]:
        """The last records, oldest first, at most `limit`."""
        return tuple(reversed(self._query(_LATEST, (_limit(limit),))))

    def close(self) -> None:
        """Lets go of the file; what was appended is in it."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _query(self, text: str, values: tuple[int, ...]) -> tuple[HistoryRecord, ...]:
        with self._lock:
            try:
                rows = self._connection.execute(text, values).fetchall()
            except sqlite3.Error as error:
                raise HistoryError(f"the event history {self._path} cannot be read: {error}. {_ADVICE}") from error
        return tuple(HistoryRecord(**dict(zip((*_COLUMNS, "id"), row, strict=True))) for row in rows)

    def _trim(self, newest_id: int) -> None:
        self._since_trim += 1
        if self._since_trim >= min(TRIM_EVERY_ROWS, self._rows_max):
            self._connection.execute("DELETE FROM history WHERE id <= ?", (newest_id - self._rows_max,))
            self._since_trim = 0


_ADVICE = "Check the data directory's space and owner, or move this file aside: only the record of past events is in it"


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # before SQLite makes it readable to others
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # no wait for the disk at each event
        _check_version(connection, path)
        with connection:
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute(_SELECT, (0, 1)).fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_to_read(path: Path) -> sqlite3.Connection:
    log_file = path.with_name(path.name + "-wal")
    whole = not log_file.exists() or not log_file.stat().st_size
    # One that was closed has no files beside it, and where none can be made SQLite has to be told that nobody writes.
    mode = "immutable=1" if whole else "mode=ro"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, check_same_thread=False)
    try:
        _check_version(connection, path)
        connection.execute(_SELECT, (0, 1)).fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise HistoryError(f"the event history {path} has format {version}, newer than this chaosd. {_ADVICE}")


def _move_aside(path: Path, aside: Path) -> None:
    os.replace(path, aside)
    for ending in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path.with_name(path.name + ending))


def _bounded(record: HistoryRecord) -> HistoryRecord:
    """Texts cut to their limits and free of what SQLite cannot store; a detail that is too long says so instead."""

    def text(value: str) -> str:
        return value[:TEXT_CHARACTERS_MAX].encode("utf-8", "replace").decode("utf-8")

    detail = record.detail.encode("utf-8", "replace").decode("utf-8")
    if len(detail) > DETAIL_CHARACTERS_MAX:
        detail = f'{{"dropped_characters": {len(detail)}}}'
    return replace(
        record,
        event_id=text(record.event_id),
        kind=text(record.kind),
        subject=text(record.subject),
        cause=text(record.cause),
        outcome=text(record.outcome),
        reason=text(record.reason),
        detail=detail,
    )


def _limit(limit: int) -> int:
    return max(0, min(limit, READ_ROWS_MAX))
