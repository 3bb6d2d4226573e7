"""The model of `replica_training` in a script of one process that knows nothing of replicas: `register` and `step`."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from tests.integration.replica_training import note
from tests.integration.sharded_training import WHOLE_VARIABLE, digest, tell_whole
from tests.integration.site_training import GLOBAL_BATCH, Points, make_model, make_scheduler, pause
from tests.rigs import devices

from chaos import Coordinator


def rows(round: int, seed: int) -> list[int]:
    """Samples of the batch that leads to the end of this round; the model's dropout is seeded with it, too."""
    return [(round * seed + i) % len(Points()) for i in range(GLOBAL_BATCH)]


def backward(model: torch.nn.Module, round: int, seed: int) -> None:
    data, wanted = Points(), rows(round, seed)
    torch.manual_seed(1000 * seed + round)
    inputs, targets = data.x[wanted].to(devices.NAME), data.y[wanted].to(devices.NAME)
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()


def main() -> None:
    given = json.loads(os.environ["TRAINING"])
    model = devices.placed(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def clip(update: Any) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)

    encoding = given.get("encoding", "fp32")
    with Coordinator(handle_signals=False, verbose=False, encoding=encoding) as coordinator:
        coordinator.register(
            model=model,
            optimizer=optimizer,
            scheduler=make_scheduler(optimizer) if given.get("scheduled") else None,
            on_average=clip if given.get("clip", True) else None,
        )
        while coordinator.round < given["steps"]:
            backward(model, coordinator.round + 1, given["seed"])
            if not coordinator.step(samples=GLOBAL_BATCH):
                break
            note(given["digests"], coordinator)
            if WHOLE_VARIABLE in os.environ:
                tell_whole(coordinator.round, [digest(list(layer.parameters())) for layer in model])
            pause(given["pace_s"], given.get("fast", ""))


if __name__ == "__main__":
    main()
