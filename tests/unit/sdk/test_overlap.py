"""Gradients that are given while the backward pass still computes others (`EveryStep(overlap=True)`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.sdk.fake_daemon import FakeDaemon
from tests.unit.sdk.line import ShortFolder

from chaos import ChaosError, Coordinator, EveryStep
from chaos.errors import ChangedOutside
from chaos.sync import pieces
from chaos.testing import LocalRun
from chaos_protocols.wire.versions import NEWEST
from chaos_protocols.wire.worker import (
    ApplyResult,
    PartReady,
    ResultApplied,
    RoundContributed,
    RoundSkipped,
    TrainFrom,
    UpdateStarted,
    WorkerWelcome,
)

WIDTH, LAYERS = 8, 6
NAN = float("nan")
MODE = EveryStep(overlap=True)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small model has several."""
    monkeypatch.setattr(pieces, "PIECE_BYTES_MIN", 256)


@pytest.fixture
def path() -> Iterator[Path]:
    with ShortFolder() as folder:
        yield Path(folder) / "worker.sock"


def begin(fake: FakeDaemon) -> None:
    """A worker comes, and trains from round 1."""
    fake.accept()
    fake.send(WorkerWelcome(site="here", run="test", version=NEWEST), TrainFrom(round=1))


class Training:
    """A few layers with a norm that keeps statistics; everything is drawn from a generator of its own."""

    def __init__(self, socket: Path | None, seed: int = 1, **options: Any) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        layers: list[torch.nn.Module] = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        self.model = torch.nn.Sequential(*layers, torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, 1).double())
        drawn = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=drawn, dtype=parameter.dtype) / 3)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.coordinator = Coordinator(
            socket, standalone=socket is None, handle_signals=False, verbose=True, **{"sync": MODE, **options}
        )
        try:
            self.coordinator.register(model=self.model, optimizer=self.optimizer)
        except BaseException:
            self.coordinator.close(graceful=False)
            raise

    def weight(self, layer: int) -> torch.Tensor:
        weight = self.model[layer].weight
        assert isinstance(weight, torch.Tensor)
        return weight

    def gradient(self, layer: int) -> torch.Tensor:
        gradient = self.weight(layer).grad
        assert gradient is not None
        return gradient.clone()

    def loss(self) -> torch.Tensor:
        out = torch.randn(4, WIDTH, generator=self.generator)
        for layer in self.model[:-1]:
            out = torch.tanh(layer(out))
        return self.model[-1](out.double()).square().mean()  # type: ignore[no-any-return]

    def step(self, samples: int = 4, *, overlap: bool = True) -> bool:
        if not overlap:
            self.loss().backward()  # type: ignore[no-untyped-call]
            return self.coordinator.step(samples=samples)
        with self.coordinator.overlap(samples=samples):
            self.loss().backward()  # type: ignore[no-untyped-call]
        return self.coordinator.step()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *failure: object) -> None:
        self.coordinator.close(graceful=False)


def digests(number: int, *, overlap: bool) -> Callable[[Path], list[str]]:
    def script(socket: Path) -> list[str]:
        with Training(socket, seed=number) as training:
            found = []
            for _ in range(4):
                training.step(samples=3 + number, overlap=overlap)
                found.append(training.coordinator.state_digest())
            training.coordinator.request_node_exit()
            return found

    return script


def test_all_sites_have_the_same_bits_whether_they_use_it_or_not() -> None:
    with LocalRun(sites=2) as run:
        plain = run.together(digests(0, overlap=False), digests(1, overlap=False))
    with LocalRun(sites=2) as run:
        mixed = run.together(digests(0, overlap=True), digests(1, overlap=False))
    with LocalRun(sites=2) as run:
        both = run.together(digests(0, overlap=True), digests(1, overlap=True))
    assert plain[0] == plain[1] == mixed[0] == mixed[1] == both[0] == both[1] and len(set(plain[0])) == 4


def test_what_is_told_to_be_ready_stays_as_it_is_and_the_weight_is_known_at_once(path: Path) -> None:
    told: list[PartReady] = []
    prefixes: list[bytes] = []

    def daemon(fake: FakeDaemon) -> None:
        begin(fake)
        while isinstance(message := fake.receive(), PartReady):
            told.append(message)
            prefixes.append(bytes(fake.array("contribution")[: message.ready_bytes]))
        assert isinstance(message, RoundContributed) and message.weight == 4.0
        whole = bytes(fake.array("contribution"))
        assert all(whole.startswith(prefix) for prefix in prefixes)
        fake.array("result")[...] = fake.array("contribution")
        fake.apply(1)

    with FakeDaemon(path, daemon), Training(path) as training:
        size = training.coordinator._session.contribution.size_bytes  # type: ignore[union-attr]
        assert training.step()
    ready = [one.ready_bytes for one in told]
    assert len(ready) >= LAYERS // 2 and ready == sorted(set(ready)) and ready[-1] <= size
    assert {(one.round, one.weight) for one in told} == {(1, 4.0)}


def test_a_gradient_that_is_not_finite_stops_the_pieces_and_the_next_parts_are_whole(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def daemon(fake: FakeDaemon) -> None:
        begin(fake)
        for number in (1, 2, 3):
            ready = []
            while isinstance(message := fake.receive(), PartReady):
                ready.append(message.ready_bytes)
                assert np.isfinite(fake.array("contribution", np.float32)[200 : message.ready_bytes // 4]).all()
            if number == 2:
                assert (
                    ready and isinstance(message, RoundSkipped) and "'model.2.weight' is not finite" in message.reason
                )
                fake.send(ApplyResult(round=2, sites=2, weight=2.0, void=True))
                fake.expect(UpdateStarted)
                fake.expect(ResultApplied)
                continue
            assert bool(ready) == (number == 1) and isinstance(message, RoundContributed)
            fake.array("result")[...] = fake.array("contribution")
            fake.apply(number)

    with FakeDaemon(path, daemon), Training(path) as training:
        training.step()
        hook = training.weight(2).register_hook(lambda gradient: gradient * NAN)  # type: ignore[no-untyped-call]
        training.step()
        hook.remove()
        assert training.coordinator.round == 2
        training.step()
    assert "the round is void for all" in capfd.readouterr().err


def test_a_pass_that_fails_is_told_at_once_and_the_script_may_go_on(path: Path) -> None:
    def daemon(fake: FakeDaemon) -> None:
        begin(fake)
        while isinstance(message := fake.receive(), PartReady):
            pass
        assert isinstance(message, RoundSkipped) and "RuntimeError in the backward pass" in message.reason
        fake.send(ApplyResult(round=1, sites=2, weight=2.0, void=True))
        fake.expect(UpdateStarted)
        fake.expect(ResultApplied)
        fake.echo_round()

    def fails(gradient: torch.Tensor) -> None:
        raise RuntimeError("out of memory")

    with FakeDaemon(path, daemon), Training(path) as training:
        hook = training.weight(1).register_hook(fails)  # type: ignore[no-untyped-call]
        with pytest.raises(RuntimeError, match="out of memory"):
            training.step()
        hook.remove()
        assert all(parameter.grad is None for parameter in training.model.parameters())
        assert training.step() and training.coordinator.round == 2


def test_a_step_that_is_left_out_after_all(path: Path) -> None:
    def daemon(fake: FakeDaemon) -> None:
        begin(fake)
        while isinstance(message := fake.receive(), PartReady):
            pass
        assert isinstance(message, RoundSkipped)
        fake.send(ApplyResult(round=1, sites=2, weight=2.0, void=True))
        fake.expect(UpdateStarted)
        fake.expect(ResultApplied)

    with FakeDaemon(path, daemon), Training(path) as training:
        with training.coordinator.overlap(samples=4):
            training.loss().backward()  # type: ignore[no-untyped-call]
        assert training.coordinator.step(skip=True) and training.coordinator.round == 1


def clipped(training: Training) -> None:
    torch.nn.utils.clip_grad_norm_(training.model.parameters(), 0.01)


def cleared(training: Training) -> None:
    training.optimizer.zero_grad()


def scaled_unseen(training: Training) -> None:
    for parameter in training.model.parameters():
        assert parameter.grad is not None
        parameter.grad.data.mul_(0.5)


def computed_again(training: Training) -> None:
    training.loss().backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("change", [clipped, cleared, scaled_unseen, computed_again])
def test_a_gradient_that_is_changed_afterwards_is_refused_in_words(
    change: Callable[[Training], None], path: Path
) -> None:
    def daemon(fake: FakeDaemon) -> None:
        begin(fake)
        while isinstance(message := fake.receive(), PartReady):
            pass
        assert isinstance(message, RoundSkipped), "what was begun is not waited for"

    with FakeDaemon(path, daemon), Training(path) as training:
        with training.coordinator.overlap(samples=4):
            training.loss().backward()  # type: ignore[no-untyped-call]
        change(training)
        with pytest.raises(ChangedOutside, match=r"was changed after overlap.*on_average"):
            training.coordinator.step()


def test_what_a_script_may_not_do_is_said() -> None:
    with Training(None) as training:
        with training.coordinator.overlap(samples=4):
            training.loss().backward()  # type: ignore[no-untyped-call]
        with (
            pytest.raises(ValueError, match=r"step\(\) is missing after overlap"),
            training.coordinator.overlap(),
        ):
            pass
        with pytest.raises(ValueError, match=r"were said in overlap\(\)"):
            training.coordinator.step(samples=4)
        assert training.coordinator.step() and training.coordinator.round == 1
        assert training.step(overlap=False) and training.coordinator.round == 2


def test_two_passes_within_are_refused(path: Path) -> None:
    def daemon(fake: FakeDaemon) -> None:
        begin(fake)
        while isinstance(fake.receive(), PartReady):
            pass

    with FakeDaemon(path, daemon), Training(path) as training:

        def twice() -> None:
            with training.coordinator.overlap(samples=4):
                training.loss().backward()  # type: ignore[no-untyped-call]
                training.loss().backward()  # type: ignore[no-untyped-call]

        with pytest.raises(ValueError, match=r"came twice within overlap.*gradient accumulation"):
            twice()


def test_gradients_that_were_accumulated_before_are_given_with_the_last(path: Path) -> None:
    def daemon(fake: FakeDaemon) -> None:
        begin(fake)
        told = 0
        while isinstance(message := fake.receive(), PartReady):
            told += 1
        assert told and isinstance(message, RoundContributed)
        fake.array("result")[...] = fake.array("contribution")
        fake.apply(1)

    with FakeDaemon(path, daemon), Training(path) as training:
        training.loss().backward()  # type: ignore[no-untyped-call]
        before = training.gradient(0)
        with training.coordinator.overlap(samples=8):
            training.loss().backward()  # type: ignore[no-untyped-call]
        assert not torch.equal(before, training.gradient(0))
        assert training.coordinator.step()


def test_phases_give_zeros_for_the_optimizers_of_others() -> None:
    """Two optimizers in turn, with notes: the pieces hold zeros where the step is for the other one."""

    def script(overlap: bool) -> Callable[[Path], list[str]]:
        def run(socket: Path) -> list[str]:
            models = {name: torch.nn.Linear(WIDTH, WIDTH) for name in ("D", "G")}
            drawn = torch.Generator().manual_seed(3)
            with torch.no_grad():
                for model in models.values():
                    for parameter in model.parameters():
                        parameter.copy_(torch.randn(parameter.shape, generator=drawn))
            optimizers = {name: torch.optim.Adam(model.parameters(), lr=0.1) for name, model in models.items()}
            found = []
            with Coordinator(
                socket, handle_signals=False, verbose=False, sync=EveryStep(overlap=True, notes=True)
            ) as coordinator:
                coordinator.register(model=dict(models), optimizer=dict(optimizers))
                for number in range(4):
                    phase = ("D", "G")[number % 2]
                    loss = models["D"](models["G"](torch.ones(2, WIDTH))).square().mean()
                    if overlap:
                        with coordinator.overlap(optimizers=(phase,)):
                            loss.backward()
                        coordinator.step()
                    else:
                        loss.backward()
                        coordinator.step(optimizers=(phase,))
                    found.append(coordinator.state_digest())
                coordinator.request_node_exit()
            return found

        return run

    with LocalRun(sites=2) as run:
        plain = run.together(script(False), script(False))
    with LocalRun(sites=2) as run:
        pieced = run.together(script(True), script(True))
    assert plain[0] == pieced[0] == pieced[1]


def test_it_needs_its_mode_and_torch() -> None:
    with (
        Training(None, sync=EveryStep()) as training,
        pytest.raises(ValueError, match=r"EveryStep\(overlap=True\)"),
        training.coordinator.overlap(),
    ):
        pass
    with Coordinator(standalone=True, handle_signals=False, sync=MODE) as coordinator:
        with pytest.raises(ValueError, match="follows the backward pass of torch"):
            coordinator.register(arrays={"w": np.zeros(3)}, apply=lambda averaged, round: None)


def test_a_site_with_another_order_is_refused_with_both() -> None:
    def plain(socket: Path) -> None:
        with Training(socket, sync=EveryStep()):
            pass

    def ordered(socket: Path) -> None:
        with Training(socket):
            pass

    with LocalRun(sites=2) as run, pytest.raises(ChaosError, match="given while gradients are computed"):
        run.together(ordered, plain)


def test_a_gradient_that_comes_within_the_block_is_not_missed_before_it(capfd: pytest.CaptureFixture[str]) -> None:
    with Training(None) as training:
        for number in range(3):
            with training.coordinator.overlap():
                loss = training.loss()
                if number != 1:
                    loss.backward()  # type: ignore[no-untyped-call]
            assert ("no parameter had a gradient" in capfd.readouterr().err) is (number == 1)
            training.coordinator.step()
