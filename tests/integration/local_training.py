"""Local steps between rounds, with stages or in an ordinary script: what `test_local_stages` runs.

TRAINING as JSON: `kind`, `every`, `mode`, `rounds`, `seed`, `standalone`, `pace_s` a step until the file `fast` is
there, `digests`: a file for the digests of the layers' parameters after each round, which each worker tells of those
that it holds.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from tests.integration import ordinary_training, site_training
from tests.integration.sharded_training import digest
from tests.integration.site_training import GLOBAL_BATCH, Points, make_model, make_optimizer, make_scheduler, pause
from tests.rigs import devices

from chaos import Coordinator, DiLoCo, LocalSGD, OuterSGD


def mode_of(given: dict[str, Any]) -> DiLoCo:
    """With one round of plain means, then with momentum."""
    if given.get("mode") == "LocalSGD":
        return LocalSGD(every=given["every"])
    return DiLoCo(every=given["every"], outer=OuterSGD(lr=0.7, momentum=0.9), warmup_rounds=1)


def note(given: dict[str, Any], round: int, layers: dict[int, str]) -> None:
    with open(given["digests"], "a", encoding="utf-8") as out:
        out.write(json.dumps([round, sorted(layers.items())]) + "\n")


def ordinary(given: dict[str, Any]) -> None:
    model = devices.placed(make_model())
    optimizer = make_optimizer(list(model.parameters()))
    with Coordinator(handle_signals=False, verbose=False) as coordinator:
        coordinator.register(model=model, optimizer=optimizer, scheduler=make_scheduler(optimizer), sync=mode_of(given))
        made, round = 0, coordinator.round
        while coordinator.round < given["rounds"]:
            made += 1
            ordinary_training.backward(model, made, given["seed"])
            if not coordinator.step(samples=GLOBAL_BATCH):
                break
            if coordinator.round != round:
                round = coordinator.round
                note(given, round, {at: digest(list(layer.parameters())) for at, layer in enumerate(model)})
            pause(given["pace_s"], given["fast"])


def stages(given: dict[str, Any]) -> None:
    every = given["every"]
    with Coordinator(standalone=given.get("standalone", False), handle_signals=False, verbose=False) as coordinator:
        model = coordinator.parallelize(devices.placed(make_model()), loss=torch.nn.functional.cross_entropy)
        coordinator.register(
            model=model, optimizer=make_optimizer, scheduler=make_scheduler, clip_norm=2.0, sync=mode_of(given)
        )
        loader = coordinator.loader(
            Points(), global_batch=GLOBAL_BATCH, micro_batch=2, seed=given["seed"], steps=given["rounds"] * every
        )
        for batch in loader:
            report = model.step(batch)
            if report.step % every == 0:
                layers = {each.index: digest(list(each.module.parameters())) for each in model.layers if each.held}
                note(given, report.step // every, layers)
            pause(given["pace_s"], given["fast"])


def main() -> None:
    for fault in site_training.faults():
        site_training._plant(fault)
    given = json.loads(os.environ["TRAINING"])
    {"stages": stages, "ordinary": ordinary}[given["kind"]](given)


if __name__ == "__main__":
    main()
