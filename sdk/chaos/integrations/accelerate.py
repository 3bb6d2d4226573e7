"""A training loop with Accelerate as a site of a run.

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    run = join(accelerator, model, optimizer, scheduler)
    while run.steps < 10_000 and not run.capture_exit_event():
        for batch in loader:            # the loop stays as it is: backward, step of optimizer and scheduler, zero_grad

`optimizer.step()` is then a step of the run, `scheduler.step()` does nothing, since the run steps the schedule, and
`accelerator.accumulate(model)` works as ever.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from chaos.coordinator import Coordinator
from chaos.frameworks import Setting
from chaos.integrations.clipping import clip_average
from chaos.integrations.missing import MissingLibrary
from chaos.integrations.peft import agreed_of
from chaos.sync import EveryStep, SyncMode
from chaos_protocols.wire.encodings import FP32

try:
    from accelerate.scheduler import AcceleratedScheduler

    from chaos.integrations.accelerated import as_before, average_through, check_prepared
except ImportError as error:
    raise MissingLibrary.of("accelerate", "accelerate", error) from error


class JoinedRun(Coordinator):
    """The coordinator of a loop with Accelerate. `steps` are those of the schedule, if there is one: with the steps of
    a checkpoint that the run began from (`accelerator.load_state` before `join`), at a site that joins it as well."""

    schedule: Any = None

    @property
    def steps(self) -> int:
        position = getattr(self.schedule, "last_epoch", None)
        return position if isinstance(position, int) else super().steps


def join(
    accelerator: Any,
    model: Any,
    optimizer: Any,
    scheduler: Any = None,
    *,
    sync: SyncMode | None = None,
    samples: int | None = None,
    max_grad_norm: float | None = None,
    frozen: str | None = None,
    alike: Mapping[str, Setting] | None = None,
    encoding: str = FP32,
    allow_lossy: bool = False,
    socket: str | os.PathLike[str] | None = None,
    standalone: bool = False,
) -> JoinedRun:
    """Make the loop around what `accelerator.prepare` gave a site of the run; returns when this site may train.

    sync: the mode (default: `EveryStep()`). samples: behind each step of this site, the weight of its gradients in the
    average (default: all sites weigh the same); give it at all sites or at none. max_grad_norm: bounds the norm of the
    average (`accelerator.clip_grad_norm_` in the loop bounds this site's own gradient). frozen, alike: see
    `Coordinator.register`; a model of PEFT has its own. encoding, allow_lossy, socket, standalone: see
    `Coordinator`.

    The coordinator says where the run is (`steps`), when to end (`capture_exit_event()`), and leaves the run with the
    script (`close()`). Raises ValueError for several processes, or what was not prepared; NoDaemon; Refused.
    """
    if accelerator.num_processes > 1:
        raise ValueError(
            f"Accelerate runs {accelerator.num_processes} processes; a site that joins so is one process, with as many "
            "devices as it likes"
        )
    if max_grad_norm is not None and not isinstance(sync or EveryStep(), EveryStep):
        raise ValueError(
            "max_grad_norm= bounds an averaged gradient, which a mode with local steps has not: call "
            "accelerator.clip_grad_norm_ in the loop"
        )
    if isinstance(scheduler, AcceleratedScheduler):
        scheduler = scheduler.scheduler
    elif scheduler is not None:
        raise ValueError("the scheduler was not prepared: give it to accelerator.prepare(...) with the optimizer")
    check_prepared(optimizer)
    if scheduler is None:
        _check_no_schedule(accelerator, optimizer)
    coordinator = JoinedRun(socket, standalone, encoding=encoding, allow_lossy=allow_lossy)
    coordinator.schedule = scheduler

    def step() -> None:
        if not coordinator.left:
            coordinator.step(samples=samples)

    average_through(optimizer, step)
    settings = dict(alike or {})
    clip = clip_average(list(model.parameters()), max_grad_norm) if max_grad_norm is not None else None
    if max_grad_norm is not None:
        settings["max_grad_norm"] = float(max_grad_norm)
    try:
        coordinator.register(
            model=model,
            optimizer=optimizer.optimizer,
            scheduler=scheduler,
            sync=sync,
            on_average=clip,
            **agreed_of(accelerator.unwrap_model(model), frozen, settings),
        )
    except BaseException:
        coordinator.close()  # nobody else has it
        as_before(optimizer)
        raise
    return coordinator


def _check_no_schedule(accelerator: Any, optimizer: Any) -> None:
    """Raises ValueError for one that was prepared, and forgotten: its `step()` does nothing, since the run steps it."""
    for prepared in getattr(accelerator, "_schedulers", ()):
        if prepared.step_with_optimizer and any(one is optimizer for one in prepared.optimizers):
            name = type(prepared.scheduler).__name__
            raise ValueError(
                f"a {name} was prepared for this optimizer: give it to join(accelerator, model, optimizer, scheduler), "
                "since the run steps the schedule; without that the learning rate would stay as it is"
            )
