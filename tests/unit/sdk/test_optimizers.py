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


class KeepsItsOwn(torch.optim.SGD):  # type: ignore[misc]
    """Moments in a list of its own, as many that are written by hand have them."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(list(parameters), lr)
        self.moments = [torch.zeros_like(each) for each in self.param_groups[0]["params"]]

    def step(self, closure: Any = None) -> None:
        for parameter, moment in zip(self.param_groups[0]["params"], self.moments, strict=True):
            moment.mul_(0.9).add_(parameter.grad)
            parameter.data.sub_(moment, alpha=0.1)


class Wraps(torch.optim.Optimizer):  # type: ignore[misc]
    """Has another one do the work, as `ZeroRedundancyOptimizer` does; `shown`: as its own state."""

    shown = False

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(list(parameters), {"lr": lr})
        self.inner = [torch.optim.AdamW(self.param_groups, lr=lr)]
        if self.shown:
            self.state = self.inner[0].state

    def step(self, closure: Any = None) -> None:
        self.inner[0].step()


class WrapsAndShows(Wraps):
    shown = True


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
        (KeepsItsOwn, r"KeepsItsOwn\) keeps a tensor in its attribute 'moments\[0\]', which its step\(\) has changed"),
        (Wraps, r"Wraps\) keeps its state in an optimizer of its own, 'inner\[0\]' \(AdamW\)"),
        (WantsAClosure, r"WantsAClosure\) cannot be averaged: .* fails: this one minimizes sharpness"),
    ],
)
def test_an_optimizer_that_cannot_be_shared_is_refused_in_a_sentence(kind: type, told: str) -> None:
    model, optimizer, coordinator = made(kind, standalone=True)
    with coordinator, pytest.raises(ValueError, match=told):
        coordinator.register(model=model, optimizer=optimizer)


def test_an_optimizer_of_a_process_group_is_refused_with_the_one_that_does_its_work(tmp_path: Path) -> None:
    from torch import distributed
    from torch.distributed.optim import ZeroRedundancyOptimizer

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        model = torch.nn.Linear(2, 1)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
        with Coordinator(standalone=True, verbose=False, handle_signals=False) as coordinator:
            with pytest.raises(ValueError, match=r"ZeroRedundancyOptimizer\) keeps its state .* 'optim' \(AdamW\)"):
                coordinator.register(model=model, optimizer=optimizer)
    finally:
        distributed.destroy_process_group()


def test_one_that_shows_the_state_of_another_as_its_own_is_trained() -> None:
    model, optimizer, coordinator = made(WrapsAndShows, standalone=True)
    with coordinator:
        coordinator.register(model=model, optimizer=optimizer)
        assert any("exp_avg" in entry.item.name for entry in coordinator._registered().items)
        before = model.weight.detach().clone()
        backward(model)
        coordinator.step()
        assert not torch.equal(model.weight, before)


def test_a_state_parameter_or_buffer_that_is_made_of_other_tensors_is_refused_by_name() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    def two() -> Any:
        return TwoTensor(torch.zeros(1, 2), torch.zeros(1, 2))

    class InPairs(torch.optim.SGD):  # type: ignore[misc]
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter].setdefault("pair", two())

    def refused(told: str, kind: type = torch.optim.SGD, **there: Any) -> None:
        model = torch.nn.Linear(2, 1)
        for name, tensor in there.items():
            model._parameters.pop(name, None)
            keep = model.register_parameter if isinstance(tensor, torch.nn.Parameter) else model.register_buffer
            keep(name, tensor)
        with Coordinator(standalone=True, verbose=False, handle_signals=False) as coordinator:
            with pytest.raises(ValueError, match=told):
                coordinator.register(model=model, optimizer=kind(model.parameters(), lr=0.1))

    refused("'pair' of 'model.weight' is a TwoTensor; only plain tensors", InPairs)
    refused("'model.weight' is a TwoTensor, which is made of other tensors", weight=torch.nn.Parameter(two()))
    refused("'model.scales' is a TwoTensor, which is made of other tensors", scales=two())


def test_code_for_the_same_step_may_be_chosen_by_each_site() -> None:
    """A site with a device takes the fused one, say."""

    def script(**chosen: Any) -> Any:
        def train(socket: Path) -> int:
            torch.manual_seed(0)
            model = torch.nn.Linear(2, 1)
            with Coordinator(socket=socket, verbose=False, handle_signals=False) as coordinator:
                coordinator.register(model, torch.optim.AdamW(model.parameters(), lr=0.1, **chosen))
                for _ in range(3):
                    backward(model)
                    coordinator.step()
                return coordinator.round

        return train

    with LocalRun(sites=3) as run:
        assert run.together(script(), script(fused=True), script(foreach=False)) == [3, 3, 3]
