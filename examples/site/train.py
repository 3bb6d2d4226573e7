"""Trains a small GPT on the project's documents: as a site of its own, or as one of the workers of `chaosd run`.

CHAOS_STANDALONE=1 python train.py --steps 30
chaosd run --standalone --nproc 4 --dp 2 --pp 2 train.py --steps 30

Without `CHAOS_STANDALONE` and `--standalone`, and with a daemon beside it, every step is a round of its run.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import text_model
import torch

from chaos import Coordinator, DiLoCo, LocalSGD
from chaos.sync import SyncMode

MODES = {"diloco": DiLoCo, "local-sgd": LocalSGD}


def mode(text: str) -> SyncMode | None:
    """Of `--sync`; None: the default."""
    name, _, every = text.partition(":")
    if text == "every-step":
        return None
    if name not in MODES or not every.isdecimal():
        raise SystemExit(f"--sync {text}: every-step, diloco:H or local-sgd:H, such as diloco:50")
    return MODES[name](every=int(every))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--length", type=int, default=64, help="bytes of a sample")
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1, help="of the order of samples, and of dropout")
    parser.add_argument("--sync", default="every-step", help="or diloco:H, local-sgd:H: a round after every H steps")
    parser.add_argument("--digests", type=Path, help="alone: a line for each step, the digests of all layers")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of rest after each step")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sync = mode(given.sync)
    with Coordinator() as coordinator:
        made = text_model.layers(given.width, given.blocks, 4, given.length, given.dropout).to(coordinator.device)
        model = coordinator.parallelize(made, loss=text_model.loss)
        coordinator.register(model=model, optimizer=lambda p: torch.optim.AdamW(p, lr=3e-3), clip_norm=1.0, sync=sync)
        loader = coordinator.loader(
            text_model.Text(given.length),
            global_batch=given.global_batch,
            micro_batch=given.micro_batch,
            seed=given.seed,
            steps=given.steps,
        )
        for batch in loader:
            report = model.step(batch)
            if given.digests is not None:
                digests = [digest for _, digest in sorted(model.digests().items())]
                with given.digests.open("a", encoding="utf-8") as out:
                    out.write(json.dumps([report.step, digests]) + "\n")
            elif model.speaks and not loader.ended:
                print(f"step {report.step:3d}  loss {report.loss:.4f}  {1e3 * report.seconds:6.0f} ms", flush=True)
            time.sleep(given.pace)


if __name__ == "__main__":
    main()
