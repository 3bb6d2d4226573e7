"""A script that uses layers which other workers hold is told so, and what it can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.integration.site_training import FEATURES, OwnForward, make_model, make_optimizer

from chaos import layers as known
from chaos.worker_group.absent import LayerElsewhere
from chaos.worker_group.layers import Layer, chain


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
