"""How many samples are behind a step: whether all sites say it, or none; a sampler (`chaos.data`) deals them, and there
are rounds in which it has none."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chaos.conversation import Conversation
from chaos.sync import Due, SyncSession
from chaos.sync.every_step import EveryStepSession
from chaos.sync.local_session import LocalStepsSession
from chaos_protocols.names import WEIGHT_MAX, WEIGHT_MIN

if TYPE_CHECKING:
    from chaos.data import ElasticSampler

SUMS_ROUNDED = 1e-6
"""Of many weights."""


class Dealing(ABC):
    """A part of the Coordinator."""

    def __init__(self) -> None:
        self._conversation: Conversation | None = None
        self._has_sampler = False
        self._weighs = False
        """The last step said how many samples are behind it."""

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
        if not skip:
            self._weighs = samples is not None
        if not self._has_sampler:
            return 0
        if samples is None and not skip:
            raise ValueError("with a sampler say how many of its samples a step is about: step(samples=len(batch))")
        if samples is not None and samples != int(samples):
            raise ValueError(f"samples = {samples}: with a sampler a step is about a whole number of its samples")
        return int(samples or 0)

    def _odd_weight(self, session: SyncSession) -> str:
        """Why the last average seems to be weighted in two ways; empty: it does not. Of a site that counts no samples
        nobody's part weighs more than `most`, if they do not, either."""
        talk = self._conversation
        most = most_without_samples(session)
        if talk is None or self._weighs or math.isinf(most) or talk.weight <= talk.sites * most * (1 + SUMS_ROUNDED):
            return ""
        return (
            f"other sites weigh what they give by samples, and this script does not: in round {talk.round} the sites "
            f"({talk.sites}) had a weight of {talk.weight:g} together, of which this one has at most {most:g}; say "
            "step(samples=len(batch)) at all sites, or at none"
        )

    def _round_without_data(self) -> bool:
        """For a sampler that has nothing for this site at the moment. False: the script is to end."""
        if self.capture_exit_event() or self._stepped(None, None, idle=True) is None:
            return False
        return self._make_round()


def most_without_samples(session: SyncSession) -> float:
    """What a part weighs at most where a step counts as one sample."""
    if isinstance(session, EveryStepSession):
        return 1.0
    return session.steps_of_a_phase if isinstance(session, LocalStepsSession) else math.inf


def check_samples(samples: Any) -> None:
    """Raises ValueError for what is no number of samples."""
    if samples is None:
        return
    if callable(samples):
        raise ValueError("step() takes no closure: compute loss and gradients before it; an optimizer must do without")
    try:
        counts = bool(WEIGHT_MIN <= samples <= WEIGHT_MAX) and float(samples) > 0
    except (TypeError, ValueError, RuntimeError):  # a text, or more than one number
        counts = False
    if not counts:
        raise ValueError(
            f"samples must be a number from {WEIGHT_MIN:g} to {WEIGHT_MAX:g}, not {samples!r:.80}; step(skip=True) is "
            "for an empty batch"
        )
