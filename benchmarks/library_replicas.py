"""The library's way of training with several replicas: DistributedDataParallel over gloo, gradients accumulated.

Started by `site_over_library` once for each rank. Rank 0 writes the seconds of each step, as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from chaos.worker_group.data import Loader

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "site"))
text_model = importlib.import_module("text_model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("rank", "world", "port", "steps", "width", "global-batch", "micro-batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{given.port}"
    dist.init_process_group("gloo", init_method=address, rank=given.rank, world_size=given.world)
    plain = text_model.layers(given.width, 6, 4, 64, 0.1)
    model = torch.nn.parallel.DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batch, micro = given.global_batch, given.micro_batch
    loader = Loader(text_model.Text(64), global_batch=batch, micro_batch=micro, seed=1, steps=given.steps)
    own = range(given.rank, loader.micro_batches, given.world)
    took_s: list[float] = []
    for step in range(given.steps):
        began_s = time.perf_counter()
        for g in own:
            inputs, targets = loader.micro_batch(step, g)
            with contextlib.nullcontext() if g == own[-1] else model.no_sync():
                (text_model.loss(model(inputs), targets) / len(own)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        took_s.append(time.perf_counter() - began_s)
    if given.rank == 0:
        given.out.write_text(json.dumps(took_s), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
