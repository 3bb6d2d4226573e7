"""A model that gets layers after `register`, and parameters that a script changes and puts back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from chaos import ChangedOutside, Coordinator, DiLoCo, EveryStep, LocalSGD

MODES = {
    "every step": EveryStep(),
    "overlap": EveryStep(overlap=True),
    "local steps": LocalSGD(every=2),
    "streaming": DiLoCo(every=4, fragments=2, delay=1),
}
in_every_mode = pytest.mark.parametrize("sync", MODES.values(), ids=MODES)


def step(coordinator: Coordinator, model: Any, sync: Any, inputs: Any = None) -> None:
    loss = model(torch.ones(4, 3) if inputs is None else inputs).square().sum()
    if sync is MODES["overlap"]:
        with coordinator.overlap():
            loss.backward()
    else:
        loss.backward()
    coordinator.step()


def training(sync: Any, **more: Any) -> tuple[Any, Any, Coordinator]:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    coordinator = Coordinator(standalone=True, handle_signals=False)
    coordinator.register(model, optimizer, sync=sync, **more)
    step(coordinator, model, sync)
    return model, optimizer, coordinator


@in_every_mode
def test_a_layer_that_is_added_after_register_is_told_at_its_first_gradient(sync: Any) -> None:
    model, _, coordinator = training(sync)
    model.append(nn.Linear(1, 1))
    if sync is MODES["overlap"]:  # looked at before the pass
        step(coordinator, model, sync)
    with coordinator, pytest.raises(ChangedOutside, match=r"'model\.2\.weight' came into the model after register\(\)"):
        step(coordinator, model, sync)


@in_every_mode
def test_a_layer_that_is_not_trained_is_told_once(sync: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """A copy for an average, say."""
    model, _, coordinator = training(sync)
    with coordinator:
        model[0].average = copy.deepcopy(model[1])
        for _ in range(3):
            step(coordinator, model, sync)
    told = capfd.readouterr().err
    assert told.count("'model.0.average.weight' and 1 more came into the model") == 1 and "by round" in told


def test_a_layer_that_goes_to_another_place_is_no_harm(capfd: pytest.CaptureFixture[str]) -> None:
    sync = EveryStep()
    model, _, coordinator = training(sync)
    with coordinator:
        model[0] = nn.Sequential(model[0], nn.Dropout(0.5))
        for _ in range(2):
            step(coordinator, model, sync)
    assert "came into" not in capfd.readouterr().err


class Swaps(torch.optim.SGD):
    """Schedule-free: what is evaluated is another point than what is trained, and `train()` puts that back but for its
    last bits."""

    @torch.no_grad()
    def eval(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.lerp_(self.state[p]["moving"], -0.1)

    @torch.no_grad()
    def train(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.lerp_(self.state[p]["moving"], 1.0 / 11.0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("moving", p.detach().clone()).sub_(p.grad, alpha=0.01)
            p.sub_(p.grad, alpha=0.005)


def swapping(sync: Any, **more: Any) -> tuple[Any, Any, Coordinator]:
    model = nn.Linear(3, 2)
    optimizer = Swaps(model.parameters(), lr=0.1)
    coordinator = Coordinator(standalone=True, handle_signals=False)
    coordinator.register(model, optimizer, sync=sync, **{k: hook(optimizer) for k, hook in more.items()})
    return model, optimizer, coordinator


@pytest.mark.parametrize(
    ("sync", "told"),
    [(EveryStep(), "say both in on_update="), (LocalSGD(every=2), "goes into what this site gives to the next round")],
    ids=["every step", "local steps"],
)
def test_an_optimizer_that_swaps_weights_for_an_evaluation_is_told_once(
    sync: Any, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    model, optimizer, coordinator = swapping(sync)
    with coordinator:
        for _ in range(4):
            step(coordinator, model, sync)
            optimizer.eval()
            optimizer.train()
    text = capfd.readouterr().err
    assert text.count("changed after round") == 1 and told in text


def test_where_both_are_said_in_on_update_nothing_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    def evaluates(optimizer: Any) -> Callable[[Any], None]:
        def hook(update: Any) -> None:
            optimizer.eval()
            optimizer.train()

        return hook

    sync = EveryStep()
    model, _, coordinator = swapping(sync, on_update=evaluates)
    with coordinator:
        for _ in range(4):
            step(coordinator, model, sync)
    assert "changed" not in capfd.readouterr().err


def test_other_parameters_that_are_changed_later_are_told_too(capfd: pytest.CaptureFixture[str]) -> None:
    sync = EveryStep()
    model, _, coordinator = training(sync)
    with coordinator:
        for layer in (model[0], model[0], model[1]):
            with torch.no_grad():
                layer.bias.add_(1.0)
            step(coordinator, model, sync)
    told = capfd.readouterr().err
    assert told.count("'model.0.bias' was changed") == told.count("'model.1.bias' was changed") == 1
