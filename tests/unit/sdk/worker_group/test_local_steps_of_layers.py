"""Layers with a schedule and with local steps: what one worker trains is plain torch, and what moves is complete."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import torch
from tests.integration.site_training import Points, make_model, make_optimizer

from chaos import Coordinator, DiLoCo, EveryStep, LocalSGD, OuterSGD, entering
from chaos.sync import SyncMode
from chaos.worker_group.chain.layers import chain

LOSS = torch.nn.functional.cross_entropy


def test_the_schedule_of_a_layer_goes_with_its_state_and_only_who_keeps_it_steps_it() -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))

    kept, held, fresh = (chain(list(make_model()))[1] for _ in range(3))
    for layer in (kept, held, fresh):
        layer.train_with(make_optimizer, schedule)
    held.keep(False)
    gradient = torch.ones(kept.gradient_size)
    for round in range(1, 4):
        for layer in (kept, held):
            layer.update(gradient, round)
    fresh.drop()
    fresh.revive()
    held.keep(True)
    for layer in (held, fresh):
        assert layer.digest() != kept.digest()
        layer.load(kept.state())
        assert layer.digest() == kept.digest()
    for layer in (kept, held, fresh):
        layer.update(gradient, 4)
    assert kept.digest() == held.digest() == fresh.digest()
    rates = {each.item.name: each.get().view("float64") for each in kept.items if each.item.name.endswith("lr")}
    assert rates["optimizer.group0.lr"][0] == 1e-2 / 5


def test_a_schedule_gives_each_step_the_learning_rate_of_plain_torch() -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 0.25 * (step + 1)))

    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        module = make_model(0.0)
        model = coordinator.parallelize(module, loss=LOSS)
        coordinator.register(model=model, optimizer=make_optimizer, scheduler=schedule)
        loader = coordinator.loader(Points(), global_batch=4, micro_batch=4, seed=7, steps=6)
        batches = [loader.samples(step, 0) for step in range(6)]
        for batch in loader:
            model.step(batch)
    plain, data = make_model(0.0), Points()
    optimizer = make_optimizer(list(plain.parameters()))
    scheduler = schedule(optimizer)
    for rows in batches:
        optimizer.zero_grad()
        LOSS(plain(data.x[rows]), data.y[rows]).backward()
        optimizer.step()
        scheduler.step()
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, module.get_parameter(name)), name


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        (EveryStep(overlap=True), "EveryStep: a model of parallelize.. is averaged at every"),
        (LocalSGD(every=4, pace="time"), "LocalSGD with parallelize.. has no pace='time' yet"),
        (DiLoCo(every=4, fragments=2), "DiLoCo with parallelize.. has no fragments= yet"),
        (DiLoCo(every=4, delay=2), "DiLoCo with parallelize.. has no delay= yet"),
    ],
    ids=("overlap", "time", "fragments", "delay"),
)
def test_a_mode_that_a_parallel_model_does_not_have_is_refused(mode: SyncMode, text: str) -> None:
    with Coordinator(standalone=True, handle_signals=False, sync=mode) as coordinator:
        model = coordinator.parallelize(make_model(0.0), loss=LOSS)
        with pytest.raises(ValueError, match=text):
            coordinator.register(model=model, optimizer=make_optimizer)


def test_what_local_steps_do_not_go_with_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with Coordinator(standalone=True, handle_signals=False, sync=LocalSGD(every=4)) as coordinator:
        model = coordinator.parallelize(make_model(0.0), loss=LOSS, shard_optimizer=True)
        with pytest.raises(ValueError, match="LocalSGD with shard_optimizer=True or device_group= is not supported"):
            coordinator.register(model=model, optimizer=make_optimizer)
    with Coordinator(standalone=True, handle_signals=False, sync=LocalSGD(every=4)) as coordinator:
        model = coordinator.parallelize(make_model(0.0), loss=LOSS)
        coordinator.register(model=model, optimizer=make_optimizer)
        loader = coordinator.loader(Points(), global_batch=16, micro_batch=4, steps=6)
        with pytest.raises(ValueError, match="6 steps are no whole number of phases of 4"):
            model.step(next(iter(loader)))
    here, there = socket.socketpair()
    monkeypatch.setattr(entering, "open_socket", lambda *_: here)
    with there, Coordinator("/nowhere/worker.sock", handle_signals=False) as coordinator:
        model = coordinator.parallelize(make_model(0.0), loss=LOSS)
        with pytest.raises(ValueError, match="takes the workers of `chaosd run`, one at least"):
            coordinator.register(model=model, optimizer=make_optimizer, sync=LocalSGD(every=4))


def test_local_steps_alone_are_those_of_plain_torch_with_an_outer_step_after_each_phase() -> None:
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        module = make_model(0.0)
        model = coordinator.parallelize(module, loss=LOSS)
        outer = OuterSGD(lr=0.5, momentum=0.0, nesterov=False)
        coordinator.register(model=model, optimizer=make_optimizer, sync=DiLoCo(every=3, outer=outer))
        loader = coordinator.loader(Points(), global_batch=4, micro_batch=4, seed=7, steps=6)
        batches = [loader.samples(step, 0) for step in range(6)]
        for batch in loader:
            model.step(batch)
        assert (coordinator.steps, coordinator.round, model.round) == (6, 2, 2)
    plain, data = make_model(0.0), Points()
    optimizer = make_optimizer(list(plain.parameters()))
    anchor = [p.detach().clone() for p in plain.parameters()]
    for step, rows in enumerate(batches, 1):
        optimizer.zero_grad()
        LOSS(plain(data.x[rows]), data.y[rows]).backward()
        optimizer.step()
        if step % 3 == 0:
            with torch.no_grad():
                for parameter, common in zip(plain.parameters(), anchor, strict=True):
                    common -= (common - parameter) * 0.5
                    parameter.copy_(common)
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, module.get_parameter(name)), name


def test_a_layer_within_a_phase_goes_on_elsewhere_with_all_that_it_has() -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))

    mode = DiLoCo(every=3, warmup_rounds=0)
    kept, other = (chain(list(make_model()))[1] for _ in range(2))
    for layer in (kept, other):
        layer.train_with(make_optimizer, schedule, mode)
    gradient = torch.ones(kept.gradient_size)
    for step in (1, 2, 3):
        kept.update(gradient, step)
    kept.end_alone(1)
    kept.update(gradient, 4)
    other.drop()
    other.revive()
    other.load(kept.state())
    other.goes_on(1, 1)
    assert other.digest() == kept.digest()
    for layer in (kept, other):
        layer.update(gradient, 5)
        layer.update(gradient, 6)
        layer.end_alone(2)
    assert other.digest() == kept.digest()
    common = [bytes(each.get()) for each in kept.common]
    kept.update(gradient, 7)
    assert [bytes(each.get()) for each in kept.common] == common, "only a round changes what all sites have"
    for layer in (kept, other):
        layer.begins_anew(2)
    assert kept.digest() == other.digest(), "whatever it had of the phase, and of moments, is dropped"
