"""What the first micro-batch tells of the layers: times for the planner, and nothing of the training has changed."""

from __future__ import annotations

import time

import pytest
import torch
from tests.integration.site_training import Points, make_model, make_optimizer
from torch.utils.checkpoint import checkpoint

from chaos.worker_group.chain.layers import Layer, chain
from chaos.worker_group.compute.data import Loader
from chaos.worker_group.compute.measuring import measure

SLOW_S = 0.02


class SlowDescent(torch.optim.SGD):
    """A step that takes its time."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        time.sleep(SLOW_S)
        super().step()


def loader() -> Loader:
    return Loader(Points(), global_batch=20, micro_batch=4)


def test_a_step_of_the_optimizer_is_measured_where_there_are_parameters() -> None:
    modules = [*make_model(0.1).children(), torch.nn.Identity()]
    layers = chain(modules)
    for layer in layers:
        layer.train_with(lambda parameters: SlowDescent(parameters, lr=0.1))
    found = measure(layers, torch.nn.functional.cross_entropy, loader()).layers
    for layer, measured in zip(layers, found, strict=True):
        assert measured.update_s >= SLOW_S if layer.parameters else measured.update_s == 0.0


def test_what_is_tried_leaves_parameters_optimizers_and_random_numbers_alone() -> None:
    layers = chain(list(make_model(0.1).children()))
    for layer in layers:
        layer.train_with(make_optimizer)
    before, drawn = [layer.digest() for layer in layers], torch.get_rng_state()
    measure(layers, torch.nn.functional.cross_entropy, loader())
    assert [layer.digest() for layer in layers] == before and torch.equal(torch.get_rng_state(), drawn)


class Recomputed(torch.nn.Module):
    """A layer that runs a backward pass within its backward pass."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left: torch.Tensor = checkpoint(self.inner, x, use_reentrant=True)
        return left


def test_a_backward_pass_within_another_is_refused_with_what_to_write_instead() -> None:
    first, *others = make_model(0.1).children()
    layers = chain([first, *map(Recomputed, others)])
    for layer in layers:
        layer.train_with(make_optimizer)
    with pytest.raises(ValueError, match=r"layer 1 .*use_reentrant=False"):
        measure(layers, torch.nn.functional.cross_entropy, loader())


class ScalesItself(torch.nn.Linear):
    """Writes into its own weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.mul_(0.5)
        return super().forward(x)


def trained(*modules: torch.nn.Module) -> list[Layer]:
    layers = chain(modules)
    for layer in layers:
        layer.train_with(make_optimizer)
    return layers


def test_a_layer_that_writes_into_what_enters_it_is_refused_with_what_to_write_instead() -> None:
    first, second, third = torch.nn.Linear(8, 8), torch.nn.ReLU(inplace=True), torch.nn.Linear(8, 8)
    with pytest.raises(ValueError, match=r"layer 1 ReLU changes in place what enters it.*ReLU\(\) without inplace"):
        measure(trained(first, second, third), torch.nn.functional.cross_entropy, loader())
    measure(trained(torch.nn.Sequential(first, second), third), torch.nn.functional.cross_entropy, loader())
    with pytest.raises(ValueError, match="layer 0 ScalesItself cannot take what the one before gives"):
        measure(trained(ScalesItself(8, 8)), torch.nn.functional.cross_entropy, loader())
