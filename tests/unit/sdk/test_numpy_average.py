"""What `apply` gets from the numpy framework: the average where it lies, not a copy in fresh memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from chaos import ChangedOutside, Coordinator, EveryStep, LocalSGD
from chaos.frameworks.base import What
from chaos.frameworks.numpy import NumpyFramework


def test_apply_reads_the_average_where_it_lies_and_cannot_write_to_it() -> None:
    """A copy would be fresh memory in every round: hundreds of page faults for a model of some size."""
    seen: list[np.ndarray] = []

    def apply(averaged: Mapping[str, np.ndarray], round: int) -> None:
        seen.append(averaged["w"])
        assert averaged["w"].tolist() == [1.0, 2.0, 3.0]
        with pytest.raises(ValueError, match="read-only"):
            averaged["w"][0] = 5.0

    arrays: dict[str, Any] = {"w": np.zeros(3, dtype=np.float32)}
    framework = NumpyFramework(arrays, apply, None)
    for round in (1, 2):
        framework.write(What.GRADIENT, framework.slots, np.array([1.0, 2.0, 3.0], dtype=np.float32).view(np.uint8))
        framework.optimizer_step(round)
    assert np.shares_memory(seen[0], framework.gradients["w"])
    assert seen[0] is seen[1]
    assert framework.gradients["w"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("keeper", ["arrays", "gradients", "coordinator.gradients"])
def test_an_array_in_the_place_of_a_registered_one_is_told_with_what_to_write(keeper: str) -> None:
    """A round would average, or keep, numbers that nobody looks at."""
    arrays, gradients = {"w": np.zeros(3)}, {"w": np.zeros(3)}

    def apply(averaged: Mapping[str, np.ndarray], round: int) -> None:
        if keeper == "arrays" and round == 2:
            arrays["w"] = arrays["w"] - averaged["w"]
        else:
            arrays["w"] -= averaged["w"]

    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        coordinator.register(arrays=arrays, apply=apply, gradients=gradients)
        for _ in range(2):
            gradients["w"] += 1.0
            coordinator.step()
        if keeper != "arrays":
            filled = gradients if keeper == "gradients" else coordinator.gradients
            filled["w"] = np.ones(3)
        with pytest.raises(ChangedOutside, match=rf"^{keeper}\['w'\] is not the array.* {keeper}\['w'\]\[\.\.\.\] = "):
            coordinator.step()


def test_an_array_of_objects_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'words' holds Python objects"):
        NumpyFramework({"w": np.zeros(3), "words": np.array([None])}, lambda averaged, round: None, None)


@pytest.mark.parametrize("sync", [EveryStep(), LocalSGD(every=2)])
def test_gradients_that_are_the_arrays_themselves_are_refused(sync: EveryStep | LocalSGD) -> None:
    """Meant to average the arrays: after each round they were 0."""
    memory = np.ones(6)
    arrays = {"a": memory[:2], "b": memory[2:4], "c": memory[4:]}
    for gradients in (arrays, {"a": memory[3:5]}, {"b": memory}):
        with Coordinator(standalone=True, verbose=False) as coordinator:
            with pytest.raises(ValueError, match=r"lies in the memory of the array '[ab]'.*LocalSGD"):
                coordinator.register(arrays=arrays, apply=lambda mean, _: None, gradients=gradients, sync=sync)
    with Coordinator(standalone=True, verbose=False) as coordinator:  # side by side is apart
        coordinator.register(
            arrays={"a": memory[:3]}, apply=lambda mean, _: None, gradients={"a": memory[3:]}, sync=sync
        )


@pytest.mark.parametrize("array", [np.zeros(1), np.zeros((2, 2)), np.zeros(4, dtype=np.int64)])
def test_local_steps_need_arrays_in_the_form_of_their_gradients(array: np.ndarray) -> None:
    """A smaller one would be given as if it were as long; whole numbers would lose what is averaged."""
    framework = NumpyFramework({"w": array}, lambda averaged, round: None, {"w": np.zeros(4)})
    with pytest.raises(ValueError, match=r"array 'w' is .* its gradient float64\[4\]: .* one shape"):
        framework.local_training()
