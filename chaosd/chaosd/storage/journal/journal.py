"""The durable agreement log of one site: what Raft must not forget (term, vote, log, snapshot), safe at any crash.

Driven by the daemon's driver, which executes `Persist` before it sends any answer that depends on it. Decides nothing
about agreement. One directory, held by one process (`lock`), with one file (`journal`): frames as
`storage/journal/records.py` documents them, each the msgpack of one of two records:

    Opened(incarnation, site)                                  once at every start of the daemon
    Persisted(hard_state, truncate_from, snapshot, entries)    one `Persist`; a field that does not change is null
    Persisted(..., reached)                                    how far the run has come, for the time after a power cut
    Persisted(..., origin)                                     of which recovery the run is (`start_over`)

Replayed in order, as `Persist` says: `snapshot` drops the entries up to its index; `truncate_from` drops the entries
from that index on; `entries` are appended. Where a snapshot is persisted
the file is written anew (`journal.new`: Opened, then the state in frames of a few MiB), synced, and renamed over the
old one; so the file does not grow without end, and a crash leaves either the old file or the new one.

The torn end of a write that was never acknowledged is cut off, with a note. Any other damage stops the daemon: a site
that forgot its vote could elect two schedulers in one term (Raft, Ongaro 2014, section 3.8). Nothing is reset silently.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from chaos_protocols.agreement.raft.effects import HardState, Persist
from chaos_protocols.agreement.raft.messages import LogEntry, Snapshot
from chaos_protocols.effects import StartOver
from chaos_protocols.wire.plans import Reached
from chaos_protocols.wire.recovered import Origin
from chaosd.os_errors import explain
from chaosd.storage.journal.files import DataFile, DiskFolder, Folder
from chaosd.storage.journal.records import BadFileError, DamagedError, LaterError, file_header, new_salt, scan
from chaosd.storage.journal.state import NOTHING, JournalState, Opened, Persisted, framed

FILE = "journal"
FILE_NEW = "journal.new"
FILE_LOCK = "lock"

WRITES_MAX = 10_000
"""Partial writes of one frame before the disk counts as broken; each must make progress anyway."""

FRAMES_MAX = 10_000
"""A file of more frames is written anew when it is opened: votes and openings must not add up for ever."""

NOTES_MAX = 2_000
"""After so many notes of how far the run has come the file is written anew: 200 kB, half an hour at the most frequent.
"""

ADVICE = (
    "Nothing was changed. A site that has lost its vote must not answer for it: move this directory aside, and "
    "make a new key beside the same configuration with `chaosd init`; once a member has let its new id in with "
    "`chaosd accept ID` the site joins anew and gets the state from its neighbours"
)


LATER = (
    "Nothing was changed. A later release of chaosd has written it, most likely: install that one again, and start the "
    "site with it as before. Its vote and its id stay only so"
)


class JournalError(Exception):
    """The journal cannot keep its promise. The text says what happened, to which file, and what to do now."""


class JournalLockedError(JournalError):
    """Another daemon holds the same data directory."""


class JournalOfAnotherError(JournalError):
    """The file is the journal of another site: its votes are not this one's."""


class JournalDamagedError(JournalError):
    """The file cannot be trusted: acknowledged records are damaged, or it is no journal of this version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What the journal held when it was opened. `note` is empty, or says what was cut off and why that is safe."""

    hard_state: HardState
    snapshot: Snapshot | None
    entries: tuple[LogEntry, ...]
    reached: Reached
    note: str
    origin: Origin | None = None


class Journal:
    """The open journal of one site. Made by `open`; every method may raise `JournalError`."""

    def __init__(self, folder: Folder, incarnation_floor: int = 0, site: str = "") -> None:
        """Use `Journal.open`. `folder` is locked already, and unlocked again if this fails."""
        self._folder = folder
        self._state = JournalState()
        self._broken = ""
        self._file: DataFile | None = None
        self._salt = b""
        self._size = 0
        self._sequence = 0
        self._notes = 0
        try:
            note = self._read()
            self._refuse_if_of_another(site)
            if self._file is None or self._sequence >= FRAMES_MAX:
                self._state.incarnation = max(self._state.incarnation + 1, incarnation_floor)
                self._rewrite()
            else:
                incarnation = max(self._state.incarnation + 1, incarnation_floor)
                self._append(Opened(incarnation=incarnation, site=self._state.site))
                self._state.incarnation = incarnation
        except BaseException:
            self.close()
            raise
        state = self._state
        self._recovered = Recovered(
            hard_state=state.hard_state,
            snapshot=state.snapshot,
            entries=tuple(state.entries),
            reached=state.reached,
            note=note,
            origin=state.origin,
        )

    @classmethod
    def open(
        cls, directory: Path | str, *, folder: Folder | None = None, incarnation_floor: int = 0, site: str = ""
    ) -> Journal:
        """Opens or creates the journal in this directory, counts the incarnation, holds the directory until `close`.

        Raises `JournalLockedError` if another process holds it, `JournalDamagedError` if its content cannot be
        trusted, `JournalError` for what the operating system refuses. `folder` replaces the disk in tests.
        `incarnation_floor`: at least this number (the daemon gives the time in milliseconds), so that a site whose
        journal was lost is still newer than its former self. `site`: whose key lies beside it; a journal of another one
        is refused.
        """
        try:
            chosen = folder or DiskFolder(Path(directory))
            chosen.lock(FILE_LOCK)
        except BlockingIOError as holder:
            raise JournalLockedError(
                f"another chaosd (process {holder}) uses the data directory {directory}; two daemons must not vote "
                "with one journal. Stop the other one, or give this one its own data directory"
            ) from None
        except OSError as error:
            raise JournalError(f"the data directory cannot be used: {explain(error, directory)}") from error
        return cls(chosen, incarnation_floor, site)

    @property
    def recovered(self) -> Recovered:
        """What was there at `open`."""
        return self._recovered

    @property
    def incarnation(self) -> int:
        """Greater than at any opening before; durable before `open` returned."""
        return self._state.incarnation

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        return self._size

    def persist(self, effect: Persist) -> None:
        """Makes the effect durable, and returns only then.

        Raises `JournalError`: nothing of the effect may then be relied on, and the site must not answer. After a full
        disk the file is as before and a later `persist` may succeed; after a failed sync none will (what the disk
        holds is unknown), and the daemon has to be restarted.
        """
        self._refuse_if_broken()
        record = Persisted(
            hard_state=effect.hard_state,
            truncate_from=effect.truncate_from,
            snapshot=effect.snapshot,
            entries=tuple(effect.entries),
        )
        if record == NOTHING:
            return
        problem = self._state.check(record)
        if problem:
            raise JournalError(f"the agreement asked the journal to store what does not follow: {problem}")
        if record.snapshot is None:
            self._append(record)
            self._state.apply(record)
            return
        before = (self._state.hard_state, self._state.snapshot, self._state.entries)
        self._state.apply(record)
        try:
            self._rewrite()
        except BaseException:
            self._state.hard_state, self._state.snapshot, self._state.entries = before
            raise

    def note_reached(self, reached: Reached) -> None:
        """Makes the note durable in place of the one before: one frame and one sync, and now and then the file anew.

        Raises `JournalError` as `persist` does.
        """
        self._refuse_if_broken()
        before, self._state.reached = self._state.reached, reached
        try:
            if self._notes >= NOTES_MAX:
                self._rewrite()
            else:
                self._append(msgspec.structs.replace(NOTHING, reached=reached))
                self._notes += 1
        except BaseException:
            self._state.reached = before
            raise

    def start_over(self, start: StartOver) -> None:
        """Puts another run in place of the one that it holds: a crash leaves either. This daemon writes nothing more.

        Raises `JournalError` as `persist` does; then it holds the former run.
        """
        self._refuse_if_broken()
        before, self._state = self._state, JournalState()
        self._state.incarnation, self._state.site = before.incarnation, before.site
        self._state.hard_state, self._state.snapshot = start.hard_state, start.snapshot
        self._state.reached, self._state.origin = start.reached, start.origin
        try:
            self._rewrite()
        except BaseException:
            self._state = before
            raise
        self._broken = "it holds another run now, for the daemon's next life"

    def close(self) -> None:
        """Lets go of the file and of the directory. Everything persisted is on the disk already."""
        self._broken = self._broken or "it is closed"
        if self._file is not None:
            self._file.close()
            self._file = None
        self._folder.unlock()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> str:
        """Replays the file if there is one, cuts its torn end, leaves it open for appending; the note."""
        try:
            self._folder.remove(FILE_NEW)  # of a rewrite that a crash cut short: never acknowledged
            data = self._folder.read(FILE)
            if data is None:
                return ""
            found = scan(data)
            self._state.replay(found.bodies)
            self._file = self._folder.append(FILE)
            if found.torn_bytes:
                self._file.truncate(found.end)
                self._file.sync()
        except LaterError as error:
            raise JournalDamagedError(f"the journal {self._name} cannot be read: {error}. {LATER}") from error
        except (BadFileError, DamagedError) as error:
            raise JournalDamagedError(f"the journal {self._name} cannot be trusted: {error}. {ADVICE}") from error
        except OSError as error:
            raise JournalError(f"the journal {self._name} cannot be read: {_explain(error)}") from error
        self._salt, self._size, self._sequence = found.salt, found.end, len(found.bodies)
        if not found.torn_bytes:
            return ""
        return (
            f"the last write to {self._name} had not finished when the daemon stopped; its {found.torn_bytes} bytes "
            f"at byte {found.end} were cut off. No answer of this site depended on them"
        )

    def _refuse_if_of_another(self, site: str) -> None:
        """And remember whose it is from now on."""
        known = self._state.site
        if known and site and known != site:
            raise JournalOfAnotherError(
                f"the journal {self._name} is that of site {known}, and the key beside it is that of {site}: the files "
                "of two sites are mixed. Put the key back that belongs to it, or move `journal` away, so that this "
                "site begins with none"
            )
        self._state.site = known or site

    def _append(self, record: Opened | Persisted) -> None:
        assert self._file is not None
        try:
            data = framed(record, self._sequence + 1, self._salt)
        except ValueError as error:
            raise JournalError(f"a record for {self._name} cannot be stored: {error}") from error
        try:
            _write_all(self._file, data)
        except OSError as error:
            self._take_back()
            raise JournalError(f"the journal {self._name} could not be written: {_explain(error)}") from error
        try:
            self._file.sync()
        except OSError as error:
            # After a failed sync the kernel may have dropped the pages: what the disk holds is unknown.
            self._broken = f"its last sync failed ({_explain(error)})"
            self._take_back()
            raise JournalError(f"the journal {self._name} could not be synced: {_explain(error)}") from error
        self._size += len(data)
        self._sequence += 1

    def _take_back(self) -> None:
        """Cuts off a half-written frame, so that the next one does not follow it."""
        assert self._file is not None
        try:
            self._file.truncate(self._size)
        except OSError as error:
            self._broken = self._broken or f"a half-written record could not be taken back ({_explain(error)})"

    def _rewrite(self) -> None:
        """Writes the whole state to a new file and puts it in place of the old one."""
        salt = new_salt()
        fresh: DataFile | None = None
        size, sequence = 0, 0
        try:
            fresh = self._folder.create(FILE_NEW)
            _write_all(fresh, file_header(salt))
            size = len(file_header(salt))
            for record in self._state.records():
                data = framed(record, sequence + 1, salt)
                _write_all(fresh, data)
                size, sequence = size + len(data), sequence + 1
            fresh.sync()
        except (OSError, ValueError) as error:
            self._drop(fresh)
            why = _explain(error) if isinstance(error, OSError) else str(error)
            raise JournalError(f"the journal {self._name} could not be written anew: {why}") from error
        try:
            self._folder.replace(FILE, FILE_NEW)
            self._folder.sync()
        except OSError as error:
            # Whether the old or the new file survives a crash is open now: neither may be written on.
            fresh.close()
            self._broken = f"its new file could not be put in place ({_explain(error)})"
            raise JournalError(f"the journal {self._name} could not be replaced: {_explain(error)}") from error
        if self._file is not None:
            self._file.close()
        self._file, self._salt, self._size, self._sequence = fresh, salt, size, sequence
        self._notes = 0

    def _drop(self, fresh: DataFile | None) -> None:
        try:
            if fresh is not None:
                fresh.close()
            self._folder.remove(FILE_NEW)
        except OSError:
            return  # it is removed at the next start; the error that led here is the one to report

    def _refuse_if_broken(self) -> None:
        if self._broken:
            raise JournalError(f"the journal {self._name} takes no more records: {self._broken}. Restart the daemon")

    @property
    def _name(self) -> str:
        return self._folder.describe(FILE)


def _write_all(file: DataFile, data: bytes) -> None:
    view = data
    for _ in range(WRITES_MAX):
        written = file.write(view)
        if written >= len(view):
            return
        if written <= 0:
            break
        view = view[written:]
    raise OSError(errno.EIO, "the disk takes no more bytes, and gives no reason")


def _explain(error: OSError) -> str:
    text = error.strerror or os.strerror(error.errno or errno.EIO)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{text}: the disk is full. Free space in the data directory, then restart the daemon"
    if error.errno == errno.EFBIG:
        return f"{text}: a limit on the size of files is reached. Raise it (ulimit -f), then restart the daemon"
    return explain(OSError(error.errno, text))
