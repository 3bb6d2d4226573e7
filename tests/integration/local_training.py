"""Local steps between rounds, with stages, with replicas or in an ordinary script: what `test_local_stages` and
`test_local_replicas` run.

TRAINING as JSON: `kind`, `every`, `mode`, `rounds`, `seed`, `standalone`, `pace_s` a step until the file `fast` is
there, `digests`: a file for the digests of the layers' parameters after each round, which each worker tells of those
that it holds; `statistics`: the model has batch statistics, which are in the digests (no stages); `fails`: the script
raises after so many steps; `spoilt`: a sample of the loader's that is not finite; `micro_batch`: samples;
`fragments`: so many, and the digests are of the common model, unless `own`;
`encoding`: of the rounds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch
from tests.integration import ordinary_training, replica_training, site_training
from tests.integration.sharded_training import digest
from tests.integration.site_training import (
    FEATURES,
    GLOBAL_BATCH,
    MICRO_BATCH,
    WIDTH,
    Points,
    make_model,
    make_optimizer,
    make_scheduler,
    pause,
)
from tests.rigs import devices

from chaos import Coordinator, DiLoCo, LocalSGD, OuterSGD
from chaos.worker_group.compute.data import Loader
from chaos.worker_group.compute.seeding import seed_of


def mode_of(given: dict[str, Any]) -> DiLoCo:
    """With one round of plain means, then with momentum."""
    if given.get("mode") == "LocalSGD":
        return LocalSGD(every=given["every"])
    outer = OuterSGD(lr=0.7, momentum=0.9)
    return DiLoCo(every=given["every"], outer=outer, warmup_rounds=1, fragments=given.get("fragments", 1))


def settings(given: dict[str, Any]) -> dict[str, Any]:
    return {"handle_signals": False, "verbose": False, "encoding": given.get("encoding", "fp32")}


def note(given: dict[str, Any], round: int, layers: dict[int, str]) -> None:
    with open(given["digests"], "a", encoding="utf-8") as out:
        out.write(json.dumps([round, sorted(layers.items())]) + "\n")


def model_of(given: dict[str, Any]) -> torch.nn.Sequential:
    model = make_model()
    if given.get("statistics"):
        model[0] = torch.nn.Sequential(torch.nn.Linear(FEATURES, WIDTH), torch.nn.BatchNorm1d(WIDTH))
    return devices.placed(model)


def digests(model: torch.nn.Sequential, given: dict[str, Any]) -> dict[int, str]:
    def tensors(layer: torch.nn.Module) -> list[torch.Tensor]:
        return [*layer.parameters(), *(layer.buffers() if given.get("statistics") else ())]

    return {at: digest(tensors(layer)) for at, layer in enumerate(model)}


def points(given: dict[str, Any]) -> Points:
    found = Points()
    if "spoilt" in given:
        found.x[given["spoilt"]] = float("nan")
    return found


def loading(given: dict[str, Any]) -> dict[str, int]:
    steps, micro_batch = given["rounds"] * given["every"], given.get("micro_batch", MICRO_BATCH)
    return {"global_batch": GLOBAL_BATCH, "micro_batch": micro_batch, "seed": given["seed"], "steps": steps}


def one_process(given: dict[str, Any]) -> None:
    """An ordinary script, on the batches of the workers' loader: of two micro-batches a step it has the bits of their
    sum, too. What it has after each phase is told, with a round or without one."""
    model, loader, steps = model_of(given), Loader(points(given), **loading(given)), mode_of(given).plan.steps
    optimizer = make_optimizer(list(model.parameters()))
    with Coordinator(standalone=given.get("standalone", True), handle_signals=False, verbose=False) as coordinator:
        coordinator.register(model=model, optimizer=optimizer, scheduler=make_scheduler(optimizer), sync=mode_of(given))
        for step in range(loader.steps):
            for number in range(2):
                torch.manual_seed(seed_of(loader.seed, step, number, 0))
                inputs, targets = loader.micro_batch(step, number)
                (torch.nn.functional.cross_entropy(model(inputs), targets) / 2).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            coordinator.step(samples=GLOBAL_BATCH)
            if (step + 1) % steps == 0:
                tell(given, (step + 1) // steps, model, coordinator)


def tell(given: dict[str, Any], round: int, model: torch.nn.Sequential, coordinator: Coordinator) -> None:
    """What the round has led to, and with fragments what of it is common."""
    found = digests(model, given)
    if given.get("fragments") and not given.get("own"):
        with coordinator.common_model():
            found = digests(model, given)
    note(given, round, found)


def ordinary(given: dict[str, Any]) -> None:
    model = model_of(given)
    optimizer = make_optimizer(list(model.parameters()))
    with Coordinator(**settings(given)) as coordinator:
        coordinator.register(model=model, optimizer=optimizer, scheduler=make_scheduler(optimizer), sync=mode_of(given))
        made, round = 0, coordinator.round
        while coordinator.round < given["rounds"]:
            made += 1
            ordinary_training.backward(model, made, given["seed"])
            if not coordinator.step(samples=GLOBAL_BATCH):
                break
            if coordinator.round != round:
                round = coordinator.round
                tell(given, round, model, coordinator)
            pause(given["pace_s"], given["fast"])


def stages(given: dict[str, Any]) -> None:
    every = given["every"]
    with Coordinator(standalone=given.get("standalone", False), **settings(given)) as coordinator:
        model = coordinator.parallelize(devices.placed(make_model()), loss=torch.nn.functional.cross_entropy)
        coordinator.register(
            model=model, optimizer=make_optimizer, scheduler=make_scheduler, clip_norm=2.0, sync=mode_of(given)
        )
        loader = coordinator.loader(points(given), **loading(given))
        for batch in loader:
            report = model.step(batch)
            if report.step % every == 0:
                layers = {each.index: digest(list(each.module.parameters())) for each in model.layers if each.held}
                note(given, report.step // every, layers)
            pause(given["pace_s"], given["fast"])


def replicas(
    given: dict[str, Any],
    touch: replica_training.Touch = lambda step, where: None,
    after: Callable[[Coordinator], None] = lambda coordinator: None,
) -> None:
    """`touch(step, where)` is called before each forward and backward pass, `after` after each batch."""
    model, every, told = model_of(given), mode_of(given).plan.steps, 0
    optimizer = make_optimizer(list(model.parameters()))

    def clip(update: Any) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)

    with Coordinator(standalone=given.get("standalone", False), **settings(given)) as coordinator:
        coordinator.replicate(model)
        scheduler = make_scheduler(optimizer)
        coordinator.register(
            model=model, optimizer=optimizer, scheduler=scheduler, on_average=clip, sync=mode_of(given)
        )
        loader = coordinator.loader(points(given), **loading(given))
        for inputs, targets in loader:
            if coordinator.steps == given.get("fails"):
                raise RuntimeError("the label is wrong")
            touch(coordinator.steps, "forward")
            loss = torch.nn.functional.cross_entropy(model(inputs.to(devices.NAME)), targets.to(devices.NAME))
            touch(coordinator.steps, "backward")
            loss.backward()
            coordinator.step()
            if coordinator.round > told and coordinator.steps == coordinator.round * every:
                told = coordinator.round
                tell(given, told, model, coordinator)
            after(coordinator)
            pause(given["pace_s"], given["fast"])


def main() -> None:
    given = json.loads(os.environ["TRAINING"])
    if given["kind"] == "replicas":
        replicas(given, replica_training.planted())
        return
    for fault in site_training.faults():
        site_training._plant(fault)
    {"stages": stages, "ordinary": ordinary, "one": one_process}[given["kind"]](given)


if __name__ == "__main__":
    main()
