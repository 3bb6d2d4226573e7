"""Lightning's Trainer as a site of a run: `Trainer(max_steps=10_000, callbacks=[ChaosLightningCallback()])`.

Each step of an optimizer is a step of the run: Lightning computes the gradients, clips and logs, and the run steps
optimizer and schedule. `trainer.global_step` is the run's, so all sites end at the same one, and one that joins late
goes on in the middle of the schedule. So it is with manual optimization, where several optimizers take turns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from chaos.coordinator import Coordinator
from chaos.frameworks import UpdateHook
from chaos.integrations.clipping import clip_average, clip_average_values, trained_of
from chaos.integrations.figures import figures_of
from chaos.integrations.missing import MissingLibrary
from chaos.integrations.once import check_unused
from chaos.integrations.peft import agreed_of, has_adapters
from chaos.integrations.turns import Turns, clear
from chaos.sync import EveryStep, SyncMode
from chaos_protocols.wire.encodings import FP32

try:
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning import Callback, callbacks
    else:
        from lightning.pytorch import Callback, callbacks
except ImportError as error:
    raise MissingLibrary.of("lightning", "lightning", error) from error

AVERAGING = tuple(
    getattr(callbacks, name) for name in ("StochasticWeightAveraging", "WeightAveraging") if hasattr(callbacks, name)
)
NEVER = sys.maxsize
"""Every so many batches Lightning steps a schedule that is the run's."""


class _Steps:
    """Steps of the run where no schedule counts them: like a schedule's, its position is part of the state."""

    def __init__(self, steps: int) -> None:
        self.last_epoch = steps

    def step(self) -> None:
        self.last_epoch += 1

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.last_epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.last_epoch = state["steps"]


class _Averaging:
    """The optimizer that Lightning steps: the real one in all, but that its step is one of the run."""

    def __init__(self, optimizer: Any, step: Callable[[Any, bool], None]) -> None:
        self._optimizer, self._step = optimizer, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The closure computes the gradients, and clips them. `training_step` may have said that it has none."""
        loss = closure() if closure is not None else None
        self._step(self._optimizer, loss is None and all(each.grad is None for each in trained_of(self._optimizer)))
        return loss


class ChaosLightningCallback(Callback):  # type: ignore[misc]
    """Makes `trainer.fit(module)` the training of one site.

    sync: the mode (default: `EveryStep()`). samples: weight of this site's steps in the average (default: the loader's
    `batch_size` times `accumulate_grad_batches`; to be given where the loader has none). frozen: see
    `Coordinator.register`; default: compared for a module whose `model` is one of PEFT, else replicated. on_update: see
    `Coordinator.register`; where the module keeps an average of its weights, it moves here. steps_per_batch: with
    manual optimization, how many steps of optimizers, always in the same order, one batch makes (default: one of each
    optimizer); 1 where the module chooses its optimizer by `self.trainer.global_step`. encoding, allow_lossy, socket,
    standalone: see `Coordinator`. Attribute `coordinator`, for whatever else the script wants of it.

    With `EveryStep` the average is clipped as `gradient_clip_val` says, not each site's own gradient. Raises NoDaemon
    when nobody answers; `fit` raises ValueError where each site would go its own way: without `max_steps`, with a
    schedule that is stepped once an epoch of a site's own data or follows a metric, with a callback that averages
    weights.
    """

    def __init__(
        self,
        *,
        sync: SyncMode | None = None,
        samples: int | None = None,
        frozen: str | None = None,
        on_update: UpdateHook | None = None,
        steps_per_batch: int | None = None,
        encoding: str = FP32,
        allow_lossy: bool = False,
        socket: str | None = None,
        standalone: bool = False,
    ) -> None:
        self._turns = Turns(steps_per_batch)
        self.coordinator = Coordinator(socket, standalone, encoding=encoding, allow_lossy=allow_lossy)
        self._sync = sync
        self._samples, self._frozen, self._on_update = samples, frozen, on_update
        self._weigh: Callable[[], int | None] = lambda: samples
        """How many samples are behind a step: a callback may change how many batches are."""
        self._max_steps, self._every_step = 0, True
        self._counts: Any = None
        """What counts the steps of the run, with those of a checkpoint that it began from."""
        self._undo: list[Callable[[], None]] = []

    def on_train_start(self, trainer: Any, module: Any) -> None:
        check_unused(self, self.coordinator)
        _check(trainer, module)
        optimizers, configs = list(trainer.optimizers), list(trainer.lr_scheduler_configs)
        self._turns.begin(optimizers, manual=not module.automatic_optimization)
        self._max_steps = self._turns.rounded_up(trainer.max_steps)
        if self._samples is None:
            _samples_of(trainer)  # refused at once
            self._weigh = partial(_samples_of, trainer)
        adapted = next((one for one in (module, *module.children()) if has_adapters(one)), module)
        sync = self._sync or EveryStep(notes=self._turns.several)
        settings: dict[str, Any] = {"max_steps": trainer.max_steps}
        if self._turns.of_a_batch > 1:
            settings["steps_per_batch"] = self._turns.of_a_batch
        clip, self._every_step = None, isinstance(sync, EveryStep)
        if self._every_step:
            settings["gradient_clip_val"] = float(trainer.gradient_clip_val or 0.0)
            settings["gradient_clip_algorithm"] = str(trainer.gradient_clip_algorithm)
            clip = self._clipping(trainer, optimizers)
        self._take_over(trainer, optimizers, configs)
        schedulers = [config.scheduler for config in configs]
        self._counts = self._counting(trainer.global_step, schedulers)
        self.coordinator.register(
            model=module,
            optimizer=optimizers if self._turns.several else optimizers[0],
            scheduler=schedulers,
            sync=sync,
            on_average=clip,
            on_update=self._on_update,
            **agreed_of(adapted, self._frozen, settings),
        )
        self._follow(trainer)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._turns.batch_has_ended(module)
        self._follow(trainer)
        if trainer.logged_metrics and not self.coordinator.left:
            self.coordinator.log(**figures_of(trainer.logged_metrics))

    def on_validation_batch_end(self, trainer: Any, module: Any, *what: Any) -> None:
        """A validation is long: a joiner need not wait for its end."""
        if self._undo and not self.coordinator.left:
            self.coordinator.check_state_replication()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._end()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """A script that fails drops out, as if it had been killed; one that ends (`sys.exit(0)`) leaves."""
        self._put_back()
        self.coordinator.__exit__(type(exception), exception, exception.__traceback__)

    # ---- within

    @property
    def steps(self) -> int:
        """Of the run, with those of a checkpoint that it began from."""
        return int(self._counts.last_epoch)

    def _counting(self, began: int, schedulers: list[Any]) -> Any:
        """A schedule that counts every step from `began` on; else one more is appended, which does."""
        alike = (one for one in schedulers if getattr(one, "last_epoch", None) == began)
        counts = None if self._turns.several else next(alike, None)
        if counts is None:
            counts = _Steps(began)
            schedulers.append(counts)
        return counts

    def _step(self, optimizer: Any, skip: bool) -> None:
        """What `optimizer.step()` does. A site that comes to a run at its end has nothing more to do."""
        if self.steps >= self._max_steps or self.coordinator.left:
            return
        if self._every_step and not self._turns.is_due:
            clear(optimizer)
            return
        with self._turns.others_apart(optimizer):
            self.coordinator.step(samples=self._weigh(), optimizers=self._turns.names_of(optimizer), skip=skip)

    def _follow(self, trainer: Any) -> None:
        """Lightning counts the run's steps."""
        loop = trainer.fit_loop.epoch_loop
        loop.automatic_optimization.optim_progress.optimizer.step.total.completed = self.steps
        loop.manual_optimization.optim_step_progress.total.completed = self.steps
        loop._batches_that_stepped = self.steps
        if self.coordinator.capture_exit_event():
            trainer.should_stop = True

    def _clipping(self, trainer: Any, optimizers: list[Any]) -> UpdateHook | None:
        value, algorithm = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
        if not value:  # with manual optimization Lightning takes none
            return None
        trainer.gradient_clip_val = 0.0
        self._undo.append(partial(setattr, trainer, "gradient_clip_val", value))
        trained = [each for optimizer in optimizers for each in trained_of(optimizer)]
        if str(getattr(algorithm, "value", algorithm) or "norm") == "value":
            return clip_average_values(trained, value)
        return clip_average(trained, value)

    def _take_over(self, trainer: Any, optimizers: list[Any], configs: list[Any]) -> None:
        strategy, plain = trainer.strategy, trainer.strategy.optimizer_step
        averaging = {id(optimizer): _Averaging(optimizer, self._step) for optimizer in optimizers}
        progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress

        def optimizer_step(of: Any, closure: Any, model: Any = None, **more: Any) -> Any:
            self._turns.next(self.steps)
            try:
                return plain(averaging.get(id(of), of), closure, model, **more)
            finally:
                progress.total.completed = self.steps - 1  # Lightning counts one more after each manual step

        strategy.optimizer_step = optimizer_step
        self._undo.append(lambda: strategy.__dict__.pop("optimizer_step", None))
        for config in configs:
            self._undo.append(partial(setattr, config, "frequency", config.frequency))
            config.frequency = NEVER

    def _put_back(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _end(self) -> None:
        if self._undo:
            self.coordinator.request_node_exit("its training has ended")
            self.coordinator.keep_common_model()
            self._put_back()


def _check(trainer: Any, module: Any) -> None:
    count = sum(isinstance(one, ChaosLightningCallback) for one in trainer.callbacks)
    if count > 1:
        raise ValueError(f"the Trainer has {count} ChaosLightningCallbacks: one makes it a site, leave the others out")
    if trainer.max_steps <= 0:
        raise ValueError(
            "the run ends after a number of steps that is the same at all sites: Trainer(max_steps=...), since "
            "max_epochs would count the data of each site by itself"
        )
    if trainer.world_size > 1:
        raise ValueError(f"Lightning runs {trainer.world_size} processes; a site of it is one process: devices=1")
    averages = next((one for one in trainer.callbacks if isinstance(one, AVERAGING)), None)
    if averages is not None:
        name = type(averages).__name__
        raise ValueError(
            f"{name} averages the weights that this site sees, by its own epochs or from when it came to the run, so "
            "each site would end with another model: leave it out, and keep the average in the module, where it is "
            "part of the run's state: self.average = torch.optim.swa_utils.AveragedModel(self.model) in its __init__, "
            "an optimizer of self.model.parameters(), and ChaosLightningCallback(on_update=lambda update: "
            "module.average.update_parameters(module.model))"
        )
    if not module.automatic_optimization:
        return  # its schedules count steps of the run, whatever else it is said of them
    for config in trainer.lr_scheduler_configs:
        if config.interval != "step" or config.frequency != 1:
            raise ValueError(
                f"the schedule {type(config.scheduler).__name__} is stepped every {config.frequency} "
                f"{config.interval}: each site would count its own data; say {{'scheduler': ..., 'interval': 'step'}}, "
                "and let it count steps of the run"
            )


def _samples_of(trainer: Any) -> int:
    batch = getattr(trainer.train_dataloader, "batch_size", None)
    if not isinstance(batch, int):
        raise ValueError(
            "the loader has no batch_size: say how many samples are behind a step with "
            "ChaosLightningCallback(samples=...); the average is weighted with it"
        )
    return batch * int(trainer.accumulate_grad_batches)
