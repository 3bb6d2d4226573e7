"""A script whose samples are dealt by a sampler (`chaos.data`), and the rounds in which it has none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chaos.sync import Due
from chaos_protocols.names import WEIGHT_MAX, WEIGHT_MIN

if TYPE_CHECKING:
    from chaos.data import ElasticSampler


class Dealing(ABC):
    """A part of the Coordinator."""

    def __init__(self) -> None:
        self._has_sampler = False

    @abstractmethod
    def capture_exit_event(self) -> bool:
        """True once something asks this script to end."""

    @abstractmethod
    def _stepped(
        self, samples: int | None, optimizers: Sequence[str] | None, skip: bool = False, *, idle: bool = False
    ) -> Due | None:
        """What is due now; None: this site is out of the run."""

    @abstractmethod
    def _make_round(self) -> bool:
        """What follows on `Due.ROUND`."""

    def _deal_by(self, sampler: ElasticSampler) -> None:
        self._has_sampler = True
        sampler.take_part_by(self._round_without_data)

    def _counted(self, samples: int | None, *, skip: bool) -> int:
        """How many samples of the sampler a step is about."""
        if not self._has_sampler:
            return 0
        if samples is None and not skip:
            raise ValueError("with a sampler say how many of its samples a step is about: step(samples=len(batch))")
        if samples is not None and samples != int(samples):
            raise ValueError(f"samples = {samples}: with a sampler a step is about a whole number of its samples")
        return int(samples or 0)

    def _round_without_data(self) -> bool:
        """For a sampler that has nothing for this site at the moment. False: the script is to end."""
        if self.capture_exit_event() or self._stepped(None, None, idle=True) is None:
            return False
        return self._make_round()


def check_samples(samples: Any) -> None:
    """Raises ValueError for what is no number of samples."""
    if samples is None:
        return
    if callable(samples):
        raise ValueError("step() takes no closure: compute loss and gradients before it; an optimizer must do without")
    try:
        counts = bool(WEIGHT_MIN <= samples <= WEIGHT_MAX)
    except (TypeError, ValueError, RuntimeError):  # a text, or more than one number
        counts = False
    if not counts:
        raise ValueError(
            f"samples must be a number from {WEIGHT_MIN:g} to {WEIGHT_MAX:g}, not {samples!r:.80}; skip step() for an "
            "empty batch"
        )
