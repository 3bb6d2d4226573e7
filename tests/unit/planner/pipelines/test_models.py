"""Built-in facts against the published sizes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from chaos_planner.pipelines.facts.models import LLAMA2_7B, built_in, decoder_facts, uniform_cluster
from chaos_planner.pipelines.facts.site import ModelProfile


def test_llama2_7b_has_its_published_number_of_parameters() -> None:
    assert LLAMA2_7B.parameters == 6_738_415_616
    assert LLAMA2_7B.layer_parameters == 202_383_360


def test_bytes_are_sixteen_a_parameter_and_gradients_equal_parameters() -> None:
    """Chameleon IV-C: m_g = m_p."""
    facts = built_in("llama2-7b")
    assert sum(layer.static_bytes for layer in facts.layers) == 16 * LLAMA2_7B.parameters
    assert all(layer.gradient_bytes == layer.parameter_bytes for layer in facts.layers)


def test_the_model_is_an_embedding_32_decoder_layers_and_a_head() -> None:
    facts = built_in("llama2-7b", global_micro_batches=16)
    assert [layer.name for layer in facts.layers] == ["embedding", *(f"decoder {i}" for i in range(32)), "head"]
    assert (facts.micro_batch_size, facts.global_micro_batches) == (1, 16)


def test_backward_takes_about_twice_the_forward_and_its_input_half_of_that() -> None:
    layer = built_in("llama2-7b").layers[1]
    assert 2.0 <= layer.backward_s / layer.forward_s <= 2.1
    assert 0.5 <= layer.backward_input_s / layer.backward_s <= 0.6


def test_two_stages_fit_a_64_gb_device_as_in_chameleon_and_not_with_the_whole_context() -> None:
    """Formula 14 on Chameleon's devices: V-D runs DP 4 x PP 2 on 64 GB."""

    def peak_bytes(sequence: int, stages: int) -> int:
        layer = decoder_facts(replace(LLAMA2_7B, sequence=sequence)).layers[1]
        held = 32 // stages
        return held * layer.static_bytes + stages * held * layer.activation_bytes

    memory_bytes = uniform_cluster(1).devices[0].memory_bytes
    assert peak_bytes(2048, 2) < memory_bytes < peak_bytes(4096, 2)
    assert peak_bytes(4096, 4) < memory_bytes < peak_bytes(2048, 1)


def test_facts_survive_json() -> None:
    facts = built_in("llama2-7b")
    assert ModelProfile.from_json(facts.to_json()) == facts


def test_ten_percent_an_hour_on_32_devices_is_a_failure_every_1125_seconds() -> None:
    assert uniform_cluster(32).mtbf_s == pytest.approx(1125.0)
    assert uniform_cluster(32, failures_per_device_hour=0.0).mtbf_s == math.inf


def test_an_unknown_model_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no model 'gpt-9'.*llama2-7b.*--profile"):
        built_in("gpt-9")
    with pytest.raises(ValueError, match="failures_per_device_hour"):
        uniform_cluster(4, failures_per_device_hour=-1.0)
