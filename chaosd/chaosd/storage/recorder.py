"""Where the records of a site's machine go: to the history on disk, to the log, to whoever follows the events."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import Record
from chaos_protocols.names import short
from chaos_protocols.site import SiteMachine
from chaosd.log_format import RECORD_ATTRIBUTE
from chaosd.storage.history import History, HistoryRecord
from chaosd.storage.repeats import WINDOW_S, Repeats

log = logging.getLogger("chaosd")

SHORT_ID = re.compile(r"\b[0-9a-f]{8}\b")
"""As `short` writes it."""


def _fields(record: HistoryRecord, number: int) -> dict[str, object]:
    """What a log of JSON lines says of an entry. The time is the line's own."""
    told = {name: getattr(record, name) for name in record.__slots__ if name not in ("id", "at_unix_s", "detail")}
    return {"history_id": number, **told}


def _names(roster: Roster, gone: bool) -> Mapping[str, str]:
    """Short id to name, of the sites in the roster and, if `gone`, of those that were; without names that two have."""
    called = {short(one.site): one.name for one in roster.departed if gone and one.name}
    called |= {short(one.site): one.name for one in roster.sites if one.name}
    often = Counter(called.values())
    return {site: name for site, name in called.items() if often[name] == 1}


def _named(text: str, roster: Roster, *, gone: bool = False) -> str:
    """What a machine tells of a site by the beginning of its id, for people who know it by its name. `gone`: also of
    one that is no more in the run."""
    if not SHORT_ID.search(text):
        return text
    names = _names(roster, gone)
    return SHORT_ID.sub(lambda found: names.get(found[0], found[0]), text)


class Recorder:
    """See the module. `followers`: queues of those who follow; a full one misses records, and can read the history.
    What repeats itself is counted (`repeats.py`); driven on the daemon's loop, which wakes it to tell how often."""

    def __init__(self, history: History, machine: SiteMachine) -> None:
        self.followers: set[asyncio.Queue[HistoryRecord]] = set()
        self._history, self._machine = history, machine
        self._repeats = Repeats()
        self._timer: asyncio.TimerHandle | None = None

    def record(self, effect: Record) -> None:
        """Something happened, now."""
        machine, roster = self._machine, self._machine.roster
        record = HistoryRecord(
            at_unix_s=time.time(),
            event_id=machine.outbox.event_id,
            kind=effect.kind,
            subject=_named(effect.subject, roster, gone=True),
            cause=_named(effect.cause, roster),
            outcome=effect.outcome,
            duration_s=effect.duration_s,
            epoch=roster.epoch,
            round=machine.rounds.completed_round,
            reason=_named(effect.reason, roster),  # not of those gone: a command for who asks to come back stays one
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
        told = f"{record.kind} {record.subject}:{outcome} ({record.cause}) {record.reason}"
        told = "".join(one if one.isprintable() else "?" for one in told)  # names come from other sites
        log.info("%s", told, extra={RECORD_ATTRIBUTE: _fields(record, number)})
        stored = replace(record, id=number)
        for follower in self.followers:
            if not follower.full():
                follower.put_nowait(stored)
