"""An optimizer of Accelerate whose `step()` is a step of the run. The Trainer of Hugging Face has one inside, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerate.optimizer import AcceleratedOptimizer


class AveragingOptimizer(AcceleratedOptimizer):  # type: ignore[misc]
    """What `average_through` makes of a prepared optimizer. Between two accumulated gradients `step()` does nothing, as
    ever. Whoever asks whether a step was skipped hears yes, for then neither Accelerate nor the Trainer moves the
    learning rate: the run does."""

    _make_step: Callable[[], None]

    def step(self, closure: Any = None) -> None:
        """Raises ValueError for a closure."""
        if closure is not None:
            raise ValueError("an optimizer that takes a closure (LBFGS) makes several steps in one; a run cannot")
        if not self.gradient_state.sync_gradients:
            return
        self._opt_called = True  # for a scheduler of torch that was made of this optimizer and asks
        if self.scaler is None:
            self._make_step()
            return
        try:
            self.scaler.unscale_(self.optimizer)
        except RuntimeError as error:  # the loop has done it, to clip; there is no question that one may ask
            if "already been called" not in str(error):
                raise
        self._make_step()
        self.scaler.update()

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    @property
    def step_was_skipped(self) -> bool:
        return True


def average_through(optimizer: Any, step: Callable[[], None]) -> None:
    """From now on `optimizer.step()` is `step()`. Raises as `check_prepared`."""
    check_prepared(optimizer)
    optimizer.__dict__.pop("step", None)  # a scheduler that was made of the prepared one has put its own there
    optimizer.__class__ = AveragingOptimizer
    optimizer._make_step = step


def check_prepared(optimizer: Any) -> None:
    """Raises ValueError for an optimizer that Accelerate has not prepared, or that was joined already."""
    if type(optimizer) is AveragingOptimizer:
        raise ValueError(
            "the steps of this optimizer are those of a run already: one join, or one callback, is enough; for another "
            "training make model and optimizer anew, and prepare them"
        )
    if type(optimizer) is not AcceleratedOptimizer:
        raise ValueError(
            f"the optimizer is a {type(optimizer).__name__}; join the run with what accelerator.prepare(model, "
            "optimizer) gave (DeepSpeed, FSDP and Megatron split a model over processes, which a site does "
            "not do here)"
        )


def as_before(optimizer: Any) -> None:
    """The end of `average_through`; nothing where it was not called."""
    if type(optimizer) is AveragingOptimizer:
        optimizer.__class__ = AcceleratedOptimizer
        del optimizer._make_step
