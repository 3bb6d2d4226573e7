"""The model of `ordinary_training` in stages, without clipping: `parallelize`, of one worker or of several.

TRAINING as for `ordinary_training`; beside the digests of the whole state one process writes those of its layers.
"""

from __future__ import annotations

import json
import os
import time

import torch
from tests.integration.replica_training import note
from tests.integration.site_training import (
    GLOBAL_BATCH,
    MICRO_BATCH,
    Points,
    _plant,
    faults,
    make_model,
    make_optimizer,
    make_scheduler,
)
from tests.rigs import devices

from chaos import Coordinator


def main() -> None:
    for fault in faults():
        _plant(fault)
    given = json.loads(os.environ["TRAINING"])
    encoding = given.get("encoding", "fp32")
    with Coordinator(handle_signals=False, verbose=False, encoding=encoding) as coordinator:
        model = coordinator.parallelize(devices.placed(make_model()), loss=torch.nn.functional.cross_entropy)
        scheduler = make_scheduler if given.get("scheduled") else None
        coordinator.register(model=model, optimizer=make_optimizer, scheduler=scheduler)
        loader = coordinator.loader(
            Points(), global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, seed=given["seed"], steps=given["steps"]
        )
        for batch in loader:
            report = model.step(batch)
            if "digests" in given:
                note(given["digests"], coordinator)
                with open(given["digests"] + "-layers", "a", encoding="utf-8") as out:
                    digests = [digest for _, digest in sorted(model.digests().items())]
                    out.write(json.dumps([report.step, digests]) + "\n")
            time.sleep(given["pace_s"])


if __name__ == "__main__":
    main()
