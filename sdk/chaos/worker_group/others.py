"""A training of layers as what is averaged with other institutions, where one process has all of them.

The same vector and the same update as with several workers, so that a site of one and a site of many train together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chaos.frameworks.base import Bytes, StateItem
from chaos.sync.base import Due, Part
from chaos.sync.notes import Agreed
from chaos.worker_group.chain.layers import Layer
from chaos.worker_group.chain.layout import ModelLayout
from chaos.worker_group.chain.vectors import LayerVectors
from chaos.worker_group.compute.interpreter import StepRun
from chaos.worker_group.exchange.notes import SiteNotes
from chaos_protocols.wire.worker import ContributionSpec
from chaos_protocols.worker_group.commit import clip_factor
from chaos_protocols.worker_group.said import together


@dataclass(frozen=True, slots=True)
class Given:
    """The gradients of one step: its sums, the number of micro-batches, the samples behind them."""

    run: StepRun
    micro_batches: int
    samples: int


class LayersSession:
    """A `chaos.sync.SyncSession`. `norm`: of the last average, before clipping."""

    notice = ""

    def __init__(
        self,
        layers: Sequence[Layer],
        layout: ModelLayout,
        clip_norm: float | None,
        notes: SiteNotes | None = None,
    ) -> None:
        self._layers, self._clip_norm, self._notes = layers, clip_norm, notes or SiteNotes()
        self._vectors = LayerVectors(layout)
        self.items: Sequence[StateItem] = layout.whole(layers)
        self.given: Given | None = None
        self.norm = math.nan
        self._weight = 0.0
        """Of the last round; 0: not known."""

    @property
    def agreed(self) -> Agreed | None:
        return self._notes.agreed

    @property
    def contribution(self) -> ContributionSpec:
        return self._vectors.contribution

    def check(self, part: Part) -> None:
        raise ValueError("a model that was parallelized is trained by model.step(batch), not by coordinator.step()")

    def stepped(self, part: Part) -> Due:
        self.check(part)
        return Due.ROUND

    def contribute(self, vector: Bytes, round: int) -> float:
        given = self.given
        if given is None:
            return 0.0
        for layer in self._layers:
            mean = given.run.sums.total(layer.index) / given.micro_batches if layer.parameters else None
            self._vectors.give(vector, layer, mean)
        if (spec := self._notes.spec) is not None:
            vector[: 8 * spec.count].view(np.float64)[:] = spec.numbers(together(given.run.said), self._weight)
        return float(given.samples)

    def average(self, vector: Bytes) -> None:
        """There are no gradients to look at between two rounds."""

    def apply(self, vector: Bytes, round: int) -> None:
        if (spec := self._notes.spec) is not None:
            self._notes.learn(vector[: 8 * spec.count].view(np.float64))
        squares = [layer.whole_squares(self._vectors.gradient(vector, layer.index)) for layer in self._layers]
        self.norm = math.sqrt(sum(squares))
        factor = clip_factor(self.norm, self._clip_norm)
        for layer in self._layers:
            self._vectors.update(vector, layer, factor, round)
        self.given = None

    def skip(self, round: int) -> None:
        self.given = None

    def averaged_over(self, weight: float) -> None:
        self._weight = weight

    def withheld(self) -> None:
        """Nothing of it is kept."""

    def name_at(self, start: int) -> str:
        return repr(self._vectors.name_at(start))

    def apply_alone(self, round: int) -> str:
        raise AssertionError("alone, the steps of a parallel model are its own (TrainsAlone)")

    def reset(self, round: int) -> None:
        self.given, self._weight = None, 0.0
