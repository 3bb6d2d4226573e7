"""What a site's machine records is in the history, and told to who follows; a repetition is counted, told at last."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from chaos_protocols.effects import Record
from chaosd.site_names import SiteNames
from chaosd.storage import recorder as module
from chaosd.storage.history import History, HistoryRecord
from chaosd.storage.recorder import Recorder
from chaosd.storage.repeats import TOLD_EACH, WINDOW_S

EMPTY = Record(kind="pause", subject="round 7", cause="all gave weight 0", outcome="", duration_s=None, reason="waits")
SITES = [("8d074be9" * 4, "Zurich"), ("11111111" * 4, "Twin"), ("22222222" * 4, "Twin"), ("33333333" * 4, "")]
ZURICH = "8d074be9"
GONE = [("77777777" * 4, "Basel"), ("8d074be9" * 4, "Zurich")]
MACHINE: Any = SimpleNamespace(
    outbox=SimpleNamespace(event_id="e-1"),
    roster=SimpleNamespace(
        epoch=3,
        sites=tuple(SimpleNamespace(site=site, name=name) for site, name in SITES),
        departed=tuple(SimpleNamespace(site=site, name=name) for site, name in GONE),
    ),
    replica=SimpleNamespace(last_known=SimpleNamespace(sites=(), departed=())),
    rounds=SimpleNamespace(completed_round=6),
    network=SimpleNamespace(refusals=SimpleNamespace(sites={})),
    links=SimpleNamespace(up_sites=set),
)


async def test_a_repetition_is_counted_and_told_to_those_who_follow_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(module, "WINDOW_S", 0.01)
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: 1.0, monotonic=lambda: now_s))
    with History.open(tmp_path / "history.sqlite") as history:
        recorder = Recorder(history, MACHINE, SiteNames(MACHINE))
        follower: asyncio.Queue[HistoryRecord] = asyncio.Queue()
        recorder.followers.add(follower)
        for _ in range(TOLD_EACH + 20):
            recorder.record(EMPTY)
        now_s = WINDOW_S
        each = [await asyncio.wait_for(follower.get(), 60) for _ in range(TOLD_EACH)]
        assert {one.reason for one in each} == {"waits"}
        summary = await asyncio.wait_for(follower.get(), 60)
        assert summary.reason == "waits (20 times more in 60 s)" and summary.detail == '{"times": 20}'
        assert [one.id for one in history.read()] == list(range(1, TOLD_EACH + 2))


async def test_what_fails_is_a_warning_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with History.open(tmp_path / "history.sqlite") as history:
        recorder = Recorder(history, MACHINE, SiteNames(MACHINE))
        for outcome in ("", "done", "failed"):
            recorder.record(replace(EMPTY, kind="checkpoint", outcome=outcome))
        recorder.close()
    assert [one.levelname for one in caplog.records] == ["INFO", "INFO", "WARNING"]


def test_a_line_of_the_log_ends_with_its_last_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with History.open(tmp_path / "history.sqlite") as history:
        Recorder(history, MACHINE, SiteNames(MACHINE)).record(replace(EMPTY, reason=""))
    assert [one.getMessage() for one in caplog.records] == ["pause round 7: (all gave weight 0)"]


async def test_what_was_counted_is_in_the_history_when_the_daemon_ends(tmp_path: Path) -> None:
    with History.open(tmp_path / "history.sqlite") as history:
        recorder = Recorder(history, MACHINE, SiteNames(MACHINE))
        for _ in range(TOLD_EACH + 1):
            recorder.record(EMPTY)
        recorder.close()
        recorder.close()
        assert "(once more in " in history.read()[-1].reason and len(history.read()) == TOLD_EACH + 1


def test_sites_are_told_of_by_their_names(tmp_path: Path) -> None:
    with History.open(tmp_path / "history.sqlite") as history:
        Recorder(history, MACHINE, SiteNames(MACHINE)).record(
            Record(kind="link-down", subject=ZURICH, cause=ZURICH, outcome="", duration_s=None, reason=f"for {ZURICH}")
        )
        (found,) = history.read()
    assert (found.subject, found.cause, found.reason) == ("Zurich", "Zurich", "for Zurich")
