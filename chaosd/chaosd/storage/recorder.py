"""Where the records of a site's machine go: to the history on disk, to the log, to whoever follows the events."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

from chaos_protocols.effects import Record
from chaos_protocols.site import SiteMachine
from chaosd.log_format import RECORD_ATTRIBUTE
from chaosd.site_names import SiteNames
from chaosd.storage.history import History, HistoryRecord
from chaosd.storage.repeats import WINDOW_S, Repeats

log = logging.getLogger("chaosd")


def _fields(record: HistoryRecord, number: int) -> dict[str, object]:
    """What a log of JSON lines says of an entry. The time is the line's own."""
    told = {name: getattr(record, name) for name in record.__slots__ if name not in ("id", "at_unix_s", "detail")}
    return {"history_id": number, **told}


class Recorder:
    """See the module. `followers`: queues of those who follow; a full one misses records, and can read the history.
    What repeats itself is counted (`repeats.py`); driven on the daemon's loop, which wakes it to tell how often.
    `names`: of the sites, for whoever reads the history."""

    def __init__(self, history: History, machine: SiteMachine, names: SiteNames) -> None:
        self._names = names
        self.followers: set[asyncio.Queue[HistoryRecord]] = set()
        self._history, self._machine = history, machine
        self._repeats = Repeats()
        self._timer: asyncio.TimerHandle | None = None

    def record(self, effect: Record) -> None:
        """Something happened, now."""
        machine, in_text = self._machine, self._names.in_text
        record = HistoryRecord(
            at_unix_s=time.time(),
            event_id=machine.outbox.event_id,
            kind=effect.kind,
            subject=in_text(effect.subject),
            cause=in_text(effect.cause),
            outcome=effect.outcome,
            duration_s=effect.duration_s,
            epoch=machine.roster.epoch,
            round=machine.rounds.completed_round,
            reason=in_text(effect.reason),
        )
        if self._repeats.is_told(record, time.monotonic()):
            self._write(record)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self._tell_repeats)

    def close(self) -> None:
        """Tell what was counted; nothing is recorded afterwards."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for record in self._repeats.due(time.monotonic(), everything=True):
            self._write(record)

    def _tell_repeats(self) -> None:
        self._timer = None
        for record in self._repeats.due(time.monotonic()):
            self._write(record)
        if self._repeats.counted:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self._tell_repeats)

    def _write(self, record: HistoryRecord) -> None:
        number = self._history.append(record)
        took = f" in {record.duration_s * 1000:.0f} ms" if record.duration_s is not None else ""
        outcome = f" {record.outcome}{took}" if record.outcome else ""
        told = f"{record.kind} {record.subject}:{outcome} ({record.cause}) {record.reason}".rstrip()
        told = "".join(one if one.isprintable() else "?" for one in told)  # names come from other sites
        log.log(
            logging.WARNING if record.outcome == "failed" else logging.INFO,
            "%s",
            told,
            extra={RECORD_ATTRIBUTE: _fields(record, number)},
        )
        stored = replace(record, id=number)
        for follower in self.followers:
            if not follower.full():
                follower.put_nowait(stored)
