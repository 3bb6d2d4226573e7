"""What optimizers keep, and where: a joiner is sent it, or the script is told."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from chaos import ChangedOutside, Coordinator, EveryStep, LocalSGD
from chaos.sync import SyncMode
from chaos.testing import LocalRun

torch = pytest.importorskip("torch", reason="optimizers of torch")


class CountsInOptions(torch.optim.SGD):  # type: ignore[misc]
    """Its rate falls with a number that its first step puts among the options."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad, alpha=1.0 / group["count"])


class CountsByItself(torch.optim.SGD):  # type: ignore[misc]
    count = 0

    def step(self, closure: Any = None) -> None:
        self.count += 1
        for parameter in self.param_groups[0]["params"]:
            parameter.data.sub_(parameter.grad, alpha=1.0 / self.count)


class LooksAhead(torch.optim.SGD):  # type: ignore[misc]
    """Of every third step it makes an average, from the third on."""

    def step(self, closure: Any = None) -> None:
        super().step()
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["count"] = state.get("count", 0) + 1
            if state["count"] % 3 == 0:
                state["slow"] = state.get("slow", parameter.detach().clone()).lerp(parameter.detach(), 0.5)


class CountsForAll(torch.optim.SGD):  # type: ignore[misc]
    def step(self, closure: Any = None) -> None:
        super().step()
        self.state["all"] = {"count": 1}


class WantsAClosure(torch.optim.SGD):  # type: ignore[misc]
    def step(self, closure: Any = None) -> None:
        assert closure is not None, "this one minimizes sharpness: it requires a closure"


def backward(model: Any) -> None:
    model(torch.ones(1, 2)).square().sum().backward()


def made(kind: type, **more: Any) -> tuple[Any, Any, Coordinator]:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = kind(model.parameters(), lr=0.1)
    coordinator = Coordinator(verbose=False, handle_signals=False, **more)
    return model, optimizer, coordinator


@pytest.mark.parametrize("kind", [CountsInOptions, CountsByItself])
@pytest.mark.parametrize("sync", [EveryStep(), LocalSGD(every=2)], ids=["every step", "local steps"])
def test_numbers_that_a_step_counts_are_untouched_by_register(kind: type, sync: SyncMode) -> None:
    plain = torch.nn.Linear(2, 1)
    model, optimizer, coordinator = made(kind, standalone=True)
    plain.load_state_dict(model.state_dict())
    alone = kind(plain.parameters(), lr=0.1)
    with coordinator:
        coordinator.register(model=model, optimizer=optimizer, sync=sync)
        for _ in range(4):
            backward(model)
            coordinator.step()
            backward(plain)
            alone.step()
            alone.zero_grad()
    assert torch.allclose(model.weight, plain.weight)


@pytest.mark.parametrize("kind", [CountsInOptions, CountsByItself])
def test_numbers_that_a_step_counts_reach_a_joiner(kind: type) -> None:
    third, joined = threading.Event(), threading.Event()

    def first(socket: Path) -> dict[int, str]:
        model, optimizer, coordinator = made(kind, socket=socket)
        return trained(model, optimizer, coordinator, third, joined)

    def later(socket: Path) -> dict[int, str]:
        assert third.wait(60)
        model, optimizer, coordinator = made(kind, socket=socket)
        return trained(model, optimizer, coordinator, joined, joined)

    with LocalRun(sites=1) as run:
        one, other = run.together(first, later)
    common = set(one) & set(other)
    assert min(common) >= 3 and len(common) > 2 and all(one[round] == other[round] for round in common)


def trained(
    model: Any, optimizer: Any, coordinator: Coordinator, begun: threading.Event, enough: threading.Event
) -> dict[int, str]:
    """Digests by round, until five more after `enough`; `begun` is set after three."""
    digests: dict[int, str] = {}
    left = 5
    with coordinator:
        coordinator.register(model=model, optimizer=optimizer)
        while left:
            backward(model)
            coordinator.step()
            digests[coordinator.round] = coordinator.state_digest()
            if len(digests) == 3:
                begun.set()
            left -= enough.is_set()
    return digests


def test_state_that_comes_after_the_first_step_is_told_when_it_comes() -> None:
    model, optimizer, coordinator = made(LooksAhead, standalone=True)
    with coordinator:
        coordinator.register(model=model, optimizer=optimizer)
        for _ in range(3):
            backward(model)
            coordinator.step()
        with pytest.raises(ChangedOutside, match=r"LooksAhead.* keeps 'slow' .* by round 3, which its first step"):
            coordinator.step(skip=True)
    model, optimizer, coordinator = made(LooksAhead, standalone=True)
    with coordinator:  # each site's own
        coordinator.register(model=model, optimizer=optimizer, sync=LocalSGD(every=2))
        for _ in range(4):
            backward(model)
            coordinator.step()


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (CountsForAll, r"CountsForAll\) keeps state under 'all', which is none of its parameters"),
        (WantsAClosure, r"WantsAClosure\) cannot be averaged: .* fails: this one minimizes sharpness"),
    ],
)
def test_an_optimizer_that_cannot_be_shared_is_refused_in_a_sentence(kind: type, told: str) -> None:
    model, optimizer, coordinator = made(kind, standalone=True)
    with coordinator, pytest.raises(ValueError, match=told):
        coordinator.register(model=model, optimizer=optimizer)
