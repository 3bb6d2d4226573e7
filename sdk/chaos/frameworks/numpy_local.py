"""numpy training for modes with local steps (`chaos.frameworks.local`): `apply` is the optimizer of each site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from chaos.frameworks.base import Slot, StateItem, in_vector_order
from chaos.frameworks.numpy import NumpyFramework


class NumpyLocalTraining:
    """Arrays with a gradient are trained; the others (moments, counters) belong to `apply`, each site its own."""

    def __init__(self, framework: NumpyFramework) -> None:
        """Raises ValueError for a gradient without an array of its name: it would have no value to average."""
        for slot in framework.slots:
            framework.check_value(slot)
        self._framework = framework
        self.items: Sequence[StateItem] = framework.facts
        self.optimizers: Sequence[str] = framework.optimizers

    def step(self, number: int, optimizers: Sequence[str]) -> str:
        """`apply(gradients, number)`, with copies."""
        gradients = self._framework.gradients
        odd = next((name for name, gradient in gradients.items() if not np.isfinite(gradient).all()), None)
        if odd is None:
            ordered = in_vector_order(self._framework.slots)
            self._framework.run_apply({slot.name: gradients[slot.name].copy() for slot in ordered}, number)
        self._framework.discard()
        return "" if odd is None else f"the gradient of {odd!r} is not finite"

    def finish(self, round: int, steps: int, metrics: Mapping[str, float]) -> Sequence[Slot]:
        """Arrays have no schedule: `apply` has the number of its step."""
        self._framework.discard()
        return ()

    def restore(self) -> None:
        self._framework.discard()
