"""`chaosd events --export FILE`: the whole history of this site as a file, for a report; with or without a daemon."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from chaosd.cli.options import EXIT_FAILED, EXIT_USAGE, fail

if TYPE_CHECKING:
    from chaosd.api.client import LocalClient
    from chaosd.api.status import EventRecord

PAGE = 5000
"""Records that are asked for at a time; the daemon answers at most 10,000."""
HISTORY_NAME = "history.sqlite"
COLUMNS = (
    "id", "at", "kind", "outcome", "subject", "cause", "reason", "duration_s", "epoch", "round", "event_id", "times",
)  # fmt: skip
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet would calculate what begins so, and names come from other sites."""


def export(path: Path, client: LocalClient, data_dir: Path) -> tuple[int, str]:
    """Write all that the history holds; how many, and from where. The ending says how: .csv, .jsonl or .json."""
    from chaosd.api.client import NoDaemonError

    if path.suffix not in (".csv", ".jsonl", ".json"):
        fail(f"--export {path}: the name must end in .csv, .jsonl or .json, which says how it is written", EXIT_USAGE)
    try:
        records, source = list(_of_daemon(client)), "the daemon"
    except NoDaemonError:
        records, source = list(_of_file(data_dir / HISTORY_NAME)), f"{data_dir / HISTORY_NAME}, without a daemon"
    try:
        path.write_text(_written(records, path.suffix), encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}", EXIT_FAILED)
    return len(records), source


def _of_daemon(client: LocalClient) -> Iterator[EventRecord]:
    after = 0
    while records := client.events(after_id=after, limit=PAGE):
        yield from records
        after = records[-1].id


def _of_file(path: Path) -> Iterator[EventRecord]:
    from chaosd.api.daemon_status import event_record
    from chaosd.storage.history import History, HistoryError

    if not path.exists():
        fail(f"no daemon answers, and there is no history at {path}", EXIT_FAILED)
    try:
        with History.open_to_read(path) as history:
            after = 0
            while records := history.read(after_id=after, limit=PAGE):
                yield from map(event_record, records)
                after = records[-1].id
    except HistoryError as error:
        fail(str(error), EXIT_FAILED)


def _written(records: list[EventRecord], ending: str) -> str:
    import msgspec

    if ending == ".json":
        return msgspec.json.format(msgspec.json.encode(records), indent=2).decode() + "\n"
    if ending == ".jsonl":
        return "".join(msgspec.json.encode(record).decode() + "\n" for record in records)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for record in records:
        at = datetime.fromtimestamp(record.at_unix_s, UTC).isoformat(timespec="milliseconds")
        fields = {**msgspec.to_builtins(record), "at": at}
        table.writerow([_cell(fields[name]) for name in COLUMNS])
    return text.getvalue()


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value
