"""An ordinary training loop for several workers of one site (`Coordinator.replicate`), with faults at chosen places.

FAULTS, STRUCK: as in `site_training`. TRAINING: arguments of `train` as JSON.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from blake3 import blake3
from tests.integration.site_training import (
    GLOBAL_BATCH,
    MICRO_BATCH,
    STEPS,
    Fault,
    Points,
    WrittenLines,
    faults,
    make_model,
)
from tests.rigs import devices

from chaos import Coordinator
from chaos.worker_group import replicas
from chaos.worker_group.exchange import summing
from chaos.worker_group.exchange.groups import Groups
from chaos.worker_group.local_whole import WholePhase
from chaos.worker_group.whole import WholeModel

Touch = Callable[[int, str], None]


def train(
    touch: Touch,
    after: Callable[[Coordinator], None],
    *,
    standalone: bool = True,
    steps: int = STEPS,
    seed: int = 7,
    pace_s: float = 0.0,
    logged: str = "",
    encoding: str = "fp32",
    clip: bool = True,
) -> None:
    """`touch(step, where)` is called before each forward and backward pass, `after` after each batch; `logged`: as of
    `site_training.train`."""
    model = devices.placed(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def clipped(update: Any) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)

    settings: dict[str, Any] = {"handle_signals": False, "verbose": not standalone, "encoding": encoding}
    with Coordinator(standalone=standalone, **settings) as coordinator:
        coordinator.replicate(model)
        coordinator.register(model=model, optimizer=optimizer, on_average=clipped if clip else None)
        if logged:
            coordinator.log_to(lambda: WrittenLines(logged))
        for inputs, targets in coordinator.loader(
            Points(), global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, seed=seed, steps=steps
        ):
            touch(coordinator.round, "forward")
            outputs = model(inputs.to(devices.NAME))
            loss = torch.nn.functional.cross_entropy(outputs, targets.to(devices.NAME))
            touch(coordinator.round, "backward")
            loss.backward()
            coordinator.log(loss=float(loss.detach()))
            coordinator.step()
            after(coordinator)
            time.sleep(pace_s)


def note(path: str, coordinator: Coordinator) -> None:
    """The digest of the state after a round, as workers tell it."""
    hasher = blake3()
    for each in coordinator._registered().items:
        hasher.update(each.get().data)
    with open(path, "a", encoding="utf-8") as out:
        out.write(json.dumps([coordinator.round, [hasher.hexdigest()]]) + "\n")


def _plant(fault: Fault) -> None:
    now = [0]
    close = replicas.ReplicaTogether._close_step

    def noted(self: Any, run: Any) -> None:
        now[0] = self.updates
        close(self, run)

    replicas.ReplicaTogether._close_step = noted  # type: ignore[method-assign]
    match fault.where:
        case "reduce":
            fault.before(summing.StepSums, "_closed_piece", lambda *_: now[0] == fault.step)
        case "reduced":
            fault.after_reduced()
        case "update":
            fault.before(WholeModel, "update", lambda *_: now[0] == fault.step)
        case "round":  # its result is about to be applied
            for name in ("apply", "end_alone"):
                fault.before(WholePhase, name, lambda *given: given[-1] == fault.step)
        case "building":
            fault.before(Groups, "build", lambda self, _: self._generation == fault.step)
        case _:
            raise ValueError(f"no place {fault.where}")


def planted() -> Touch:
    """The faults of this worker; those in the loop strike where `touch` is called."""
    in_the_loop: list[Fault] = []
    for fault in faults():
        if fault.where in ("forward", "backward"):
            in_the_loop.append(fault)
        else:
            _plant(fault)

    def touch(step: int, where: str) -> None:
        for fault in in_the_loop:
            if (fault.step, fault.where) == (step, where):
                fault.strike()

    return touch


def main() -> None:
    touch = planted()
    given = json.loads(os.environ.get("TRAINING", "{}"))
    written = given.pop("digests", "")

    def after(coordinator: Coordinator) -> None:
        if written:
            note(written, coordinator)

    train(touch, after, **given)


if __name__ == "__main__":
    main()
