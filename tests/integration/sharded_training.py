"""`site_training` with layers that the processes of a device group share (FSDP2): what `test_device_groups` runs."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from tests.integration import site_training
from torch.distributed.tensor import DTensor

from chaos.worker_group.chain.sharded import ShardedLayer
from chaos.worker_group.compute.data import Loader

PARALLEL_VARIABLE = "PARALLEL"
"""Set: layers are shared by tensor parallelism."""

WHOLE_VARIABLE = "WHOLE"
"""A file for the parameters of the layers after each step, put together from the pieces: their digests. That of worker
0; those of others, where each holds a part of the layers, have the number of their worker at the end of the name."""


def shard(layer: torch.nn.Module, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    fully_shard(layer, mesh=mesh)


def in_parallel(layer: torch.nn.Module, mesh: Any) -> None:
    """The first layer by columns, the next ones by rows, in which each process computes a part of every sum; the last
    one all processes have whole."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if isinstance(layer, site_training.Block):
        parallelize_module(layer, mesh, {"linear": RowwiseParallel(input_layouts=Replicate())})
    elif isinstance(layer, torch.nn.Linear) and layer.in_features == site_training.FEATURES:
        parallelize_module(layer, mesh, ColwiseParallel(output_layouts=Replicate()))


def note_whole(model: Any, report: Any) -> None:
    """All processes of the device group come here at once, since putting a tensor together takes all of them."""
    held = [layer for layer in model.layers if layer.held]
    modules = [layer.whole if isinstance(layer, ShardedLayer) else layer.module for layer in held]
    whole = [
        [part.full_tensor() if isinstance(part, DTensor) else part for part in module.parameters()]
        for module in modules
    ]
    worker = os.environ.get("CHAOS_WORKER", "0")
    if os.environ.get("CHAOS_LANE", "0") != "0" or (worker != "0" and len(held) == len(model.layers)):
        return
    digests: list[str | None] = [None] * len(model.layers)
    for layer, each in zip(held, whole, strict=True):
        digests[layer.index] = digest(each)
    tell_whole(report.step, digests, "" if worker == "0" else worker)


def tell_whole(step: int, digests: list[str | None], of: str = "") -> None:
    with open(os.environ[WHOLE_VARIABLE] + of, "a", encoding="utf-8") as out:
        out.write(json.dumps([step, digests]) + "\n")


def read_badly() -> None:
    """The data of lane 1 cannot be read in step 2."""
    read = Loader.micro_batch

    def micro_batch(self: Loader, step: int, number: int) -> Any:
        if self.part == 1 and step == 2:
            raise RuntimeError("the data of this lane are gone")
        return read(self, step, number)

    Loader.micro_batch = micro_batch  # type: ignore[method-assign]


def leave(model: Any, report: Any) -> None:
    """The script of this process alone wants no step after the second; or it ends, and says nothing."""
    lane, _, silently = os.environ["LEAVES"].partition("!")
    if report.step == 2 and os.environ.get("CHAOS_LANE") == lane:
        atexit.register(Path(os.environ["LEFT"]).touch)
        os._exit(0) if silently else sys.exit(0)


def digest(tensors: list[torch.Tensor]) -> str:
    """Of a layer's parameters."""
    return hashlib.blake2b(b"".join(each.detach().cpu().numpy().tobytes() for each in tensors)).hexdigest()


if __name__ == "__main__":
    if "RAISES" in os.environ:
        read_badly()
    after = (note_whole,) if WHOLE_VARIABLE in os.environ else (leave,) if "LEAVES" in os.environ else ()
    site_training.main(*after, device_group=in_parallel if PARALLEL_VARIABLE in os.environ else shard)
