"""A state that comes to a torch script that has computed something with the one before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.sdk.fake_daemon import FakeDaemon
from tests.unit.sdk.line import ShortFolder

from chaos import Coordinator, EveryStep
from chaos.sync import pieces
from chaos_protocols.wire.versions import NEWEST
from chaos_protocols.wire.worker import (
    ApplyResult,
    DaemonMessage,
    LoadState,
    PartReady,
    ResultApplied,
    RoundContributed,
    SnapshotTaken,
    StateLoaded,
    TakeSnapshot,
    TrainFrom,
    UpdateStarted,
    WorkerWelcome,
)

WIDTH = 16


class Training:
    """Three layers, whose gradients are the same in every step that the state is."""

    def __init__(self, path: Path, *, overlap: bool) -> None:
        self.model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.coordinator = Coordinator(path, handle_signals=False, sync=EveryStep(overlap=overlap))
        self.coordinator.register(model=self.model, optimizer=torch.optim.Adam(self.model.parameters(), lr=0.01))

    def loss(self) -> torch.Tensor:
        return self.model(torch.ones(2, WIDTH)).square().mean()  # type: ignore[no-any-return]

    def has_gradients(self) -> bool:
        return any(parameter.grad is not None for parameter in self.model.parameters())

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *failure: object) -> None:
        self.coordinator.close(graceful=False)


@pytest.fixture
def path() -> Iterator[Path]:
    with ShortFolder() as folder:
        yield Path(folder) / "worker.sock"


def welcome(fake: FakeDaemon, *further: DaemonMessage) -> None:
    """A worker trains from round 1, and has what is said `further` before its first step."""
    fake.accept()
    fake.array("result")[...] = 0
    fake.array("state")[...] = 0
    fake.send(WorkerWelcome(site="here", run="test", version=NEWEST), TrainFrom(round=1), *further)


def a_result(fake: FakeDaemon) -> None:
    welcome(fake, ApplyResult(round=1, sites=2, weight=1.0))
    fake.expect(UpdateStarted)
    fake.expect(ResultApplied)


def a_state(fake: FakeDaemon) -> None:
    welcome(fake, LoadState(round=7))
    fake.expect(StateLoaded)
    fake.send(TrainFrom(round=8))


def a_state_of_the_next_daemon(fake: FakeDaemon) -> None:
    welcome(fake)
    fake.drop()
    fake.listen()
    fake.accept()
    fake.array("state")[...] = 0
    fake.send(WorkerWelcome(site="here", run="test", version=NEWEST), LoadState(round=9))
    fake.expect(StateLoaded)
    fake.send(TrainFrom(round=10))


@pytest.mark.parametrize(("moves", "to"), [(a_result, 1), (a_state, 7), (a_state_of_the_next_daemon, 9)])
@pytest.mark.parametrize("accumulated", [False, True])
def test_what_was_computed_before_overlap_is_dropped_when_the_state_moves(
    moves: Callable[[FakeDaemon], None], to: int, accumulated: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `step` does it: nothing of it is given, and the pass does not meet parameters that changed under it."""
    monkeypatch.setattr(pieces, "PIECE_BYTES_MIN", 256)

    def daemon(fake: FakeDaemon) -> None:
        moves(fake)
        told = 0
        while isinstance(message := fake.receive(), PartReady):
            told += 1
        assert told and isinstance(message, RoundContributed) and message.round == to + 1
        fake.array("result")[...] = fake.array("contribution")
        fake.apply(message.round)

    with FakeDaemon(path, daemon), Training(path, overlap=True) as training:
        coordinator = training.coordinator
        if accumulated:
            training.loss().backward()  # type: ignore[no-untyped-call]
        computed = training.loss()
        with coordinator.overlap(samples=4):
            computed.backward()  # type: ignore[no-untyped-call]
        assert coordinator.step() and coordinator.round == to and not training.has_gradients()
        with coordinator.overlap(samples=4):
            training.loss().backward()  # type: ignore[no-untyped-call]
        assert coordinator.step() and coordinator.round == to + 1


def test_gradients_of_the_state_before_are_not_added_to_the_next_ones(path: Path) -> None:
    def daemon(fake: FakeDaemon) -> None:
        fake.founder()
        fake.expect(RoundContributed)
        fake.array("state")[...] = 0
        fake.send(LoadState(round=8))
        fake.expect(StateLoaded)
        fake.send(TrainFrom(round=9))
        fake.echo_round()

    with FakeDaemon(path, daemon), Training(path, overlap=False) as training:
        for round in (8, 9):
            assert not training.has_gradients()
            training.loss().backward()  # type: ignore[no-untyped-call]
            assert training.coordinator.step() and training.coordinator.round == round


def by_data(parameters: list[torch.nn.Parameter], values: list[torch.Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data.copy_(value)


def counted(parameters: list[torch.nn.Parameter], values: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)


@pytest.mark.parametrize("swap", [by_data, counted])
@pytest.mark.filterwarnings("ignore")
def test_a_joiner_does_not_get_the_weights_that_an_evaluation_has_swapped_in(
    swap: Callable[[list[torch.nn.Parameter], list[torch.Tensor]], None], path: Path
) -> None:
    """An average of the weights, say. It is served before the next round, with the run's own."""
    swapped, asked = threading.Event(), threading.Event()

    def script(fake: FakeDaemon) -> None:
        fake.founder()
        swapped.wait()
        fake.send(TakeSnapshot(round=0))
        asked.set()
        fake.expect(SnapshotTaken)
        assert not (fake.array("state", np.uint32) == np.float32(9.0).view(np.uint32)).any()
        fake.echo_round()

    with FakeDaemon(path, script), Training(path, overlap=False) as training:
        parameters = list(training.model.parameters())
        own = [parameter.detach().clone() for parameter in parameters]
        swap(parameters, [torch.full_like(each, 9.0) for each in own])
        swapped.set()
        asked.wait()
        training.coordinator.check_state_replication()
        swap(parameters, own)
        training.loss().backward()
        assert training.coordinator.step()


def test_a_joiner_is_served_in_the_middle_of_an_evaluation_that_leaves_the_weights(path: Path) -> None:
    served = threading.Event()

    def script(fake: FakeDaemon) -> None:
        fake.founder(TakeSnapshot(round=0))
        fake.expect(SnapshotTaken)
        served.set()

    with FakeDaemon(path, script), Training(path, overlap=False) as training:
        while not served.is_set():
            training.coordinator.check_state_replication()
