"""What the processes of a device group have of a round's vector and of the state: together all of it, each in its
place."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from chaos.worker_group.chain.layers import Layer, chain
from chaos.worker_group.chain.layout import ModelLayout
from chaos.worker_group.chain.pieces import pieces_of, rows_of
from chaos.worker_group.chain.vectors import LayerVectors


class Scaled(torch.nn.Module):
    """Matrices, a cube, a vector shorter than there are processes, a buffer, a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(3, 7)
        self.deep = torch.nn.Parameter(torch.randn(2, 4, 3))
        self.short = torch.nn.Parameter(torch.randn(2))
        self.frozen = torch.nn.Parameter(torch.randn(5, 2), requires_grad=False)
        self.register_buffer("offset", torch.randn(4))


def adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1)


def part_of(tensor: torch.Tensor, dimension: int, lane: int, lanes: int) -> torch.Tensor:
    """Of one process; a tensor that has fewer dimensions is cut along its last one."""
    along = min(dimension, tensor.dim() - 1)
    first, last = rows_of(tensor.shape[along], lane, lanes)
    return tensor.narrow(along, first, last - first)


def cut(module: torch.nn.Module, dimension: int, lane: int, lanes: int) -> torch.nn.Module:
    """A copy with the parts of one process."""
    own = copy.deepcopy(module)
    for part in own.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is not None:
                piece = part_of(parameter.detach(), dimension, lane, lanes).clone()
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


def gradient_of(like: Layer, dimension: int, lane: int, lanes: int) -> torch.Tensor:
    """What a process has of a gradient in which each number is another one."""
    parts = []
    for whole in like.parameters:
        numbers = torch.arange(whole.numel(), dtype=torch.float32).view(whole.shape) + like.index
        parts.append(part_of(numbers, dimension, lane, lanes).reshape(-1))
    return torch.cat(parts) if parts else torch.empty(0)


@pytest.mark.parametrize("dimension", [0, 1, 2])
@pytest.mark.parametrize("lanes", [2, 3])
def test_the_pieces_of_all_processes_are_the_vector_and_the_state_of_one(lanes: int, dimension: int) -> None:
    torch.manual_seed(1)
    layout, wholes = made()
    one = LayerVectors(layout)
    for layer in wholes:
        layer.update(torch.randn(layer.gradient_size), 1)
    own = [
        trained([Layer(layer.index, cut(layer.module, dimension, lane, lanes)) for layer in wholes])
        for lane in range(lanes)
    ]
    vectors = [LayerVectors(layout, own=pieces_of(layout, wholes, own[lane], lane, lanes)) for lane in range(lanes)]
    assert all(each.state == one.state and each.contribution == one.contribution for each in vectors)

    expected, found = (np.zeros(one.contribution.size_bytes, dtype=np.uint8) for _ in range(2))
    for layer in wholes:
        one.give(expected, layer, gradient_of(layer, 0, 0, 1))
        for lane in range(lanes):
            vectors[lane].give(found, own[lane][layer.index], gradient_of(layer, dimension, lane, lanes))
    assert found.tobytes() == expected.tobytes()
    for layer in wholes:
        assert torch.equal(vectors[1].whole_gradient(found, layer.index), one.gradient(found, layer.index))
        pieces = gradient_of(layer, dimension, lanes - 1, lanes)
        assert torch.equal(vectors[lanes - 1].gradient(found, layer.index), pieces)

    region, put_together = (np.zeros(one.state.size_bytes, dtype=np.uint8) for _ in range(2))
    for layer in wholes:
        one.write(region, layer)
    for lane in range(lanes):
        for layer in own[lane]:
            vectors[lane].load(region, layer)
            vectors[lane].write(put_together, layer)
    assert put_together.tobytes() == region.tobytes()
    for start in range(0, len(region), 37):
        some = np.zeros(len(region[start : start + 37]), dtype=np.uint8)
        for lane in range(lanes):
            for layer in own[lane]:
                vectors[lane].copy(some, start, start + len(some), layer)
        assert some.tobytes() == region[start : start + 37].tobytes()


@pytest.mark.parametrize(("rows", "columns"), [(3, 2), (7, 1)], ids=["two-dimensions", "another-part"])
def test_what_is_not_a_part_along_one_dimension_is_refused_with_what_must_hold(rows: int, columns: int) -> None:
    layout, wholes = made()
    piece = copy.deepcopy(wholes[0].module)
    assert isinstance(piece, Scaled)
    piece.wide.weight = torch.nn.Parameter(piece.wide.weight.detach()[:rows, :columns].clone())
    own = trained([Layer(0, piece), *wholes[1:]])
    with pytest.raises(ValueError, match=r"not its part along one dimension; .*SGD, Adam"):
        pieces_of(layout, wholes, own, 0, 2)
