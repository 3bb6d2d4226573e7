"""A schedule that has an end: the step beyond it is told before anything of it is applied, at all sites alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.sdk.test_contract import linear, put_gradient

from chaos import Coordinator, DiLoCo, EveryStep, HalfAppliedStep, LocalSGD, ScheduleOver
from chaos.testing import LocalRun

schedules = torch.optim.lr_scheduler


def one_cycle(optimizer: Any, steps: int = 4) -> Any:
    return schedules.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)


def warm_up_then_cycle(optimizer: Any) -> Any:
    """Four steps as well: the cycle begins with the third."""
    warm = schedules.ConstantLR(optimizer, factor=0.1, total_iters=2)
    return schedules.SequentialLR(optimizer, [warm, one_cycle(optimizer, 2)], milestones=[2])


def chained(optimizer: Any) -> Any:
    return schedules.ChainedScheduler([schedules.ConstantLR(optimizer), one_cycle(optimizer)])


def trained_until_the_end(coordinator: Coordinator, make: Callable[[Any], Any], sync: Any) -> tuple[int, str, Any]:
    """Steps that were made, what the one after them raised, and the state before and after it."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    coordinator.register(model, optimizer, make(optimizer), sync=sync)
    made = 0
    while True:
        put_gradient(model, 1.0)
        before = (coordinator.round, coordinator.state_digest(), model.weight.detach().clone())
        try:
            coordinator.step()
        except ScheduleOver as error:
            assert (coordinator.round, coordinator.state_digest()) == before[:2]
            assert torch.equal(model.weight, before[2]), "nothing of the step was applied"
            return made, str(error), before[1]
        made += 1
        assert made < 20


@pytest.mark.parametrize("make", [one_cycle, warm_up_then_cycle, chained])
def test_the_step_beyond_a_schedule_is_refused_at_all_sites_and_their_states_stay_equal(
    make: Callable[[Any], Any],
) -> None:
    def script(socket: Path) -> tuple[int, str, Any]:
        with Coordinator(socket=socket, handle_signals=False, verbose=False) as coordinator:
            return trained_until_the_end(coordinator, make, EveryStep())

    with LocalRun(sites=2) as run:
        first, second = run.together(script, script)
    assert first == second and first[0] == 4
    assert "OneCycleLR" in first[1] and "4 steps" in first[1] and "coordinator.steps" in first[1]


@pytest.mark.parametrize(
    ("sync", "made"),
    [
        (LocalSGD(every=2), 4),
        (LocalSGD(every=3), 4),
        (DiLoCo(every=2, pace="time"), 0),
        (LocalSGD(every=3, pace="time"), 3),
    ],
)
def test_with_local_steps_it_is_the_same_step(sync: Any, made: int) -> None:
    """By time the clock of a phase goes on by all of its steps, so a phase that does not fit is not begun."""
    with Coordinator(standalone=True, handle_signals=False, verbose=False) as coordinator:
        steps, text, _ = trained_until_the_end(coordinator, one_cycle, sync)
    assert steps == made if made else steps >= 3, "the first phase, by steps, and by time at least one more step"
    assert "OneCycleLR" in text and "4 steps" in text


def test_in_turns_a_schedule_that_is_over_is_told_to_its_own_optimizer_alone() -> None:
    models = {name: linear() for name in ("D", "G")}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}
    with Coordinator(standalone=True, handle_signals=False, verbose=False) as coordinator:
        coordinator.register(models, optimizers, {"D": one_cycle(optimizers["D"], 2)}, sync=EveryStep(notes=True))
        for name in ("D", "G", "D", "G"):
            put_gradient(models[name], 1.0)
            coordinator.step(optimizers=(name,))
        put_gradient(models["D"], 1.0)
        with pytest.raises(ScheduleOver, match=r"'scheduler.D' \(OneCycleLR\)"):
            coordinator.step(optimizers=("D",))
        put_gradient(models["G"], 1.0)
        assert coordinator.step(optimizers=("G",)) and coordinator.round == 5


@pytest.mark.parametrize("sync", [EveryStep(), LocalSGD(every=1)])
def test_a_schedule_that_fails_by_itself_is_named(sync: Any) -> None:
    rates = [1.0, 0.5]
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Coordinator(standalone=True, handle_signals=False, verbose=False) as coordinator:
        coordinator.register(model, optimizer, schedules.LambdaLR(optimizer, lambda step: rates[step]), sync=sync)
        put_gradient(model, 1.0)
        coordinator.step()
        put_gradient(model, 1.0)
        with pytest.raises((HalfAppliedStep, RuntimeError), match=r"'scheduler' \(LambdaLR\) failed .* IndexError"):
            coordinator.step()


class Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return torch.full((2,), index / 32), torch.ones(1)


def loss_of(output: Any, target: Any) -> Any:
    return torch.nn.functional.mse_loss(output, target)


@pytest.mark.parametrize("make", [one_cycle, warm_up_then_cycle])
def test_replicas_are_told_before_anything_of_the_step_is_applied(make: Callable[[Any], Any]) -> None:
    with Coordinator(standalone=True, handle_signals=False, verbose=False) as coordinator:
        model = coordinator.replicate(torch.nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        coordinator.register(model, optimizer, make(optimizer))
        batches = iter(coordinator.loader(Numbers(), global_batch=8, micro_batch=4, steps=10))
        for _ in range(8):
            inputs, wanted = next(batches)
            loss_of(model(inputs), wanted).backward()
            coordinator.step()
        before = model.weight.detach().clone()
        inputs, wanted = next(batches)
        loss_of(model(inputs), wanted).backward()
        with pytest.raises(ScheduleOver, match=r"'scheduler' \(OneCycleLR\) has an end, after 4 steps"):
            coordinator.step()
        assert coordinator.round == 4 and torch.equal(model.weight, before)


@pytest.mark.parametrize("sync", [None, LocalSGD(every=2)], ids=["every step", "local steps"])
def test_layers_are_told_before_anything_of_the_step_is_applied(sync: Any) -> None:
    with Coordinator(standalone=True, handle_signals=False, verbose=False) as coordinator:
        layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1))
        model = coordinator.parallelize(layers, loss=loss_of)
        coordinator.register(
            model, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), scheduler=one_cycle, sync=sync
        )
        batches = iter(coordinator.loader(Numbers(), global_batch=8, micro_batch=4, steps=10))
        for _ in range(4):
            model.step(next(batches))
        before = [p.detach().clone() for p in layers.parameters()]
        with pytest.raises(ScheduleOver, match=r"'scheduler' \(OneCycleLR\) has an end, after 4 steps"):
            model.step(next(batches))
        assert model.steps == 4
        assert all(torch.equal(now, then) for now, then in zip(layers.parameters(), before, strict=True))
