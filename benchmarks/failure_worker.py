"""The script of the benchmark `failure_learning`: a network learns Fashion-MNIST, alone or as a worker of a site.

FlexiTrain 5.1 has a network of 1.2 M parameters on MNIST; this one has the same layers as PyTorch's example for it
(1,199,882 parameters, dropout 0.25 and 0.5), over the pictures that `examples/images` brings along.
`STEPS` is the number of updates. Where `RESULT` names a file, the states' digests after each step and the accuracy on
the pictures to test on (per cent) go into it: that is for one process, which has all layers.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from chaos import Coordinator

GLOBAL_BATCH, MICRO_BATCH = 256, 32
RATE = 1e-3
"""Global batch and learning rate of FlexiTrain 5.1; it does not name its optimizer, here it is Adam."""
PADDING = 2


def layers(seed: int) -> nn.Sequential:
    """The whole model, the same in every process."""
    torch.manual_seed(seed)
    seen = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2))
    hidden = nn.Sequential(nn.Dropout(0.25), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU())
    return nn.Sequential(seen, hidden, nn.Sequential(nn.Dropout(0.5), nn.Linear(128, 10)))


def pictures(part: str) -> TensorDataset:
    """[count, 1, 28, 28] and labels: what `examples/images` pads to 32x32x3, without the padding."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "images"))
    data = importlib.import_module("image_data")
    padded, labels = data.load(data.HERE, part).tensors
    return TensorDataset(padded[:, :1, PADDING:-PADDING, PADDING:-PADDING].contiguous(), labels)


def main() -> None:
    torch.set_num_threads(1)
    steps, seed, result = int(os.environ["STEPS"]), int(os.environ["SEED"]), os.environ.get("RESULT")
    digests: list[list[str]] = []
    with Coordinator() as coordinator:
        module = layers(seed)
        model = coordinator.parallelize(module, loss=nn.functional.cross_entropy)
        coordinator.register(model=model, optimizer=lambda p: torch.optim.Adam(p, lr=RATE))
        loader = coordinator.loader(
            pictures("train"), global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, seed=seed, steps=steps
        )
        for batch in loader:
            model.step(batch)
            if result:
                digests.append([digest for _, digest in sorted(model.digests().items())])
    if result:
        found = {"digests": digests, "accuracy": _accuracy(module)}
        Path(result).write_text(json.dumps(found), encoding="utf-8")


@torch.no_grad()
def _accuracy(module: nn.Module) -> float:
    shown, labels = pictures("t10k").tensors
    module.eval()
    return 100.0 * float((module(shown).argmax(1) == labels).float().mean())


if __name__ == "__main__":
    main()
