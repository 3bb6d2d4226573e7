"""The Trainer of Hugging Face as a site of a run: `Trainer(..., callbacks=[ChaosCallback()])`.

The Trainer goes on calling its optimizer, which is then a step of the run; all that counts steps follows the run's:
`state.global_step`, so that all sites log, evaluate, save and end at the same steps, and one that joins late goes on in
the middle of the schedule. The number of steps, the schedule and the bound of the gradient's norm are compared when a
site joins.
"""

from __future__ import annotations

from typing import Any

from chaos.coordinator import Coordinator
from chaos.integrations.clipping import clip_average
from chaos.integrations.figures import figures_of
from chaos.integrations.missing import MissingLibrary
from chaos.integrations.once import check_unused
from chaos.integrations.peft import agreed_of
from chaos.sync import EveryStep, SyncMode
from chaos_protocols.wire.encodings import FP32

try:
    from transformers import Trainer, TrainerCallback

    from chaos.integrations.accelerated import as_before, average_through
except ImportError as error:
    raise MissingLibrary.of("transformers", "'transformers>=5' accelerate", error) from error


_FINALIZE: Any = getattr(Trainer, "_finalize_training", None)
MEAN_SINCE_ITS_BEGIN = _FINALIZE is not None and "_initial_global_step" in _FINALIZE.__code__.co_names
"""Over which steps this release of the Trainer takes the mean loss of a training that goes on from a checkpoint: those
since then; else all of the run."""
_LOG: Any = getattr(Trainer, "_maybe_log_save_evaluate", None)
LOGS_RATE_OF_THE_STEP = _LOG is not None and "learning_rate" in _LOG.__code__.co_varnames
"""Which rate this release logs: the one that the last step was made with; else that of the next one."""

BOUND_OF_THE_RUN = "_chaos_max_grad_norm"
"""Of a Trainer's arguments, the bound of the average while a training is under way."""


class ChaosCallback(TrainerCallback):  # type: ignore[misc]
    """Makes `trainer.train()` the training of one site.

    sync: the mode (default: `EveryStep()`). samples: weight of this site's steps in the average (default: the samples
    of a full step, `per_device_train_batch_size` times `gradient_accumulation_steps`). frozen: see
    `Coordinator.register`; default: compared for a model of PEFT, else replicated. encoding, allow_lossy, socket,
    standalone: see `Coordinator`. Attribute `coordinator`, for whatever else the script wants of it.

    With `EveryStep` the average is clipped to `max_grad_norm`, not each site's own gradient; in modes with local steps
    each site clips its own. Raises NoDaemon when nobody answers; `train()` raises ValueError where each site would go
    its own way: without `max_steps`, or with a schedule that follows a metric.
    """

    def __init__(
        self,
        *,
        sync: SyncMode | None = None,
        samples: int | None = None,
        frozen: str | None = None,
        encoding: str = FP32,
        allow_lossy: bool = False,
        socket: str | None = None,
        standalone: bool = False,
    ) -> None:
        self.coordinator = Coordinator(socket, standalone, encoding=encoding, allow_lossy=allow_lossy)
        self._sync = sync or EveryStep()
        self._samples, self._frozen = samples, frozen
        self._optimizer: Any = None
        self._scheduler: Any = None
        self._max_steps = 0
        self._rate: float | None = None
        """That the last step was made with."""
        self._logged_at = self._began_at = self._made = self._made_in_all = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **there: Any) -> None:
        check_unused(self, self.coordinator)
        model, optimizer, scheduler = there["model"], there["optimizer"], there["lr_scheduler"]
        _check(args, scheduler)
        _give_bound_back(args)
        every_step = isinstance(self._sync, EveryStep)
        settings = _schedule_of(args, scheduler)
        if every_step:
            settings["max_grad_norm"] = float(args.max_grad_norm or 0.0)
        average_through(optimizer, self._step)
        self._optimizer, self._scheduler, self._max_steps = optimizer, scheduler, args.max_steps
        if self._samples is None:
            self._samples = args.train_batch_size * args.gradient_accumulation_steps
        clip = None
        if every_step and args.max_grad_norm:
            clip = clip_average(list(model.parameters()), args.max_grad_norm)
            _take_bound(args)
        self._began_at = state.global_step if MEAN_SINCE_ITS_BEGIN else 0
        self._logged_at = state.global_step
        self.coordinator.register(
            model=model,
            optimizer=optimizer.optimizer,
            scheduler=scheduler,
            sync=self._sync,
            on_average=clip,
            **agreed_of(model, self._frozen, settings),
        )
        state.global_step = self.steps

    @property
    def steps(self) -> int:
        """Of the run, as the schedule counts them: with those of a checkpoint that the run began from."""
        return int(self._scheduler.last_epoch)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **there: Any) -> None:
        state.global_step = self.steps - 1  # the Trainer adds one

    def on_step_end(self, args: Any, state: Any, control: Any, **there: Any) -> None:
        if self.coordinator.capture_exit_event() or self.steps >= self._max_steps:
            control.should_training_stop = True

    def on_prediction_step(self, args: Any, state: Any, control: Any, **there: Any) -> None:
        """An evaluation is long: a joiner need not wait for its end."""
        if self._optimizer is not None and not self.coordinator.left:
            self.coordinator.check_state_replication()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **there: Any) -> None:
        """Means over steps are over those that this site has made, not all that the run has: a joiner has made
        fewer."""
        if logs is None or self._scheduler is None:
            return
        if "loss" in logs and self._made:
            logs["loss"] *= (state.global_step - self._logged_at) / self._made
            state.log_history[-1]["loss"] = logs["loss"]
            self._logged_at, self._made = state.global_step, 0
        if "learning_rate" in logs and LOGS_RATE_OF_THE_STEP and self._rate is not None:
            logs["learning_rate"] = state.log_history[-1]["learning_rate"] = (
                self._rate
            )  # the run's step moved it already
        if "train_loss" in logs and self._made_in_all:
            logs["train_loss"] *= max(state.global_step - self._began_at, 0.001) / self._made_in_all
            state.log_history[-1]["train_loss"] = logs["train_loss"]
        self.coordinator.log(**figures_of(logs))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **there: Any) -> None:
        """Before the Trainer loads the best model, which is not that of the run."""
        if control.should_training_stop:
            self._end(args)

    def on_train_end(self, args: Any, state: Any, control: Any, **there: Any) -> None:
        self._end(args)

    def _step(self) -> None:
        """What `optimizer.step()` does. A site that comes to a run at its end has nothing more to do."""
        if self.steps < self._max_steps and not self.coordinator.left:
            self._made += 1
            self._made_in_all += 1
            self._rate = float(self._scheduler.get_last_lr()[0])
            self.coordinator.step(samples=self._samples)

    def _end(self, args: Any) -> None:
        if self._optimizer is None:
            return
        self.coordinator.request_node_exit("its training has ended")
        self.coordinator.keep_common_model()
        as_before(self._optimizer)
        self._optimizer = None
        _give_bound_back(args)


def _take_bound(args: Any) -> None:
    """The Trainer clips nothing meanwhile. Kept with the arguments: a training that fails tells its callbacks nothing,
    and the next one with these arguments is to be clipped, too."""
    setattr(args, BOUND_OF_THE_RUN, args.max_grad_norm)
    args.max_grad_norm = 0.0


def _give_bound_back(args: Any) -> None:
    """The end of `_take_bound`; nothing where it was not called, or the script has given another bound since."""
    bound = vars(args).pop(BOUND_OF_THE_RUN, None)
    if bound is not None and args.max_grad_norm == 0:
        args.max_grad_norm = bound


def _check(args: Any, scheduler: Any) -> None:
    if args.max_steps <= 0:
        raise ValueError(
            "the run ends after a number of steps that is the same at all sites: TrainingArguments(max_steps=...), "
            "since num_train_epochs would count the data of each site by itself"
        )
    if args.world_size > 1:
        raise ValueError(
            f"the Trainer runs in {args.world_size} processes; a site of the Trainer is one process, with as many "
            "devices as it likes"
        )
    if type(scheduler).__name__ in ("ReduceLROnPlateau", "GreedyLR"):
        raise ValueError(
            f"the schedule is a {type(scheduler).__name__}: each site would follow its own metric and the models would "
            "drift apart; take one that depends on the number of steps alone (lr_scheduler_type='cosine')"
        )


def _schedule_of(args: Any, scheduler: Any) -> dict[str, Any]:
    """What makes the learning rate of a step, and is in no number of the scheduler's state."""
    return {
        "max_steps": args.max_steps,
        "lr_scheduler": type(scheduler).__name__,
        "lr_scheduler_type": str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)),
        "lr_scheduler_kwargs": repr(sorted((args.lr_scheduler_kwargs or {}).items())),
        "warmup_steps": int(args.get_warmup_steps(args.max_steps)),
    }
