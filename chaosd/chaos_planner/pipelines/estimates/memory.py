"""Peak memory per worker from its instruction stream, and of a 1F1B stage without one.

Driven by the estimator and by the planner's memory filter. Static: parameters, optimizer state and gradients of the
layers held. Dynamic: activations of every micro-batch between its forward and backward pass; the peak depends on the
order of the passes alone, not on time. Rerouted micro-batches count on their host. For symmetric 1F1B without routes
and with at least N_pp micro-batches this is formula 14. Temporary buffers of kernels and of communication are not
included: keep a margin (`Settings.memory_margin`).

Source: Chameleon IV-C, formula 14.
"""

from __future__ import annotations

from collections.abc import Mapping

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.streams.instructions import Backward, Forward, Step, Streams


def peak_bytes(streams: Streams, costs: Costs) -> Mapping[int, int]:
    """Worker to the most bytes it holds at one time in a step."""
    peaks: dict[int, int] = {}
    for worker, stream in streams.items():
        held = peak = 0
        for instruction in stream:
            match instruction:
                case Forward(_, _, first, last):
                    held += costs.range_bytes(first, last)[1]
                    peak = max(peak, held)
                case Backward(_, _, first, last):
                    held -= costs.range_bytes(first, last)[1]
                case Step(first, last):
                    peak += costs.range_bytes(first, last)[0]
                case _:
                    pass
        peaks[worker] = peak
    return peaks


def stage_peak_bytes(costs: Costs, stages: int, stage: int, micro_batches: int, first: int, last: int) -> int:
    """Peak of one stage in 1F1B order: it holds at most N_pp - i micro-batches (stage i counted from 0)."""
    static, activations = costs.range_bytes(first, last)
    return static + min(micro_batches, stages - stage) * activations
