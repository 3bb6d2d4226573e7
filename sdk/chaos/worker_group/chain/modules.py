"""The modules that data passes, in order, of a model that is to be cut into layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from chaos import layers as known
from chaos.worker_group.chain.layers import Layer


def modules_of(
    model: torch.nn.Module, layers: Callable[[Any], Sequence[torch.nn.Module]] | None
) -> list[torch.nn.Module]:
    """What data passes, in order. Raises ValueError where `layers` gives something else."""
    if layers is None:
        if isinstance(model, torch.nn.Sequential) and _passes_them_in_order(model):
            return list(model)  # not its children(): these name a module that stands there twice once
        return known.of(model)
    made: Any = layers(model) if callable(layers) and not isinstance(layers, torch.nn.Module) else layers
    found = list(made) if isinstance(made, Iterable) else [made]
    if made is layers or not all(isinstance(each, torch.nn.Module) for each in found) or found == [made]:
        raise ValueError(
            "layers= takes a function of the model that gives a list of modules, in the order in which data passes "
            "them: layers=lambda m: [m.embed, *m.blocks, m.head]"
        )
    return found


def _passes_them_in_order(model: torch.nn.Sequential) -> bool:
    """Whether it does what a `Sequential` does, and nothing of its own."""
    return getattr(model.forward, "__func__", None) is torch.nn.Sequential.forward


def check_covered(model: torch.nn.Module, layers: Sequence[Layer]) -> None:
    """Raises ValueError for a parameter that is in no layer."""
    covered = {id(p) for layer in layers for p in layer.module.parameters()}
    for name, parameter in model.named_parameters():
        if id(parameter) not in covered:
            raise ValueError(
                f"the parameter {name!r} is in none of the layers; layers= must name every module that trains"
            )
