"""The event history: kept across restarts, bounded, for the owner only, and no reason for a daemon to stop."""

from __future__ import annotations

import logging
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from chaosd.storage.history import (
    DETAIL_CHARACTERS_MAX,
    READ_ROWS_MAX,
    TEXT_CHARACTERS_MAX,
    History,
    HistoryError,
    HistoryRecord,
)


def record(number: int, **changes: object) -> HistoryRecord:
    values: dict[str, object] = {
        "at_unix_s": 1_700_000_000.0 + number,
        "event_id": f"event-{number}",
        "kind": "scale_out",
        "subject": "a" * 32,
        **changes,
    }
    return HistoryRecord(**values)  # type: ignore[arg-type]


def test_records_are_there_after_reopening_with_all_their_fields(tmp_path: Path) -> None:
    full = record(
        1,
        cause="request",
        outcome="done",
        duration_s=0.25,
        epoch=7,
        round=12,
        reason="admitted by the roster's policy",
        detail='{"bytes": 5}',
    )
    with History.open(tmp_path / "history.sqlite") as history:
        assert history.append(full) == 1
        assert history.append(record(2)) == 2
    with History.open(tmp_path / "history.sqlite") as history:
        one, two = history.read()
        assert one == HistoryRecord(**{name: getattr(full, name) for name in one.__slots__ if name != "id"}, id=1)
        assert (two.duration_s, two.epoch, two.round, two.id) == (None, None, None, 2)
        assert history.append(record(3)) == 3


def test_a_reader_pages_on_from_the_last_id_it_has_seen(tmp_path: Path) -> None:
    with History.open(tmp_path / "h") as history:
        for number in range(25):
            history.append(record(number))
        seen: list[str] = []
        last = 0
        while page := history.read(after_id=last, limit=10):
            seen += [each.event_id for each in page]
            last = page[-1].id
        assert seen == [f"event-{number}" for number in range(25)]
        assert [each.id for each in history.latest(3)] == [23, 24, 25]
        assert history.read(limit=-5) == ()
        assert len(history.read(limit=10 * READ_ROWS_MAX)) == 25


def test_only_the_newest_rows_are_kept_and_ids_are_never_used_again(tmp_path: Path) -> None:
    with History.open(tmp_path / "h", rows_max=50) as history:
        for number in range(600):
            history.append(record(number))
        kept = history.read()
        assert 50 <= len(kept) <= 100
        assert kept[-1].id == 600
    with History.open(tmp_path / "h", rows_max=50) as history:
        assert history.append(record(601)) == 601


def test_the_file_is_for_the_owner_only(tmp_path: Path) -> None:
    with History.open(tmp_path / "site" / "h") as history:
        history.append(record(1))
        assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "site").iterdir()} == {0o600}


def test_a_full_disk_drops_records_with_one_log_line_and_counts_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with History.open(tmp_path / "h") as history:
        history.append(record(1))
        (pages,) = history._connection.execute("PRAGMA page_count").fetchone()
        history._connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite itself then says that the disk is full
        with caplog.at_level(logging.WARNING):
            answers = [history.append(record(number, reason="x" * 4000)) for number in range(2, 22)]
        assert answers[-1] == 0
        assert history.dropped == answers.count(0) >= 15
        assert [line for line in caplog.messages if "takes no records" in line] == [
            f"the event history {tmp_path / 'h'} takes no records (database or disk is full); they are dropped"
        ]
        assert len(history.read()) == 21 - history.dropped
        history._connection.execute("PRAGMA max_page_count = 100000")
        with caplog.at_level(logging.WARNING):
            assert history.append(record(30)) > 0
        assert f"works again; {history.dropped} records were dropped" in caplog.messages[-1]


def test_a_damaged_file_is_moved_aside_and_a_new_history_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "h"
    path.write_bytes(b"this is no database " * 100)
    with caplog.at_level(logging.WARNING), History.open(path) as history:
        assert history.append(record(1)) == 1
    assert (tmp_path / "h.damaged").read_bytes().startswith(b"this is no database")
    assert "is damaged" in caplog.messages[0]


def test_a_file_of_a_newer_version_is_left_alone_and_named(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "h") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(HistoryError, match="has format 99, newer than this chaosd"):
        History.open(tmp_path / "h")


def test_a_path_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for path in (tmp_path / "file" / "h", tmp_path):
        with pytest.raises(HistoryError, match=r"cannot be opened.*Check the data directory"):
            History.open(path)


def test_hostile_texts_are_bounded_and_stored(tmp_path: Path) -> None:
    with History.open(tmp_path / "h") as history:
        assert history.append(record(1, reason="r" * 10**6, subject="\ud800", detail="d" * (DETAIL_CHARACTERS_MAX + 1)))
        assert history.append(record(2, subject="'; DROP TABLE history; --\0"))
        one, two = history.read()
        assert (len(one.reason), one.subject) == (TEXT_CHARACTERS_MAX, "?")
        assert one.detail == f'{{"dropped_characters": {DETAIL_CHARACTERS_MAX + 1}}}'
        assert two.subject == "'; DROP TABLE history; --\0"


def test_a_record_that_cannot_be_stored_is_dropped_and_counted(tmp_path: Path) -> None:
    with History.open(tmp_path / "h") as history:
        assert history.append(record(1, round=1 << 70)) == 0
        assert history.append(record(1, at_unix_s=float("nan"))) == 0
        assert history.dropped == 2
        assert history.append(record(2)) > 0


def test_another_process_may_read_while_the_daemon_writes(tmp_path: Path) -> None:
    with History.open(tmp_path / "h") as history:
        history.append(record(1))
        reader = sqlite3.connect(tmp_path / "h")
        try:
            cursor = reader.execute("SELECT event_id FROM history")
            assert history.append(record(2)) == 2
            assert cursor.fetchone() == ("event-1",)
        finally:
            reader.close()


def test_threads_may_share_a_history(tmp_path: Path) -> None:
    with History.open(tmp_path / "h") as history:

        def write(first: int) -> None:
            for number in range(first, first + 50):
                history.append(record(number))

        threads = [threading.Thread(target=write, args=(50 * place,)) for place in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {each.event_id for each in history.read()} == {f"event-{number}" for number in range(200)}


def test_a_closed_history_drops_and_says_so_to_readers(tmp_path: Path) -> None:
    history = History.open(tmp_path / "h")
    history.close()
    assert history.append(record(1)) == 0
    with pytest.raises(HistoryError, match="cannot be read"):
        history.read()
