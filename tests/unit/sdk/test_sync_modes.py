"""The seam between a training and its rounds: another mode than the present one needs neither the Coordinator nor a
framework changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.sdk.fake_daemon import FakeDaemon

from chaos import Coordinator
from chaos.frameworks import Framework, NumpyFramework, Slot, What
from chaos.frameworks.base import Bytes, StateItem, in_vector_order, number_item
from chaos.state import State
from chaos.sync import Due, EveryStep, Part
from chaos_protocols.rounds.state_check import middle
from chaos_protocols.wire.state_spec import contribution_spec
from chaos_protocols.wire.user_words import StateDiffered
from chaos_protocols.wire.worker import (
    ApplyResult,
    LoadState,
    ResultApplied,
    RoundContributed,
    StateDigests,
    StateLoaded,
    TrainFrom,
    UpdateStarted,
    WorkerWelcome,
)


class LocalSteps:
    """Local SGD: `every` optimizer steps at home, then the mean of the differences from the last common parameters."""

    def __init__(self, every: int) -> None:
        self.every = every

    def facts(self) -> Sequence[str]:
        return (f"sync: local steps every={self.every}",)

    def start(self, framework: Framework) -> LocalStepsSession:
        return LocalStepsSession(framework, self.every)


class LocalStepsSession:
    """Shared: the anchor, which only a result changes. The live parameters are this site's own between rounds."""

    def __init__(self, framework: Framework, every: int) -> None:
        self._framework, self._every = framework, every
        self._slots: Sequence[Slot] = in_vector_order(framework.slots)
        self._steps, self._samples, self._local = 0, 0.0, 0
        self.agreed, self.notice = None, ""
        self.contribution = contribution_spec(sum(slot.count for slot in self._slots), 0)
        self.anchor = self._live()
        self.items: Sequence[StateItem] = [
            number_item(f"anchor.{index}", lambda i=index: float(self.anchor[i]), lambda v, i=index: self._put(i, v))
            for index in range(self.anchor.size)
        ]

    def check(self, part: Part) -> None:
        if part != Part(samples=part.samples):
            raise ValueError("local steps have no phases")

    def stepped(self, part: Part) -> Due:
        self.check(part)
        self._local += 1
        self._framework.optimizer_step(self._local)
        self._steps, self._samples = self._steps + 1, self._samples + part.samples
        return Due.ROUND if self._steps == self._every else Due.NOTHING

    def contribute(self, vector: Bytes, round: int) -> float:
        vector.view(np.float64)[...] = self.anchor - self._live()
        return self._samples

    def averaged_over(self, weight: float) -> None:
        """Nothing hangs on it."""

    def withheld(self) -> None:
        """Nothing hangs on it."""

    def average(self, vector: Bytes) -> None:
        """The mean of the differences is no gradient: there is nothing to show."""

    def apply(self, vector: Bytes, round: int) -> None:
        self.anchor -= vector.view(np.float64)
        self.reset(round)

    def skip(self, round: int) -> None:
        self.reset(round)

    def name_at(self, start: int) -> str:
        return f"number {start // 8}"

    def apply_alone(self, round: int) -> str:
        vector = np.zeros(self.contribution.size_bytes, dtype=np.uint8)
        self.contribute(vector, round)
        self.apply(vector, round)
        return ""

    def reset(self, round: int) -> None:
        self._steps, self._samples = 0, 0.0
        self._framework.write(What.VALUE, self._slots, self.anchor.view(np.uint8))

    def _live(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        out = np.zeros(self.contribution.size_bytes, dtype=np.uint8)
        self._framework.read(What.VALUE, self._slots, out)
        return out.view(np.float64)

    def _put(self, index: int, value: float) -> None:
        self.anchor[index] = value


class Descent:
    """Three float64 weights that go down by their gradient at every optimizer step."""

    def __init__(self, path: Path | None, every: int) -> None:
        self.weights = np.zeros(3)
        self.coordinator = Coordinator(
            path, standalone=path is None, verbose=False, handle_signals=False, reconnect_s=0
        )
        self.coordinator.register(arrays={"weights": self.weights}, apply=self.apply, sync=LocalSteps(every))

    def apply(self, averaged: Mapping[str, Any], round: int) -> None:
        self.weights -= averaged["weights"]

    def step(self, gradient: float, samples: int | None = None) -> bool:
        self.coordinator.gradients["weights"][...] = gradient
        return self.coordinator.step(samples)


def test_mode_with_local_steps_contributes_at_every_third_step_only(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        contributed = daemon.expect(RoundContributed)
        assert contributed.weight == 6.0, "the samples of the whole local phase"
        assert daemon.array("contribution", np.float64).tolist() == [3.0] * 3, "how far it went from the anchor"
        daemon.array("result", np.float64)[...] = 3.0
        daemon.apply(1)
        daemon.expect(RoundContributed)
        daemon.array("result", np.float64)[...] = 1.0  # the others hardly moved
        daemon.apply(2)

    with FakeDaemon(socket_file, script):
        descent = Descent(socket_file, every=3)
        for _ in range(2):
            assert descent.step(1.0, samples=2) and descent.coordinator.round == 0
        assert descent.step(1.0, samples=2) and descent.coordinator.round == 1
        assert descent.weights.tolist() == [-3.0] * 3
        for _ in range(3):
            assert descent.step(5.0)
        assert descent.coordinator.round == 2 and descent.weights.tolist() == [-4.0] * 3
        descent.coordinator.close(graceful=False)


def test_state_that_is_loaded_replaces_what_a_local_phase_has_done(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.accept()
        daemon.send(WorkerWelcome(site="here", run="test"))
        daemon.array("state", np.float64)[...] = 7.0
        daemon.send(LoadState(round=4))
        daemon.expect(StateLoaded)
        daemon.send(TrainFrom(round=5))
        daemon.echo_round()

    with FakeDaemon(socket_file, script):
        descent = Descent(socket_file, every=2)
        assert descent.weights.tolist() == [7.0] * 3
        assert descent.step(1.0) and descent.step(1.0)
        assert descent.coordinator.round == 5 and descent.weights.tolist() == [5.0] * 3
        descent.coordinator.close(graceful=False)


def test_the_same_mode_runs_alone() -> None:
    descent = Descent(None, every=2)
    for _ in range(4):
        assert descent.step(1.0)
    assert descent.coordinator.round == 2 and descent.weights.tolist() == [-4.0] * 3
    descent.coordinator.close()


def test_every_step_averages_every_step_and_says_nothing_about_itself() -> None:
    weights = np.zeros(2, dtype=np.float32)
    framework = NumpyFramework({"w": weights}, lambda averaged, round: weights.__isub__(averaged["w"]), None)
    session = EveryStep().start(framework)
    assert EveryStep().facts() == () and session.stepped(Part(samples=4.0)) is Due.ROUND
    framework.gradients["w"][...] = 1.5
    vector = np.zeros(session.contribution.size_bytes, dtype=np.uint8)
    assert session.contribute(vector, 1) == 4.0 and vector.view(np.float32).tolist() == [1.5, 1.5]
    session.apply(np.full(2, 0.5, dtype=np.float32).view(np.uint8), 1)
    assert weights.tolist() == [-0.5, -0.5] and framework.gradients["w"].tolist() == [0.0, 0.0]


def test_gradient_without_an_array_of_its_name_has_no_value() -> None:
    framework = NumpyFramework({"w": np.zeros(2)}, lambda averaged, round: None, {"other": np.zeros(2)})
    with pytest.raises(ValueError, match="'other' belongs to no registered array"):
        framework.read(What.VALUE, framework.slots, np.zeros(16, dtype=np.uint8))


def test_memory_is_warmed_without_changing_a_bit() -> None:
    arrays = {"a": np.arange(5000, dtype=np.float64), "b": np.full(3, -1, dtype=np.int8), "c": np.zeros(0)}
    before = {name: array.copy() for name, array in arrays.items()}
    state = State(NumpyFramework(arrays, lambda averaged, round: None, None).items)
    assert len(list(state.warm_up())) == 1, "a piece for each array of a page or more: small ones share their pages"
    assert all(np.array_equal(arrays[name], before[name]) for name in arrays)


def test_digests_of_any_piece_are_those_of_the_arrays_in_it() -> None:
    """What sites compare: the same bytes give the same digests, another byte another one, and one array has a name."""
    arrays = {"a": np.arange(5, dtype=np.int8), "b": np.arange(40, dtype=np.float64), "c": np.full(3, 7, dtype=np.int8)}
    state = State(NumpyFramework(arrays, lambda averaged, round: None, None).items)
    size = state.spec.size_bytes
    assert [tensor.offset for tensor in state.spec.tensors[:3]] == [0, 8, 328] and size == 336
    whole = state.digests(0, size)
    assert whole.array == "" and whole == state.digests(0, size)
    assert [state.digests(*piece).array for piece in ((0, 8), (8, 328), (16, 24), (328, 336), (0, 16))] == [
        "a", "b", "b", "c", "",
    ]  # fmt: skip
    arrays["b"][30] += 1.0
    changed = state.digests(0, size)
    assert changed.first == whole.first and changed.second != whole.second
    assert state.digests(8, 248) == State(NumpyFramework(arrays, lambda averaged, round: None, None).items).digests(
        8, 248
    )
    found = (0, size)
    while found[1] - found[0] > 8:  # as the sites do it
        cut = middle(found)
        differs = state.digests(*found).first != reference_digests(found).first
        found = (found[0], cut) if differs else (cut, found[1])
    assert found == (8 + 30 * 8, 8 + 31 * 8) and state.digests(*found).array == "b"


def reference_digests(piece: tuple[int, int]) -> StateDigests:
    arrays = {"a": np.arange(5, dtype=np.int8), "b": np.arange(40, dtype=np.float64), "c": np.full(3, 7, dtype=np.int8)}
    return State(NumpyFramework(arrays, lambda averaged, round: None, None).items).digests(*piece)


def test_a_worker_answers_what_its_daemon_asks_for(socket_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(RoundContributed)
        daemon.array("result", np.float64)[...] = 1.0
        daemon.send(ApplyResult(round=1, sites=3, weight=3.0, digest=(0, 8)))
        daemon.expect(UpdateStarted)
        applied = daemon.expect(ResultApplied)
        assert applied.digests is not None and applied.digests.array == "anchor.0"
        daemon.send(StateDiffered(round=1, array="anchor.0", reason="its state of round 1 is not that of 2 others"))
        daemon.expect(RoundContributed)
        daemon.apply(2)

    with FakeDaemon(socket_file, script):
        weights = np.zeros(3)
        coordinator = Coordinator(socket_file, handle_signals=False, reconnect_s=0)
        coordinator.register(arrays={"weights": weights}, apply=lambda mean, _: None, sync=LocalSteps(1))
        assert coordinator.step() and coordinator.step()
        coordinator.close(graceful=False)
    assert "is not that of 2 others" in capfd.readouterr().err
