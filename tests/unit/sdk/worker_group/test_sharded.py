"""Layers that the library shards (FSDP2), in a device group of one process: what computes and what is kept are one."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from chaos import ChangedOutside, Coordinator
from chaos.worker_group.chain.cutting import shard_layers
from chaos.worker_group.chain.layers import Layer
from chaos.worker_group.chain.sharded import ShardedLayer
from chaos.worker_group.chain.trained import TrainedSet


class Block(torch.nn.Module):
    """A table that is no state, a buffer that is, parameters of two depths."""

    table: torch.Tensor
    offset: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.GELU(), torch.nn.Linear(5, 3))
        self.register_buffer("table", torch.linspace(0.5, 1.5, 3), persistent=False)
        self.register_buffer("offset", torch.full((3,), 0.25))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left: torch.Tensor = self.inner(x) * self.table + self.offset
        return left


def shard(layer: torch.nn.Module, mesh: DeviceMesh) -> None:
    fully_shard(layer, mesh=mesh)


def adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1)


def made(mesh: DeviceMesh) -> tuple[Layer, ShardedLayer]:
    """The same layer, plain and sharded."""
    plain, cut = Layer(0, Block()), Block()
    cut.load_state_dict(plain.module.state_dict())
    (sharded,) = shard_layers([Layer(0, cut)], shard, mesh)
    assert isinstance(sharded, ShardedLayer)
    for layer in (plain, sharded):
        layer.train_with(adam)
    return plain, sharded


def trained(layer: Layer, step: int, value: torch.Tensor) -> torch.Tensor:
    """Output and gradients of one micro-batch, flat; and the update by them."""
    entered = value.clone().requires_grad_()
    left = layer.run(entered)
    into, found = layer.gradients(entered, left, torch.ones_like(left))
    assert into is not None
    gradient = torch.cat([each.reshape(-1) for each in found if each is not None])
    layer.update(gradient, step + 1)
    return torch.cat([left.detach().reshape(-1), into.reshape(-1), gradient])


def test_a_sharded_layer_computes_and_keeps_what_a_plain_one_does(mesh: DeviceMesh) -> None:
    plain, sharded = made(mesh)
    for step in range(3):
        value = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        assert torch.equal(trained(plain, step, value), trained(sharded, step, value))
        assert torch.equal(plain.state(), sharded.state()) and sharded.digest() == plain.digest()
    whole: list[Any] = list(sharded.whole.parameters())
    assert all(torch.equal(one.full_tensor(), other) for one, other in zip(whole, plain.parameters, strict=True))
    assert all(one.grad is None for one in whole), "what is left would be added to the next gradient"


def test_a_layer_that_was_dropped_comes_back_with_the_state_that_is_loaded(mesh: DeviceMesh) -> None:
    plain, sharded = made(mesh)
    value = torch.ones(2, 3)
    for layer in (plain, sharded):
        trained(layer, 0, value)
    state = sharded.state()
    before = [weakref.ref(piece) for piece in sharded.parameters]
    sharded.drop()
    gc.collect()
    assert not any(piece() is not None for piece in before), "their memory is given back"
    whole: list[Any] = list(sharded.whole.parameters())
    assert all(one.to_local().is_meta for one in whole)
    sharded.revive()
    sharded.load(state)
    assert torch.equal(sharded.state(), plain.state())
    assert torch.equal(trained(sharded, 1, value), trained(plain, 1, value)), "its tables are back as well"


@pytest.mark.parametrize("changed", ["loaded", "updated", "taken", "dropped"])
def test_after_a_pass_that_ended_half_way_a_layer_computes_with_what_it_has_then(
    mesh: DeviceMesh, changed: str
) -> None:
    """Another worker dies after the forward half: the library would compute once more with the parameters of then."""
    plain, sharded = made(mesh)
    value = torch.ones(2, 3)
    for layer in (plain, sharded):
        layer.run(value.clone().requires_grad_())
    other, _ = made(mesh)
    trained(other, 0, value)
    for layer in (plain, sharded):
        if changed == "updated":
            layer.update(torch.ones(layer.gradient_size), 1)
        elif changed == "taken":
            layer.take_parameters(other.parameters_now())
        else:
            if changed == "dropped":
                layer.drop()
                layer.revive()
            layer.load(other.state())
    whole: list[Any] = list(sharded.whole.parameters())
    assert all(torch.equal(one.full_tensor(), theirs) for one, theirs in zip(whole, plain.parameters, strict=True))
    assert torch.equal(trained(sharded, 1, value), trained(plain, 1, value))


def test_what_is_not_shared_as_a_whole_by_one_of_two_ways_is_refused(mesh: DeviceMesh) -> None:
    def left_alone(layer: torch.nn.Module, mesh: DeviceMesh) -> None:
        """As a function that forgets a kind of layer."""

    def first_only(layer: torch.nn.Module, mesh: DeviceMesh) -> None:
        if layer.get_parameter("bias").shape == (2,):
            fully_shard(layer, mesh=mesh)

    def both(layer: torch.nn.Module, mesh: DeviceMesh) -> None:
        if layer.get_parameter("bias").shape == (2,):
            fully_shard(layer, mesh=mesh)
        else:
            parallelize_module(layer, mesh, ColwiseParallel())

    def in_part(layer: torch.nn.Module, mesh: DeviceMesh) -> None:
        fully_shard(layer, mesh=mesh, ignored_params={layer.get_parameter("bias")})

    said: dict[Any, str] = {
        left_alone: "has left layer 0 Linear as it is; call fully_shard",
        first_only: "has left layer 1 Linear as it is; call fully_shard",
        both: "has made layer 1 Linear parallel without fully_shard, and other layers with it",
        in_part: "has left the parameter 'bias'",
    }
    for function, text in said.items():
        with pytest.raises(ValueError, match=text):
            shard_layers([Layer(0, torch.nn.Linear(2, 2)), Layer(1, torch.nn.Linear(2, 3))], function, mesh)
    (nothing,) = shard_layers([Layer(0, torch.nn.ReLU())], left_alone, mesh)
    assert not isinstance(nothing, ShardedLayer), "a layer without parameters may stay as it is"


def test_a_worker_of_several_processes_needs_layers_that_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_GROUP_SIZE", "2")
    model, loss = torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.nn.functional.mse_loss
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        with pytest.raises(ValueError, match=r"each worker has 2 processes.*device_group="):
            coordinator.parallelize(model, loss=loss)
        with pytest.raises(ValueError, match="shard_optimizer=True and device_group= together"):
            coordinator.parallelize(model, loss=loss, shard_optimizer=True, device_group=shard)
        with pytest.raises(ValueError, match="leave it out"):
            coordinator.replicate(model)


def test_a_worker_of_one_process_shards_nothing() -> None:
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(
            torch.nn.Sequential(torch.nn.Linear(2, 2)), loss=torch.nn.functional.mse_loss, device_group=shard
        )
        assert [type(layer) for layer in model.layers] == [Layer]


def test_a_parameter_that_the_script_freezes_is_seen_where_the_script_has_it(mesh: DeviceMesh) -> None:
    """What is updated are pieces of it, parameters of their own."""
    _, sharded = made(mesh)
    found = TrainedSet(sharded.whole, [sharded])
    found.check(0)
    sharded.whole.get_parameter("inner.0.bias").requires_grad_(False)
    assert all(piece.requires_grad for piece in sharded.module.parameters())
    with pytest.raises(ChangedOutside, match=r"'inner\.0\.bias' was trained and wants no gradients after round 1"):
        found.check(1)


def test_a_parameter_that_the_script_replaces_is_seen_though_the_library_puts_its_own_there(mesh: DeviceMesh) -> None:
    """The library goes on with the one before it, and the training did so in silence."""
    _, sharded = made(mesh)
    trained_set = TrainedSet(sharded.whole, [sharded])
    trained_set.check(0)
    sharded.run(torch.zeros(1, 3))  # the library has the parameters together now
    trained_set.check(1)
    linear: Any = sharded.whole.get_submodule("inner.0")
    linear.weight = torch.nn.Parameter(torch.zeros(5, 3))
    with pytest.raises(ChangedOutside, match=r"'inner\.0\.weight' of the model is not the one that was registered"):
        trained_set.check(2)


def test_a_layer_that_went_and_came_back_has_the_parameters_that_were_registered(mesh: DeviceMesh) -> None:
    _, sharded = made(mesh)
    trained_set = TrainedSet(sharded.whole, [sharded])
    sharded.drop()
    trained_set.check(1)
    sharded.revive()
    trained_set.check(2)
    sharded.run(torch.zeros(1, 3))
    trained_set.check(3)
