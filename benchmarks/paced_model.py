"""What paced workers imitate: Llama-2 7B as in the planner's built-in facts, or equal layers, and the network between.

Seconds are those of the facts, times a pace; bytes are `SCALE` of them, and so is the rate of the network, so that what
moves takes as long as it would. A device's memory is as much smaller. Read by the layers (`paced_layers`), which take
that long, and by the benchmark that plans for them.
"""

from __future__ import annotations

from dataclasses import replace

from chaos_planner.pipelines.facts.models import (
    ADAM_BYTES,
    ASCEND_910B_MEMORY_BYTES,
    BF16_BYTES,
    FP32_BYTES,
    LINK_LATENCY_S,
    LINK_RATE_BYTES_PER_S,
    built_in,
)
from chaos_planner.pipelines.facts.site import LayerFacts, ModelProfile

LLAMA, EQUAL = "llama2-7b", "equal"
SCALE = 1e-4
"""Of bytes. Here they are 32-bit numbers, in the facts 16-bit ones: half as many numbers."""

KEPT = ADAM_BYTES // BF16_BYTES
"""Numbers that the optimizer keeps for a parameter, so that all of a layer's state has the share that it has there."""

EQUAL_LAYERS, EQUAL_FORWARD_S, EQUAL_BACKWARD_S = 32, 0.004, 0.008
EQUAL_WIDTH = 8
MEMORY_BYTES = int(ASCEND_910B_MEMORY_BYTES * SCALE)
RATE_BYTES_PER_S = LINK_RATE_BYTES_PER_S * SCALE


def profile(name: str, *, pace: float, micro_batches: int) -> ModelProfile:
    """Facts of the paced layers: exact, where a worker's first micro-batch only measures."""
    if name == EQUAL:
        layer = LayerFacts(
            name="equal",
            forward_s=pace * EQUAL_FORWARD_S,
            backward_s=pace * EQUAL_BACKWARD_S,
            output_bytes=EQUAL_WIDTH * FP32_BYTES,
            activation_bytes=2 * EQUAL_WIDTH * FP32_BYTES,
            parameter_bytes=EQUAL_WIDTH * FP32_BYTES,
            gradient_bytes=EQUAL_WIDTH * FP32_BYTES,
            optimizer_bytes=KEPT * EQUAL_WIDTH * FP32_BYTES,
        )
        return ModelProfile(name=name, layers=(layer,) * EQUAL_LAYERS, global_micro_batches=micro_batches)
    facts = built_in(name, global_micro_batches=micro_batches)
    return replace(facts, layers=tuple(_small(layer, pace) for layer in facts.layers))


def numbers_of(layer: LayerFacts) -> tuple[int, int]:
    """Of its parameters, and of what it gives on."""
    return max(1, layer.parameter_bytes // FP32_BYTES), max(1, layer.output_bytes // FP32_BYTES)


def exchange_s(size_bytes: int, members: int, *, pace: float) -> float:
    """A ring all-reduce over the imitated network."""
    latency_s = LINK_LATENCY_S * pace
    return 2 * (members - 1) * (size_bytes / members / (RATE_BYTES_PER_S / pace) + latency_s)


def _small(layer: LayerFacts, pace: float) -> LayerFacts:
    return replace(
        layer,
        forward_s=pace * layer.forward_s,
        backward_s=pace * layer.backward_s,
        backward_input_s=pace * layer.backward_input_s,
        optimizer_step_s=pace * layer.optimizer_step_s,
        **{
            name: round(SCALE * getattr(layer, name))
            for name in ("parameter_bytes", "optimizer_bytes", "gradient_bytes", "activation_bytes", "output_bytes")
        },
    )
