"""What an optimizer keeps beside its parameters' state and its options: in lists, and in optimizers within it."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaos import Coordinator, EveryStep, LocalSGD
from chaos.testing import LocalRun

torch = pytest.importorskip("torch", reason="optimizers of torch")


class CountsInLists(torch.optim.SGD):  # type: ignore[misc]
    """Its rate falls with its steps, which it counts wherever it likes."""

    def __init__(self, parameters: Any, lr: float, counts: Any = None) -> None:
        super().__init__(parameters, lr=lr)
        self.counts = counts

    def step(self, closure: Any = None) -> None:
        if isinstance(self.counts, deque):
            self.counts.append(0.5)
        elif isinstance(self.counts, dict):
            self.counts["steps"][0] += 1
        else:
            self.counts[0] += 1
        super().step()


class KeepsOneWithin(torch.optim.Optimizer):  # type: ignore[misc]
    """Slow weights of its own from the beginning on, and all else in an optimizer within it."""

    def __init__(self, parameters: Any, lr: float) -> None:
        self.inner = torch.optim.Adam(parameters, lr=lr)
        super().__init__(self.inner.param_groups, {"lr": lr})
        for p in self.param_groups[0]["params"]:
            self.state[p]["slow"] = p.detach().clone()

    def step(self, closure: Any = None) -> None:
        self.inner.step()


class CountsSteps(torch.optim.SGD):  # type: ignore[misc]
    count = 0

    def step(self, closure: Any = None) -> None:
        self.count += 1
        super().step()


def linear() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Linear(3, 2)


def trained(model: Any, coordinator: Coordinator, steps: int = 3) -> None:
    for _ in range(steps):
        model(torch.ones(4, 3)).sum().backward()
        coordinator.step()


@pytest.mark.parametrize(
    ("counts", "place"),
    [
        ([0, "a name"], r"'counts[0]'"),
        ({"steps": [0]}, r"""counts['steps'][0]"""),
        (deque([0.1]), r"'counts[1]'"),
        (np.zeros(2), "'counts'"),
    ],
    ids=["list", "dict", "history", "array"],
)
def test_numbers_in_lists_are_told_once_where_they_would_be_missed(
    counts: Any, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for sync, times in ((EveryStep(), 1), (LocalSGD(every=2), 0)):
        model = linear()
        with Coordinator(standalone=True, handle_signals=False) as coordinator:
            coordinator.register(model, CountsInLists(model.parameters(), lr=0.1, counts=counts), sync=sync)
            trained(model, coordinator)
        told = capfd.readouterr().err
        assert told.count("keeps a number in") == times and (not times or place in told)


@pytest.mark.parametrize("sync", [EveryStep(), LocalSGD(every=2)], ids=lambda sync: type(sync).__name__)
def test_register_leaves_such_numbers_as_they_are(sync: Any) -> None:
    """It tries steps."""
    model, counts, history, array = linear(), {"steps": [4]}, deque([0.1]), np.zeros(2)
    for each in (counts, history, array):
        optimizer = CountsInLists(model.parameters(), lr=0.1, counts=each)
        with Coordinator(standalone=True, verbose=False, handle_signals=False) as coordinator:
            coordinator.register(model, optimizer, sync=sync)
        assert optimizer.counts is each
    assert counts == {"steps": [4]} and list(history) == [0.1] and not array.any()


@pytest.mark.parametrize("sync", [EveryStep(), LocalSGD(every=2)], ids=lambda sync: type(sync).__name__)
def test_one_within_is_found_also_where_the_outer_one_has_state_from_its_making_on(sync: Any) -> None:
    model = linear()
    with Coordinator(standalone=True, verbose=False, handle_signals=False) as coordinator:
        with pytest.raises(ValueError, match=r"KeepsOneWithin\) keeps its state in an optimizer of its own, 'inner'"):
            coordinator.register(model, KeepsOneWithin(model.parameters(), lr=0.1), sync=sync)


def test_a_site_that_has_loaded_a_checkpoint_and_a_fresh_one_train_the_same() -> None:
    """The state of the parameters is there at one of them, and what a step counts elsewhere is not."""

    def site(checkpoint: Any) -> Any:
        def train(socket: Path) -> tuple[int, str]:
            model = linear()
            optimizer = CountsSteps(model.parameters(), lr=0.1, momentum=0.9)
            if checkpoint is not None:
                optimizer.load_state_dict(checkpoint)
            with Coordinator(socket=socket, verbose=False, handle_signals=False) as coordinator:
                coordinator.register(model, optimizer)
                trained(model, coordinator)
                return optimizer.count, coordinator.state_digest()

        return train

    model = linear()
    optimizer = CountsSteps(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    with LocalRun(sites=2) as run:
        first, second = run.together(site(optimizer.state_dict()), site(None))
    assert first == second and first[0] == 3
