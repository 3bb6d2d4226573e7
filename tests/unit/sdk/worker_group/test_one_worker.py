"""A worker group of one trains what plain torch trains, and refuses what several could not train."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from blake3 import blake3
from tests.integration.site_training import CLASSES, FEATURES, SAMPLES, WIDTH, Block, Points, make_model, make_optimizer
from torch.utils.data import DataLoader

from chaos import Coordinator
from chaos.worker_group.chain.layers import chain
from chaos.worker_group.compute.data import Loader, Permutation
from chaos.worker_group.compute.seeding import seed_of, seeded
from chaos.worker_group.exchange.line import GroupEnded
from chaos.worker_group.session import Applied, stream_of_one
from chaos_protocols.streams import Share, prove

LOSS = torch.nn.functional.cross_entropy


def trained(steps: int, *, dropout: float = 0.0, clip_norm: float | None = None) -> tuple[torch.nn.Module, list[Any]]:
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        module = make_model(dropout)
        model = coordinator.parallelize(module, loss=LOSS)
        coordinator.register(model=model, optimizer=make_optimizer, clip_norm=clip_norm)
        loader = coordinator.loader(Points(), global_batch=20, micro_batch=4, seed=7, steps=steps)
        return module, [model.step(batch) for batch in loader]


def summed_by_hand(gradients: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    """Five micro-batches: ((0 + 1) + (2 + 3)) + 4, written down."""
    return [((a + b) + (c + d)) + e for a, b, c, d, e in zip(*gradients, strict=True)]


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_the_bits_are_those_of_plain_autograd_over_the_whole_model(clip_norm: float | None) -> None:
    steps = 4
    module, reports = trained(steps, clip_norm=clip_norm)
    plain, data = make_model(0.0), Points()
    optimizer = make_optimizer(list(plain.parameters()))
    order = Permutation(SAMPLES, b"7/0")
    for step in range(steps):
        gradients, losses = [], []
        for g in range(5):
            rows = [order[(step * 5 + g) * 4 + i] for i in range(4)]
            loss = LOSS(plain(data.x[rows]), data.y[rows])
            losses.append(float(loss.detach()))
            gradients.append(list(torch.autograd.grad(loss, list(plain.parameters()))))
        total = [gradient / 5.0 for gradient in summed_by_hand(gradients)]
        norm = torch.cat([gradient.flatten() for gradient in total]).double().norm()
        assert reports[step].norm == pytest.approx(float(norm), rel=1e-5)
        assert reports[step].loss == sum(losses) / 5
        factor = 1.0 if clip_norm is None else min(1.0, clip_norm / (reports[step].norm + 1e-6))
        for parameter, gradient in zip(plain.parameters(), total, strict=True):
            parameter.grad = gradient * factor
        optimizer.step()
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, module.get_parameter(name)), name


def test_random_numbers_are_those_of_the_step_and_leave_the_scripts_own_alone() -> None:
    torch.manual_seed(1)
    before = torch.rand(3)
    torch.manual_seed(1)
    first, _ = trained(2, dropout=0.3)
    torch.manual_seed(1)
    second, _ = trained(2, dropout=0.3)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    torch.manual_seed(1)
    with seeded(seed_of(1, 2, 3, 4)):
        torch.rand(10)
    assert torch.equal(torch.rand(3), before)
    seeds = {seed_of(*numbers) for numbers in itertools.product(range(4), repeat=4)}
    assert len(seeds) == 256
    assert seed_of(1, 2, 3, 4) == 1080917220080657142, "a training of an earlier release draws the same"
    assert seed_of(-1, 0, 5, 1 << 62) == 7824498910133446549


@pytest.mark.parametrize("seed", [1 << 63, -(1 << 63) - 1])
def test_a_seed_of_more_than_64_bits_is_refused_at_once(seed: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        Loader(Points(), global_batch=4, micro_batch=2, seed=seed)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 100, 1000])
def test_an_epoch_holds_every_sample_once_and_another_one_orders_them_otherwise(size: int) -> None:
    one, other = Permutation(size, b"a"), Permutation(size, b"b")
    assert sorted(one[i] for i in range(size)) == list(range(size))
    if size > 10:
        assert [one[i] for i in range(size)] != [other[i] for i in range(size)] != list(range(size))
    with pytest.raises(IndexError):
        one[size]


def test_an_epoch_is_read_once_and_the_next_one_follows() -> None:
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        coordinator.parallelize(make_model(), loss=LOSS)
        loader = coordinator.loader(Points(), global_batch=32, micro_batch=8, steps=6)
        epochs = [[loader.samples(step, g) for step in range(3 * e, 3 * e + 3) for g in range(4)] for e in range(2)]
    for epoch in epochs:
        assert sorted(itertools.chain(*epoch)) == list(range(SAMPLES))
    assert epochs[0] != epochs[1]


def test_the_stream_of_one_worker_is_proved_like_any_other() -> None:
    prove({0: Share(first_layer=0, last_layer=4, stream=stream_of_one(4, 3))}, layers=4, micro_batches=3)


def test_a_layer_that_is_dropped_and_comes_back_has_every_bit() -> None:
    (layer,) = chain([Block(0.0)])
    layer.train_with(make_optimizer)
    torch.manual_seed(2)
    layer.update(torch.randn(layer.gradient_size), 1)
    state, digest = layer.state(), layer.digest()
    output = layer.module(torch.ones(2, WIDTH))
    layer.drop()
    assert all(p.is_meta for p in layer.module.parameters())
    layer.revive()
    layer.load(state)
    assert layer.digest() == digest == blake3(state.numpy().data).hexdigest()
    assert torch.equal(layer.module(torch.ones(2, WIDTH)), output), "tables that are no state are back as well"
    assert 0 < layer.parameter_bytes < layer.state_bytes == state.numel()


class Two(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


def tied() -> torch.nn.Module:
    first, last = torch.nn.Linear(FEATURES, FEATURES), torch.nn.Linear(FEATURES, FEATURES)
    last.weight = first.weight
    return torch.nn.Sequential(first, last)


class Counting(torch.nn.Module):
    """A layer whose forward pass writes into its state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return x


def scaled_twice() -> torch.nn.Module:
    scale = torch.nn.BatchNorm1d(FEATURES, affine=False, track_running_stats=False)
    scale.register_buffer("scale", torch.ones(FEATURES))
    return torch.nn.Sequential(scale, torch.nn.Linear(FEATURES, FEATURES), scale, torch.nn.Linear(FEATURES, CLASSES))


class Residual(torch.nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left: torch.Tensor = super().forward(x)
        return left + x


def test_a_module_that_stands_twice_in_a_sequence_is_passed_twice() -> None:
    torch.manual_seed(3)
    bend = torch.nn.Tanh()
    module = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, WIDTH), bend, torch.nn.Linear(WIDTH, WIDTH), bend, torch.nn.Linear(WIDTH, CLASSES)
    )
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(module, loss=LOSS)
        coordinator.register(model=model, optimizer=make_optimizer)
        loader = coordinator.loader(Points(), global_batch=8, micro_batch=8, steps=1)
        inputs, targets = loader.micro_batch(0, 0)
        expected = LOSS(module(inputs), targets).item()
        (report,) = [model.step(batch) for batch in loader]
    assert report.loss == expected


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (scaled_twice, "layers 0 and 2 share the buffer 'scale'"),
        (
            lambda: Residual(torch.nn.Linear(FEATURES, FEATURES), torch.nn.Linear(FEATURES, FEATURES)),
            "Residual cannot be cut into layers: .* more than one value goes on",
        ),
        (
            lambda: torch.nn.Sequential(torch.nn.Linear(FEATURES, CLASSES), Counting()),
            "layer 1 Counting changes its buffer 'passes'",
        ),
        (tied, "layers 0 and 1 share the parameter 'weight'"),
        (lambda: torch.nn.Sequential(torch.nn.Linear(FEATURES, 4), torch.nn.BatchNorm1d(4)), "layer 1 has batch stat"),
        (lambda: Block(0.0), "Block cannot be cut into layers: its parameters are used in one place only"),
        (
            lambda: torch.nn.Sequential(torch.nn.Linear(FEATURES, 4), torch.nn.Linear(5, CLASSES)),
            "layer 1 Linear cannot",
        ),
        (lambda: torch.nn.Sequential(torch.nn.Linear(FEATURES, CLASSES), Two()), "layer 1 Two gives a tuple"),
    ],
    ids=(
        *("shared-buffer", "forward-of-its-own", "written-buffer", "tied"),
        *("batch-statistics", "no-layers", "sizes", "tuple"),
    ),
)
def test_a_model_that_cannot_be_cut_is_refused_with_the_layer_s_name(
    make: Callable[[], torch.nn.Module], text: str
) -> None:
    def first_step() -> None:
        with Coordinator(standalone=True, handle_signals=False) as coordinator:
            model = coordinator.parallelize(make(), loss=LOSS)
            coordinator.register(model=model, optimizer=make_optimizer)
            model.step(next(iter(coordinator.loader(Points(), global_batch=8, micro_batch=4))))

    with pytest.raises(ValueError, match=text):
        first_step()


def test_a_layer_that_is_forgotten_is_named() -> None:
    model = make_model()
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        with pytest.raises(ValueError, match=r"'5.weight' is in none of the layers"):
            coordinator.parallelize(model, layers=lambda m: list(m)[:-1], loss=LOSS)


@pytest.mark.parametrize(
    "given",
    [[], make_model()[0], lambda m: None, lambda m: m[0], lambda m: ["0", "1"]],
    ids=("list", "module", "nothing", "one", "names"),
)
def test_layers_that_are_no_function_that_gives_modules_are_refused_with_what_to_write(given: Any) -> None:
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        with pytest.raises(ValueError, match="layers= takes a function of the model that gives a list of modules"):
            coordinator.parallelize(make_model(), layers=given, loss=LOSS)


def test_a_loss_that_cannot_be_called_is_refused() -> None:
    nothing: Any = None
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        with pytest.raises(ValueError, match="loss= takes a function"):
            coordinator.parallelize(make_model(), loss=nothing)


class Stream(torch.utils.data.IterableDataset[int]):
    """A data set without numbers."""

    def __iter__(self) -> Iterator[int]:
        yield 0


def other() -> Any:
    """A scheduler of an optimizer that has nothing to do with the model."""
    return torch.optim.lr_scheduler.StepLR(make_optimizer([torch.nn.Parameter(torch.ones(1))]), step_size=1)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c, m: c.register(model=m, optimizer=torch.optim.SGD(m.module.parameters(), lr=1)), "takes a function"),
        (lambda c, m: c.register(model=m, optimizer=make_optimizer, clip_norm=0), "clip_norm must be greater than 0"),
        (lambda c, m: c.register(model=m, optimizer=make_optimizer, scheduler=other()), "function that makes a sched"),
        (
            lambda c, m: c.register(model=m, optimizer=make_optimizer, scheduler=lambda _: other()),
            "given a StepLR that is no scheduler of the optimizer that it was called with",
        ),
        (
            lambda c, m: c.register(model=m, optimizer=make_optimizer, scheduler=lambda _: None),
            "given a NoneType that is no scheduler",
        ),
        (
            lambda c, m: c.register(
                model=m, optimizer=make_optimizer, scheduler=lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o)
            ),
            "is a ReduceLROnPlateau: each site would follow its own metric",
        ),
        (lambda c, m: c.loader(Points(), global_batch=10, micro_batch=4), "cannot be cut into micro-batches of 4"),
        (
            lambda c, m: c.loader(Points(), global_batch=1000, micro_batch=4),
            "a step takes 1000; make global_batch",
        ),
        (lambda c, m: c.loader(DataLoader(Points()), global_batch=8, micro_batch=4), "DataLoader cannot be read"),
        (lambda c, m: c.loader(Stream(), global_batch=8, micro_batch=4), "Stream cannot be read by number"),
        (lambda c, m: c.parallelize(make_model(), loss=LOSS), "parallelized or replicated already"),
    ],
    ids=(
        *("optimizer", "clip", "scheduler", "foreign", "nothing", "plateau", "batch", "data"),
        *("batches", "stream", "twice"),
    ),
)
def test_bad_input_is_refused_in_a_sentence(call: Callable[[Any, Any], Any], text: str) -> None:
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(make_model(), loss=LOSS)
        with pytest.raises(ValueError, match=text):
            call(coordinator, model)


def test_a_step_without_an_optimizer_or_with_a_gradient_that_is_not_finite_is_refused() -> None:
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(make_model(), loss=lambda o, t: LOSS(o, t) * float("inf"))
        loader = coordinator.loader(Points(), global_batch=8, micro_batch=4)
        with pytest.raises(ValueError, match=r"call coordinator.register"):
            model.step(next(iter(loader)))
        coordinator.register(model=model, optimizer=make_optimizer)
        with pytest.raises(ValueError, match="the gradient of step 1 is not finite"):
            model.step(next(iter(loader)))


def test_the_calls_of_a_model_of_one_process_are_refused_with_what_to_write_instead() -> None:
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(make_model(), loss=LOSS)
        with pytest.raises(ValueError, match=r"register\(\) takes what it gave"):
            coordinator.register(model=torch.nn.Linear(2, 2), optimizer=make_optimizer)
        coordinator.register(model=model, optimizer=make_optimizer)
        with pytest.raises(ValueError, match=r"model.step\(batch\) trains it"):
            coordinator.step()


def test_an_ordinary_script_under_chaosd_run_is_told_what_workers_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_WORKER_GROUP", "/nowhere")
    coordinator = Coordinator(handle_signals=False)
    module = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="train one model together"):
        coordinator.register(model=module, optimizer=make_optimizer(list(module.parameters())))
    coordinator.close()


def test_the_environment_can_say_that_a_script_trains_without_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_STANDALONE", "1")
    with Coordinator("/nowhere/worker.sock", handle_signals=False) as coordinator:
        model = coordinator.parallelize(make_model(), loss=LOSS)
        coordinator.register(model=model, optimizer=make_optimizer)
        for batch in coordinator.loader(Points(), global_batch=16, micro_batch=4, steps=2):
            model.step(batch)
        assert coordinator.round == 2 and coordinator.status().phase == "standalone"


def test_a_layer_that_is_not_kept_has_parameters_alone_and_follows_whoever_keeps_it() -> None:
    kept, held = (chain(list(make_model()))[1] for _ in range(2))
    for layer in (kept, held):
        layer.train_with(make_optimizer)
    held.keep(False)
    assert not held.items and held.parameter_bytes == kept.parameter_bytes and held.state_bytes == kept.state_bytes
    gradient = torch.ones(kept.gradient_size)
    for layer in (kept, held):
        layer.update(gradient, 1)
    assert not torch.equal(kept.parameters_now(), held.parameters_now()), "only who keeps it updates it"
    held.take_parameters(kept.parameters_now())
    assert torch.equal(kept.parameters_now(), held.parameters_now())
    held.keep(True)
    held.load(kept.state())
    for layer in (kept, held):
        layer.update(gradient, 2)
    assert held.digest() == kept.digest()


def test_less_than_one_copy_of_an_optimizers_state_is_refused() -> None:
    with (
        Coordinator(standalone=True, handle_signals=False) as coordinator,
        pytest.raises(ValueError, match="optimizer_copies must be at least 1, not 0"),
    ):
        coordinator.parallelize(make_model(), loss=LOSS, shard_optimizer=True, optimizer_copies=0)


def test_a_step_that_the_end_of_the_training_has_cut_off_gives_the_report_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its loss was not a number, so that a script which looks for that failed at each Ctrl+C in a run."""

    def ends() -> Applied:
        raise GroupEnded("")

    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(make_model(), loss=torch.nn.functional.cross_entropy)
        coordinator.register(model=model, optimizer=make_optimizer)
        reports = []
        for batch in coordinator.loader(Points(), global_batch=8, micro_batch=4, steps=9):
            reports.append(model.step(batch))
            if model.round == 2:
                monkeypatch.setattr(model._session, "step", ends)
    assert [report.step for report in reports] == [1, 2, 2] and reports[-1] is reports[-2]
