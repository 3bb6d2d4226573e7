"""A process that was forked from the script has its coordinator, socket and shared memory too: nothing of what it does
there reaches the daemon."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.unit.sdk.fake_daemon import FakeDaemon
from tests.unit.sdk.line import Line

from chaos import Coordinator

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def in_child(work: Callable[[], None]) -> str:
    """What went wrong in a child that did it; empty: nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os.write(writer, traceback.format_exc()[-4000:].encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        said = told.read()
    os.waitpid(child, 0)
    return said


def trains_two_rounds(daemon: FakeDaemon) -> None:
    daemon.founder()
    daemon.echo_round()
    daemon.echo_round()


@pytest.mark.parametrize(
    "call",
    [
        lambda line: line.coordinator.step(),
        lambda line: line.coordinator.gradients,
        lambda line: line.coordinator.check_state_replication(),
        lambda line: line.coordinator.request_node_exit(),
    ],
    ids=["step", "gradients", "check_state_replication", "request_node_exit"],
)
def test_a_forked_child_that_calls_the_coordinator_is_told_and_its_parent_trains_on(
    socket_file: Path, call: Callable[[Line], None]
) -> None:
    with FakeDaemon(socket_file, trains_two_rounds), Line(socket_file) as line:
        line.register()
        assert line.step()
        said = in_child(lambda: call(line))
        assert f"trains in process {os.getpid()}" in said and "hand over results" in said
        assert line.step() and line.coordinator.round == 2


def test_a_forked_child_that_ends_the_block_does_not_leave_in_its_parents_name(socket_file: Path) -> None:
    with FakeDaemon(socket_file, trains_two_rounds), Line(socket_file) as line:
        line.register()
        assert line.step()
        assert in_child(line.coordinator.close) == ""
        assert line.step() and line.coordinator.round == 2


def test_a_child_that_reads_the_script_again_is_told_what_to_write(tmp_path: Path) -> None:
    """Without a guard each process of a data loader would join the run."""
    script = tmp_path / "train.py"
    script.write_text(
        "import multiprocessing\nfrom chaos import Coordinator\ncoordinator = Coordinator(standalone=True)\n"
        "child = multiprocessing.get_context('spawn').Process(target=print)\nchild.start()\nchild.join()\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=150, check=False)
    assert "this script is read again by a process that it has started" in run.stderr
    assert "__main__" in run.stderr and "Traceback" not in run.stderr


DATA = [(torch.ones(2), torch.ones(1))] * 4


@pytest.mark.parametrize("how", ["parallelize", "replicate"])
def test_a_forked_child_of_a_worker_is_told_and_its_parent_trains_on(how: str) -> None:
    """The child waited for an answer that its parent's thread reads, and the parent for the child: for ever."""
    module = torch.nn.Sequential(torch.nn.Linear(2, 1))
    loss = torch.nn.functional.mse_loss
    said = ""
    with Coordinator(standalone=True, verbose=False, handle_signals=False) as coordinator:
        if how == "parallelize":
            model = coordinator.parallelize(module, loss=loss)
            coordinator.register(model=model, optimizer=lambda params: torch.optim.SGD(params, lr=0.1))
            for batch in coordinator.loader(DATA, global_batch=2, micro_batch=1, steps=3):
                model.step(batch)
                said = said or in_child(lambda at=batch: model.step(at))  # type: ignore[misc]
        else:
            coordinator.replicate(module)
            coordinator.register(model=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
            for x, y in coordinator.loader(DATA, global_batch=2, micro_batch=1, steps=3):
                loss(module(x), y).backward()
                said = said or in_child(coordinator.step)
                coordinator.step()
        assert coordinator.round == 3
    assert f"trains in process {os.getpid()}" in said and "hand over results" in said


def test_a_forked_child_of_a_worker_that_ends_the_block_tells_nothing_in_its_parents_name() -> None:
    with Coordinator(standalone=True, verbose=False, handle_signals=False) as coordinator:
        model = coordinator.parallelize(torch.nn.Sequential(torch.nn.Linear(2, 1)), loss=torch.nn.functional.mse_loss)
        coordinator.register(model=model, optimizer=lambda params: torch.optim.SGD(params, lr=0.1))
        model.step(next(iter(coordinator.loader(DATA, global_batch=2, micro_batch=1, steps=3))))

        def heard(*_: object) -> None:
            raise AssertionError("the others would hear it")

        def ends() -> None:
            session = model._session
            assert session is not None
            session.close = session.failed = heard  # type: ignore[method-assign]
            model.failed(ValueError("of the child"))
            coordinator.close()

        assert in_child(ends) == ""
