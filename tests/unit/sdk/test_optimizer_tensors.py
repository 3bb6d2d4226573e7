"""Tensors that an optimizer refers to from several places, or keeps beside its parameters."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from chaos import Coordinator, DiLoCo, EveryStep, LocalSGD
from chaos.sync import SyncMode
from chaos.testing import LocalRun

torch = pytest.importorskip("torch", reason="optimizers of torch")


class ThroughABuffer(torch.optim.Optimizer):  # type: ignore[misc]
    """As Muon: what it has worked out goes through a buffer among its options, and comes back through a view of it."""

    def __init__(self, parameters: Any, lr: float) -> None:
        parameters = list(parameters)
        buffer = torch.full((max(p.numel() for p in parameters),), 7.0)
        super().__init__([{"params": parameters, "buffer": buffer, "views": [buffer[:]]}], {"lr": lr})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                group["buffer"][: p.numel()].copy_(p.grad.reshape(-1))
                p.sub_(group["views"][0][: p.numel()].view_as(p), alpha=group["lr"])


class ListsItsState(torch.optim.Optimizer):  # type: ignore[misc]
    """What it keeps is in the state of its parameters from the beginning, and in a list of its own."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        for p in self.param_groups[0]["params"]:
            self.state[p]["moment"] = torch.zeros_like(p)
        self.moments = [self.state[p]["moment"] for p in self.param_groups[0]["params"]]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        for p, moment in zip(self.param_groups[0]["params"], self.moments, strict=True):
            p.sub_(moment.mul_(0.9).add_(p.grad), alpha=self.param_groups[0]["lr"])


class HasScratch(torch.optim.SGD):  # type: ignore[misc]
    """A flag that its step writes, in an attribute, as the fused optimizers of apex have."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.flag = torch.zeros(1)

    def step(self, closure: Any = None) -> None:
        self.flag.copy_(self.param_groups[0]["params"][0].grad.reshape(-1)[:1])
        super().step()


class LooksAhead(torch.optim.Optimizer):  # type: ignore[misc]
    """A wrapper that shows the state of another one as its own, under two names."""

    def __init__(self, parameters: Any, lr: float, *, shows: bool = True) -> None:
        self.inner = torch.optim.Adam(parameters, lr=lr)
        self.param_groups, self.defaults = self.inner.param_groups, self.inner.defaults
        self.fast_state = self.inner.state
        self.state = self.inner.state if shows else {}

    def step(self, closure: Any = None) -> None:
        self.inner.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)


class HasMasters(torch.optim.Optimizer):  # type: ignore[misc]
    """Steps copies of its parameters with more bits, and writes them over the parameters."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            master = self.state[p].setdefault("master", p.detach().double().clone())
            p.copy_(master.sub_(p.grad.double(), alpha=self.param_groups[0]["lr"]))


def shown(parameters: Any, lr: float) -> Any:
    """As the error says: one line of the script, and none of the library's."""
    optimizer = HasScratch(parameters, lr)
    optimizer.param_groups[0]["kept"] = optimizer.flag
    return optimizer


def backward(model: Any, number: int) -> None:
    inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
    model(inputs).square().sum().backward()


def linear() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Linear(3, 2)


def coordinator_of(socket: Path | None = None) -> Coordinator:
    return Coordinator(socket, standalone=socket is None, verbose=False, handle_signals=False)


@pytest.mark.parametrize("kind", [ThroughABuffer, ListsItsState, shown])
def test_a_step_with_the_coordinator_is_the_optimizers_own(kind: Any) -> None:
    """Also where a tensor is referred to from two places: register() tries a step, and puts back what it changed."""
    alone, model = linear(), linear()
    own, optimizer = kind(alone.parameters(), lr=0.1), kind(model.parameters(), lr=0.1)
    with coordinator_of() as coordinator:
        coordinator.register(model=model, optimizer=optimizer)
        for number in range(3):
            backward(alone, number)
            own.step()
            own.zero_grad()
            backward(model, number)
            coordinator.step()
            for one, other in zip(alone.parameters(), model.parameters(), strict=True):
                assert torch.equal(one, other)


@pytest.mark.parametrize("kind", [ThroughABuffer, ListsItsState, shown, LooksAhead])
@pytest.mark.parametrize(
    "sync", [EveryStep(), LocalSGD(every=2), DiLoCo(every=2)], ids=lambda sync: type(sync).__name__
)
def test_sites_share_one_state_and_a_joiner_has_it(kind: Any, sync: SyncMode) -> None:
    """Whatever each site's own steps have left in a tensor among its options."""
    begun, last = threading.Event(), [1_000_000]

    def site(number: int) -> Any:
        def train(socket: Path) -> tuple[str, list[Any]]:
            if number == 2:
                assert begun.wait(60)
            model = linear()
            with coordinator_of(socket) as coordinator:
                try:
                    coordinator.register(model=model, optimizer=kind(model.parameters(), lr=0.05), sync=sync)
                except BaseException:
                    begun.set()
                    raise
                if number == 2:
                    last[0] = coordinator.round + 4  # the others wait for it in its next round
                while coordinator.round < last[0]:
                    backward(model, 100 * number + coordinator.round)
                    coordinator.step()
                    if coordinator.round >= 3:
                        begun.set()
                with coordinator.common_model():
                    return coordinator.state_digest(), [p.detach().tolist() for p in model.parameters()]

        return train

    with LocalRun(sites=2) as run:
        one, two, three = run.together(site(0), site(1), site(2))
    assert one == two == three


def test_a_tensor_in_an_attribute_is_refused_with_the_line_that_shows_it() -> None:
    model = linear()
    with (
        coordinator_of() as coordinator,
        pytest.raises(ValueError, match=r"param_groups\[0\]\['kept'\] = optimizer.flag"),
    ):
        coordinator.register(model=model, optimizer=HasScratch(model.parameters(), lr=0.1))


def test_a_wrapper_that_hides_the_state_of_another_is_told_so_whichever_other_name_it_has() -> None:
    model = linear()
    with coordinator_of() as coordinator, pytest.raises(ValueError, match=r"keeps its state .* 'inner' \(Adam\)"):
        coordinator.register(model=model, optimizer=LooksAhead(model.parameters(), lr=0.1, shows=False))


@pytest.mark.parametrize(
    "sync", [LocalSGD(every=2), DiLoCo(every=2, fragments=2)], ids=lambda sync: type(sync).__name__
)
def test_with_local_steps_copies_that_are_written_over_the_parameters_are_refused(sync: SyncMode) -> None:
    """The copies are each site's own, so what a round makes of the parameters would be lost at the next step."""
    model = linear()
    with coordinator_of() as coordinator, pytest.raises(ValueError, match=r"HasMasters\) .*'model\.weight'.*EveryStep"):
        coordinator.register(model=model, optimizer=HasMasters(model.parameters(), lr=0.1), sync=sync)


def test_with_every_step_copies_of_the_parameters_belong_to_the_state() -> None:
    model = linear()
    with coordinator_of() as coordinator:
        coordinator.register(model=model, optimizer=HasMasters(model.parameters(), lr=0.1))
        backward(model, 0)
        coordinator.step()
        assert any(entry.item.name.endswith("weight.master") for entry in coordinator._registered().items)
