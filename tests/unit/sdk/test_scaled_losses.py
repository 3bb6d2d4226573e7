"""The search for a GradScaler leaves other threads of the script alone."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from chaos import Coordinator
from chaos.frameworks.torch_scaling import refuse_scaled_losses

LOOKS = 20


@pytest.fixture(autouse=True)
def as_in_a_script() -> Iterator[None]:
    """All objects are looked through, and threads take turns often."""
    before = sys.getswitchinterval()
    gc.unfreeze()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
    gc.freeze()


def test_a_thread_that_makes_tuples_meanwhile_goes_on() -> None:
    """A tuple that is being made is nobody else's: Python raises SystemError there if it is in a list, too."""
    ended, broken = threading.Event(), []

    def make_tuples() -> None:
        try:
            while not ended.is_set():
                tuple(number for number in range(30))
        except SystemError as error:
            broken.append(error)

    threads = [threading.Thread(target=make_tuples) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(LOOKS):
        refuse_scaled_losses("not here")
    ended.set()
    for thread in threads:
        thread.join()
    assert not broken


def test_a_scaler_of_a_class_of_its_own_is_found_while_somebody_has_it() -> None:
    class Scaler(torch.amp.GradScaler):
        pass

    scaler = Scaler("cpu", enabled=True)
    with pytest.raises(ValueError, match=r"here.*GradScaler that is enabled"):
        refuse_scaled_losses("here")
    del scaler
    refuse_scaled_losses("here")


def test_unscale_that_is_forgotten_in_a_later_step_alone_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    coordinator = Coordinator(standalone=True, handle_signals=False)
    coordinator.register(model, optimizer)
    said = []
    for unscales in (True, True, False, False, True, False):
        loss = scaler.scale(model(torch.ones(2, 3)).mean())
        loss.backward()
        if unscales:
            scaler.unscale_(optimizer)
        coordinator.step()
        if unscales:
            scaler.update()
        said.append("without scaler.unscale_(optimizer), which earlier steps" in capfd.readouterr().err)
    coordinator.close()
    assert said == [False, False, True, False, False, True], "anew where it was remembered in between"
