"""A replicated model with local steps between rounds: what one process trains is plain torch, and what moves is
complete."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest
import torch
from tests.integration.site_training import CLASSES, FEATURES, SAMPLES, WIDTH, Block, Points, make_model

from chaos import Coordinator, DiLoCo, EveryStep, LocalSGD, OuterSGD, entering
from chaos.frameworks import framework_of
from chaos.frameworks.torch import TorchFramework
from chaos.sync import SyncMode
from chaos.worker_group.chain.layers import chain
from chaos.worker_group.compute.data import Permutation
from chaos.worker_group.compute.seeding import seed_of
from chaos.worker_group.whole import LocalWholeVectors, WholeModel

LOSS = torch.nn.functional.cross_entropy
MICRO_BATCHES, MICRO_BATCH, EVERY = 2, 4, 3
MODE = DiLoCo(every=EVERY, outer=OuterSGD(lr=0.5, momentum=0.0, nesterov=False))


def with_statistics() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, WIDTH), torch.nn.BatchNorm1d(WIDTH), Block(0.3), torch.nn.Linear(WIDTH, CLASSES)
    )


def without_buffers() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, CLASSES))


def schedule_of(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))


def clip(model: torch.nn.Module) -> float:
    return float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))


def by_hand(model: torch.nn.Module, steps: int) -> None:
    """Gradient accumulation over two micro-batches, buffers averaged, the mean clipped; after each phase half of the
    way goes into what is common."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler, data, order = schedule_of(optimizer), Points(), Permutation(SAMPLES, b"7/0")
    wide = any(True for _ in model.buffers())
    anchor = [p.detach().clone() for p in model.parameters()]
    for step in range(steps):
        gradients, buffers = [], []
        before = [buffer.clone() for buffer in model.buffers()]
        for g in range(MICRO_BATCHES):
            torch.manual_seed(seed_of(7, step, g, 0))
            rows = [order[(step * MICRO_BATCHES + g) * MICRO_BATCH + i] for i in range(MICRO_BATCH)]
            found = torch.autograd.grad(LOSS(model(data.x[rows]), data.y[rows]), list(model.parameters()))
            gradients.append([each.double() if wide else each for each in found])
            buffers.append([buffer.double() for buffer in model.buffers()])
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.copy_(value)
        for parameter, (a, b) in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
            parameter.grad = ((a + b) / 2).float()
        for buffer, (a, b) in zip(model.buffers(), zip(*buffers, strict=True), strict=True):
            buffer.copy_((a + b) / 2 if buffer.is_floating_point() else ((a + b) / 2).round())
        clip(model)
        optimizer.step()
        scheduler.step()
        if (step + 1) % EVERY == 0:
            with torch.no_grad():
                for parameter, common in zip(model.parameters(), anchor, strict=True):
                    common -= (common - parameter) * 0.5
                    parameter.copy_(common)


@pytest.mark.parametrize("make", [with_statistics, without_buffers])
def test_local_steps_alone_are_those_of_plain_torch_with_an_outer_step_after_each_phase(make: Any) -> None:
    model, plain, clipped, rounds = make(), make(), [], []

    def clip_mean(update: Any) -> None:
        clipped.append((update.round, clip(model)))

    with Coordinator(standalone=True, handle_signals=False, verbose=False) as coordinator:
        coordinator.replicate(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        coordinator.register(
            model=model, optimizer=optimizer, scheduler=schedule_of(optimizer), sync=MODE, on_average=clip_mean
        )
        loader = coordinator.loader(
            Points(), global_batch=MICRO_BATCHES * MICRO_BATCH, micro_batch=MICRO_BATCH, seed=7, steps=6
        )
        for at, (inputs, targets) in enumerate(loader):
            LOSS(model(inputs), targets).backward()
            assert coordinator.step()
            rounds.append((coordinator.steps, coordinator.round))
            if at % 2:  # an evaluation in training mode leaves nothing
                model(torch.ones(4, FEATURES)).sum().backward()
    by_hand(plain, 6)
    assert rounds == [((i + 1) // 2, (i + 1) // 6) for i in range(12)]
    assert [round for round, _ in clipped] == [1, 1, 1, 2, 2, 2] and all(norm > 0.5 for _, norm in clipped)
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other), name


def made(mode: DiLoCo = MODE, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW) -> tuple[Any, WholeModel]:
    model = with_statistics()
    stepped = optimizer(model.parameters(), lr=1e-2)  # type: ignore[call-arg]
    framework = framework_of(
        model, stepped, schedule_of(stepped), arrays=None, apply=None, gradients=None, set_to_none=True
    )
    return model, WholeModel(model, framework, EveryStep().start(framework), mode)


def computed(model: Any, whole: WholeModel, first: int) -> torch.Tensor:
    data = Points()
    LOSS(model(data.x[first : first + 8]), data.y[first : first + 8]).backward()
    return torch.cat([part.reshape(-1) for part in whole.take()])


def trained(model: Any, whole: WholeModel, steps: range) -> None:
    for step in steps:
        torch.manual_seed(step)
        whole.update(computed(model, whole, 8 * step), step + 1)


def test_a_replica_within_a_phase_goes_on_elsewhere_with_all_that_it_has() -> None:
    model, whole = made(DiLoCo(every=EVERY, warmup_rounds=0))
    other_model, other = made(DiLoCo(every=EVERY, warmup_rounds=0))
    trained(model, whole, range(3))
    whole.end_alone(1)
    common = [bytes(each.get()) for each in whole.common]
    trained(model, whole, range(3, 5))
    assert [bytes(each.get()) for each in whole.common] == common, "only a round changes what all sites have"
    computed(other_model, other, 0)  # void: the state is replaced
    other.load(whole.state())
    other.goes_on(1, 2)
    assert other.digest() == whole.digest() and other.look(1) == ""
    for each_model, each in ((model, whole), (other_model, other)):
        trained(each_model, each, range(5, 6))
        each.end_alone(2)
    assert other.digest() == whole.digest()
    assert [bytes(each.get()) for each in other.common] != common
    trained(model, whole, range(6, 7))
    for each in (whole, other):
        each.begins_anew(2)
    assert whole.digest() == other.digest(), "whatever it had of the phase, and of moments, is dropped"


def test_its_state_and_vector_are_those_of_an_ordinary_script_with_the_mode() -> None:
    model, whole = made()
    assert whole.phase is not None
    plain = with_statistics()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    framework = framework_of(
        plain, optimizer, schedule_of(optimizer), arrays=None, apply=None, gradients=None, set_to_none=True
    )
    ordinary = MODE.start(framework)
    vectors = LocalWholeVectors(whole, whole.phase)
    assert [each.item for each in whole.common] == [each.item for each in ordinary.items]
    assert vectors.contribution == ordinary.contribution
    trained(model, whole, range(3))
    given = np.zeros(vectors.contribution.size_bytes, dtype=np.uint8)
    vectors.give(given, whole, None)
    result = given.copy()
    vectors.update(result, whole, 1.0, 1)
    region = np.zeros(vectors.state.size_bytes, dtype=np.uint8)
    vectors.write(region, whole)
    _, other = made()
    vectors.load(region, other)
    other.begins_anew(1)
    whole.begins_anew(1)
    assert other.digest() == whole.digest()


class Counting(torch.optim.SGD):
    """With a number among its options that each step changes by the gradients, as an estimate of a learning rate."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        for group in self.param_groups:
            group["estimate"] = 1.0

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            norms = [float(p.grad.norm()) for p in group["params"] if p.grad is not None]
            group["estimate"] += sum(norms)
        return super().step(closure)


def test_what_an_optimizer_estimates_goes_along_and_begins_anew_with_the_phase() -> None:
    """It stayed as it was at those that had it, so holders of one layer, or replicas, went apart."""
    model, whole = made(optimizer=Counting)
    _, other = made(optimizer=Counting)
    trained(model, whole, range(2))
    other.load(whole.state())
    other.goes_on(0, 2)
    for each in (whole, other):
        each.end_alone(1)
    assert other.digest() == whole.digest(), "that it is this site's own is known at once"
    _, fresh = made(optimizer=Counting)
    fresh.load(whole.state())
    for each in (whole, fresh):
        each.begins_anew(1)
    layer, later = (chain(list(make_model()))[1] for _ in range(2))
    for one in (layer, later):
        one.train_with(lambda parameters: Counting(parameters, lr=0.1), None, MODE)
    layer.update(torch.ones(layer.gradient_size), 1)
    for one in (layer, later):
        one.begins_anew(0)
    assert whole.digest() == fresh.digest() and layer.digest() == later.digest()
    assert {float(g.get().view("float64")[0]) for g in layer.items if g.item.name.endswith("estimate")} == {1.0}


def test_a_round_without_a_result_leaves_the_common_model() -> None:
    model, whole = made()
    before = [p.detach().clone() for p in model.parameters()]
    statistics = [b.clone() for b in model.buffers()]
    trained(model, whole, range(2))
    whole.void(1)
    assert all(torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))
    assert all(torch.equal(now, then) for now, then in zip(model.buffers(), statistics, strict=True))


def test_the_common_model_is_shown_between_two_local_steps() -> None:
    with Coordinator(standalone=True, handle_signals=False, verbose=False, sync=LocalSGD(every=2)) as coordinator:
        model = coordinator.replicate(make_model(0.0))
        coordinator.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        first = model[0].weight.detach().clone()
        for inputs, targets in coordinator.loader(Points(), global_batch=4, micro_batch=4, seed=7, steps=2):
            LOSS(model(inputs), targets).backward()
            coordinator.step()
            own = model[0].weight.detach().clone()
            with coordinator.common_model():
                shown = model[0].weight.detach().clone()
            assert torch.equal(model[0].weight, own) and not torch.equal(own, first)
            assert torch.equal(shown, first if coordinator.round == 0 else own)


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        (EveryStep(overlap=True), "EveryStep: a model of replicate.. is averaged at every"),
        (LocalSGD(every=4, pace="time"), "LocalSGD with replicate.. has no pace='time' yet"),
        (DiLoCo(every=4, delay=2), "DiLoCo with replicate.. has no delay= yet"),
    ],
    ids=("overlap", "time", "delay"),
)
def test_a_mode_that_a_replicated_model_does_not_have_is_refused(mode: SyncMode, text: str) -> None:
    with Coordinator(standalone=True, handle_signals=False, sync=mode) as coordinator:
        model = coordinator.replicate(make_model(0.0))
        with pytest.raises(ValueError, match=text):
            coordinator.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def test_what_local_steps_do_not_go_with_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with Coordinator(standalone=True, handle_signals=False, sync=LocalSGD(every=4)) as coordinator:
        model = coordinator.replicate(make_model(0.0))
        coordinator.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        loader = coordinator.loader(Points(), global_batch=16, micro_batch=4, steps=6)
        with pytest.raises(ValueError, match="6 steps are no whole number of phases of 4"):
            next(iter(loader))
    here, there = socket.socketpair()
    monkeypatch.setattr(entering, "open_socket", lambda *_: here)
    with there, Coordinator("/nowhere/worker.sock", handle_signals=False) as coordinator:
        model = coordinator.replicate(make_model(0.0))
        with pytest.raises(ValueError, match=r"replicate.. takes the workers of `chaosd run`, one at least"):
            coordinator.register(
                model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), sync=LocalSGD(every=4)
            )


def test_frozen_parameters_are_moved_once() -> None:
    model = with_statistics()
    model[0].requires_grad_(False)  # type: ignore[index]
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    framework = framework_of(model, optimizer, None, arrays=None, apply=None, gradients=None, set_to_none=True)
    assert isinstance(framework, TorchFramework)
    whole = WholeModel(model, framework, EveryStep().start(framework), MODE)
    names = [each.item.name for each in whole.items]
    assert names.count("model.0.weight") == 1 and names.count("model.3.weight") == 2
