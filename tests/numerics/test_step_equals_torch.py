"""A run of one site is plain torch, bit for bit: the coordinator adds nothing to the arithmetic."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.numerics.recipes import RECIPES, Recipe, batch, fresh, plain_step
from tests.unit.sdk.fake_daemon import FakeDaemon

from chaos import Coordinator
from chaos.frameworks.torch import TorchFramework
from chaos.sync.every_step import EveryStepSession
from chaos_protocols.wire.worker import Dismissed

pytestmark = pytest.mark.usefixtures("one_thread")

ROUNDS = 4


@pytest.fixture
def socket_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cn") as folder:
        yield Path(folder) / "w"


def same_bits(one: Any, other: Any, where: str = "state") -> None:
    """Equal trees with tensors compared as bytes."""
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape, where
        equal = torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
        assert equal, f"{where} differs"
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            same_bits(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            same_bits(a, b, f"{where}[{index}]")
    else:
        assert one == other, where


def training_state(recipe: Recipe) -> dict[str, Any]:
    return {
        "model": dict(recipe.model.state_dict()),
        "optimizer": recipe.optimizer.state_dict(),
        "scheduler": recipe.scheduler.state_dict() if recipe.scheduler else None,
    }


def train(recipe: Recipe, step: Callable[[], Any], rounds: int, first: int = 0) -> None:
    for number in range(first, first + rounds):
        recipe.loss(*batch(recipe, number)).backward()
        step()


@pytest.mark.parametrize("name", RECIPES)
def test_round_of_one_site_equals_plain_torch_bitwise(name: str, socket_file: Path) -> None:
    together, plain = fresh(name), fresh(name)

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        for _ in range(ROUNDS):
            daemon.echo_round()
        daemon.expect_leave()
        daemon.send(Dismissed(last_round=ROUNDS, graceful=True, reason="done"))

    with FakeDaemon(socket_file, script):
        with Coordinator(socket_file, verbose=False, handle_signals=False) as coordinator:
            coordinator.register(together.model, together.optimizer, together.scheduler)
            same_bits(training_state(together), training_state(fresh(name)), "registering changed the state")
            train(together, coordinator.step, ROUNDS)
    train(plain, lambda: plain_step(plain), ROUNDS)
    same_bits(training_state(together), training_state(plain))


@pytest.mark.parametrize("name", RECIPES)
def test_standalone_equals_plain_torch_bitwise(name: str) -> None:
    alone, plain = fresh(name), fresh(name)
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        coordinator.register(alone.model, alone.optimizer, alone.scheduler)
        train(alone, coordinator.step, ROUNDS)
        assert coordinator.round == ROUNDS
    train(plain, lambda: plain_step(plain), ROUNDS)
    same_bits(training_state(alone), training_state(plain))


def test_average_of_two_sites_is_that_of_one_with_both_batches(socket_file: Path) -> None:
    """sum(w g)/sum(w) with w = samples is the gradient of the mean loss over all samples (FlexiTrain 3.1)."""
    recipe, reference = fresh("sgd_momentum"), fresh("sgd_momentum")
    other = copy.deepcopy(recipe.model)
    x, y = batch(recipe, 0)
    x2, y2 = x[:3] * 2, y[:3] + 1

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        contributed = daemon.receive()
        torch.nn.functional.mse_loss(other(x2), y2).backward()
        theirs = torch.cat([p.grad.reshape(-1) for p in other.parameters() if p.grad is not None]).numpy()
        mine = daemon.array("contribution", "float32")
        daemon.array("result", "float32")[...] = (mine * len(x) + theirs * len(x2)) / (len(x) + len(x2))
        daemon.apply(contributed.round)
        daemon.expect_leave()
        daemon.send(Dismissed(last_round=1, graceful=True, reason="done"))

    with FakeDaemon(socket_file, script):
        with Coordinator(socket_file, verbose=False, handle_signals=False) as coordinator:
            coordinator.register(recipe.model, recipe.optimizer)
            torch.nn.functional.mse_loss(recipe.model(x), y).backward()
            coordinator.step(samples=len(x))
            coordinator.close(graceful=True)
    both = torch.cat([x, x2]), torch.cat([y, y2])
    torch.nn.functional.mse_loss(reference.model(both[0]), both[1]).backward()
    reference.optimizer.step()
    for mine, wanted in zip(recipe.model.parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-7)


def test_parameter_without_a_gradient_contributes_zeros() -> None:
    recipe = fresh("several_groups")
    session = EveryStepSession(
        TorchFramework({"model": recipe.model}, {"optimizer": recipe.optimizer}, {}, set_to_none=True)
    )

    vector = np.full(session.contribution.size_bytes, 255, dtype=np.uint8)
    session.contribute(vector)
    assert not vector.any()
