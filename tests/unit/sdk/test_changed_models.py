"""A model that gets layers after `register`, and parameters that a script changes and puts back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.sdk.fake_daemon import FakeDaemon
from torch import nn

from chaos import ChangedOutside, Coordinator, DiLoCo, EveryStep, LocalSGD
from chaos_protocols.wire.worker import (
    Dismissed,
    RoundContributed,
    SnapshotMissed,
    SnapshotTaken,
    TakeSnapshot,
    WorkerLeaveRequest,
)

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


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_model_that_torch_has_compiled_to_a_script_trains(capfd: pytest.CaptureFixture[str]) -> None:
    """Its dictionaries of modules have no `get`, so its second step ended with an AttributeError."""
    model = torch.jit.script(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(3):
            step(coordinator, model, EveryStep())
        assert coordinator.round == 3
    assert "came into" not in capfd.readouterr().err


def a_layer_without_parameters(model: Any) -> None:
    model[0].normal = nn.BatchNorm1d(2, affine=False)


def another_layer_in_its_place(model: Any) -> None:
    model[2] = nn.BatchNorm1d(1, affine=False)


def a_buffer(model: Any) -> None:
    model[0].register_buffer("seen", torch.zeros(1))


def a_buffer_that_was_none(model: Any) -> None:
    model[0].later = torch.zeros(1)


def a_buffer_that_is_saved_from_now_on(model: Any) -> None:
    model[0].register_buffer("own", torch.zeros(1))


@pytest.mark.parametrize("sync", [MODES["every step"], MODES["local steps"]], ids=("every step", "local steps"))
@pytest.mark.parametrize(
    ("add", "told"),
    [
        (a_layer_without_parameters, "the buffer 'model.0.normal.running_mean' and 2 more came"),
        (another_layer_in_its_place, "the buffer 'model.2.running_mean' and 2 more came"),
        (a_buffer, "the buffer 'model.0.seen' came"),
        (a_buffer_that_was_none, "the buffer 'model.0.later' came"),
        (a_buffer_that_is_saved_from_now_on, "the buffer 'model.0.own' came"),
    ],
    ids=lambda each: getattr(each, "__name__", "told"),
)
def test_a_buffer_that_came_after_register_is_told_once_by_its_name(
    sync: Any, add: Callable[[Any], None], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """No round averaged it, and no joiner was sent it, in silence."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1), nn.BatchNorm1d(1, affine=False))
    model[0].register_buffer("later", None)
    model[0].register_buffer("own", torch.zeros(1), persistent=False)
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.1), sync=sync)
        step(coordinator, model, sync)
        add(model)
        for _ in range(3):
            step(coordinator, model, sync)
    said = capfd.readouterr().err
    assert said.count(told) == 1 and said.count("came into the model") == 1
    assert "no joiner is sent it" in said and "persistent=False" in said


def test_a_layer_with_both_is_told_by_its_parameters_and_its_buffers(capfd: pytest.CaptureFixture[str]) -> None:
    model, _, coordinator = training(EveryStep())
    with coordinator:
        model[0].normal = nn.BatchNorm1d(2)
        step(coordinator, model, EveryStep())
    said = capfd.readouterr().err
    assert "the parameter 'model.0.normal.weight' and 1 more came into" in said
    assert "the buffer 'model.0.normal.running_mean' and 2 more came into" in said


def test_buffers_that_no_site_is_sent_may_come_and_go(capfd: pytest.CaptureFixture[str]) -> None:
    model, _, coordinator = training(EveryStep())
    with coordinator:
        for number in range(3):
            model[0].register_buffer(f"table{number}", torch.zeros(1), persistent=False)
            step(coordinator, model, EveryStep())
        del model[0].table1
        step(coordinator, model, EveryStep())
    assert "came into" not in capfd.readouterr().err


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


def of_a_leaver(socket_file: Path, sync: Any, change: Callable[[Any], None], kept: bool) -> None:
    """A round, the change, and what the script answers when it is asked for the last copy of the state."""

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        for round in (1, 2):
            daemon.expect(RoundContributed)
            daemon.apply(round)
        daemon.expect(WorkerLeaveRequest)
        daemon.send(TakeSnapshot(round=2, alone=True))
        daemon.expect(SnapshotTaken if kept else SnapshotMissed)
        daemon.send(Dismissed(last_round=2, graceful=True, reason="left the run"))

    with FakeDaemon(socket_file, script):
        model = nn.Linear(3, 2)
        with Coordinator(socket=socket_file, handle_signals=False) as coordinator:
            coordinator.register(model, CountsInAList(model.parameters(), lr=0.1), sync=sync)
            for _ in range(2):
                change(model)
                step(coordinator, model, sync)
            change(model)


class CountsInAList(torch.optim.SGD):
    """Of which something is told at its first step."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.counts = [*getattr(self, "counts", []), 1]
        super().step()


def doubled(model: Any) -> None:
    """A number that is not among those of which copies are kept."""
    with torch.no_grad():
        model.weight[1].mul_(2.0)


@pytest.mark.parametrize(
    ("sync", "change", "kept"),
    [
        (EveryStep(), doubled, False),
        (LocalSGD(every=1), doubled, True),
        (EveryStep(), lambda model: model.register_module("more", nn.Linear(1, 1)), True),
    ],
    ids=["every step", "local steps", "a layer more"],
)
def test_a_leaver_gives_the_last_copy_of_the_state_where_it_has_it_whatever_it_was_told_before(
    sync: Any, change: Callable[[Any], None], kept: bool, socket_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    of_a_leaver(socket_file, sync, change, kept)
    assert ("no copy of this state is kept: " in capfd.readouterr().err) is not kept
