"""Built-in facts: Llama-2 7B from its public architecture, and a site of equal devices to plan for.

Driven by `chaosd plan`, the simulators and the benchmarks, where no profile of a real model is at hand. Bytes are exact
for mixed-precision training with Adam: bf16 parameters and gradients, fp32 master copy and two moments (2 + 2 + 12
bytes a parameter, m_g = m_p as in Chameleon IV-C). Times are floating-point operations over an effective rate: only
their ratios between layers matter to a plan, and those come from the architecture. Activations are what an
implementation with fused attention keeps (no score matrix). `LLAMA2_7B` names each number's origin.

Source: Llama 2 (arXiv:2307.09288, table 1 and appendix) for the sizes; activation bytes per operator after Korthikanti
et al. 2022 (section 4.1), redone for RMSNorm, SwiGLU and fused attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypedDict

from chaos_planner.pipelines.facts.site import ClusterFacts, DeviceFacts, LayerFacts, ModelProfile

BF16_BYTES = 2
FP32_BYTES = 4
ADAM_BYTES = 3 * FP32_BYTES
"""Master copy and two moments, per parameter."""

ASCEND_910B_MEMORY_BYTES = 64 * 1024**3
"""Chameleon V-A: 64 GB of memory for each NPU."""

EFFECTIVE_FLOPS = 150e12
"""About 40 % of an Ascend 910B's dense bf16 peak (376 TFLOP/s); it scales the times of all layers but the embedding."""

MEMORY_RATE_BYTES_PER_S = 1.2e12
"""HBM rate behind the embedding's look-up and the optimizer's step: about three quarters of 1.6 TB/s."""

LINK_RATE_BYTES_PER_S = 25e9
"""One 200 Gbit/s port for each device, the usual network of such nodes."""

LINK_LATENCY_S = 20e-6

CHAMELEON_REBUILD_S = 1.93
"""Recovery took 11.2 s, and 8.2 s with a transfer 32.35 % shorter (Chameleon V-C): 11.2 - 3.0 / 0.3235 is the rest."""

FLASH_RESTART_S = 88.0
"""FlashRecovery table III: 7B on 32 devices, task restarting time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Sizes of a Llama-style decoder."""

    name: str
    num_layers: int
    hidden: int
    ffn: int
    vocabulary: int
    sequence: int

    @property
    def layer_parameters(self) -> int:
        """Attention 4 h^2, SwiGLU 3 h f, two RMSNorm weights."""
        return 4 * self.hidden**2 + 3 * self.hidden * self.ffn + 2 * self.hidden

    @property
    def parameters(self) -> int:
        """All of them: layers, input embedding, final norm, output head (not tied)."""
        return self.num_layers * self.layer_parameters + 2 * self.vocabulary * self.hidden + self.hidden


LLAMA2_7B = Decoder(name="llama2-7b", num_layers=32, hidden=4096, ffn=11008, vocabulary=32000, sequence=2048)
"""Hidden 4096, ffn 11008, 32 heads, 32 layers, vocabulary 32000: 6,738,415,616 parameters.

The context is 4096; samples here have 2048 tokens, since Chameleon runs PP = 2 on devices of 64 GB (V-D), which longer
ones would not fit (74 GB).
"""


def decoder_facts(decoder: Decoder, *, micro_batch_size: int = 1, global_micro_batches: int = 64) -> ModelProfile:
    """Facts of embedding, decoder layers and head, in this order. `ValueError` for sizes out of range."""
    tokens = micro_batch_size * decoder.sequence
    middle = tuple(_layer(decoder, index, tokens) for index in range(decoder.num_layers))
    return ModelProfile(
        name=decoder.name,
        layers=(_embedding(decoder, tokens), *middle, _head(decoder, tokens)),
        micro_batch_size=micro_batch_size,
        global_micro_batches=global_micro_batches,
    )


def _layer(decoder: Decoder, index: int, tokens: int) -> LayerFacts:
    linear_s = 2 * (decoder.layer_parameters - 2 * decoder.hidden) * tokens / EFFECTIVE_FLOPS
    # Causal attention: two products of sequence x sequence x hidden, half of each masked away.
    attention_s = 2 * tokens * decoder.sequence * decoder.hidden / EFFECTIVE_FLOPS
    # Kept per token: input, normed input, q, k, v, attention output, residual, normed residual: 8 vectors of hidden;
    # gate, up, activated gate, product: 4 vectors of ffn; all bf16. Two fp32 numbers for the norms, one for attention.
    kept = BF16_BYTES * (8 * decoder.hidden + 4 * decoder.ffn) + FP32_BYTES * 3
    return LayerFacts(
        name=f"decoder {index}",
        forward_s=linear_s + attention_s,
        backward_s=2 * linear_s + 2.5 * attention_s,  # fused attention computes its scores again
        backward_input_s=linear_s + 2.5 * attention_s,
        activation_bytes=tokens * kept,
        output_bytes=tokens * decoder.hidden * BF16_BYTES,
        **_state(decoder.layer_parameters),
    )


def _embedding(decoder: Decoder, tokens: int) -> LayerFacts:
    moved_bytes = 2 * tokens * decoder.hidden * BF16_BYTES
    return LayerFacts(
        name="embedding",
        forward_s=moved_bytes / MEMORY_RATE_BYTES_PER_S,
        backward_s=2 * moved_bytes / MEMORY_RATE_BYTES_PER_S,
        backward_input_s=0.0,  # nobody waits for the gradient of token numbers
        activation_bytes=tokens * 8,
        output_bytes=tokens * decoder.hidden * BF16_BYTES,
        **_state(decoder.vocabulary * decoder.hidden),
    )


def _head(decoder: Decoder, tokens: int) -> LayerFacts:
    linear_s = 2 * decoder.vocabulary * decoder.hidden * tokens / EFFECTIVE_FLOPS
    kept = BF16_BYTES * (2 * decoder.hidden + decoder.vocabulary) + FP32_BYTES * decoder.vocabulary
    return LayerFacts(
        name="head",
        forward_s=linear_s,
        backward_s=2 * linear_s,
        backward_input_s=linear_s,
        activation_bytes=tokens * kept,  # logits in bf16, softmax in fp32
        output_bytes=FP32_BYTES,
        **_state(decoder.vocabulary * decoder.hidden + decoder.hidden),
    )


class _State(TypedDict):
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    optimizer_step_s: float


def _state(parameters: int) -> _State:
    """What training keeps for this many parameters; a step of Adam reads and writes all of it once."""
    return {
        "parameter_bytes": BF16_BYTES * parameters,
        "gradient_bytes": BF16_BYTES * parameters,
        "optimizer_bytes": ADAM_BYTES * parameters,
        "optimizer_step_s": 2 * parameters * (BF16_BYTES + ADAM_BYTES) / MEMORY_RATE_BYTES_PER_S,
    }


def uniform_cluster(
    devices: int,
    *,
    memory_bytes: int = ASCEND_910B_MEMORY_BYTES,
    rate_bytes_per_s: float = LINK_RATE_BYTES_PER_S,
    restart_s: float = FLASH_RESTART_S,
    group_rebuild_s: float = CHAMELEON_REBUILD_S,
    failures_per_device_hour: float = 0.1,
    speed: float = 1.0,
) -> ClusterFacts:
    """Equal devices 0, 1, ...; 10 % of them fail in an hour (Chameleon V-B). `ValueError` from the facts."""
    if failures_per_device_hour < 0 or math.isnan(failures_per_device_hour):
        raise ValueError(f"failures_per_device_hour must be 0 or more, not {failures_per_device_hour}")
    rate_per_s = devices * failures_per_device_hour / 3600
    return ClusterFacts(
        devices=tuple(DeviceFacts(worker=w, memory_bytes=memory_bytes, speed=speed) for w in range(devices)),
        rate_bytes_per_s=rate_bytes_per_s,
        latency_s=LINK_LATENCY_S,
        restart_s=restart_s,
        group_rebuild_s=group_rebuild_s,
        mtbf_s=1 / rate_per_s if rate_per_s else math.inf,
    )


def _llama2_7b(global_micro_batches: int) -> ModelProfile:
    return decoder_facts(LLAMA2_7B, global_micro_batches=global_micro_batches)


BUILT_IN: Mapping[str, Callable[[int], ModelProfile]] = MappingProxyType({LLAMA2_7B.name: _llama2_7b})
"""Name -> facts for a number of micro-batches in a step."""


def built_in(name: str, *, global_micro_batches: int = 64) -> ModelProfile:
    """The built-in model of this name; `ValueError` names those there are."""
    if name not in BUILT_IN:
        raise ValueError(
            f"no model {name!r} is built in: there is {', '.join(sorted(BUILT_IN))}; for another one give the file "
            "that the profiler wrote with --profile FILE"
        )
    return BUILT_IN[name](global_micro_batches)
