"""What `apply` gets from the numpy framework: the average where it lies, not a copy in fresh memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from chaos.frameworks.base import What
from chaos.frameworks.numpy import NumpyFramework


def test_apply_reads_the_average_where_it_lies_and_cannot_write_to_it() -> None:
    """A copy would be fresh memory in every round: hundreds of page faults for a model of some size."""
    seen: list[np.ndarray] = []

    def apply(averaged: Mapping[str, np.ndarray], round: int) -> None:
        seen.append(averaged["w"])
        assert averaged["w"].tolist() == [1.0, 2.0, 3.0]
        with pytest.raises(ValueError, match="read-only"):
            averaged["w"][0] = 5.0

    arrays: dict[str, Any] = {"w": np.zeros(3, dtype=np.float32)}
    framework = NumpyFramework(arrays, apply, None)
    for round in (1, 2):
        framework.write(What.GRADIENT, framework.slots, np.array([1.0, 2.0, 3.0], dtype=np.float32).view(np.uint8))
        framework.optimizer_step(round)
    assert np.shares_memory(seen[0], framework.gradients["w"])
    assert seen[0] is seen[1]
    assert framework.gradients["w"].tolist() == [0.0, 0.0, 0.0]
