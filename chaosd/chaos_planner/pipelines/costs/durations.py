"""Seconds and bytes of the parts of a step, from facts: the one place where a duration is computed.

The scheduler of rerouted work, the estimator, the planner's search and every simulation of streams take durations from
here, so that their results can be compared bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from chaos_planner.pipelines.facts.site import ClusterFacts, ModelProfile
from chaos_planner.pipelines.plans.colouring import Exchange, exchange_time_s


class Costs:
    """Durations on these workers of this model. Ranges of layers are first to last, last excluded."""

    def __init__(self, model: ModelProfile, cluster: ClusterFacts) -> None:
        self.model = model
        self.cluster = cluster
        self._ranges: dict[tuple[int, int], tuple[float, float, float]] = {}
        self._bytes: dict[tuple[int, int], tuple[int, int]] = {}
        self._rings: dict[tuple[int, ...], float] = {}

    def range_s(self, first: int, last: int) -> tuple[float, float, float]:
        """Forward, backward and optimizer seconds of these layers at speed 1.0."""
        found = self._ranges.get((first, last))
        if found is None:
            layers = self.model.layers[first:last]
            found = (
                math.fsum(layer.forward_s for layer in layers),
                math.fsum(layer.backward_s for layer in layers),
                math.fsum(layer.optimizer_step_s for layer in layers),
            )
            self._ranges[first, last] = found
        return found

    def forward_s(self, worker: int, first: int, last: int) -> float:
        """One micro-batch forward through these layers on this worker."""
        return self.range_s(first, last)[0] / self.cluster.device(worker).speed

    def backward_s(self, worker: int, first: int, last: int) -> float:
        """One micro-batch backward through these layers on this worker."""
        return self.range_s(first, last)[1] / self.cluster.device(worker).speed

    def step_s(self, worker: int, first: int, last: int) -> float:
        """The optimizer's step of these layers on this worker."""
        return self.range_s(first, last)[2] / self.cluster.device(worker).speed

    def transfer_s(self, source: int, target: int, layer: int) -> float:
        """Link time of an activation (or its gradient) at the boundary before `layer`, latency excluded."""
        return self.model.layers[layer - 1].output_bytes / self.cluster.rate(source, target)

    def range_bytes(self, first: int, last: int) -> tuple[int, int]:
        """Bytes of holding these layers (static), and of one micro-batch's activations in them."""
        found = self._bytes.get((first, last))
        if found is None:
            layers = self.model.layers[first:last]
            found = (sum(layer.static_bytes for layer in layers), sum(layer.activation_bytes for layer in layers))
            self._bytes[first, last] = found
        return found

    def reduce_s(self, layers: Sequence[int], workers: tuple[int, ...]) -> float:
        """A ring all-reduce of these layers' gradients among these workers, at the ring's slowest rate."""
        size = sum(self.model.layers[layer].gradient_bytes for layer in layers)
        return self.ring_s(size, workers)

    def ring_s(self, size_bytes: int, workers: tuple[int, ...]) -> float:
        """A ring all-reduce of so many bytes among these workers, ascending."""
        exchange = Exchange(layers=(), workers=workers, size_bytes=size_bytes)
        return exchange_time_s(exchange, self._ring_rate(workers), self.cluster.latency_s)

    def _ring_rate(self, workers: tuple[int, ...]) -> float:
        if not self.cluster.pair_rates:
            return self.cluster.rate_bytes_per_s
        found = self._rings.get(workers)
        if found is None:
            pairs = zip(workers, (*workers[1:], workers[0]), strict=True)
            found = min(self.cluster.rate(source, target) for source, target in pairs if source != target)
            self._rings[workers] = found
        return found
