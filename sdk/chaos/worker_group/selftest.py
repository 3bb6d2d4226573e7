"""The small training that `chaosd workers selftest` has workers do: `python -m chaos.worker_group.selftest`.

Under `chaosd run` it is one of several workers. By itself it is the training in one process that the others are
compared with, and prints one JSON object: `digests`, of all layers after each step; `device`, `backend`, `torch`: what
it ran on; `unused`: what is here and was not used.
"""

from __future__ import annotations

import json
import os
import time

import torch

from chaos import Coordinator
from chaos_protocols.worker_group.settings import DEVICE_VARIABLE

STEPS, PAUSE_S = 30, 0.005
SAMPLES, FEATURES, WIDTH, CLASSES, BLOCKS = 96, 8, 64, 4, 4


class PausingLayer(torch.nn.Module):
    """Time in which a worker can be struck at work."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(PAUSE_S)
        return x


def make_model() -> torch.nn.Sequential:
    """Six layers, with dropout: random numbers must not depend on who computes what."""
    torch.manual_seed(1)
    blocks: list[torch.nn.Module] = []
    for _ in range(BLOCKS):
        blocks.append(
            torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Dropout(0.1), PausingLayer())
        )
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, WIDTH), *blocks, torch.nn.Linear(WIDTH, CLASSES))


def points() -> torch.utils.data.TensorDataset:
    """Random points, the same in every process."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
    return torch.utils.data.TensorDataset(inputs, torch.randint(0, CLASSES, (SAMPLES,), generator=generator))


def train() -> list[list[str]]:
    """Digests of the layers held here, after each step."""
    found: list[list[str]] = []
    with Coordinator(standalone=True, handle_signals=False, verbose=False) as coordinator:
        model = coordinator.parallelize(make_model().to(coordinator.device), loss=torch.nn.functional.cross_entropy)
        coordinator.register(model=model, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))
        for batch in coordinator.loader(points(), global_batch=16, micro_batch=2, seed=3, steps=STEPS):
            model.step(batch)
            found.append([digest for _, digest in sorted(model.digests().items())])
    return found


def unused() -> list[str]:
    """Accelerators that torch sees on this machine."""
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def main() -> None:
    torch.set_num_threads(1)
    digests = train()
    if "CHAOS_WORKER_GROUP" not in os.environ:
        kind = os.environ.get(DEVICE_VARIABLE, "cpu").partition(":")[0]
        not_used = unused() if kind == "cpu" else []
        told = {"device": kind, "backend": "sockets", "torch": torch.__version__, "unused": not_used}
        print(json.dumps({"digests": digests, **told}))


if __name__ == "__main__":
    main()
