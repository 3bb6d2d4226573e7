"""`chaosd run` refuses what cannot be run in a sentence, and tells what happens in a line."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chaosd.cli import plan_file, run
from chaosd.cli.app import app
from chaosd.cli.events_file import EventsFile
from chaosd.cli.options import EXIT_FAILED, EXIT_USAGE
from chaosd.worker_group.history import Happened


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "name the script that the workers run"),
        (["missing.py"], "missing.py: no such script"),
        (["--nproc", "4", "--dp", "2", "--pp", "3", "x"], "--dp and --pp need 6 workers; --nproc 4 gives 4"),
        (["--nproc", "4", "--pp", "9", "x"], "--dp and --pp need 9 workers; --nproc 4 gives 4"),
        (["--nproc", "5", "--group-size", "2", "x"], "--nproc 5 is no multiple of --group-size 2"),
        (
            ["--nproc", "4", "--group-size", "2", "--dp", "2", "--pp", "2", "x"],
            "--dp and --pp need 4 workers of 2 processes; --nproc 4 gives 2",
        ),
        (["--policies", "reroute,hope", "x"], "allowed: a list of reroute, dynamic, spare"),
        (["--plan", "missing.json", "x"], "--plan missing.json cannot be read: No such file"),
        (
            ["--timeline", "steps.png", "x"],
            "--timeline steps.png: the timeline is an SVG picture; name the file steps.svg",
        ),
        (["--timeline", "missing/steps.svg", "x"], "--timeline missing/steps.svg cannot be written"),
        (
            ["--events", "missing/a.jsonl", "x"],
            "--events missing/a.jsonl cannot be written: No such file or directory",
        ),
        (["--events", "/", "x"], "--events / is a folder; name a file in it, such as /events.jsonl"),
    ],
)
def test_wrong_usage_is_named(arguments: list[str], text: str) -> None:
    found = CliRunner().invoke(app, ["run", *arguments])
    assert found.exit_code == EXIT_USAGE and text in found.output


@pytest.mark.parametrize(
    ("name", "value"),
    [("LOCAL_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"), ("SLURM_STEP_TASKS_PER_NODE", "4(x2),1")],
)
def test_one_of_several_commands_that_a_launcher_has_started_on_a_machine_is_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    found = CliRunner().invoke(app, ["run", "x"])
    assert found.exit_code == EXIT_USAGE and f"has started 4 processes of this command on this machine ({name}=" in (
        " ".join(found.output.split())
    )


def test_one_command_a_machine_may_be_a_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    found = CliRunner().invoke(app, ["run", "missing.py"])
    assert "missing.py: no such script" in found.output


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (b'{"policy": "reroute", "pipe', "is no JSON: line 1, column 23: Unterminated string"),
        (b"\xff\xfe\x00", "is no JSON: it is no text in UTF-8"),
        (b"[" * 100_000, "is no JSON: its brackets stand within each other too deep"),
        (b"[]", "is no plan: it has a list where an object"),
        (b'{"plan": null}', "is no plan: it has null where an object"),
        (b'{"policy": "reroute", "pipelines": []}', "is no plan: plan.pipelines is empty"),
        (
            b'{"policy": "hope", "pipelines": []}',
            "is no plan: plan.policy is 'hope'; allowed: restart",
        ),
    ],
    ids=("empty", "cut", "binary", "deep", "list", "null", "none", "policy"),
)
def test_a_plan_file_that_is_none_is_told_with_how_one_is_made(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    found = CliRunner().invoke(app, ["run", "--plan", str(path), "x"])
    assert found.exit_code == EXIT_USAGE and f"--plan {path} {text}" in found.output
    assert f"write it by hand: {plan_file.EXAMPLE}" in found.output


def test_the_plan_that_is_shown_as_an_example_is_one(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan_file.EXAMPLE, encoding="utf-8")
    plan = plan_file.read_plan(path)
    assert plan.num_layers == 6 and plan.micro_batches == 8 and plan.workers == {0, 1}
    found = CliRunner().invoke(app, ["run", "--plan", str(path), "--nproc", "1", "x"])
    assert found.exit_code == EXIT_USAGE and "names worker 1, and the last of 1 is worker 0" in found.output


def test_another_system_is_told_what_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.sys, "platform", "darwin")
    found = CliRunner().invoke(app, ["run", "x.py"])
    assert found.exit_code == EXIT_USAGE and "needs Linux" in found.output


@pytest.mark.parametrize(("folder", "text"), [("x" * 90, "too long for sockets"), ("", "or set TMPDIR to a folder")])
def test_a_folder_for_temporary_files_that_will_not_do_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, text: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", f"/tmp/{folder}" if folder else None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    found = CliRunner().invoke(app, ["run", "x"])
    assert found.exit_code == EXIT_FAILED and text in found.output
    assert "no `chaosd run`" in CliRunner().invoke(app, ["workers"]).output


@pytest.mark.parametrize(("soft", "hard", "begins"), [(24, 24, False), (24, 4096, True)])
def test_too_few_open_files_are_raised_or_refused_before_a_worker_starts(
    tmp_path: Path, soft: int, hard: int, begins: bool
) -> None:
    """A worker that could not connect was waited for, for ever, and each second filled the log twice as fast."""
    script = tmp_path / "ends.py"
    script.write_text("raise SystemExit(3)", encoding="utf-8")
    limited = f"ulimit -Sn {soft}; ulimit -Hn {hard}; exec {sys.executable} -m chaosd run --nproc 4 {script}"
    found = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == EXIT_FAILED
    refused = "cannot be started: this command may open 24 files and sockets, and needs 48 for 4 processes. Raise"
    assert (refused in found.stderr, "ended before the training began" in found.stderr) == (not begins, begins)


def test_a_script_that_ends_at_once_ends_the_run_with_its_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text("raise SystemExit(3)", encoding="utf-8")
    found = CliRunner().invoke(app, ["run", "--nproc", "2", str(script)])
    assert found.exit_code == EXIT_FAILED
    assert "ended before the training began: its process ended with exit code 3" in found.output


@pytest.mark.parametrize("code", ["0", "3"])
def test_only_a_script_that_ends_well_without_a_step_is_told_what_is_expected_of_it(tmp_path: Path, code: str) -> None:
    script = tmp_path / "ends.py"
    script.write_text(f"raise SystemExit({code})", encoding="utf-8")
    found = CliRunner().invoke(app, ["run", "--standalone", "--nproc", "1", str(script)])
    assert found.exit_code == EXIT_FAILED
    assert f"worker 0 ended before the training began: its process ended with exit code {code}" in found.output
    expected = ". The script has made no step: it has to make its model with coordinator.parallelize(...) or replicate"
    assert found.output.count(expected) == (code == "0")


@pytest.fixture
def short() -> Iterator[Path]:
    """For temporary files: a socket's path has to fit into 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        yield Path(folder)


def _started(short: Path, tmp_path: Path, script: str, *words: str, stderr: int) -> subprocess.Popen[bytes]:
    path = tmp_path / "script.py"
    path.write_text(script, encoding="utf-8")
    command = [sys.executable, "-m", "chaosd", "run", "--standalone", "--nproc", "1", *words, str(path)]
    variables = {**os.environ, "TMPDIR": str(short)}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, env=variables)


def test_whose_stderr_nobody_reads_any_more_ends_all_the_same(short: Path, tmp_path: Path) -> None:
    read, write = os.pipe()
    with _started(short, tmp_path, "raise SystemExit(3)", stderr=write) as process:
        os.close(read)
        os.close(write)
        try:
            assert process.wait(60) == EXIT_FAILED
        finally:
            process.kill()


def test_a_closed_terminal_ends_the_training_and_leaves_nothing(short: Path, tmp_path: Path) -> None:
    events = tmp_path / "events"
    with _started(
        short, tmp_path, "import time; time.sleep(600)", "--events", str(events), stderr=subprocess.PIPE
    ) as process:
        try:
            while not (events.exists() and "worker-started" in events.read_text(encoding="utf-8")):
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGHUP)
            assert process.wait(60) == 128 + signal.SIGHUP
        finally:
            process.kill()
        assert process.stderr is not None and b"was ended by SIGHUP before" in process.stderr.read()
    assert not list(short.iterdir())


def test_a_file_of_events_that_another_run_writes_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("of an earlier run", encoding="utf-8")
    first = EventsFile(path)
    first.write(Happened(at_s=1.0, kind="step", reason="", fields={}))
    found = CliRunner().invoke(app, ["run", "--events", str(path), "x"])
    assert found.exit_code == EXIT_USAGE and f"--events {path} is written by another `chaosd run`" in found.output
    first.close()
    assert path.read_text(encoding="utf-8") == '{"at_s": 1.0, "kind": "step", "reason": ""}\n'
    EventsFile(path).close()
    several = [EventsFile(Path("/dev/null")) for _ in range(2)]
    for file in several:
        file.close()


def test_a_number_that_is_none_is_null_in_the_file_of_events(tmp_path: Path) -> None:
    """A loss that is infinite, of a step that was left out, made a line that is no JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    path = tmp_path / "events.jsonl"
    file = EventsFile(path)
    fields = {"loss": math.inf, "norm": math.nan, "least": -math.inf, "step": 3, "seconds": {"noticing": 0.5}}
    file.write(Happened(at_s=1.0, kind="step", reason="", fields=fields))
    file.close()
    found = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert [found[name] for name in fields] == [None, None, None, 3, {"noticing": 0.5}]


def test_a_disk_that_becomes_full_ends_the_file_of_events_and_not_the_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = EventsFile(Path("/dev/full"))
    for _ in range(2):
        file.write(Happened(at_s=1.0, kind="step", reason="", fields={}))
    file.close()
    told = capsys.readouterr().err
    assert "--events /dev/full: No space left" in told and told.count("no further event") == 1


def test_a_plan_is_told_in_a_line() -> None:
    fields = {"generation": 2, "policy": "spare", "shape": "2 x [0-3 | 3-6] x 4", "moved_bytes": 12}
    assert run._line("plan", "because", fields) == (
        "chaosd: plan 2 (spare): 2 x [0-3 | 3-6] x 4; because (12 bytes move)"
    )
    assert run._line("worker-lost", "killed", {"worker": 3}) == "chaosd: worker-lost 3: killed"


@pytest.mark.parametrize("pressed", [2, 3])
def test_ctrl_c_pressed_again_and_again_shows_no_calls(pressed: int, tmp_path: Path) -> None:
    """The third one met asyncio while it cleaned up after the second, and its tracebacks were shown."""
    script = tmp_path / "run.py"
    script.write_text(
        "import asyncio, os, signal\n"
        "from chaosd.cli import run\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "async def main():\n"
        "    run._on_signals(lambda _: True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    while signal.getsignal(signal.SIGINT) is not run._break_off:\n"
        "        await asyncio.sleep(0)\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        await asyncio.sleep(60)\n"
        "    finally:\n"
        f"        [os.kill(os.getpid(), signal.SIGINT) for _ in range({pressed} - 2)]\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except KeyboardInterrupt:\n"
        "    os._exit(130)\n",
        encoding="utf-8",
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (130 if pressed == 2 else -signal.SIGINT, "")


@pytest.mark.parametrize("ends", [True, False])
def test_a_signal_that_comes_when_the_training_has_failed_is_not_why_it_ended(ends: bool) -> None:
    """OpenBLAS sends its process SIGINT where it gets no thread: the operator read that Ctrl+C had been pressed."""

    async def signalled() -> list[signal.Signals]:
        asked = asyncio.Event()
        by = run._on_signals(lambda _: asked.set() or ends)  # type: ignore[func-returns-value]
        os.kill(os.getpid(), signal.SIGINT)
        await asked.wait()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        return by

    assert asyncio.run(signalled()) == [signal.SIGINT] * ends


def test_sigterm_of_each_thread_of_a_daemon_that_died_is_one_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one ended `chaosd run` at once, and scripts had no time to save anything."""
    monkeypatch.setattr(run, "SAME_TERM_S", 0.2)

    async def signalled() -> list[signal.Signals]:
        loop, by = asyncio.get_running_loop(), run._on_signals(lambda _: True)
        loop.remove_signal_handler(signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        while not by:  # noqa: ASYNC110  a handler of the loop fills it
            await asyncio.sleep(0)
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)
        while signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # noqa: ASYNC110  the same
            await asyncio.sleep(0.01)
        return by

    assert asyncio.run(signalled()) == [signal.SIGTERM]
