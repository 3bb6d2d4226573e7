"""The profiler on a small GPT-2-like stack and a CNN."""

from __future__ import annotations

import os
import sys
import time

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
torch = pytest.importorskip("torch", reason="the profiler measures torch models; torch is the extra `torch`")
from torch import nn  # noqa: E402

from chaos_planner.pipelines.facts import profiler  # noqa: E402
from chaos_planner.pipelines.facts.profiler import (  # noqa: E402
    ProfileFailed,
    ProfileSettings,
    TorchMissing,
    measure_group_rebuild_s,
    measure_restart_s,
    profile_layers,
    profile_model,
)
from chaos_planner.pipelines.facts.site import ModelProfile  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

HIDDEN, HEADS, VOCABULARY, SEQUENCE, BATCH = 64, 4, 101, 32, 2


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, HIDDEN)
        self.position = nn.Embedding(SEQUENCE, HIDDEN)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.token(tokens) + self.position(torch.arange(tokens.shape[1]))


class Block(nn.Module):
    """Pre-norm attention and MLP, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, HIDDEN))
        return x + self.mlp(self.norm2(x))


def gpt2() -> tuple[list[nn.Module], torch.Tensor]:
    torch.manual_seed(0)
    head = nn.Sequential(nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False))
    return [Embedding(), Block(), Block(), head], torch.randint(0, VOCABULARY, (BATCH, SEQUENCE))


def cnn() -> tuple[list[nn.Module], torch.Tensor]:
    torch.manual_seed(0)
    layers: list[nn.Module] = [
        nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        nn.MaxPool2d(2),
        nn.Sequential(nn.Flatten(), nn.Linear(16 * 8 * 8, 10)),
    ]
    return layers, torch.randn(4, 3, 16, 16)


def test_gpt2_bytes_are_those_of_its_parameters() -> None:
    layers, tokens = gpt2()
    facts = profile_model("gpt2-tiny", layers, tokens, global_micro_batches=8)
    for layer, fact in zip(layers, facts.layers, strict=True):
        size = sum(4 * p.numel() for p in layer.parameters())
        assert fact.parameter_bytes == fact.gradient_bytes == size
        # AdamW: two moments, and one step counter of 4 bytes for each parameter tensor
        assert fact.optimizer_bytes == 2 * size + 4 * len(list(layer.parameters()))
    assert [fact.output_bytes for fact in facts.layers[:3]] == [4 * BATCH * SEQUENCE * HIDDEN] * 3
    assert (facts.micro_batch_size, facts.global_micro_batches) == (BATCH, 8)


def test_times_are_positive_and_the_inputs_backward_is_part_of_the_whole() -> None:
    layers, tokens = gpt2()
    for fact in profile_model("gpt2-tiny", layers, tokens, global_micro_batches=1).layers:
        assert fact.forward_s > 0
        assert fact.backward_s > 0
        assert 0 <= fact.backward_input_s <= fact.backward_s
    embedding = profile_model("gpt2-tiny", layers, tokens, global_micro_batches=1).layers[0]
    assert embedding.backward_input_s == 0.0


def test_activations_are_what_autograd_keeps() -> None:
    """A linear layer keeps its input; ReLU its output; a chain of both keeps each tensor once."""
    x = torch.randn(8, 100)
    linear, relu, both = nn.Linear(100, 50), nn.ReLU(), nn.Sequential(nn.Linear(100, 50), nn.ReLU())
    profiles = [profile_layers([layer], x)[0].facts for layer in (linear, relu, both)]
    assert profiles[0].activation_bytes == 4 * 8 * 100
    assert profiles[1].activation_bytes == 4 * 8 * 100
    assert profiles[2].activation_bytes == 4 * 8 * (100 + 50)


def test_activations_grow_with_the_micro_batch() -> None:
    layers, _ = gpt2()
    small, large = (
        profile_layers(layers, torch.randint(0, VOCABULARY, (batch, SEQUENCE)))[1].facts for batch in (1, 4)
    )
    assert 3.5 < large.activation_bytes / small.activation_bytes <= 4.0


def test_a_cnn_profiles_with_layers_that_have_no_parameters() -> None:
    layers, images = cnn()
    facts = profile_model("cnn", layers, images, global_micro_batches=4)
    convolution, pool, linear = facts.layers
    assert pool.parameter_bytes == pool.optimizer_bytes == pool.gradient_bytes == 0
    assert convolution.output_bytes == 4 * 4 * 16 * 16 * 16
    assert convolution.activation_bytes >= 4 * 4 * 3 * 16 * 16 + convolution.output_bytes
    assert linear.activation_bytes == 4 * 4 * 16 * 8 * 8


def test_a_slow_layer_measures_slower() -> None:
    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            end = time.perf_counter() + 0.02
            while time.perf_counter() < end:
                pass
            return x * 2

    fast, slow = (profile_layers([layer], torch.randn(2, 2))[0].facts for layer in (nn.ReLU(), Slow()))
    assert slow.forward_s >= 0.02 > fast.forward_s


def test_one_slow_repeat_does_not_become_the_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([9.0, 1.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(profiler, "_seconds", lambda torch, device, run: (run(), next(times, 1.0))[1])
    facts = profile_layers([nn.ReLU()], torch.randn(2, 2), settings=ProfileSettings(repeats=5))[0].facts
    assert facts.forward_s == 1.0


def test_profiling_leaves_the_model_as_it_was() -> None:
    layers, tokens = gpt2()
    layers[1].qkv.bias.grad = torch.full_like(layers[1].qkv.bias, 3.0)
    before = [p.detach().clone() for layer in layers for p in layer.parameters()]
    profile_layers(layers, tokens)
    after = [p for layer in layers for p in layer.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert torch.equal(layers[1].qkv.bias.grad, torch.full_like(layers[1].qkv.bias, 3.0))
    assert layers[1].out.weight.grad is None


def test_frozen_layers_have_no_gradients_and_no_optimizer_state() -> None:
    layer = nn.Linear(4, 4).requires_grad_(False)
    facts = profile_layers([layer], torch.randn(2, 4))[0].facts
    assert (facts.parameter_bytes, facts.gradient_bytes, facts.optimizer_bytes) == (80, 0, 0)
    assert facts.backward_s > 0


def test_the_optimizer_named_is_the_one_counted() -> None:
    layer = nn.Linear(4, 4)
    plain = profile_layers([layer], torch.randn(2, 4), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))[0].facts
    momentum = profile_layers([layer], torch.randn(2, 4), optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    assert plain.optimizer_bytes == 0
    assert momentum[0].facts.optimizer_bytes == 80


def test_layers_may_pass_tuples() -> None:
    class Split(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * 2, x + 1

    class Join(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a * b

    facts = profile_model("pair", [Split(), Join()], torch.randn(2, 4), global_micro_batches=1)
    assert facts.layers[0].output_bytes == 2 * 4 * 8
    assert facts.layers[1].activation_bytes == 2 * 4 * 8


def test_facts_survive_json() -> None:
    layers, images = cnn()
    facts = profile_model("cnn", layers, images, global_micro_batches=4)
    assert ModelProfile.from_json(facts.to_json()) == facts


def test_a_layer_that_fails_is_named() -> None:
    with pytest.raises(ProfileFailed, match="layer 1 Linear cannot be profiled on cpu"):
        profile_layers([nn.ReLU(), nn.Linear(3, 3)], torch.randn(2, 4))


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="no layer"):
        profile_layers([], torch.randn(2))
    with pytest.raises(ValueError, match="device must be"):
        ProfileSettings(device="tpu")
    with pytest.raises(ValueError, match="repeats"):
        ProfileSettings(repeats=0)
    with pytest.raises(ValueError, match="first dimension"):
        profile_model("x", [nn.Identity()], torch.tensor(1.0), global_micro_batches=1)
    with pytest.raises(ValueError, match="world_size"):
        measure_group_rebuild_s(1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a cuda device")
def test_a_device_that_is_not_there_is_reported() -> None:
    with pytest.raises(ProfileFailed, match="cuda is not available"):
        profile_layers([nn.ReLU()], torch.randn(2), settings=ProfileSettings(device="cuda"))


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(TorchMissing, match=r"chaos-train\[torch\]"):
        profile_layers([nn.ReLU()], torch.randn(2))


def test_restart_is_the_time_of_the_command_and_its_failure_is_explained() -> None:
    assert 0.0 < measure_restart_s([sys.executable, "-c", "pass"], repeats=1) < 60.0
    with pytest.raises(ProfileFailed, match="exit code 3: out of luck"):
        measure_restart_s([sys.executable, "-c", "import sys; sys.stderr.write('out of luck'); sys.exit(3)"])
    with pytest.raises(ProfileFailed, match="cannot be started"):
        measure_restart_s(["/nonexistent/worker"], repeats=1)


def test_group_rebuild_is_measured_among_real_processes() -> None:
    assert 0.0 < measure_group_rebuild_s(2, repeats=2) < 60.0


def test_a_worker_that_fails_to_join_is_named() -> None:
    with pytest.raises(ProfileFailed, match="worker 0 failed with exit code 1"):
        measure_group_rebuild_s(2, backend="no-such-backend", repeats=1)
