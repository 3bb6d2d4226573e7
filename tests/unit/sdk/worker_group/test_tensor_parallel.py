"""Layers cut by tensor parallelism (DTensor), in a device group of one process, and what is said of mistakes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from chaos.worker_group.chain import tensor_parallel
from chaos.worker_group.chain.cutting import shard_layers
from chaos.worker_group.chain.layers import Layer
from chaos.worker_group.chain.tensor_parallel import TensorParallelLayer


class Block(torch.nn.Module):
    """What is cut by columns and by rows, and what is left whole."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(3)
        self.up, self.down = torch.nn.Linear(3, 4), torch.nn.Linear(4, 3)
        self.register_buffer("table", torch.linspace(0.5, 1.5, 3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left: torch.Tensor = self.down(torch.nn.functional.gelu(self.up(self.norm(x)))) * self.table
        return left


def cut(layer: torch.nn.Module, mesh: DeviceMesh) -> None:
    parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def made(mesh: DeviceMesh) -> tuple[Layer, TensorParallelLayer]:
    """The same layer, plain and cut."""
    plain, other = Layer(0, Block()), Block()
    other.load_state_dict(plain.module.state_dict())
    (layer,) = shard_layers([Layer(0, other)], cut, mesh)
    assert isinstance(layer, TensorParallelLayer)
    for each in (plain, layer):
        each.train_with(lambda parameters: torch.optim.AdamW(parameters, lr=0.1))
    return plain, layer


def passed(layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and gradients of one micro-batch, flat."""
    entered = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    left = layer.run(entered)
    into, found = layer.gradients(entered, left, torch.ones_like(left))
    assert into is not None
    gradient = torch.cat([each.reshape(-1) for each in found if each is not None])
    return torch.cat([left.detach().reshape(-1), into.reshape(-1)]), gradient


def test_a_cut_layer_computes_and_keeps_what_a_plain_one_does_also_after_it_was_dropped(mesh: DeviceMesh) -> None:
    plain, layer = made(mesh)
    for step in range(3):
        (values, gradient), (others, other) = passed(plain), passed(layer)
        assert torch.equal(values, others) and torch.equal(gradient, other)
        assert layer.squared(other) == plain.squared(gradient)
        for each in (plain, layer):
            each.update(gradient.clone(), step + 1)
        assert torch.equal(plain.state(), layer.state())
        state = layer.state()
        layer.drop()
        layer.revive()
        layer.load(state)


def test_weights_that_a_cut_layer_has_whole_at_two_places_are_one_again_when_it_comes_back(mesh: DeviceMesh) -> None:
    """Each place had its own afterwards, with a state that no other worker knew."""
    module = Block()
    module.norm_again = torch.nn.LayerNorm(3)
    module.norm_again.weight = module.norm.weight
    (layer,) = shard_layers([Layer(0, module)], cut, mesh)
    layer.train_with(lambda parameters: torch.optim.AdamW(parameters, lr=0.1))
    size, state = layer.state_bytes, layer.state()
    layer.drop()
    layer.revive()
    assert layer.state_bytes == size and module.norm_again.weight is module.norm.weight
    layer.load(state)
    assert torch.equal(layer.state(), state)


def test_what_every_process_has_whole_counts_once_in_the_norm(mesh: DeviceMesh) -> None:
    plain, layer = made(mesh)
    _, gradient = passed(layer)
    layer._mesh = SimpleNamespace(get_local_rank=lambda: 1)  # type: ignore[assignment]
    sizes = [each.numel() for each in layer.parameters]
    named = dict(zip([name for name, _ in layer.module.named_parameters()], torch.split(gradient, sizes), strict=True))
    own = torch.cat([named[name] for name in ("up.weight", "up.bias", "down.weight")]).double()
    assert float(layer.squared(gradient)) == pytest.approx(float(own @ own), rel=1e-12)
    assert layer.whole_squares(gradient) == float(plain.squared(gradient)), (
        "of a round's result every process has all of it"
    )


def test_a_gradient_that_processes_should_have_alike_and_have_not_is_refused(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_gather(others: list[torch.Tensor], own: torch.Tensor, group: object) -> None:
        for number, other in enumerate(others):
            other.copy_(own ^ (number * (len(own) == 12)))  # those of the layer norm, 3 numbers each

    _, layer = made(mesh)
    layer._mesh = SimpleNamespace(size=lambda: 2, get_group=lambda: None)  # type: ignore[assignment]
    monkeypatch.setattr(tensor_parallel.dist, "all_gather", all_gather)
    with pytest.raises(ValueError, match=r"unlike gradients of the parameter 'norm.weight' of layer 0 Block"):
        passed(layer)
    passed(layer)


def test_what_leaves_a_layer_must_be_whole(mesh: DeviceMesh) -> None:
    def as_it_is(layer: torch.nn.Module, mesh: DeviceMesh) -> None:
        parallelize_module(layer, mesh, ColwiseParallel(use_local_output=False))

    (layer,) = shard_layers([Layer(0, torch.nn.Linear(3, 3))], as_it_is, mesh)
    with pytest.raises(ValueError, match="layer 0 Linear gives a DTensor"):
        layer.run(torch.ones(2, 3))
