"""What a script of one process asks the Coordinator, asked where workers train one model: it has a meaning, or is
refused with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.integration.site_training import Points, make_model, make_optimizer

from chaos import Coordinator
from chaos.sync import LocalSGD


def stages(**registered: Any) -> Coordinator:
    coordinator = Coordinator(standalone=True, handle_signals=False)
    model = coordinator.parallelize(make_model(), loss=torch.nn.functional.cross_entropy)
    coordinator.register(model=model, optimizer=make_optimizer, **registered)
    return coordinator


def replicas() -> Coordinator:
    coordinator = Coordinator(standalone=True, handle_signals=False)
    model = coordinator.replicate(make_model())
    coordinator.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    return coordinator


@pytest.mark.parametrize("make", [stages, replicas])
@pytest.mark.parametrize(
    "ask", [lambda c: c.report(loss=1.0), lambda c: c.should_stop(), lambda c: c.metrics], ids=("tell", "stop", "read")
)
def test_what_needs_notes_is_refused_with_what_does_the_same(
    make: Callable[[], Coordinator], ask: Callable[[Coordinator], object]
) -> None:
    """Notes themselves are refused there: to advise them would send the script in a circle."""
    with make() as coordinator, pytest.raises(ValueError, match=r"have no notes: .*coordinator\.log.*end the loop by"):
        ask(coordinator)


@pytest.mark.parametrize("make", [stages, replicas])
def test_a_model_that_is_averaged_at_every_step_is_the_common_one(make: Callable[[], Coordinator]) -> None:
    with make() as coordinator:
        with coordinator.common_model():
            assert coordinator.lr_factor == 1.0
        coordinator.keep_common_model()


def test_a_model_of_stages_with_local_steps_says_when_it_is_the_common_one() -> None:
    with stages(sync=LocalSGD(every=4)) as coordinator:
        with pytest.raises(ValueError, match=r"one of 4\) the model is what all sites have in common"):
            with coordinator.common_model():
                pass


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "not a NoneType"), ("much", "not a str"), (torch.ones(3), r"not a Tensor of shape \(3,\)")],
    ids=("none", "text", "several"),
)
def test_what_is_logged_and_is_no_number_is_refused_with_its_name(value: Any, text: str) -> None:
    with stages() as coordinator, pytest.raises(ValueError, match=rf"log\(loss=\.\.\.\) takes a number.*{text}"):
        coordinator.log(loss=value)


@pytest.mark.parametrize("given", [Points()[0][0].mean(), 3, True], ids=("tensor", "int", "bool"))
def test_numbers_of_any_kind_are_logged(given: Any) -> None:
    with stages() as coordinator:
        coordinator.log(loss=given)
