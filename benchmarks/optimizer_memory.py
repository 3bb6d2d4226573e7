"""What a worker of a site holds in memory, with the optimizer's state in every holder of a layer and sharded (ZeRO-1).

Four replicas of a model of 12 equal layers train with AdamW; after the third step each worker says what its optimizers
keep, and what the kernel counts as its own memory, both in bytes. The states after that step must have the same bits.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import Figure, Figures

WORKERS, LAYERS, STEPS = 4, 12, 3
WAYS = {"unsharded": 0, "copies_2": 2, "copies_1": 1}


def main() -> None:
    """A worker."""
    from chaos import Coordinator

    torch.manual_seed(1)
    width, copies = int(os.environ["WIDTH"]), int(os.environ["COPIES"])
    module = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(LAYERS)))
    data = torch.utils.data.TensorDataset(torch.randn(64, width), torch.randn(64, width))
    sharded: dict[str, Any] = {"shard_optimizer": True, "optimizer_copies": copies} if copies else {}
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(module, loss=torch.nn.functional.mse_loss, **sharded)
        coordinator.register(model=model, optimizer=torch.optim.AdamW)
        for batch in coordinator.loader(data, global_batch=16, micro_batch=4, steps=STEPS):
            report = model.step(batch)
            if report.step == STEPS:
                kept = sum(layer.state_bytes - layer.parameter_bytes for layer in model.layers if layer.keeps)
                line = json.dumps({"optimizer": kept, "memory": own_bytes()})
                Path(os.environ["WRITTEN"], os.environ["CHAOS_WORKER"]).write_text(line, encoding="utf-8")


def own_bytes() -> int:
    """Of this process, as the kernel counts it, without what the allocator only has not given back yet."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def run(*, short: bool, seed: int) -> Figures:
    """`optimizer_*`: bytes that a worker keeps, at most; `memory_*`: of its process, the median. `equal`: the
    states of all layers after the last step, compared between the ways."""
    from tests.rigs.worker_group import train

    width = 256 if short else 1024
    found: dict[str, Figure] = {}
    digests: list[object] = []
    for way, copies in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder, "told")
            told.mkdir()
            environment = {
                "WIDTH": str(width),
                "COPIES": str(copies),
                "WRITTEN": str(told),
            }
            ran = asyncio.run(
                train(Path(folder), dp=WORKERS, pp=1, script=Path(__file__).resolve(), environment=environment)
            )
            if ran.failed:
                raise RuntimeError(ran.failed)
            workers = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(told.iterdir())]
        found[f"optimizer_{way}"] = max(each["optimizer"] for each in workers)
        found[f"memory_{way}"] = int(statistics.median(each["memory"] for each in workers))
        digests.append(ran.digests[-1])
    return {**found, "parameters": LAYERS * (width * width + width) * 4, "equal": digests == digests[:1] * len(digests)}


if __name__ == "__main__":
    main()
