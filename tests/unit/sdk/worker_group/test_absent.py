"""A script that uses layers which other workers hold is told so, and what it can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.integration.site_training import FEATURES, OwnForward, make_model, make_optimizer

from chaos import layers as known
from chaos.errors import ChangedOutside
from chaos.worker_group.chain.absent import LayerElsewhere
from chaos.worker_group.chain.layers import Layer, chain


def without(layer: int, model: torch.nn.Module, modules: list[torch.nn.Module]) -> Layer:
    """Of this one the parameters are elsewhere."""
    found = chain(modules)
    for each in found:
        each.train_with(make_optimizer)
    found[layer].drop()
    return found[layer]


@pytest.mark.parametrize("make", [make_model, OwnForward])
@pytest.mark.parametrize(
    ("used", "what"), [(lambda m: m.state_dict(), "saved"), (lambda m: m(torch.zeros(2, FEATURES)), "computed")]
)
def test_a_model_is_neither_saved_nor_computed_without_a_layer(
    make: Callable[[], torch.nn.Module], used: Callable[[torch.nn.Module], Any], what: str
) -> None:
    model = make()
    modules = list(model) if isinstance(model, torch.nn.Sequential) else list(known.of(model))
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    layer = without(1, model, modules)
    with pytest.raises(LayerElsewhere, match=rf"layer 1 .* by other workers and cannot be {what} here: .*--pp 1"):
        used(model)
    layer.revive()
    used(model)
    assert model.state_dict().keys() == kept.keys(), "as it was"


class Tied(torch.nn.Module):
    """Two of its modules share their weights, and two their table."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.other.weight = self.one.weight
        self.one.register_buffer("scale", torch.ones(4))
        self.other.register_buffer("scale", self.one.scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.one(x))  # type: ignore[no-any-return]


def test_weights_that_a_layer_has_at_two_places_are_one_again_when_it_comes_back() -> None:
    """They were two then, so the state that came did not fit, and the training ended at its first loss."""
    module = Tied()
    layer = without(0, module, [module])
    layer.revive()
    fresh = chain([Tied()])[0]
    fresh.train_with(make_optimizer)
    layer.load(fresh.state())
    assert layer.digest() == fresh.digest()
    assert module.other.weight is module.one.weight and module.other.scale is module.one.scale


@pytest.mark.parametrize("late", ["parameter", "buffer"])
def test_a_layer_into_which_something_came_after_register_goes_to_no_other_worker(late: str) -> None:
    """Its state did not fit, and the training ended with the sizes of two tensors; where that fitted, one worker
    computed with it and the next one without."""

    def comes(module: torch.nn.Module) -> None:
        if late == "buffer":
            module.register_buffer("late", torch.ones(1))
        else:
            module.register_parameter("late", torch.nn.Parameter(torch.ones(1)))

    here, there = chain([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    for each in (here, there):
        each.train_with(make_optimizer)
    there.drop()
    for each in (here, there):
        each.check_same()
        comes(each.module)
    said = rf"layer \d Linear goes to another worker, and the {late} 'late' came into it after register\(\): .* before"
    with pytest.raises(ChangedOutside, match=said):
        here.check_same()
    with pytest.raises(ChangedOutside, match=said):
        there.revive()


def test_a_table_that_came_later_is_each_workers_own_and_stays_when_the_layer_goes() -> None:
    """It came back as whatever lay in that memory."""
    (layer,) = chain([torch.nn.Linear(2, 2)])
    layer.train_with(make_optimizer)
    layer.module.register_buffer("held", torch.tensor([3.0]), persistent=False)
    layer.drop()
    layer.module.register_buffer("elsewhere", torch.tensor([4.0]), persistent=False)
    layer.revive()
    assert (layer.module.held, layer.module.elsewhere) == (3.0, 4.0)
    assert [item.get().size for item in layer.items] == [item.get().size for item in chain_of_one().items]


def chain_of_one() -> Layer:
    (layer,) = chain([torch.nn.Linear(2, 2)])
    layer.train_with(make_optimizer)
    return layer
