"""Optimizers that a module of Lightning steps itself, in turn: which steps of a batch are those of the run.

A batch makes the steps of its optimizers always in the same order, so the number of a step of the run says which of a
batch it is. A site that comes to the run in the middle of the others' batch, or whose state was replaced in the middle
of its own, leaves out those steps whose turn it is not, and the run waits for the one whose turn it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from chaos.integrations.clipping import trained_of


class Turns:
    """Of one training."""

    def __init__(self, steps_per_batch: int | None) -> None:
        """`steps_per_batch`: what the user says, or None: one of each optimizer. Raises ValueError."""
        if steps_per_batch is not None and steps_per_batch < 1:
            raise ValueError(f"steps_per_batch = {steps_per_batch}: must be at least 1")
        self.of_a_batch = steps_per_batch or 1
        self._said = steps_per_batch is not None
        self._optimizers: Sequence[Any] = ()
        self._made = 0
        self.is_due = True

    def begin(self, optimizers: Sequence[Any], *, manual: bool) -> None:
        """Raises ValueError where Lightning makes the steps, and the user says how many."""
        if self._said and not manual:
            raise ValueError(
                "steps_per_batch= is for a module that steps its optimizers itself (automatic_optimization = False): "
                "leave it out, Lightning makes the steps of this one"
            )
        self._optimizers = optimizers
        if not self._said:
            self.of_a_batch = len(optimizers)

    @property
    def several(self) -> bool:
        """Optimizers."""
        return len(self._optimizers) > 1

    def names_of(self, optimizer: Any) -> Sequence[str] | None:
        """What its step is for, as it is registered; None: there is no other."""
        names = [str(index) for index, one in enumerate(self._optimizers) if one is optimizer]
        return names if self.several else None

    def rounded_up(self, steps: int) -> int:
        """To whole batches: Lightning ends after one."""
        return -(-steps // self.of_a_batch) * self.of_a_batch

    def next(self, position: int) -> None:
        """Another step of this batch comes (a loss scaler may leave it out); it `is_due` if it is that of the run.
        `position`: steps that the run has made."""
        made, self._made = self._made, self._made + 1
        self.is_due = made % self.of_a_batch == position % self.of_a_batch

    def batch_has_ended(self, module: Any) -> None:
        """Raises ValueError for a batch with other steps than it was said."""
        made, self._made = self._made, 0
        if made % self.of_a_batch:
            raise ValueError(
                f"the training_step of {type(module).__name__} has made {made} optimizer steps in a batch, and "
                f"{self.of_a_batch} were expected"
                + ("" if self._said else ", one of each optimizer")
                + ", so that sites could be at different ones: say how many each batch makes, always in the same order "
                "(ChaosLightningCallback(steps_per_batch=...)); where that differs from batch to batch, choose the "
                "optimizer by self.trainer.global_step, not by the number of the batch, and say steps_per_batch=1"
            )

    @contextmanager
    def others_apart(self, optimizer: Any) -> Iterator[None]:
        """A round clears all gradients; what the backward passes have left for the steps of others is theirs still."""
        own = {id(each) for each in _parameters(optimizer)}
        others = [each for one in self._optimizers for each in _parameters(one) if id(each) not in own]
        kept = [(each, each.grad) for each in others if each.grad is not None]
        for each, _ in kept:
            each.grad = None
        try:
            yield
        finally:
            for each, gradient in kept:
                each.grad = gradient


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def clear(optimizer: Any) -> None:
    """As after a step of the run."""
    for each in trained_of(optimizer):
        each.grad = None
