"""`chaosd events --export`, `chaosd metrics`, `chaosd page`: files and addresses for those who watch a site."""

from __future__ import annotations

import csv
import json
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from tests.unit.daemon.api.local_api import FakeControl, record, served
from tests.unit.sdk.line import ShortFolder
from typer.testing import CliRunner, Result

from chaosd.api.answers import json_answer, read_body
from chaosd.api.status import EventRecord, PageAddress
from chaosd.cli.app import app
from chaosd.cli.export import _of_file
from chaosd.page.server import OpenPage
from chaosd.storage.history import History, HistoryRecord


@pytest.fixture
def folder() -> Iterator[Path]:
    with ShortFolder() as name:
        yield Path(name)


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_the_whole_history_is_exported_not_only_the_last_events(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaosd.cli.export.PAGE", 10)
    control = FakeControl(records=25)
    with served(folder / "api.sock", control):
        told = run("events", "--export", folder / "all.jsonl", "--data-dir", folder).output
        run("events", "--export", folder / "all.json", "--data-dir", folder)
        run("events", "--export", folder / "all.csv", "--data-dir", folder)
    assert "25 events written" in told and "the daemon" in told
    lines = (folder / "all.jsonl").read_text().splitlines()
    assert [msgspec.json.decode(line, type=EventRecord) for line in lines] == control.history
    assert msgspec.json.decode((folder / "all.json").read_bytes(), type=list[EventRecord]) == control.history
    with (folder / "all.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["id"]), row["kind"], row["reason"]) for row in rows] == [
        (one.id, one.kind, one.reason) for one in control.history
    ]
    assert rows[0]["at"] == "2026-09-21T14:13:21.250+00:00"


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+1", "-1", "@x", "\tx"])
def test_a_spreadsheet_calculates_nothing_that_a_site_said(folder: Path, text: str) -> None:
    control = FakeControl()
    control.history = [record(1, reason=text)]
    with served(folder / "api.sock", control):
        run("events", "--export", folder / "all.csv", "--data-dir", folder)
    with (folder / "all.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["reason"] == f"'{text}"


def test_without_a_daemon_the_file_of_the_history_is_read(folder: Path) -> None:
    with History.open(folder / "history.sqlite") as history:
        for number in range(3):
            history.append(
                HistoryRecord(at_unix_s=number, event_id="e", kind="pause", subject="s", reason=f"r{number}")
            )
    told = run("events", "--export", folder / "all.json", "--data-dir", folder).output
    assert "3 events" in told and "without a daemon" in told
    assert [one["reason"] for one in json.loads((folder / "all.json").read_text())] == ["r0", "r1", "r2"]


@pytest.mark.parametrize("ended", ["closed", "killed"])
def test_a_history_is_read_and_left_as_it_is_also_where_nothing_can_be_written(tmp_path: Path, ended: str) -> None:
    (tmp_path / "daemon").mkdir()
    with History.open(tmp_path / "daemon" / "history.sqlite") as history:
        history.append(HistoryRecord(at_unix_s=1.0, event_id="e", kind="pause", subject="s", reason="the disk is full"))
        if ended == "killed":
            shutil.copytree(tmp_path / "daemon", tmp_path / "left")
    left = tmp_path / ("left" if ended == "killed" else "daemon")
    before = {path.name: path.read_bytes() for path in left.glob("*[el]")}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if ended == "closed":  # what a killed daemon leaves, SQLite maps anew
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        (read,) = _of_file(left / "history.sqlite")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read.reason == "the disk is full"
    assert {path.name: path.read_bytes() for path in left.glob("*[el]")} == before


def test_a_damaged_history_is_named_and_left_as_it_is(folder: Path) -> None:
    (folder / "history.sqlite").write_bytes(b"no history" * 1000)
    told = run("events", "--export", folder / "a.csv", "--data-dir", folder, code=1).stderr
    assert str(folder / "history.sqlite") in told and "not a database" in told
    assert [path.name for path in folder.iterdir()] == ["history.sqlite"]


def test_what_cannot_be_exported_is_said(folder: Path) -> None:
    assert "there is no history" in run("events", "--export", folder / "a.csv", "--data-dir", folder, code=1).stderr
    assert "must end in" in run("events", "--export", folder / "a.txt", "--data-dir", folder, code=2).stderr
    with served(folder / "api.sock", FakeControl(records=1)):
        told = run("events", "--export", folder / "no" / "a.csv", "--data-dir", folder, code=1).stderr
    assert "cannot write" in told


def test_metrics_are_printed_as_the_daemon_tells_them_and_files_without_one(folder: Path) -> None:
    with served(folder / "api.sock", FakeControl()):
        assert "chaosd_rounds_total 3.0" in run("metrics", "--data-dir", folder).output
    assert "ChaosTrainingStands" in run("metrics", "--alarms").output
    assert json.loads(run("metrics", "--dashboard").output)["title"] == "Chaos"
    assert "job_name: chaosd" in run("metrics", "--scrape").output
    assert "choose one" in run("metrics", "--scrape", "--alarms", code=2).stderr
    assert "no daemon answers" in run("metrics", "--data-dir", folder, code=3).stderr


def test_page_prints_the_address_and_opens_a_browser_where_there_is_a_screen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, shown = [], []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append((await read_body(request, OpenPage)).address)
        return json_answer(PageAddress(address="127.0.0.1:7480", url="http://127.0.0.1:7480/?ticket=t"))

    monkeypatch.setattr("webbrowser.open", shown.append)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    with served(folder / "api.sock", FakeControl(), further=[web.post("/v1/page", answer)]):
        assert run("page", "--data-dir", folder).output == "http://127.0.0.1:7480/?ticket=t\n"
        assert shown == []
        monkeypatch.setenv("DISPLAY", ":0")
        run("page", "--no-browser", "--address", "[::1]:7481", "--data-dir", folder)
        assert (asked, shown) == (["", "[::1]:7481"], [])
        run("page", "--data-dir", folder)
        assert shown == ["http://127.0.0.1:7480/?ticket=t"]
        assert json.loads(run("page", "--json", "--data-dir", folder).output)["address"] == "127.0.0.1:7480"
