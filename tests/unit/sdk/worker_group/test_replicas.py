"""A replicated model: the script's own loop, the sums of its micro-batches, and what it must not do."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
import torch
from tests.integration.site_training import CLASSES, FEATURES, SAMPLES, WIDTH, Block, Points, make_model

from chaos import ChangedOutside, Coordinator
from chaos.frameworks import framework_of, torch_registered
from chaos.frameworks.torch import TorchFramework
from chaos.sync.every_step import EveryStep
from chaos.worker_group.compute.data import Permutation
from chaos.worker_group.compute.seeding import seed_of
from chaos.worker_group.whole import WholeModel, WholeVectors

LOSS = torch.nn.functional.cross_entropy
MICRO_BATCHES, MICRO_BATCH = 5, 4


def with_statistics() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, WIDTH), torch.nn.BatchNorm1d(WIDTH), Block(0.3), torch.nn.Linear(WIDTH, CLASSES)
    )


class Narrow(torch.nn.Module):
    """In 16 bits, without buffers."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.one, self.other = (
            torch.nn.Linear(FEATURES, WIDTH, dtype=dtype),
            torch.nn.Linear(WIDTH, CLASSES, dtype=dtype),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left: torch.Tensor = self.other(torch.tanh(self.one(x.to(self.one.weight.dtype))))
        return left.float()


def trained(
    model: torch.nn.Module, steps: int, *, keeps_gradients: bool = False, **registered: Any
) -> tuple[Any, Coordinator]:
    """An ordinary loop; the coordinator is closed."""
    with Coordinator(
        standalone=True, handle_signals=False, verbose=False, zero_grad_set_to_none=not keeps_gradients
    ) as coordinator:
        model = coordinator.replicate(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        coordinator.register(model=model, optimizer=optimizer, scheduler=scheduler, **registered)
        batches = coordinator.loader(
            Points(), global_batch=MICRO_BATCHES * MICRO_BATCH, micro_batch=MICRO_BATCH, seed=7, steps=steps
        )
        rounds = []
        for inputs, targets in batches:
            optimizer.zero_grad()
            LOSS(model(inputs), targets).backward()
            assert coordinator.step() and coordinator.speaks
            rounds.append(coordinator.round)
        assert rounds == [(i + 1) // MICRO_BATCHES for i in range(steps * MICRO_BATCHES)]
        return optimizer, coordinator


def by_hand(model: torch.nn.Module, steps: int) -> None:
    """The same without a line of ours: gradient accumulation, ((0 + 1) + (2 + 3)) + 4, buffers averaged."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    data, order = Points(), Permutation(SAMPLES, b"7/0")
    wide = any(True for _ in model.buffers())
    for step in range(steps):
        gradients, buffers = [], []
        before = [buffer.clone() for buffer in model.buffers()]
        for g in range(MICRO_BATCHES):
            torch.manual_seed(seed_of(7, step, g, 0))
            rows = [order[(step * MICRO_BATCHES + g) * MICRO_BATCH + i] for i in range(MICRO_BATCH)]
            loss = LOSS(model(data.x[rows]), data.y[rows])
            found = torch.autograd.grad(loss, list(model.parameters()))
            gradients.append([each.double() if wide else each for each in found])
            buffers.append([buffer.double() for buffer in model.buffers()])
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.copy_(value)
        for parameter, parts in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
            a, b, c, d, e = parts
            parameter.grad = (((a + b) + (c + d) + e) / 5).float()
        for buffer, parts in zip(model.buffers(), zip(*buffers, strict=True), strict=True):
            a, b, c, d, e = parts
            mean = ((a + b) + (c + d) + e) / 5
            buffer.copy_(mean if buffer.is_floating_point() else mean.round())
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("cleared", [True, False])
def test_a_loop_that_gives_no_gradients_is_told_once(cleared: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """It made all of its steps, with a loss for each, and trained nothing."""
    with Coordinator(standalone=True, handle_signals=False, verbose=False) as coordinator:
        model = coordinator.replicate(make_model())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        coordinator.register(model=model, optimizer=optimizer)
        for inputs, targets in coordinator.loader(Points(), global_batch=4, micro_batch=2, seed=7, steps=2):
            LOSS(model(inputs), targets).backward()
            if cleared:
                optimizer.zero_grad()
            coordinator.step()
    told = capfd.readouterr().err
    assert told.count("no parameter had a gradient at a micro-batch of the step after round 0") == cleared


@pytest.mark.parametrize("make", [lambda: make_model(0.3), with_statistics], ids=("dropout", "batch-statistics"))
def test_an_ordinary_loop_leaves_the_bits_of_plain_gradient_accumulation(make: Any) -> None:
    model, plain = make(), make()
    trained(model, 3)
    by_hand(plain, 3)
    for (name, one), other in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_summed_alike_where_they_are_and_through_the_vector_of_a_round(dtype: torch.dtype) -> None:
    one, other = Narrow(dtype), Narrow(dtype)
    trained(one, 3)
    trained(other, 3, keeps_gradients=True)
    for (name, mine), theirs in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name


def test_gradients_stay_on_the_device_of_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses_meta = "check_whole"
    monkeypatch.setattr(torch_registered, refuses_meta, lambda name, tensor: None)

    def summed_where(*devices: str) -> list[str]:
        """`meta`: a device whose numbers cannot be copied."""
        model = torch.nn.Sequential(*(torch.nn.Linear(2, 2, device=device) for device in devices))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        framework = TorchFramework({"model": model}, {"optimizer": optimizer}, {}, set_to_none=True)
        return [each.device.type for each in framework.plain_parameters()]

    assert summed_where("meta", "meta") == ["meta"] * 4 and summed_where("cpu") == ["cpu"] * 2
    assert summed_where("cpu", "meta") == []


def test_clipping_sees_the_mean_over_the_whole_step() -> None:
    model = make_model(0.0)
    norms: list[float] = []

    def clip(update: Any) -> None:
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)))

    trained(model, 2, on_average=clip)
    assert len(norms) == 2 and all(norm > 0.01 for norm in norms)


def test_its_state_and_vector_are_those_of_an_ordinary_script() -> None:
    def framework(model: torch.nn.Module) -> Any:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        plain: dict[str, Any] = {"arrays": None, "apply": None, "gradients": None, "set_to_none": True}
        return framework_of(model, optimizer, None, **plain)

    ordinary = EveryStep().start(framework(with_statistics()))
    model = with_statistics()
    made = framework(model)
    session = EveryStep().start(made)
    vectors = WholeVectors(WholeModel(model, made, session), session)
    assert [each.item for each in session.items] == [each.item for each in ordinary.items]
    assert vectors.contribution == ordinary.contribution


def flat(whole: WholeModel) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in whole.take()])


def test_moved_state_makes_another_replica_the_same() -> None:
    def whole() -> tuple[torch.nn.Module, torch.optim.Optimizer, WholeModel]:
        model = with_statistics()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        framework = framework_of(model, optimizer, None, arrays=None, apply=None, gradients=None, set_to_none=True)
        return model, optimizer, WholeModel(model, framework, EveryStep().start(framework))

    model, _, one = whole()
    data = Points()
    for step in range(2):
        LOSS(model(data.x[:8]), data.y[:8]).backward()
        one.update(flat(one), step + 1)
    other_model, _, other = whole()
    LOSS(other_model(data.x[8:16]), data.y[8:16]).backward()  # void: the state is replaced
    other.load(one.state())
    assert other.digest() == one.digest() and float(one.squared(flat(one))) == float(other.squared(flat(other))) == 0.0
    assert "changed" not in other.look(2)
    for module, part in ((model, one), (other_model, other)):
        torch.manual_seed(0)
        LOSS(module(data.x[:8]), data.y[:8]).backward()
        part.update(flat(part), 3)
    assert other.digest() == one.digest()


def refused(script: Any, text: str, error: type[Exception] = ValueError) -> None:
    with Coordinator(standalone=True, handle_signals=False, verbose=False) as coordinator:
        with pytest.raises(error) as found:
            script(coordinator)
        assert text in str(found.value)


def registered(coordinator: Coordinator, **named: Any) -> tuple[Any, Any, Any]:
    model = coordinator.replicate(make_model(0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    coordinator.register(model=model, optimizer=optimizer, **named)
    return model, optimizer, coordinator.loader(Points(), global_batch=8, micro_batch=4)


def test_what_a_replicated_model_cannot_do_is_said_with_what_to_write() -> None:
    refused(lambda c: c.replicate([1]), "takes a torch.nn.Module, not a list")
    refused(lambda c: (c.replicate(make_model()), c.replicate(make_model())), "one model is parallelized or replicated")
    refused(lambda c: (c.replicate(make_model()), c.parallelize(make_model(), loss=LOSS)), "one model is parallelized")
    refused(lambda c: registered(c, clip_norm=1.0), "clip_grad_norm_")
    refused(
        lambda c: registered(c, sync=EveryStep(overlap=True)), "EveryStep: a model of replicate() is averaged at every"
    )
    refused(lambda c: c.loader(Points(), global_batch=8, micro_batch=4), "call one first")
    refused(lambda c: (registered(c), c.step()), "trains on the batches of coordinator.loader")
    refused(lambda c: list(registered(c)[2]), "coordinator.step() must follow each batch")

    def another(coordinator: Coordinator) -> None:
        coordinator.replicate(make_model())
        other = make_model()
        coordinator.register(model=other, optimizer=torch.optim.SGD(other.parameters(), lr=0.1))

    refused(another, "register() takes the same model")

    def unregistered(coordinator: Coordinator) -> None:
        coordinator.replicate(make_model())
        next(iter(coordinator.loader(Points(), global_batch=8, micro_batch=4)))

    refused(unregistered, "before the first batch")

    def counted(coordinator: Coordinator) -> None:
        _, _, batches = registered(coordinator)
        next(iter(batches))
        coordinator.step(samples=3)

    refused(counted, "takes no arguments")

    def own(coordinator: Coordinator) -> None:
        model, optimizer, batches = registered(coordinator)
        inputs, targets = next(iter(batches))
        LOSS(model(inputs), targets).backward()
        optimizer.step()
        coordinator.step()

    refused(own, "coordinator.step()", ChangedOutside)


def test_an_evaluation_between_two_steps_leaves_nothing_in_them() -> None:
    """In training mode it changes batch statistics, and a penalty that is tried leaves gradients: the first micro-batch
    of each worker counted these, of one process one, of three workers three."""

    def state(evaluates: bool) -> str:
        model = with_statistics()
        with Coordinator(standalone=True, handle_signals=False) as coordinator:
            coordinator.replicate(model)
            coordinator.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
            loader = coordinator.loader(Points(), global_batch=8, micro_batch=4, seed=7, steps=3)
            for at, (inputs, targets) in enumerate(loader):
                LOSS(model(inputs), targets).backward()
                coordinator.step()
                if evaluates and at % 2:
                    model(torch.ones(4, FEATURES)).sum().backward()
            assert coordinator._replicated is not None
            return coordinator._replicated.digest()

    assert state(True) == state(False)


def test_a_buffer_that_the_script_has_given_another_shape_is_told_by_its_name() -> None:
    model: Any = with_statistics()
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        coordinator.replicate(model)
        coordinator.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        loader = iter(coordinator.loader(Points(), global_batch=4, micro_batch=4, steps=3))
        next(loader)
        coordinator.step()
        model[1].running_mean = torch.zeros(1)
        next(loader)
        with pytest.raises(ChangedOutside, match=r"the buffer 'model\.1\.running_mean' has the shape \[1\]"):
            coordinator.step()


def test_a_process_that_was_forked_from_the_loop_is_told_so_at_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told to take a batch of the loader."""
    model = make_model()
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        coordinator.replicate(model)
        coordinator.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        for inputs, targets in coordinator.loader(Points(), global_batch=8, micro_batch=4, steps=1):
            LOSS(model(inputs), targets).backward()
            coordinator.step()
            with monkeypatch.context() as child:
                child.setattr(os, "getpid", lambda: 1)
                with pytest.raises(ValueError, match=r"in process \d+, and this is process 1, forked from it"):
                    coordinator.step()


def test_a_gradient_that_is_not_finite_is_said() -> None:
    def script(coordinator: Coordinator) -> None:
        model, _, batches = registered(coordinator)
        for inputs, targets in batches:
            (LOSS(model(inputs), targets) * float("inf")).backward()
            coordinator.step()

    refused(script, "is not finite")


def test_a_scaler_of_losses_is_refused_unless_it_does_nothing() -> None:
    def scaled(coordinator: Coordinator, *, enabled: bool) -> None:
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        model, _, batches = registered(coordinator)
        inputs, targets = next(iter(batches))
        scaler.scale(LOSS(model(inputs), targets)).backward()
        coordinator.step()

    refused(lambda c: scaled(c, enabled=True), "GradScaler that is enabled")
    gc.collect()  # the one above lived in the traceback
    with Coordinator(standalone=True, handle_signals=False, verbose=False) as coordinator:
        scaled(coordinator, enabled=False)


def test_what_comes_into_the_model_or_its_optimizer_after_register_is_told_by_name(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def train(coordinator: Coordinator) -> None:
        model, optimizer, batches = registered(coordinator)
        for inputs, targets in batches:
            if coordinator.round == 1:
                model[0].register_buffer("seen", torch.zeros(1))
            if coordinator.round == 2:
                model[0].scale = torch.nn.Parameter(torch.ones(1))
                optimizer.add_param_group({"params": [model[0].scale]})
            LOSS(model(inputs), targets).backward()
            coordinator.step()

    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        with pytest.raises(ChangedOutside, match=r"'model\.0\.scale' was added to a registered optimizer"):
            train(coordinator)
    assert capfd.readouterr().err.count("the buffer 'model.0.seen' came into the model after register()") == 1
