"""What the Coordinator promises its user besides the conversation: forms of registering, clear errors, nothing left
behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.sdk.line import Line

import chaos
from chaos import Coordinator, SharedMemoryTooSmall
from chaos.arena import WorkerArena
from chaos.frameworks import NumpyFramework, facts_of
from chaos.paths import socket_path
from chaos.state import State
from chaos_protocols.wire.state_spec import (
    DTYPE_BYTES,
    ITEM_ALIGNMENT_BYTES,
    NAME_CHARACTERS_MAX,
    Item,
    contribution_spec,
    fact,
    first_difference,
    spec_problem,
    state_spec,
)


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=False)


def test_import_and_numpy_training_work_without_torch() -> None:
    code = """
import sys
sys.modules["torch"] = None  # any import of torch fails from here on
import numpy as np
from chaos import Coordinator
w = np.zeros(2)
with Coordinator(standalone=True) as c:
    c.register(arrays={"w": w}, apply=lambda averaged, round: w.__isub__(averaged["w"]))
    c.gradients["w"][:] = 1
    c.step()
    try:
        Coordinator(standalone=True).register(model=object(), optimizer=object())
    except ValueError as error:
        print(w.tolist(), c.round, error)
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[-1.0, -1.0] 1 torch cannot be imported")


def test_importing_the_sdk_does_not_import_torch() -> None:
    assert run("import chaos, sys; sys.exit('torch' in sys.modules)").returncode == 0


def test_public_names_are_these() -> None:
    assert sorted(chaos.__all__) == [
        "ChangedOutside",
        "ChaosError",
        "Coordinator",
        "CoordinatorStatus",
        "DaemonLost",
        "DaemonProtocolError",
        "DiLoCo",
        "EveryStep",
        "HalfAppliedStep",
        "LearningRateRule",
        "LeftRun",
        "LocalSGD",
        "NoDaemon",
        "NothingFinite",
        "OuterSGD",
        "Refused",
        "ScheduleOver",
        "SharedMemoryTooSmall",
        "Update",
        "state_digest",
    ]


def test_socket_is_the_argument_then_the_environment_then_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_SOCKET", "/run/from-environment")
    assert socket_path("/run/from-argument") == Path("/run/from-argument")
    assert socket_path() == Path("/run/from-environment")
    monkeypatch.delenv("CHAOS_SOCKET")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/none")  # no site was ever made
    assert socket_path().name == "worker.sock" and "chaosd" in str(socket_path())


def test_a_script_finds_the_socket_of_the_configuration_that_the_commands_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHAOS_SOCKET", raising=False)
    for mark in ("", "\ufeff"):  # an editor of Windows begins a text with one
        (tmp_path / "chaosd.toml").write_text(f'{mark}data_dir = "data"\r\n', encoding="utf-8")
        for named in (tmp_path / "chaosd.toml", tmp_path):  # a folder stands for the file in it
            monkeypatch.setenv("CHAOS_CONFIG", str(named))
            assert socket_path() == tmp_path / "data" / "worker.sock"


def test_arena_that_does_not_fit_says_how_much_is_wanted_and_free() -> None:
    with pytest.raises(SharedMemoryTooSmall, match=r"needs 12,288 bytes.*only 100 bytes are free"):
        WorkerArena(24, 24, available_bytes=lambda: 100)


@pytest.mark.parametrize(
    ("limit", "told"), [(12_288, ["taking 0.0 GiB of memory that is shared with the daemon"]), (12_289, [])]
)
def test_memory_that_takes_long_is_told(monkeypatch: pytest.MonkeyPatch, limit: int, told: list[str]) -> None:
    monkeypatch.setattr("chaos.arena.TOLD_BYTES", limit)
    said: list[str] = []
    WorkerArena(24, 24, tell=said.append).close()
    assert said == told


def test_arena_gives_its_memory_back_even_while_a_view_is_alive() -> None:
    arena = WorkerArena(24, 24)
    view = arena.state
    arena.close()
    arena.close()
    view[...] = 1  # still there for whoever holds it


def test_failed_update_is_never_a_round() -> None:
    class Failing(Line):
        def apply(self, averaged: object, round: int) -> None:
            self.weights[0] = 1.0
            raise MemoryError("no memory")

    with Failing(None) as line:
        line.register()
        with pytest.raises(chaos.HalfAppliedStep, match="no memory"):
            line.step()
        assert line.coordinator.round == 0


@pytest.mark.parametrize("samples", [0, -1, float("nan"), "16", [16, 16], np.ones(2), np.ones((1, 1))])
def test_samples_must_be_one_positive_number(samples: Any) -> None:
    with Line(None) as line:
        line.register()
        with pytest.raises(ValueError, match="samples must be a number from"):
            line.step(samples=samples)


def test_a_closure_for_step_is_refused_with_what_to_do() -> None:
    with Line(None) as line:
        line.register()
        with pytest.raises(ValueError, match="takes no closure: compute loss and gradients before it"):
            line.step(samples=lambda: 0.0)  # type: ignore[arg-type]


def test_a_norm_that_nobody_would_keep_to_is_refused() -> None:
    with chaos.Coordinator(standalone=True, verbose=False) as coordinator:
        with pytest.raises(ValueError, match=r"clip_norm= belongs to a model of parallelize\(\).*clip_grad_norm_"):
            coordinator.register(arrays={"w": np.zeros(2)}, apply=lambda mean, _: None, clip_norm=1.0)


def test_misuse_is_explained() -> None:
    with Line(None) as line:
        with pytest.raises(ValueError, match=r"call coordinator\.register"):
            line.coordinator.step()
        with pytest.raises(ValueError, match="takes arrays= and apply="):
            line.coordinator.register(model=object(), arrays={"w": np.zeros(1)}, apply=line.apply)
        with pytest.raises(ValueError, match="for torch"):
            line.coordinator.register(model=object())
        weights: Any = {"w": np.zeros(1)}
        for arrays, apply, words in (
            ([np.zeros(1)], line.apply, r"register\(arrays=\.\.\.\) takes arrays by name"),
            ({0: np.zeros(1), "w": np.zeros(1)}, line.apply, r"register\(arrays=\.\.\.\) takes arrays by name"),
            (weights, 3, r"register\(apply=\.\.\.\) takes a function of two arguments"),
        ):
            with pytest.raises(ValueError, match=words):
                line.coordinator.register(arrays=arrays, apply=apply)
        with pytest.raises(ValueError, match=r"sync='diloco' is no way to train together: give chaos\.EveryStep\(\)"):
            line.coordinator.register(arrays=weights, apply=line.apply, sync="diloco")  # type: ignore[arg-type]
        line.register()
        with pytest.raises(ValueError, match="already called"):
            line.register()


def test_a_setting_is_the_same_in_whatever_type_of_number_it_comes() -> None:
    """How numpy shows its own depends on its release."""
    plain = {"rate": 0.5, "name": "cosine", "nesterov": True, "nothing": None}
    assert facts_of(None, "replicate", {**plain, "rate": np.float64(0.5)}) == facts_of(None, "replicate", plain)
    assert facts_of(None, "replicate", plain) == [
        "setting name = 'cosine'",
        "setting nesterov = True",
        "setting nothing = None",
        "setting rate = 0.5",
    ]


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((4, 4))[:, :2], "contiguous"),
        ([1.0, 2.0], "register numpy arrays"),
        (np.arange(3), "nothing to average"),
    ],
)
def test_arrays_that_cannot_be_shared_are_named(array: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        NumpyFramework({"w": array}, lambda averaged, round: None, None)  # type: ignore[dict-item]


def test_numpy_state_moves_bitwise_with_every_dtype() -> None:
    generator = np.random.default_rng(3)
    types = ["float64", "float32", "float16", "int64", "uint8", "bool", "complex64"]

    def make() -> dict[str, np.ndarray]:
        return {name: generator.integers(0, 2, size=(3, 5)).astype(name) for name in types}

    mine, theirs = make(), make()
    here, there = (State(NumpyFramework(a, lambda averaged, round: None, None).items) for a in (mine, theirs))
    region = np.full(here.spec.size_bytes, 255, dtype=np.uint8)
    here.write(region)
    there.load(region)
    assert all(np.array_equal(mine[name], theirs[name]) for name in types)
    assert here.digest() == there.digest() == chaos.state_digest(region.data)


def test_unhandled_error_drops_out_and_a_normal_end_leaves(tmp_path: Path) -> None:
    """`atexit` must not announce a leave for a script that failed."""
    code = """
from chaos import Coordinator
c = Coordinator(standalone=True)
c.close = lambda graceful: print("graceful", graceful)
{last}
"""
    assert run(code.format(last="")).stdout == "graceful True\n"
    assert run(code.format(last="raise ValueError")).stdout == "graceful False\n"


def test_prepare_gives_back_what_it_got() -> None:
    torch = pytest.importorskip("torch", reason="the torch adapter needs torch")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = [1, 2]
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        assert coordinator.prepare(model, optimizer, loader) == (model, optimizer, loader)
        assert coordinator.status().phase == "standalone"


def test_several_models_and_optimizers_by_name_share_one_state() -> None:
    torch = pytest.importorskip("torch", reason="the torch adapter needs torch")
    models = {name: torch.nn.Linear(2, 2) for name in ("generator", "critic")}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        coordinator.register(models, optimizers)
        before = coordinator.state_digest()
        models["critic"](models["generator"](torch.ones(1, 2))).sum().backward()
        assert coordinator.step() and coordinator.state_digest() != before
        assert all(parameter.grad is None for model in models.values() for parameter in model.parameters())


def test_two_models_whose_parameters_have_one_name_are_refused() -> None:
    torch = pytest.importorskip("torch", reason="the torch adapter needs torch")
    outer, other = torch.nn.ModuleDict({"b": torch.nn.Linear(2, 2)}), torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*outer.parameters(), *other.parameters()], lr=0.1)
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        with pytest.raises(ValueError, match=r"two models have a parameter named 'model\.a\.b\.weight'"):
            coordinator.register({"a": outer, "a.b": other}, optimizer)


def test_schedulers_and_optimizers_that_cannot_be_agreed_on_are_refused() -> None:
    torch = pytest.importorskip("torch", reason="the torch adapter needs torch")
    model = torch.nn.Linear(2, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    cases = [
        (sgd, torch.optim.lr_scheduler.ReduceLROnPlateau(sgd), "its own metric"),
        (torch.optim.LBFGS(model.parameters()), None, "needs a closure"),
    ]
    for optimizer, scheduler, words in cases:
        with Coordinator(standalone=True, handle_signals=False) as coordinator:
            with pytest.raises(ValueError, match=words):
                coordinator.register(model, optimizer, scheduler)


items = st.lists(
    st.builds(
        Item,
        st.text(min_size=1, max_size=20),
        st.sampled_from(sorted(DTYPE_BYTES)),
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
    ),
    unique_by=lambda item: item.name,
    max_size=12,
)


@settings(deadline=None)
@given(items)
def test_spec_places_everything_aligned_without_overlap_and_passes_its_own_check(given_items: list[Item]) -> None:
    spec = state_spec(given_items)
    end = 0
    for tensor in spec.tensors:
        assert tensor.offset % ITEM_ALIGNMENT_BYTES == 0 and tensor.offset >= end
        end = tensor.offset + tensor.size_bytes
    assert spec.size_bytes - end < ITEM_ALIGNMENT_BYTES and spec.shard_bytes >= 4096
    assert spec_problem(spec, contribution_spec(3, 5)) == ""
    assert first_difference(spec, spec) == ""


@settings(deadline=None)
@given(items, items)
def test_first_difference_is_empty_exactly_if_the_digests_are_equal(one: list[Item], other: list[Item]) -> None:
    here, there = state_spec(one), state_spec(other)
    assert (first_difference(here, there) == "") == (here.digest == there.digest)


def test_spec_refuses_double_names_unknown_types_and_long_names() -> None:
    for bad, words in (
        ([Item("a", "float32", ()), Item("a", "float32", ())], "two arrays"),
        ([Item("a", "object", ())], "dtype object"),
        ([Item("a" * (NAME_CHARACTERS_MAX + 1), "float32", ())], "characters"),
    ):
        with pytest.raises(ValueError, match=words):
            state_spec(bad)
    long = fact("x" * 10_000)
    assert len(long.name) <= NAME_CHARACTERS_MAX and long.name != fact("x" * 10_001).name


def test_numpy_example_finds_the_line() -> None:
    script = Path(__file__).resolve().parents[3] / "examples" / "numpy_minimal" / "train.py"
    done = subprocess.run(
        [sys.executable, str(script), "--standalone", "--rounds", "200"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    found = re.fullmatch(r"after round 200: y = (\S+) x \+ (\S+)\n", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) == pytest.approx(3.0, abs=0.1) and float(found[2]) == pytest.approx(-1.0, abs=0.1)
