"""The door of a worker group: an order in, the machine's answer out, and a sentence for whatever is wrong."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.unit.protocols.worker_group.group_bench import GroupBench
from typer.testing import CliRunner

from chaos_protocols.worker_group.events import OrderAnswered, ReplanAnswered, ReplanOrdered, WorkerOrdered
from chaosd.api.client import LocalClient, RequestRefusedError
from chaosd.api.status import Outcome
from chaosd.cli.app import app
from chaosd.cli.options import EXIT_FAILED, EXIT_USAGE
from chaosd.worker_group import door as doors
from chaosd.worker_group.board import BOARD_NAME, FOLDER_PREFIX, Board
from chaosd.worker_group.door import DOOR_NAME, Order, OrderDoor
from chaosd.worker_group.history import GroupHistory


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return group(tmp_path, "abc")


def group(place: Path, name: str, pid: int | None = None) -> Path:
    folder = place / f"{FOLDER_PREFIX}{name}"
    folder.mkdir()
    bench = GroupBench(workers=4)
    bench.train()
    Board(folder, f"python {name}.py").write(bench.machine, {0: 100}, {}, GroupHistory(lambda _: None), {})
    if pid is not None:
        board = msgspec.json.decode((folder / BOARD_NAME).read_bytes())
        (folder / BOARD_NAME).write_bytes(msgspec.json.encode({**board, "pid": pid}))
    return folder


def ask(folder: Path, body: dict[str, object], route: str = "/v1/workers") -> Outcome:
    return LocalClient(folder / DOOR_NAME).ask("POST", route, Outcome, body)


async def behind_a_door(folder: Path, answer: Callable[[OrderDoor, Order], None], *words: str) -> tuple[int, str]:
    """What the command says of a group that answers so."""
    door = OrderDoor(folder, lambda order: answer(door, order))
    await door.start()
    try:
        ran = await asyncio.to_thread(CliRunner().invoke, app, ["workers", *words])
    finally:
        await door.close()
    return ran.exit_code, ran.output


async def test_the_answer_of_the_machine_is_what_the_command_says(folder: Path) -> None:
    orders: list[Order] = []

    def answer(door: OrderDoor, order: Order) -> None:
        orders.append(order)
        if isinstance(order, ReplanOrdered):
            door.answered(ReplanAnswered(done=len(orders) == 3, reason="because"))
            return
        done = order.drain
        door.answered(OrderAnswered(worker=order.worker, drain=order.drain, done=done, reason="because"))

    code, said = await behind_a_door(folder, answer, "drain", "2")
    assert code == 0 and said.startswith("drain worker 2: done after") and said.endswith("because\n")
    code, said = await behind_a_door(folder, answer, "undrain", "2")
    assert code == EXIT_FAILED and said.startswith("undrain worker 2: not done after")
    assert orders == [WorkerOrdered(worker=2, drain=True), WorkerOrdered(worker=2, drain=False)]
    code, said = await behind_a_door(folder, answer, "replan")
    assert code == 0 and said.startswith("replan: done after") and said.endswith("because\n")
    code, said = await behind_a_door(folder, answer, "replan")
    assert code == EXIT_FAILED and said.startswith("replan: not done after")
    assert orders[2:] == [ReplanOrdered()] * 2


async def test_the_door_is_its_users_alone(folder: Path) -> None:
    door = OrderDoor(folder, lambda order: None)
    await door.start()
    assert stat.S_IMODE((folder / DOOR_NAME).stat().st_mode) == 0o600
    await door.close()
    assert not (folder / DOOR_NAME).exists()


async def test_who_waits_is_told_that_the_training_has_ended_or_that_it_takes_longer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered = asyncio.Event()
    door = OrderDoor(folder, lambda order: ordered.set())
    await door.start()
    asked = asyncio.create_task(asyncio.to_thread(ask, folder, {"worker": 1, "drain": True}))
    await ordered.wait()
    await door.close()
    assert (await asked).reason == "the training has ended"
    ordered.clear()
    await door.start()
    asked = asyncio.create_task(asyncio.to_thread(ask, folder, {}, "/v1/workers/replan"))
    await ordered.wait()
    await door.close()
    assert (await asked).reason == "the training has ended"
    monkeypatch.setattr(doors, "ANSWER_WITHIN_S", 0.0)
    code, said = await behind_a_door(folder, lambda door, order: None, "drain", "1")
    assert code == EXIT_FAILED and "not yet: it is done when the step under way ends" in said


@pytest.mark.parametrize("body", [{}, {"worker": -1, "drain": True}, {"worker": "x", "drain": True}, {"worker": 1}])
async def test_a_request_that_is_no_order_is_refused(folder: Path, body: dict[str, object]) -> None:
    door = OrderDoor(folder, lambda order: pytest.fail("nothing was ordered"))
    await door.start()
    with pytest.raises(RequestRefusedError, match="OrderBody"):
        await asyncio.to_thread(ask, folder, body)
    with pytest.raises(RequestRefusedError, match="ReplanBody"):
        await asyncio.to_thread(ask, folder, {"worker": 1}, "/v1/workers/replan")
    await door.close()


def test_of_several_groups_one_must_be_named(folder: Path) -> None:
    group(folder.parent, "other", pid=os.getppid())
    ran = CliRunner().invoke(app, ["workers", "drain", "1"])
    assert ran.exit_code == EXIT_USAGE and f"{os.getpid()} (python abc.py in {Path.cwd()})" in ran.output, ran.output
    ran = CliRunner().invoke(app, ["workers", "drain", "1", "--of", "1"])
    assert ran.exit_code == EXIT_USAGE and "--of 1: no `chaosd run`" in ran.output
    ran = CliRunner().invoke(app, ["workers", "drain", "1", "--of", str(os.getpid())])
    assert ran.exit_code == EXIT_FAILED and "does not answer" in ran.output, "its board alone is left"


@pytest.mark.parametrize("word", ["x", "-1", "1.5"])
def test_what_is_no_worker_is_refused(folder: Path, word: str) -> None:
    ran = CliRunner().invoke(app, ["workers", "drain", "--", word])
    assert ran.exit_code == EXIT_USAGE and "Traceback" not in ran.output


def test_the_board_shows_who_is_drained_and_who_is_to_be(folder: Path) -> None:
    bench = GroupBench(workers=4, spares=1)
    bench.train()
    for worker in (3, 4):
        bench.feed(WorkerOrdered(worker=worker, drain=True))
    board = Board(folder, "python train.py")
    board.write(bench.machine, {worker: 100 + worker for worker in range(5)}, {}, GroupHistory(lambda _: None), {})
    states = [each["state"] for each in msgspec.json.decode((folder / BOARD_NAME).read_bytes())["workers"]]
    assert states == ["trains"] * 3 + ["is to be drained", "drained"]
