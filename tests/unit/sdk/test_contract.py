"""The contract of a training with its rounds: average and update, functions inside the update, phases, a common
end. Several sites in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from chaos import Coordinator, Refused, Update
from chaos.sync import EveryStep
from chaos.sync.notes import NotesLayout, RoundNote
from chaos.testing import LocalRun

Script = Callable[[Path], Any]


def coordinator_at(socket: Path | None, **options: Any) -> Coordinator:
    alone = socket is None
    return Coordinator(socket, standalone=alone, handle_signals=False, reconnect_s=0, **options)


def linear(value: float = 1.0) -> nn.Linear:
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def put_gradient(model: nn.Module, value: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)


# ---- average and update


def test_average_is_seen_before_it_is_applied() -> None:
    def script(gradient: float) -> Script:
        def train(socket: Path) -> tuple[float, float, float]:
            model = linear()
            with coordinator_at(socket, verbose=False) as coordinator:
                coordinator.register(model, torch.optim.SGD(model.parameters(), lr=1.0))
                put_gradient(model, gradient)
                assert coordinator.average(samples=1)
                assert coordinator.round == 0
                seen = float(model.weight.grad[0, 0])  # type: ignore[index]
                with pytest.raises(ValueError, match=r"finish it with update\(\)"):
                    coordinator.step()
                put_gradient(model, 100.0)  # without effect: sites would do it differently
                before = float(model.weight[0, 0])
                assert coordinator.update() and coordinator.round == 1
                return seen, before, float(model.weight[0, 0])

        return train

    with LocalRun(sites=2) as run:
        assert run.together(script(1.0), script(3.0)) == [(2.0, 1.0, -1.0)] * 2


def test_average_and_update_alone() -> None:
    model = linear()
    with coordinator_at(None) as coordinator:
        coordinator.register(model, torch.optim.SGD(model.parameters(), lr=1.0))
        put_gradient(model, 0.5)
        assert coordinator.average() and coordinator.round == 0
        assert coordinator.update() and coordinator.round == 1
        assert coordinator.update() and coordinator.round == 1, "there is nothing more to finish"
        assert float(model.weight.detach()[0, 0]) == 0.5


# ---- functions inside the update


def test_functions_run_inside_every_update_also_at_one_that_catches_up() -> None:
    model, ema = linear(0.0), linear(0.0)
    seen: list[Update] = []

    def clip(update: Update) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    def average(update: Update) -> None:
        seen.append(update)
        with torch.no_grad():
            ema.weight.lerp_(model.weight, 0.5)

    ema.requires_grad_(False)
    with coordinator_at(None) as coordinator:
        coordinator.register(
            {"net": model, "ema": ema}, torch.optim.SGD(model.parameters(), lr=1.0), on_average=clip, on_update=average
        )
        session = coordinator._registered()
        result = np.full(2, 7.0, dtype=np.float32).view(np.uint8)
        session.apply(result, 1)  # a joiner: it has given nothing to this round
        assert torch.allclose(model.weight, torch.full((1, 2), -0.1 / 2**0.5))
        assert torch.allclose(ema.weight, model.weight / 2)
        assert [update.round for update in seen] == [1] and seen[0].optimizers == ("optimizer",)
        names = [entry.item.name for entry in session.items]
        assert "model.ema.weight" in names


def test_numpy_training_has_one_function_only() -> None:
    with coordinator_at(None) as coordinator, pytest.raises(ValueError, match="apply=, which is the whole update"):
        coordinator.register(arrays={"w": np.zeros(1)}, apply=lambda mean, _: None, on_update=lambda update: None)


# ---- phases


class Pair:
    """Two models with an Adam each, as in a GAN."""

    def __init__(self, coordinator: Coordinator, **register: Any) -> None:
        self.models = {"D": linear(), "G": linear()}
        self.optimizers = {name: torch.optim.Adam(m.parameters(), lr=0.1) for name, m in self.models.items()}
        coordinator.register(self.models, self.optimizers, sync=EveryStep(notes=True), **register)

    def steps_of(self, name: str) -> int:
        state = list(self.optimizers[name].state.values())
        return int(state[0]["step"]) if state else 0

    def weights(self) -> list[float]:
        return [float(model.weight.detach()[0, 0]) for model in self.models.values()]


def test_phases_step_one_optimizer_and_leave_the_moments_of_the_other() -> None:
    def train(socket: Path) -> tuple[int, int, list[float]]:
        with coordinator_at(socket, verbose=False) as coordinator:
            pair = Pair(coordinator)
            for turn in range(6):
                phase = "G" if turn % 3 == 2 else "D"
                for model in pair.models.values():
                    put_gradient(model, 1.0)  # a pass through both leaves gradients in both
                assert coordinator.step(optimizers=(phase,))
            return pair.steps_of("D"), pair.steps_of("G"), pair.weights()

    with LocalRun(sites=2) as run:
        first, second = run.together(train, train)
    assert first == second and first[:2] == (4, 2)
    assert first[2] == pytest.approx([1.0 - 4 * 0.1, 1.0 - 2 * 0.1], abs=1e-5)


def test_sites_in_different_phases_are_told_and_nobody_steps_on_zeros(capfd: pytest.CaptureFixture[str]) -> None:
    def script(phase: str, gradient: float) -> Script:
        def train(socket: Path) -> list[float]:
            with coordinator_at(socket) as coordinator:
                pair = Pair(coordinator)
                for _ in range(2):
                    put_gradient(pair.models[phase], gradient)
                    assert coordinator.step(optimizers=[phase])
                moment = [pair.optimizers[n].state[pair.models[n].weight]["exp_avg"][0, 0].item() for n in ("D", "G")]
                assert moment == pytest.approx([0.19 * 4.0, 0.19 * -2.0]), "the average of those who gave, undiluted"
                return pair.weights()

        return train

    with LocalRun(sites=2) as run:
        first, second = run.together(script("D", 4.0), script("G", -2.0))
    assert first == second
    told = capfd.readouterr().err
    assert told.count("in round 1 this site gave gradients for 'D' and other sites for 'G'") == 1
    assert told.count("this site gave gradients for 'G' and other sites for 'D'") == 1, "once, not every round"
    assert "follow coordinator.round" in told


@pytest.mark.parametrize("overlap", [False, True])
def test_a_parameter_of_two_optimizers_is_trained_in_the_phase_of_either(overlap: bool) -> None:
    """An encoder that two losses share: its gradients of the second one's phase were zeros."""

    def script(socket: Path) -> list[float]:
        encoder, first, second = (torch.nn.Linear(1, 1, bias=False) for _ in range(3))
        for layer in (encoder, first, second):
            torch.nn.init.ones_(layer.weight)
        optimizers = {
            name: torch.optim.SGD([encoder.weight, head.weight], lr=0.5) for name, head in (("A", first), ("B", second))
        }
        mode = EveryStep(notes=True, overlap=overlap)
        with Coordinator(socket, handle_signals=False, verbose=False, sync=mode) as coordinator:
            coordinator.register({"encoder": encoder, "first": first, "second": second}, optimizers)
            found = []
            for name, head in (("A", first), ("B", second)):
                loss = encoder(torch.ones(1, 1)).sum() * head.weight.detach().sum()
                if overlap:
                    with coordinator.overlap(optimizers=(name,)):
                        loss.backward()
                    coordinator.step()
                else:
                    loss.backward()
                    coordinator.step(optimizers=(name,))
                found.append(float(encoder.weight.detach()))
            return found

    with LocalRun(sites=2) as run:
        assert run.together(script, script) == [[0.5, 0.0]] * 2


def test_phases_need_notes_and_known_names() -> None:
    model = linear()
    with coordinator_at(None) as coordinator:
        coordinator.register(model, {"D": torch.optim.SGD(model.parameters(), lr=1.0)})
        for call in (
            lambda: coordinator.step(optimizers=("D",)),
            lambda: coordinator.should_stop(),
            lambda: coordinator.report(loss=1.0),
        ):
            with pytest.raises(ValueError, match=r"sync=EveryStep\(notes=True\)"):
                call()
    with coordinator_at(None) as coordinator:
        Pair(coordinator)
        with pytest.raises(ValueError, match="names 'X', which is not registered; there are 'D', 'G'"):
            coordinator.step(optimizers=("X",))
        with pytest.raises(ValueError, match="names none"):
            coordinator.step(optimizers=())


# ---- skipped steps


def with_statistics() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


@pytest.mark.parametrize("notes", [False, True])
def test_a_skipped_step_gives_nothing_and_applies_what_the_others_gave(notes: bool) -> None:
    def script(skips: bool) -> Script:
        def train(socket: Path) -> list[float]:
            model = with_statistics()
            with coordinator_at(socket, verbose=False) as coordinator:
                optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
                coordinator.register(model, optimizer, sync=EveryStep(notes=notes))
                before = model[0].weight.detach().clone()
                model(torch.randn(8, 2) * (1e30 if skips else 1.0))  # the statistics of a bad batch are bad as well
                put_gradient(model, 77.0 if skips else 0.25)
                assert coordinator.step(samples=3 if skips else 1, skip=skips) and coordinator.round == 1
                assert torch.allclose(before - model[0].weight, torch.tensor(0.25))
                return [*model[1].running_var.tolist(), *model[0].weight.detach().flatten().tolist()]

        return train

    with LocalRun(sites=2) as run:
        first, second = run.together(script(True), script(False))
    assert first == second and all(abs(number) < 100 for number in first)


def test_a_grad_scaler_stays_each_sites_own() -> None:
    def script(scale: float) -> Script:
        def train(socket: Path) -> tuple[list[float], float]:
            model = linear()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            scaler = torch.amp.GradScaler("cpu", init_scale=scale)
            with coordinator_at(socket, verbose=False) as coordinator:
                coordinator.register(model, optimizer)
                while coordinator.round < 3:
                    scaler.scale(10 * model(torch.ones(1, 2)).sum()).backward()  # too large where the scale is
                    scaler.unscale_(optimizer)
                    assert coordinator.step()
                    scaler.update()
                return model.weight.detach().flatten().tolist(), scaler.get_scale()

        return train

    with LocalRun(sites=2) as run:
        (first, large), (second, small) = run.together(script(3e38), script(2.0))
    assert first == second == [1.0 - 3 * 0.5 * 10] * 2
    assert small == 2.0 and large == pytest.approx(3e38 / 8), "it halves its own with every step that it skips"


def test_a_skipped_step_alone_changes_nothing() -> None:
    model = linear()
    with coordinator_at(None) as coordinator:
        coordinator.register(model, torch.optim.SGD(model.parameters(), lr=1.0))
        put_gradient(model, 5.0)
        assert coordinator.step(skip=True) and coordinator.round == 0
        assert float(model.weight.detach()[0, 0]) == 1.0 and model.weight.grad is None


# ---- common epochs, figures, end


def test_sites_end_together_when_all_want_to_and_decide_on_common_figures() -> None:
    def script(wants_from: int, loss: float) -> Script:
        def train(socket: Path) -> tuple[int, int, list[dict[str, float]]]:
            model = linear()
            seen = []
            mode = EveryStep(notes=True, metrics=("loss", "accuracy"))
            with coordinator_at(socket, verbose=False) as coordinator:
                coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.0), sync=mode, rounds_per_epoch=2)
                while not coordinator.should_stop(coordinator.round >= wants_from):
                    put_gradient(model, 1.0)
                    if coordinator.round % 2 == 0:
                        coordinator.report(loss=loss)
                    assert coordinator.step(samples=4)
                    seen.append(coordinator.metrics)
                return coordinator.round, coordinator.epoch, seen

        return train

    with LocalRun(sites=2) as run:
        first, second = run.together(script(1, 2.0), script(5, 4.0))
    assert first == second
    assert first[:2] == (6, 3), "the first round whose notes said that both want to"
    assert first[2] == [{"loss": 3.0}, {}] * 3


@pytest.mark.parametrize("other", [{"sync": EveryStep(notes=True)}, {"rounds_per_epoch": 3}])
def test_a_site_with_other_rounds_is_refused(other: dict[str, Any]) -> None:
    refused = threading.Event()

    def script(**register: Any) -> Script:
        def train(socket: Path) -> None:
            model = linear()
            with coordinator_at(socket, verbose=False) as coordinator:
                coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.0), **register)
                began.set()
                assert refused.wait(60)

        return train

    def stranger(socket: Path) -> None:
        assert began.wait(60)
        try:
            script(**other)(socket)
        finally:
            refused.set()

    began = threading.Event()
    with LocalRun(sites=1) as run, pytest.raises(Refused, match="another model"):
        run.together(script(), stranger)


def test_an_epoch_must_be_said() -> None:
    model = linear()
    with coordinator_at(None) as coordinator:
        coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.0))
        with pytest.raises(ValueError, match="rounds_per_epoch"):
            _ = coordinator.epoch
    with coordinator_at(None) as coordinator, pytest.raises(ValueError, match="must be at least 1"):
        coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.0), rounds_per_epoch=0)


# ---- the notes themselves


def test_notes_say_the_same_whatever_the_weights_are() -> None:
    layout = NotesLayout(("D", "G"), ("loss",))
    weights = [0.1, 7.0, 1e-3, 3.3]
    notes = [
        RoundNote(optimizers=frozenset({"D"}), wants_to_end=True, metrics={"loss": 2.0}),
        RoundNote(optimizers=frozenset({"D"}), wants_to_end=True),
        RoundNote(optimizers=frozenset({"G"}), wants_to_end=True),
        RoundNote(optimizers=frozenset({"D"}), wants_to_end=True, metrics={"loss": 4.0}),
    ]
    mean = np.zeros(layout.count)
    for weight, note in zip(weights, notes, strict=True):
        numbers = np.zeros(layout.count)
        layout.write(note, numbers)
        mean += weight * numbers
    agreed = layout.read(mean / sum(weights))
    assert agreed.everybody_wants_to_end
    assert agreed.shares == {"D": pytest.approx(10.4 / 10.401), "G": pytest.approx(1e-3 / 10.401)}
    assert agreed.metrics == {"loss": pytest.approx((0.1 * 2 + 3.3 * 4) / 3.4)}


def test_figures_that_are_none_are_refused() -> None:
    for bad in (("",), ("x" * 65,), ("loss", "loss")):
        with pytest.raises(ValueError, match=r"metric"):
            EveryStep(notes=True, metrics=bad)
    with pytest.raises(ValueError, match="notes=True"):
        EveryStep(metrics=("loss",))
    with coordinator_at(None) as coordinator:
        model = linear()
        mode = EveryStep(notes=True, metrics=("loss",))
        coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.0), sync=mode)
        with pytest.raises(ValueError, match="'accuracy' was not announced"):
            coordinator.report(accuracy=1.0)
        with pytest.raises(ValueError, match="is nan; report finite numbers"):
            coordinator.report(loss=float("nan"))


def test_hooks_of_an_optimizer_see_the_steps_of_rounds_alone() -> None:
    """Not the one that is tried, and undone, to see what it keeps: an average of the parameters would have it, too."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        coordinator.register(model, optimizer)
        assert not seen
        model(torch.ones(1, 2)).sum().backward()
        coordinator.step()
    assert seen == ["before", "after"]
