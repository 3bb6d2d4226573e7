"""An error of the SDK that no script catches is shown as its sentence, with the script's line; others as ever."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from chaos import Coordinator, telling
from chaos.connection import no_daemon_text
from chaos.errors import ChaosError, HalfAppliedStep, NoDaemon, Refused
from chaos.tracing import cut

CELLS = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(colors="nocolor")
for cell in (
    "from chaos import Coordinator\\nalone = Coordinator(standalone=True)",
    "alone.round\\nalone.step(samples=-3)",
    "Coordinator(connect_s=0.0)",
    "int('three')",
    "import os; os.environ['CHAOS_TRACEBACK'] = '1'; alone.step(samples=-3)",
):
    print("cell")
    shell.run_cell(cell, store_history=True)
"""
SCRIPT = "from chaos import Coordinator\n\n\ndef main():\n    Coordinator(connect_s=0.0)\n\n\nmain()\n"


def shown(error: BaseException, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(telling, "_before", sys.__excepthook__)
    try:
        raise error
    except BaseException as raised:
        telling.told(type(raised), raised, raised.__traceback__)
    return capsys.readouterr().err


def test_the_sentence_stands_alone_with_the_scripts_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = shown(Refused("the daemon refused this worker: another one trains"), capsys, monkeypatch)
    assert told.startswith("chaos: the daemon refused this worker: another one trains [test_telling.py, line ")
    assert told.count("\n") == 1 and "CHAOS_TRACEBACK=1" in told


def test_the_calls_are_shown_on_request(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_TRACEBACK", "1")
    assert "Traceback" in shown(Refused("no"), capsys, monkeypatch)


@pytest.mark.parametrize("error", [HalfAppliedStep("failed half-way"), ValueError("of the script")])
def test_what_the_script_itself_did_is_shown_as_ever(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Traceback" in shown(error, capsys, monkeypatch)


def test_a_call_that_is_refused_is_told_in_its_sentence_and_an_error_that_came_up_within_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "_before", sys.__excepthook__)
    training = {"arrays": {"w": np.zeros(1)}, "apply": lambda averaged, round: None}

    def told_of(number: int) -> str:
        coordinator = Coordinator(standalone=True, handle_signals=False)
        try:
            coordinator.register(**training)  # type: ignore[arg-type]
            coordinator.gradients["w"][: number + 1] = np.zeros(number + 1)
            coordinator.register(**training)  # type: ignore[arg-type]
        except ValueError as raised:
            telling.told(type(raised), raised, raised.__traceback__)
        finally:
            coordinator.close()
        return capsys.readouterr().err

    told = told_of(0)
    assert told.startswith("chaos: register() was already called") and told.count("\n") == 1
    assert "Traceback" in told_of(3), "numpy's own words, in the script"


def test_whoever_can_open_nothing_more_is_told_the_limit_below_the_call_that_has_met_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = shown(OSError(errno.EMFILE, "Too many open files"), capsys, monkeypatch)
    assert "Traceback" in told and told.splitlines()[-1].startswith("chaos: this process has as many files and sockets")


def test_a_refusal_of_a_kind_of_its_own_is_told_in_its_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "_before", sys.__excepthook__)
    with pytest.raises(ValueError, match="computes nothing") as caught:
        cut(torch.nn.Sequential())
    telling.told(caught.type, caught.value, caught.value.__traceback__)
    told = capsys.readouterr().err
    assert told.startswith("chaos: Sequential computes nothing") and told.count("\n") == 1


def test_a_notebook_shows_the_same() -> None:
    telling.install()
    telling.install()
    assert sys.excepthook is telling.told
    render = ChaosError._render_traceback_  # type: ignore[attr-defined]
    assert render(NoDaemon("nobody is there")) == ["chaos: nobody is there"]
    assert "HalfAppliedStep" in "".join(render(HalfAppliedStep("failed")))


def test_a_cell_of_a_notebook_shows_the_sentence_alone_and_errors_of_the_user_as_ever(tmp_path: Path) -> None:
    environment = {**os.environ, "CHAOS_SOCKET": str(tmp_path / "w"), "IPYTHONDIR": str(tmp_path), "NO_COLOR": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", CELLS], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    _, _, refused, alone, own, asked = ended.stdout.split("cell\n")
    (line,) = refused.splitlines()
    assert line.startswith("chaos: samples must be a number from ")
    assert line.endswith(
        "not -3; step(skip=True) is for an empty batch [Cell In[2], line 2; CHAOS_TRACEBACK=1 shows more]"
    )
    (line,) = alone.splitlines()
    assert line.startswith("chaos: no chaosd runs beside this script: ") and "[Cell In[3], line 1; " in line
    assert "Traceback" in own and "int('three')" in own, "an error of the user's own"
    assert "Traceback" in asked and "coordinator.py" in asked


def test_a_script_without_a_daemon_ends_with_one_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("Coordinator()", "Coordinator(connect_s=0)"))
    environment = {**os.environ, "CHAOS_SOCKET": str(tmp_path / "w")}
    ended = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 1 and ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("chaos: no chaosd runs beside this script: nothing is there")
    assert line.endswith("[train.py, line 5; CHAOS_TRACEBACK=1 shows more]")


def test_a_script_that_may_open_no_more_files_is_told_so_and_not_that_nobody_runs() -> None:
    text = no_daemon_text(Path("/run/w"), OSError(24, "Too many open files"))
    assert "ulimit -n" in text and "no chaosd runs" not in text


def test_a_path_that_no_socket_can_have_is_told_as_such() -> None:
    text = no_daemon_text(Path("/" + "x" * 120), OSError("AF_UNIX path too long"))
    assert "121 bytes" in text and "no chaosd runs" not in text


TWICE = """
import os, signal
from chaos import Coordinator

def main():
    with Coordinator(standalone=True):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

main()
"""


def test_a_second_ctrl_c_ends_a_script_with_one_sentence_and_the_code_of_an_interrupt(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TWICE)
    environment = {**os.environ, "CHAOS_TRACEBACK": "0"}
    ended = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == -signal.SIGINT, "which a shell calls 130"
    first, second = filter(None, ended.stderr.splitlines())  # a terminal has ^C in the line before
    assert "once more to stop at once" in first
    assert second.startswith("chaos: stopped at once, by the second signal: this site drops out, and the others go on")
    assert (
        "Traceback"
        in subprocess.run(
            [sys.executable, str(script)],
            env={**environment, "CHAOS_TRACEBACK": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        ).stderr
    )


def test_an_interrupt_of_the_scripts_own_is_shown_as_ever(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Traceback" in shown(KeyboardInterrupt(), capsys, monkeypatch)
