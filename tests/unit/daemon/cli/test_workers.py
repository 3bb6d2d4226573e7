"""`chaosd workers` shows what the controllers of this user have written, and nothing of those that are gone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import msgspec
import pytest
from tests.unit.protocols.worker_group.group_bench import GroupBench
from typer.testing import CliRunner

from chaos_protocols.worker_group.events import SpeedsMeasured
from chaos_protocols.worker_group.suspicion import Reading, Work
from chaos_protocols.worker_group.uneven import SLOW_FOR_S
from chaosd.cli.app import app
from chaosd.cli.options import EXIT_FAILED
from chaosd.worker_group.board import BOARD_NAME, FOLDER_PREFIX, TRAINS, Board, GroupView, WorkerView
from chaosd.worker_group.history import GroupHistory


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    found = tmp_path / f"{FOLDER_PREFIX}abc"
    found.mkdir()
    return found


def written(folder: Path, command: str = "python train.py") -> GroupView:
    bench = GroupBench(workers=4, spares=1)
    bench.train()
    board = Board(folder, command)
    readings = {worker: Reading(count=1, work=Work.BACKWARD, peer=-1, beat=1) for worker in range(5)}
    history = GroupHistory(lambda _: None)
    for at_s, kind, fields in ((0.0, "plan", {"step_s": 0.18}), (1.0, "step", {}), (1.2, "step", {})):
        history.record(at_s, kind, "", fields)
    board.write(bench.machine, {worker: 100 + worker for worker in range(6)}, readings, history, {0: "cuda:3"})
    return msgspec.json.decode((folder / BOARD_NAME).read_bytes(), type=GroupView)


def site_of(count: int) -> GroupView:
    """Pipelines of four stages."""
    workers = tuple(
        WorkerView(worker=n, pid=5000 + n, device="cpu", stage=str(n % 4), state=TRAINS, since=0.0, doing="forward")
        for n in range(count)
    )
    return GroupView(
        pid=os.getpid(), command="train", phase="training", generation=1, step=2, shape="", run="", written=0.0,
        workers=workers,
    )  # fmt: skip


def test_each_worker_has_its_layers_and_what_it_is_there_for(folder: Path) -> None:
    view = written(folder)
    assert (view.phase, view.step, view.generation, view.run) == ("training", 0, 1, "")
    assert [each.stage for each in view.workers] == ["0", "1", "0", "1", "", ""]
    assert [each.state for each in view.workers] == ["trains"] * 4 + ["waits for a place", "starting"]
    assert view.workers[0].doing == "backward" and view.workers[3].pid == 103
    assert [each.device for each in view.workers[:2]] == ["cuda:3", "cpu"]


def test_how_long_a_worker_does_what_it_does_is_no_affair_of_the_wall_clock(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour that a clock is set forward was shown as an hour of training."""
    bench = GroupBench(workers=2)
    bench.train()
    board = Board(folder, "train")
    lasting = []
    for shift_s in (0.0, 3600.0):
        now_s = time.time() + shift_s
        monkeypatch.setattr("chaosd.worker_group.board.time.time", lambda at_s=now_s: at_s)
        board.write(bench.machine, {0: 100, 1: 101}, {}, GroupHistory(lambda _: None), {})
        view = msgspec.json.decode((folder / BOARD_NAME).read_bytes(), type=GroupView)
        lasting.append(view.written - view.workers[0].since)
    assert all(0.0 <= each < 1800.0 for each in lasting), lasting


def test_the_command_shows_them_as_a_table_and_as_json(folder: Path) -> None:
    written(folder)
    shown = CliRunner().invoke(app, ["workers"])
    assert "a step: 200 ms measured, 180 ms expected" in shown.output and "-10.0%" in shown.output
    assert shown.exit_code == 0 and "waits for a place" in shown.output and "backward" in shown.output
    (view,) = json.loads(CliRunner().invoke(app, ["workers", "--json"]).output)
    assert view["pid"] == os.getpid() and len(view["workers"]) == 6


@pytest.mark.parametrize(("name", "shown_as"), [(b"my site", "my site"), (b"train\xe9", "train\ufffd")])
def test_the_folder_in_which_it_was_started_tells_it_from_another(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes, shown_as: str
) -> None:
    here = tmp_path / os.fsdecode(name)
    here.mkdir()
    monkeypatch.chdir(here)
    assert written(folder).folder == f"{tmp_path}/{shown_as}"
    shown = "".join(CliRunner().invoke(app, ["workers"]).output.split())
    assert f"(controller{os.getpid()}in{tmp_path}/{shown_as})".replace(" ", "") in shown
    refused = "".join(CliRunner().invoke(app, ["workers", "drain", "1", "--of", "1"]).output.split())
    assert f"hereare{os.getpid()}(pythontrain.pyin{tmp_path}/{shown_as})".replace(" ", "") in refused


def test_a_script_whose_name_is_no_utf_8_is_shown(folder: Path) -> None:
    """Its board was never written, so its `chaosd run` did not seem to be there."""
    assert written(folder, os.fsdecode(b"python train\xe9.py")).command == "python train\ufffd.py"


def test_a_folder_that_was_removed_keeps_nobody_from_training(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert written(folder).folder == ""


def test_workers_are_shown_where_their_disk_has_become_full(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`chaosd workers` said that none was running, since another folder is taken for temporary files then."""
    (tmp_path / "other").mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "other"))
    view = written(folder)
    assert "as it was" not in CliRunner().invoke(app, ["workers"]).output
    (folder / BOARD_NAME).write_bytes(msgspec.json.encode(msgspec.structs.replace(view, written=view.written - 60)))
    shown = " ".join(CliRunner().invoke(app, ["workers"]).output.split())
    assert re.search(r"as it was 6\d s ago: since then `chaosd run` has written nothing", shown)
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert "python train.py" in CliRunner().invoke(app, ["workers"]).output


def test_who_stands_still_and_who_was_lost_is_said(folder: Path) -> None:
    bench = GroupBench(workers=4, spares=1)
    bench.train()
    board, history = Board(folder, "python train.py"), GroupHistory(lambda _: None)
    history.record(time.monotonic() - 100.0, "worker-awaited", "no progress in backward", {"worker": 1})
    history.record(time.monotonic() - 90.0, "worker-awaited", "no progress in forward", {"worker": 2})
    history.record(time.monotonic() - 80.0, "worker-goes-on", "it has spoken again", {"worker": 2})
    for worker in (7, 6):
        history.record(time.monotonic() - 60.0, "worker-lost", f"SIGKILL of {worker}", {"worker": worker, "step": 3})
    board.write(bench.machine, {worker: 100 + worker for worker in range(5)}, {}, history, {})
    shown = CliRunner().invoke(app, ["workers"]).output
    assert "5 workers: trains 3, stands still 1, waits for a place 1" in shown
    assert "worker 1 stands still: no progress in backward" in shown and "worker 2 stands still" not in shown
    assert re.search(r"lost so far: 2; the last: worker 6, 6\d s ago \(SIGKILL of 6\)", " ".join(shown.split()))
    (view,) = json.loads(CliRunner().invoke(app, ["workers", "--json"]).output)
    assert [one["worker"] for one in view["lost"]] == [7, 6] and view["lost_total"] == 2
    history.record(time.monotonic(), "worker-lost", "killed", {"worker": 1})
    board.write(bench.machine, {0: 100}, {}, history, {})
    assert "stands still" not in CliRunner().invoke(app, ["workers"]).output


def test_who_is_slow_is_said(folder: Path) -> None:
    bench = GroupBench(workers=4, spares=1)
    bench.train()
    for _ in range(2):
        bench.feed(SpeedsMeasured(speeds={3: 0.25, 1: 0.5}))
        bench.now_s += SLOW_FOR_S
    Board(folder, "train").write(bench.machine, dict.fromkeys(range(5), 100), {}, GroupHistory(lambda _: None), {})
    shown = CliRunner().invoke(app, ["workers"]).output
    assert [line.split(" computes")[0] for line in shown.splitlines() if "of the others" in line] == [
        "worker 3",
        "worker 1",
    ]
    (view,) = json.loads(CliRunner().invoke(app, ["workers", "--json"]).output)
    assert [one["speed"] for one in view["workers"]] == [1.0, 0.5, 1.0, 0.25, 1.0]


def test_who_was_left_out_for_its_speed_is_said_and_when_it_is_tried_again(folder: Path) -> None:
    bench = GroupBench(workers=4)
    bench.now_s = time.monotonic()
    bench.train()
    for _ in range(2):
        bench.feed(SpeedsMeasured(speeds={3: 0.25}))
        bench.now_s += SLOW_FOR_S
    bench.now_s = time.monotonic()
    bench.feed(SpeedsMeasured(speeds={3: 0.25}, before=frozenset({3})))
    Board(folder, "train").write(bench.machine, dict.fromkeys(range(4), 100), {}, GroupHistory(lambda _: None), {})
    shown = " ".join(CliRunner().invoke(app, ["workers"]).output.split())
    assert "worker 3 had 0.25 of the speed of the others; it is tried again in 10 min" in shown
    (view,) = json.loads(CliRunner().invoke(app, ["workers", "--json"]).output)
    assert [round(one["tried_again"] - time.time(), -1) for one in view["workers"] if one["tried_again"]] == [600.0]


def test_a_large_site_fits_on_a_screen_and_all_of_it_is_there_on_demand(folder: Path) -> None:
    view = site_of(1000)
    (folder / BOARD_NAME).write_bytes(msgspec.json.encode(view))
    shown = CliRunner().invoke(app, ["workers"]).output
    assert len(shown.splitlines()) < 60
    everyone = CliRunner().invoke(app, ["workers", "--all"]).output
    assert all(f" {one.worker} " in everyone for one in view.workers)
    (found,) = json.loads(CliRunner().invoke(app, ["workers", "--json"]).output)
    assert len(found["workers"]) == 1000


def test_a_controller_that_is_gone_is_not_shown(folder: Path) -> None:
    view = written(folder)
    ended = subprocess.Popen(["true"])
    ended.wait()
    gone = msgspec.structs.replace(view, pid=ended.pid)
    (folder / BOARD_NAME).write_bytes(msgspec.json.encode(gone))
    found = CliRunner().invoke(app, ["workers"])
    assert found.exit_code == EXIT_FAILED and "no `chaosd run`" in found.output


def test_a_board_is_found_whatever_the_length_of_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / ("long" * 30)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(place))
    (place / f"{FOLDER_PREFIX}abc").mkdir(parents=True)
    written(place / f"{FOLDER_PREFIX}abc")
    assert CliRunner().invoke(app, ["workers"]).exit_code == 0


def test_a_file_that_is_no_board_is_passed_over(folder: Path) -> None:
    (folder / BOARD_NAME).write_text("{", encoding="utf-8")
    assert CliRunner().invoke(app, ["workers"]).exit_code == EXIT_FAILED


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=("table", "json"))
def test_watching_shows_them_until_the_last_is_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    board = folder / BOARD_NAME
    first = written(folder)

    def next_look(_: float) -> None:
        if json.loads(board.read_bytes())["step"] == first.step:
            board.write_bytes(msgspec.json.encode(msgspec.structs.replace(first, step=first.step + 41)))
        else:
            board.unlink()

    monkeypatch.setattr("time.sleep", next_look)
    shown = CliRunner().invoke(app, ["workers", "--watch", *flags])
    assert shown.exit_code == 0, shown.output
    if flags:
        assert [view["step"] for line in shown.output.splitlines() for view in json.loads(line)] == [0, 41]
    else:
        assert "step 41" in shown.output and shown.output.endswith("is running any more\n")
