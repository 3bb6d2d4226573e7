"""Whatever a step draws follows from the training's seed, the step and the micro-batch, wherever the generator of the
script stands: any worker, and a step that is done again, draws the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.integration.site_training import Points, make_model, make_optimizer

from chaos import Coordinator
from chaos.worker_group.compute.data import Loader

LOSS = torch.nn.functional.cross_entropy


class Flipped(Points):
    """Input and target are changed alike, by chance, as pictures and their masks are."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = super().__getitem__(index)
        sign = torch.randint(0, 2, ()) * 2 - 1
        return x * sign, (y + (sign > 0)) % 3


def smoothed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return LOSS(output + 0.1 * torch.randn_like(output), target)


def begins_later(step: int, module: torch.nn.Module) -> None:
    module.train(step > 0)


def grows(step: int, module: torch.nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.1 * step


def stays(step: int, module: torch.nn.Module) -> None:
    pass


@pytest.mark.parametrize(
    ("before", "loss", "dataset"),
    [
        (begins_later, LOSS, Points),
        (grows, LOSS, Points),
        (stays, smoothed, Points),
        (stays, LOSS, Flipped),
    ],
    ids=("evaluates-first", "dropout-grows", "loss", "data"),
)
def test_nothing_depends_on_where_the_scripts_generator_stands(
    before: Callable[[int, torch.nn.Module], None], loss: Any, dataset: Callable[[], Points]
) -> None:
    """A layer that drew nothing when it was tried, a loss and a data set drew from the script's own generator: each
    worker other numbers, also the first stage and the last of a pipeline of one sample."""

    def digests(stands: int) -> list[str]:
        with Coordinator(standalone=True, handle_signals=False) as coordinator:
            module = make_model(0.0 if before is grows else 0.1)
            model = coordinator.parallelize(module, loss=loss)
            coordinator.register(model=model, optimizer=make_optimizer)
            torch.manual_seed(stands)
            for step, batch in enumerate(coordinator.loader(dataset(), global_batch=8, micro_batch=4, seed=7, steps=3)):
                before(step, module)
                model.step(batch)
            return list(model.digests().values())

    assert digests(1) == digests(2)


def test_a_micro_batch_is_read_alike_by_whoever_reads_it() -> None:
    loader = Loader(Flipped(), global_batch=16, micro_batch=4, seed=7)
    state = torch.get_rng_state()
    first, again, other = (loader.micro_batch(3, number) for number in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, first, again)) and not torch.equal(first[0], other[0])
