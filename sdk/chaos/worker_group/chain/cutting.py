"""What a script's function has done to the layers of a device group: which of the two ways of sharing them it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from chaos.worker_group.chain.layers import Layer
from chaos.worker_group.chain.sharded import ShardedLayer
from chaos.worker_group.chain.tensor_parallel import TensorParallelLayer

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Shard = Callable[[torch.nn.Module, "DeviceMesh"], Any]
"""Of a script: shards a layer's module over a mesh, in place."""


def shard_layers(layers: Sequence[Layer], shard: Shard, mesh: DeviceMesh) -> list[Layer]:
    """All of them, cut by the script's function: by `fully_shard`, or by `parallelize_module`. Raises ValueError,
    naming the layer, where it has done something else, or both."""
    for layer in layers:
        shard(layer.module, mesh)
    if any(_is_fully_sharded(layer) for layer in layers):
        return [_fully_sharded(layer) for layer in layers]
    if any(isinstance(parameter, DTensor) for layer in layers for parameter in layer.module.parameters()):
        return [
            TensorParallelLayer(layer.index, layer.module, mesh) if list(layer.module.parameters()) else layer
            for layer in layers
        ]
    for layer in layers:
        if list(layer.module.parameters()):
            raise ValueError(
                f"device_group= has left layer {layer.name} as it is; call fully_shard(layer, mesh=mesh) in it, or "
                "parallelize_module(layer, mesh, ...)"
            )
    return list(layers)


def _is_fully_sharded(layer: Layer) -> bool:
    return any(isinstance(part, FSDPModule) for part in layer.module.modules())


def _fully_sharded(layer: Layer) -> Layer:
    parameters = list(layer.module.named_parameters())
    cut = [isinstance(parameter, DTensor) for _, parameter in parameters]
    if not parameters:
        return layer
    if not any(cut):
        raise ValueError(
            f"device_group= has left layer {layer.name} as it is; call fully_shard(layer, mesh=mesh) in it"
        )
    if not _is_fully_sharded(layer):
        raise ValueError(
            f"device_group= has made layer {layer.name} parallel without fully_shard, and other layers with it: with "
            "fully_shard each process computes a part of a micro-batch, with parallelize_module the whole; use one of "
            "them for all layers"
        )
    for (name, _), is_cut in zip(parameters, cut, strict=True):
        if not is_cut:
            raise ValueError(
                f"device_group= has left the parameter {name!r} of layer {layer.name} whole; fully_shard must "
                "shard all of them (no ignored_params=)"
            )
    return ShardedLayer(layer.index, layer.module)
