"""The lab's log of rounds: whole lines, whatever the disk did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import Tag
from chaosd.storage.rounds_log import RoundsLog

TAG = Tag(epoch=7, round=3)


def append(path: Path) -> None:
    log = RoundsLog(path)
    log.append(TAG, "digest", ((SiteId("a" * 52), 2.0),))
    log.close()


def test_a_line_says_who_contributed_what(tmp_path: Path) -> None:
    append(tmp_path / "rounds.jsonl")
    (line,) = (tmp_path / "rounds.jsonl").read_text().splitlines()
    loaded = json.loads(line)
    assert (loaded["round"], loaded["epoch"], loaded["digest"]) == (3, 7, "digest")
    assert loaded["weights"] == {"a" * 52: 2.0}


def test_a_torn_line_is_ended_before_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": 2, "epo')
    append(path)
    append(path)
    torn, *whole = path.read_text().splitlines()
    assert torn == '{"round": 2, "epo'
    assert [json.loads(line)["round"] for line in whole] == [3, 3]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full: no full disk to write to")
def test_a_full_disk_costs_lines_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    log = RoundsLog(Path("/dev/full"))
    for _ in range(3):
        log.append(TAG, "digest", ())
    log.close()
    assert [record.getMessage() for record in caplog.records] == [
        "the log of rounds takes no lines ([Errno 28] No space left on device); they are dropped"
    ]
