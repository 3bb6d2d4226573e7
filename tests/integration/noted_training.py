"""A training whose sites tell each other figures, and end together: with stages, with replicas, or an ordinary script.

TRAINING: arguments of `train` as JSON. FAULTS, STRUCK: as in `site_training`.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import Any

import torch
from tests.integration import ordinary_training, replica_training, site_training
from tests.integration.site_training import GLOBAL_BATCH, MICRO_BATCH, Points, WrittenLines, make_model
from tests.rigs import devices

from chaos import Coordinator, DiLoCo, EveryStep, LearningRateRule

LR = 1e-2


@dataclass
class Told:
    """Writes down what this process heard after each step; `wants`: the round from which on its site wants to end.
    `steps`: by local steps, and not by rounds."""

    coordinator: Coordinator
    path: str
    wants: int
    steps: bool = False
    heard: int = 0
    model: torch.nn.Module | None = None
    """As a whole, where this process has it so."""

    def ends(self) -> bool:
        """Asked once a step, as scripts do."""
        coordinator = self.coordinator
        stops = coordinator.should_stop(coordinator.round >= self.wants)
        now = coordinator.steps if self.steps else coordinator.round
        if now > self.heard:
            self.heard = now
            whole = "" if self.model is None else ordinary_training.digest(list(self.model.parameters()))
            entry = [os.getpid(), now, stops, coordinator.metrics, coordinator.epoch]
            entry += [coordinator.lr_factor, whole]
            with open(self.path, "a", encoding="utf-8") as out:
                out.write(json.dumps(entry) + "\n")
        return stops


def mode(given: dict[str, Any]) -> EveryStep | DiLoCo:
    """`rule`: for learning rates; `reference`: by default the weight of one site. `whole`: each worker of stages has
    all layers. `every`: local steps. `grouped`: several processes share the layers."""
    if given["every"]:
        return DiLoCo(every=given["every"], metrics=("loss",))
    rule = given["rule"]
    lr_rule = LearningRateRule(kind=rule, reference=given.get("reference", GLOBAL_BATCH)) if rule else None
    return EveryStep(notes=True, metrics=("loss",), lr_rule=lr_rule)


def shard(layer: torch.nn.Module, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard  # here: the library takes a second for it

    fully_shard(layer, mesh=mesh)


def stages(given: dict[str, Any], coordinator: Coordinator, told: Told) -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        found = torch.nn.functional.cross_entropy(outputs, targets)
        coordinator.log(within=found.item())
        return found

    module = devices.placed(make_model())
    told.model = module if given.get("whole") else None
    model = coordinator.parallelize(module, loss=loss, device_group=shard if given.get("grouped") else None)
    coordinator.register(model=model, optimizer=site_training.make_optimizer, sync=mode(given), rounds_per_epoch=3)
    for batch in _loader(coordinator, given):
        report = model.step(batch)
        coordinator.report(loss=report.loss)
        if told.ends():
            break


def replicas(given: dict[str, Any], coordinator: Coordinator, told: Told) -> None:
    touch = replica_training.planted()
    model = devices.placed(make_model())
    told.model = coordinator.replicate(model)
    coordinator.register(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=LR),
        sync=mode(given),
        rounds_per_epoch=3,
    )
    for inputs, targets in _loader(coordinator, given):
        touch(coordinator.steps, "forward")
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        touch(coordinator.steps, "backward")
        loss.backward()
        coordinator.report(loss=loss.item())
        coordinator.log(loss=loss.item())
        coordinator.step()
        if told.ends():
            break


def ordinary(given: dict[str, Any], coordinator: Coordinator, told: Told) -> None:
    """`hold`: the round to which it gives nothing before this file is there."""
    model = told.model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    coordinator.register(model=model, optimizer=optimizer, sync=mode(given), rounds_per_epoch=3)
    held_round, file = given["hold"]
    while not told.ends():
        while coordinator.round + 1 == held_round and not os.path.exists(file):
            time.sleep(0.01)
        ordinary_training.backward(model, coordinator.steps + 1, given["seed"])
        coordinator.report(loss=float(given["seed"]))
        coordinator.step(samples=GLOBAL_BATCH)


def _loader(coordinator: Coordinator, given: dict[str, Any]) -> Any:
    return coordinator.loader(
        Points(), global_batch=GLOBAL_BATCH, micro_batch=given["micro_batch"], seed=given["seed"], steps=given["steps"]
    )


KINDS = {"stages": stages, "replicas": replicas, "ordinary": ordinary}


def train(kind: str, *, told: str, standalone: bool = True, logged: str = "", **more: Any) -> None:
    given: dict[str, Any] = {"steps": 20, "seed": 7, "rule": "", "wants": 4, "every": 0}
    given |= {"hold": (0, ""), "micro_batch": MICRO_BATCH, **more}
    with Coordinator(standalone=standalone, handle_signals=False, verbose=False) as coordinator:
        if logged:
            coordinator.log_to(lambda: WrittenLines(logged))
        KINDS[kind](given, coordinator, Told(coordinator, told, given["wants"], given["every"] > 0))


def main() -> None:
    given = json.loads(os.environ["TRAINING"])
    if given["kind"] == "stages":
        for fault in site_training.faults():
            site_training._plant(fault)
    train(**given)


if __name__ == "__main__":
    main()
