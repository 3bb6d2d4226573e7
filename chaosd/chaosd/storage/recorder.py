"""Where the records of a site's machine go: to the history on disk, to the log, to whoever follows the events."""

from __future__ import annotations

import asyncio
import logging
import time

from chaos_protocols.effects import Record
from chaos_protocols.site import SiteMachine
from chaosd.log_format import RECORD_ATTRIBUTE
from chaosd.storage.history import History, HistoryRecord

log = logging.getLogger("chaosd")


def _fields(record: HistoryRecord, number: int) -> dict[str, object]:
    """What a log of JSON lines says of an entry. The time is the line's own."""
    told = {name: getattr(record, name) for name in record.__slots__ if name not in ("id", "at_unix_s", "detail")}
    return {"history_id": number, **told}


class Recorder:
    """See the module. `followers`: queues of those who follow; a full one misses records, and can read the history."""

    def __init__(self, history: History, machine: SiteMachine) -> None:
        self.followers: set[asyncio.Queue[HistoryRecord]] = set()
        self._history, self._machine = history, machine

    def record(self, effect: Record) -> None:
        machine = self._machine
        record = HistoryRecord(
            at_unix_s=time.time(),
            event_id=machine.outbox.event_id,
            kind=effect.kind,
            subject=effect.subject,
            cause=effect.cause,
            outcome=effect.outcome,
            duration_s=effect.duration_s,
            epoch=machine.roster.epoch,
            round=machine.rounds.completed_round,
            reason=effect.reason,
        )
        number = self._history.append(record)
        took = f" in {effect.duration_s * 1000:.0f} ms" if effect.duration_s is not None else ""
        outcome = f" {effect.outcome}{took}" if effect.outcome else ""
        told = f"{effect.kind} {effect.subject}:{outcome} ({effect.cause}) {effect.reason}"
        told = "".join(one if one.isprintable() else "?" for one in told)  # names come from other sites
        log.info("%s", told, extra={RECORD_ATTRIBUTE: _fields(record, number)})
        stored = HistoryRecord(**{name: getattr(record, name) for name in record.__slots__ if name != "id"}, id=number)
        for follower in self.followers:
            if not follower.full():
                follower.put_nowait(stored)
