"""Facts: JSON there and back, and refusals that name the field, its value and what is allowed."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from chaos_planner.pipelines.facts.failures import Failure, FailureHistory
from chaos_planner.pipelines.facts.site import ClusterFacts, DeviceFacts, LayerFacts, ModelProfile, PairRate

LAYER: dict[str, Any] = {"name": "block", "forward_s": 0.01, "backward_s": 0.02}
MODEL = ModelProfile(
    name="tiny",
    layers=(
        LayerFacts(name="embedding", forward_s=0.001, backward_s=0.002, parameter_bytes=100, output_bytes=8),
        LayerFacts(name="block", forward_s=0.01, backward_s=0.02, backward_input_s=0.012, activation_bytes=5),
    ),
    micro_batch_size=2,
    global_micro_batches=6,
)
CLUSTER = ClusterFacts(
    devices=(DeviceFacts(worker=0, memory_bytes=10), DeviceFacts(worker=7, memory_bytes=20, speed=0.5)),
    rate_bytes_per_s=1e9,
    pair_rates=(PairRate(source=7, target=0, rate_bytes_per_s=5e8),),
    latency_s=1e-4,
    restart_s=30.0,
    group_rebuild_s=1.5,
)


def test_facts_survive_json_there_and_back() -> None:
    assert ModelProfile.from_json(json.loads(json.dumps(MODEL.to_json()))) == MODEL
    assert ClusterFacts.from_json(json.dumps(CLUSTER.to_json())) == CLUSTER


def test_a_cluster_that_never_failed_has_an_infinite_mtbf_and_a_null_in_json() -> None:
    assert CLUSTER.to_json()["mtbf_s"] is None
    assert math.isinf(ClusterFacts.from_json(CLUSTER.to_json()).mtbf_s)


def test_the_input_part_of_the_backward_pass_is_half_of_it_unless_given() -> None:
    assert LayerFacts(**LAYER).backward_input_s == 0.01
    assert MODEL.layers[1].backward_input_s == 0.012


def test_pair_rates_hold_in_their_direction_only() -> None:
    assert CLUSTER.rate(7, 0) == 5e8
    assert CLUSTER.rate(0, 7) == 1e9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"forward_s": -0.1}, ["forward_s", "-0.1", "at least 0"]),
        ({"backward_s": math.nan}, ["backward_s", "nan", "finite"]),
        ({"forward_s": "fast"}, ["forward_s", "fast", "number"]),
        ({"forward_s": True}, ["forward_s", "True", "number"]),
        ({"parameter_bytes": 1.5}, ["parameter_bytes", "1.5", "integer"]),
        ({"activation_bytes": -1}, ["activation_bytes", "-1", "integer from 0"]),
        ({"backward_input_s": 0.03}, ["backward_input_s", "0.03", "at most backward_s"]),
        ({"name": ""}, ["name", "''", "text"]),
        ({"colour": 3}, ["layer.colour", "not a known field", "forward_s"]),
    ],
)
def test_a_wrong_layer_is_refused_by_field_value_and_what_is_allowed(change: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as refused:
        LayerFacts.from_json({**LAYER, **change})
    for word in words:
        assert word in str(refused.value)


def test_a_missing_fact_is_named() -> None:
    with pytest.raises(ValueError, match=r"layer.backward_s is missing"):
        LayerFacts.from_json({"name": "block", "forward_s": 0.1})
    with pytest.raises(ValueError, match=r"model.global_micro_batches is missing"):
        ModelProfile.from_json({"name": "tiny", "layers": []})
    with pytest.raises(ValueError, match=r"cluster.devices is missing"):
        ClusterFacts.from_json({"rate_bytes_per_s": 1.0})


def test_text_that_is_not_json_or_not_an_object_is_refused() -> None:
    with pytest.raises(ValueError, match="model is not JSON"):
        ModelProfile.from_json("{")
    with pytest.raises(ValueError, match="JSON object"):
        ClusterFacts.from_json("[1]")
    with pytest.raises(ValueError, match="model is not JSON"):
        ModelProfile.from_json("[" * 100_000)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rate_bytes_per_s": 0}, "rate_bytes_per_s"),
        ({"mtbf_s": 0}, "mtbf_s"),
        ({"latency_s": math.inf}, "latency_s"),
        ({"devices": []}, "cluster.devices"),
        ({"devices": [{"worker": 0, "memory_bytes": 1}] * 2}, "each worker once"),
        ({"devices": [{"worker": 0, "memory_bytes": 1, "speed": 0}]}, "device 0.speed"),
        ({"pair_rates": [{"source": 0, "target": 5, "rate_bytes_per_s": 1.0}]}, "workers named in cluster.devices"),
        ({"pair_rates": [{"source": 0, "target": 0, "rate_bytes_per_s": 1.0}]}, "other than the source"),
        ({"pair_rates": 3}, "cluster.pair_rates"),
    ],
)
def test_a_wrong_cluster_is_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        ClusterFacts.from_json({**CLUSTER.to_json(), **change})


def test_a_model_in_which_nothing_takes_time_is_refused() -> None:
    with pytest.raises(ValueError, match="takes time"):
        ModelProfile(name="still", layers=(LayerFacts(name="a", forward_s=0.0, backward_s=0.0),))


def test_the_mean_time_between_failures_comes_from_the_history() -> None:
    failures = (Failure(worker=3, at_s=100.0), Failure(worker=1, at_s=250.0))
    history = FailureHistory(observed_since_s=0.0, observed_until_s=400.0, failures=failures)
    assert history.mtbf_s() == 200.0
    assert FailureHistory(observed_since_s=0.0, observed_until_s=400.0).mtbf_s() == math.inf
    assert FailureHistory.from_json(json.dumps(history.to_json())) == history


def test_a_failure_outside_the_observed_time_is_refused() -> None:
    with pytest.raises(ValueError, match="at_s"):
        FailureHistory(observed_since_s=0.0, observed_until_s=50.0, failures=(Failure(worker=0, at_s=60.0),))
