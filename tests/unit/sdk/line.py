"""The smallest training for the tests of the conversation: one array, numpy, no torch."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from chaos import Coordinator


class Line:
    """Three numbers that go down by their averaged gradients; remembers what it was given."""

    def __init__(self, path: Path | None, **options: Any) -> None:
        self.weights = np.zeros(3)
        self.applied: list[tuple[int, list[float]]] = []
        fields: dict[str, Any] = {"verbose": False, "handle_signals": False, "reconnect_s": 5.0, **options}
        self.coordinator = Coordinator(path, standalone=path is None, **fields)

    def register(self) -> Coordinator:
        self.coordinator.register(arrays={"weights": self.weights}, apply=self.apply)
        return self.coordinator

    def apply(self, averaged: Mapping[str, Any], round: int) -> None:
        self.applied.append((round, averaged["weights"].tolist()))
        self.weights -= averaged["weights"]

    def step(self, gradient: float = 1.0, samples: int | None = None) -> bool:
        self.coordinator.gradients["weights"][...] = gradient
        return self.coordinator.step(samples)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *failure: object) -> None:
        self.coordinator.close(graceful=False)


class ShortFolder(tempfile.TemporaryDirectory[str]):
    """A unix socket's path may have 103 bytes; pytest's own folders can be longer."""

    def __init__(self) -> None:
        super().__init__(prefix="cs")
