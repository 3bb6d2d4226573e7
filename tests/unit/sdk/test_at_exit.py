"""How a script ends decides whether its site leaves the run: at its end it does, a failed one just drops out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.sdk.fake_daemon import FakeDaemon

from chaos_protocols.wire.worker import Dismissed

TRAINING = """
import sys
import numpy as np
from chaos import Coordinator
weights = np.zeros(2)

def train(coordinator):
    coordinator.register(arrays=dict(weights=weights), apply=lambda averaged, round: None)
    coordinator.gradients["weights"][...] = 1.0
    coordinator.step()

coordinator = Coordinator(verbose=False)
"""
PROCESS = f"""
def work(begin={TRAINING!r}):
    there = dict()
    exec(begin, there)
    there["train"](there["coordinator"])
    import sys
    {{end}}

import multiprocessing
process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
"""
BARE = TRAINING + "train(coordinator)\n{end}\n"
BLOCK = TRAINING + "with coordinator:\n    train(coordinator)\n    {end}\n"
ENDS = ["pass", "sys.exit()", "sys.exit(0)", "exit()", "sys.exit(None)"]
FAILURES = ["sys.exit(3)", "exit(3)", "quit('no room')", "sys.exit('no room')", "1 / 0", "sys.exit(True)"]
CAUGHT = "try: sys.exit(3)\nexcept SystemExit as error: assert error.code == 3"
ASKED = "import signal; signal.raise_signal(signal.SIGINT); sys.exit(130)"


def leaves(script: str, socket_file: Path, *, interactive: bool = False) -> bool:
    """Whether a script leaves the run at its end, as its daemon sees it. `interactive`: its lines are typed."""
    command: list[str] = [sys.executable, "-i"] if interactive else [sys.executable, "-c", script]
    left = []

    def plays(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.echo_round()
        try:
            daemon.expect_leave()
        except AssertionError:  # it closed the connection
            left.append(False)
            return
        left.append(True)
        daemon.send(Dismissed(last_round=1, graceful=True, reason="left"))
        assert daemon.at_end_of_file()

    with FakeDaemon(socket_file, plays):
        environment = {**os.environ, "CHAOS_SOCKET": str(socket_file)}
        typed = script.encode() if interactive else b""
        subprocess.run(command, env=environment, input=typed, capture_output=True, timeout=150, check=False)
    return left[0]


@pytest.mark.parametrize("form", [BARE, BLOCK], ids=["bare", "block"])
@pytest.mark.parametrize("end", [*ENDS, ASKED])
def test_a_script_that_ends_leaves(socket_file: Path, form: str, end: str) -> None:
    assert leaves(form.format(end=end), socket_file)


@pytest.mark.parametrize("form", [BARE, BLOCK], ids=["bare", "block"])
@pytest.mark.parametrize("end", FAILURES)
def test_a_script_that_ends_with_another_code_than_0_has_failed_and_does_not_leave(
    socket_file: Path, form: str, end: str
) -> None:
    assert not leaves(form.format(end=end), socket_file)


def test_a_code_that_the_script_itself_has_caught_is_no_end(socket_file: Path) -> None:
    assert leaves(BARE.format(end=CAUGHT), socket_file)


def test_in_a_block_any_systemexit_counts(socket_file: Path) -> None:
    assert not leaves(BLOCK.format(end="raise SystemExit('no room')"), socket_file)


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(3)", 3), ("exit(3)", 3), ("sys.exit('no room')", 1), ("quit()", 0)]
)
def test_the_exit_code_and_the_words_are_those_of_any_script(end: str, code: int) -> None:
    script = f"import sys, chaos\n{end}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == code
    assert done.stderr == ("no room\n" if "room" in end else "")


@pytest.mark.parametrize(
    ("end", "left"), [("pass", True), ("sys.exit(0)", True), ("sys.exit(3)", False), ("1 / 0", False)]
)
def test_a_process_of_multiprocessing_ends_as_a_script_does(socket_file: Path, end: str, left: bool) -> None:
    """It does not ask for what was registered for the interpreter's end."""
    assert leaves(PROCESS.format(end=end), socket_file) is left


@pytest.mark.parametrize("end", ["exit()", ""], ids=["exit", "end of the input"])
def test_an_interactive_session_leaves_whatever_went_wrong_in_it(socket_file: Path, end: str) -> None:
    assert leaves(BARE.format(end=f"a name that is misspelt\n{end}"), socket_file, interactive=True)
