"""What the processes of a device group have of a round's vector and of the state: together all of it, each in its
place."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from chaos.worker_group.layers import Layer, chain
from chaos.worker_group.layout import ModelLayout
from chaos.worker_group.pieces import pieces_of, rows_of
from chaos.worker_group.vectors import LayerVectors


class Scaled(torch.nn.Module):
    """Matrices, a vector shorter than there are processes, a buffer, a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(3, 7)
        self.short = torch.nn.Parameter(torch.randn(2))
        self.frozen = torch.nn.Parameter(torch.randn(5, 2), requires_grad=False)
        self.register_buffer("offset", torch.randn(4))


def adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1)


def cut(module: torch.nn.Module, lane: int, lanes: int) -> torch.nn.Module:
    """A copy with the rows of one process."""
    own = copy.deepcopy(module)
    for part in own.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is not None:
                first, last = rows_of(len(parameter), lane, lanes)
                piece = parameter.detach()[first:last].clone()
                setattr(part, name, torch.nn.Parameter(piece, requires_grad=parameter.requires_grad))
    return own


def trained(layers: list[Layer]) -> list[Layer]:
    for layer in layers:
        layer.train_with(adam)
    return layers


def made() -> tuple[ModelLayout, list[Layer]]:
    model = torch.nn.Sequential(Scaled(), torch.nn.Tanh(), Scaled())
    layers = trained(chain(list(model)))
    return ModelLayout(model, layers, adam, None), layers


def gradient_of(layer: Layer, like: Layer, lane: int, lanes: int) -> torch.Tensor:
    """What a process has of a gradient in which each row is a number."""
    parts = []
    for whole in like.parameters:
        numbers = torch.arange(whole.numel(), dtype=torch.float32).view(whole.shape) + layer.index
        first, last = rows_of(len(whole), lane, lanes)
        parts.append(numbers[first:last].reshape(-1))
    return torch.cat(parts) if parts else torch.empty(0)


@pytest.mark.parametrize("lanes", [2, 3])
def test_the_pieces_of_all_processes_are_the_vector_and_the_state_of_one(lanes: int) -> None:
    torch.manual_seed(1)
    layout, wholes = made()
    one = LayerVectors(layout)
    for layer in wholes:
        layer.update(torch.randn(layer.gradient_size), 1)
    own = [trained([Layer(layer.index, cut(layer.module, lane, lanes)) for layer in wholes]) for lane in range(lanes)]
    vectors = [LayerVectors(layout, pieces_of(layout, wholes, own[lane], lane, lanes)) for lane in range(lanes)]
    assert all(each.state == one.state and each.contribution == one.contribution for each in vectors)

    expected, found = (np.zeros(one.contribution.size_bytes, dtype=np.uint8) for _ in range(2))
    for layer in wholes:
        one.give(expected, layer, gradient_of(layer, layer, 0, 1))
        for lane in range(lanes):
            vectors[lane].give(found, own[lane][layer.index], gradient_of(layer, layer, lane, lanes))
    assert found.tobytes() == expected.tobytes()
    for layer in wholes:
        assert torch.equal(vectors[1].whole_gradient(found, layer.index), one.gradient(found, layer.index))
        pieces = gradient_of(layer, layer, lanes - 1, lanes)
        assert torch.equal(vectors[lanes - 1].gradient(found, layer.index), pieces)

    region, put_together = (np.zeros(one.state.size_bytes, dtype=np.uint8) for _ in range(2))
    for layer in wholes:
        one.write(region, layer)
    for lane in range(lanes):
        for layer in own[lane]:
            vectors[lane].load(region, layer)
            vectors[lane].write(put_together, layer)
    assert put_together.tobytes() == region.tobytes()


def test_tensors_that_are_not_cut_into_rows_are_refused_with_what_to_leave_out() -> None:
    layout, wholes = made()
    columns = copy.deepcopy(wholes[0].module)
    assert isinstance(columns, Scaled)
    columns.wide.weight = torch.nn.Parameter(columns.wide.weight.detach()[:, :2].clone())
    own = trained([Layer(0, columns), *wholes[1:]])
    with pytest.raises(ValueError, match="shard_placement_fn"):
        pieces_of(layout, wholes, own, 0, 2)
