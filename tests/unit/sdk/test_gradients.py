"""Gradients that a script has made in ways of its own, and steps to which some are missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chaos import Coordinator, EveryStep, LocalSGD, NothingFinite
from chaos.skipped import TRIES_MAX
from chaos.sync import SyncMode
from chaos.testing import LocalRun


def linear() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("mode", [EveryStep(), EveryStep(notes=True)], ids=["plain", "with notes"])
def test_an_average_is_written_where_a_gradient_was_made_by_expand(mode: SyncMode) -> None:
    """`torch.autograd.grad` gives such ones, whose numbers lie in one place, for a sum."""

    def script(slope: float, socket: Path) -> list[float]:
        model, optimizer = linear()
        with Coordinator(socket, handle_signals=False, verbose=False) as coordinator:
            coordinator.register(model, optimizer, sync=mode)
            before = model.bias.detach().clone()
            model(torch.ones(1, 3)).sum().backward()
            model.bias.grad = torch.tensor([slope]).expand(2)
            assert coordinator.step()
            return [round(float(number), 4) for number in before - model.bias.detach()]

    with LocalRun(sites=2) as run:
        both = run.together(lambda socket: script(1.0, socket), lambda socket: script(3.0, socket))
    assert both == [[0.2, 0.2], [0.2, 0.2]]


@pytest.mark.parametrize("mode", [EveryStep(), LocalSGD(every=2)], ids=["every step", "local steps"])
@pytest.mark.parametrize("unscales", [False, True])
def test_a_scaled_loss_whose_gradients_are_not_unscaled_is_told_once(
    mode: SyncMode, unscales: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = linear()
    scaler, over = torch.amp.GradScaler("cpu", init_scale=8.0), torch.amp.GradScaler("cpu")
    over.scale(model(torch.ones(1, 3)).sum()).backward()
    over.unscale_(optimizer)
    over.update()  # of a training that is over
    optimizer.zero_grad()
    told = []
    with Coordinator(standalone=True, handle_signals=False, sync=mode) as coordinator:
        coordinator.register(model, optimizer)
        for _ in range(3):
            scaler.scale(model(torch.ones(1, 3)).sum()).backward()
            if unscales:
                scaler.unscale_(optimizer)
            coordinator.step()
            if unscales:
                scaler.update()
            told.append(capfd.readouterr().err)
    words = "GradScaler that has scaled a loss by 8"
    assert [words in text for text in told] == [not unscales, False, False], told
    assert unscales or "scaler.unscale_(optimizer) before coordinator.step()" in told[0]


@pytest.mark.parametrize("in_turn", [False, True])
def test_optimizers_in_turn_that_are_not_named_are_told_that_all_of_them_step(
    in_turn: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    made = {"D": linear(), "G": linear()}
    told = []
    with Coordinator(standalone=True, handle_signals=False, sync=EveryStep(notes=in_turn)) as coordinator:
        coordinator.register({name: one[0] for name, one in made.items()}, {name: one[1] for name, one in made.items()})
        for name in ("D", "G", "D", "G"):
            made[name][0](torch.ones(1, 3)).sum().backward()
            coordinator.step(optimizers=(name,) if in_turn else None)
            told.append(capfd.readouterr().err)
    expected = [] if in_turn else ["the optimizer 'G' had a gradient", "the optimizer 'D' had a gradient"]
    assert all(words in text for words, text in zip(expected, told, strict=False)), told
    assert not any(told[len(expected) :]), told
    assert in_turn or "sync=EveryStep(notes=True)" in told[0]


def test_optimizers_that_step_at_home_keep_their_moments_where_they_have_no_gradient(
    capfd: pytest.CaptureFixture[str],
) -> None:
    made = {"D": linear(), "G": linear()}
    with Coordinator(standalone=True, handle_signals=False, sync=LocalSGD(every=2)) as coordinator:
        coordinator.register({name: one[0] for name, one in made.items()}, {name: one[1] for name, one in made.items()})
        made["D"][0](torch.ones(1, 3)).sum().backward()
        coordinator.step()
    assert capfd.readouterr().err == ""


def test_sparse_gradients_make_the_same_moments_alone_as_among_sites() -> None:
    """Dense ones: a state with a sparse tensor has no bytes that could be digested, or sent."""

    def script(socket: Path | None) -> tuple[list[float], str]:
        table = torch.nn.Embedding(5, 2, sparse=True, _weight=torch.ones(5, 2))
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1, momentum=0.9)
        with Coordinator(socket, standalone=socket is None, handle_signals=False, verbose=False) as coordinator:
            coordinator.register(table, optimizer)
            for row in (0, 1, 0):
                table(torch.tensor([row, 3])).sum().backward()
                assert coordinator.step()
            return table.weight.ravel().tolist(), coordinator.state_digest()

    alone = script(None)
    with LocalRun(sites=1) as run:
        assert run.together(script) == [alone]


def test_a_layer_that_no_optimizer_trains_is_told_alone_as_among_sites() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        coordinator.register(model, optimizer)
        model(torch.ones(1, 3)).sum().backward()
        with pytest.raises(ValueError, match=r"'model\.0\.weight' has a gradient but is not trained"):
            coordinator.step()
        model[0].requires_grad_(False)
        assert coordinator.step() and coordinator.round == 1


def test_a_mask_of_infinities_is_told_with_what_to_write() -> None:
    model, optimizer = linear()
    model.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    with Coordinator(standalone=True, handle_signals=False, verbose=False) as coordinator:
        coordinator.register(model, optimizer)
        for _ in range(TRIES_MAX):
            model(torch.ones(1, 3)).sum().backward()
            coordinator.step()
        with pytest.raises(NothingFinite, match=r"'model\.mask' is not finite.*persistent=False"):
            coordinator.step()
