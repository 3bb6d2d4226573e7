"""Two threads in one coordinator: the second one is told, and the round of the first one goes on."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from chaos import Coordinator, HalfAppliedStep, Update
from chaos.testing import LocalRun

WAIT_S = 60.0


def registered(coordinator: Coordinator, **more: Any) -> torch.nn.Linear:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.1), **more)
    return model


def in_a_thread(call: Callable[[], Any]) -> str:
    """What it raised."""
    told: list[str] = []

    def run() -> None:
        try:
            call()
        except ValueError as error:
            told.append(str(error))

    thread = threading.Thread(target=run, name="helper")
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    return "".join(told)


@pytest.mark.parametrize("call", ["step", "average", "request_node_exit", "check_state_replication"])
def test_a_thread_that_comes_in_while_another_waits_for_a_round_is_told_and_the_round_goes_on(call: str) -> None:
    inside, told = threading.Event(), threading.Event()
    texts: list[str] = []

    def first(socket: Path) -> float:
        with Coordinator(socket=socket, verbose=False, handle_signals=False) as coordinator:
            model = registered(coordinator)
            model(torch.ones(1, 2)).sum().backward()

            def helper() -> None:
                while coordinator._one_thread._inside != "step":
                    told.wait(0.01)
                texts.append(in_a_thread(getattr(coordinator, call)))
                told.set()

            thread = threading.Thread(target=helper)
            thread.start()
            inside.set()
            coordinator.step()
            thread.join(WAIT_S)
            assert coordinator.round == 1
            return float(model.weight.detach().sum())

    def second(socket: Path) -> float:
        with Coordinator(socket=socket, verbose=False, handle_signals=False) as coordinator:
            model = registered(coordinator)
            model(torch.ones(1, 2)).sum().backward()
            assert inside.wait(WAIT_S) and told.wait(WAIT_S)
            coordinator.step()
            return float(model.weight.detach().sum())

    with LocalRun(sites=2) as run:
        one, other = run.together(first, second)
    assert one == other
    (text,) = texts
    assert text.startswith(f"coordinator.{call}() was called in the thread 'helper' while another one is in ")
    assert "coordinator.step(): train in one thread" in text


def test_one_thread_after_the_other_and_calls_from_within_the_update_are_fine() -> None:
    with Coordinator(standalone=True, verbose=False, handle_signals=False) as coordinator:

        def follow(update: Update) -> None:
            coordinator.check_state_replication()

        model = registered(coordinator, on_update=follow)
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            assert not in_a_thread(coordinator.step)
        model(torch.ones(1, 2)).sum().backward()
        coordinator.step()
        assert coordinator.round == 3


@pytest.mark.parametrize("call", ["step", "average", "update", "request_node_exit", "close"])
@pytest.mark.parametrize("which", ["on_average", "on_update"])
def test_a_function_of_the_update_that_waits_for_a_round_is_told(call: str, which: str) -> None:
    def script(socket: Path) -> None:
        with Coordinator(socket=socket, verbose=False, handle_signals=False) as coordinator:

            def follow(update: Update) -> None:
                getattr(coordinator, call)()

            model = registered(coordinator, **{which: follow})
            model(torch.ones(1, 2)).sum().backward()
            coordinator.step()

    with LocalRun(sites=1) as run, pytest.raises(HalfAppliedStep, match=rf"{call}\(\) was called within .*in the loop"):
        run.together(script)


def test_a_coordinator_says_that_it_is_neither_pickled_nor_copied() -> None:
    with Coordinator(standalone=True, verbose=False, handle_signals=False) as coordinator:
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be pickled or copied: it belongs to the process that made it"):
                attempt(coordinator)


def test_a_thread_that_comes_in_while_another_trains_a_step_of_layers_is_told_and_the_step_goes_on() -> None:
    """Both computed the same step, and it ended with "the sum over 2 leaves is not complete"."""
    told: list[str] = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if model.round == 1 and not told:
            told.append(in_a_thread(lambda: model.step(batch)))
        return torch.nn.functional.mse_loss(output, target)

    data = [(torch.ones(2), torch.ones(1))] * 4
    with Coordinator(standalone=True, verbose=False, handle_signals=False) as coordinator:
        model = coordinator.parallelize(torch.nn.Sequential(torch.nn.Linear(2, 1)), loss=loss)
        coordinator.register(model=model, optimizer=lambda params: torch.optim.SGD(params, lr=0.1))
        for batch in coordinator.loader(data, global_batch=2, micro_batch=1, steps=3):
            model.step(batch)
        assert model.round == 3
    (text,) = told
    assert text.startswith("model.step() was called in the thread 'helper' while another one is in model.step(): train")
