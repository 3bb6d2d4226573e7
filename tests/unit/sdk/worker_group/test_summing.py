"""Gradients as leaves of a step's sums: what a backward pass leaves, and in whose memory."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from chaos.worker_group.backward import gradients_of
from chaos.worker_group.layers import Layer
from chaos.worker_group.summing import StepSums, private, whole


class Places(torch.nn.Module):
    """Adds a table to what enters, as an embedding of positions does: through views, both get the gradient of the sum
    in one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.view(3, 4) + self.table.view(3, 4)).tanh().view(1, 3, 4)


class Spare(torch.nn.Module):
    """Has a parameter that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left: torch.Tensor = self.used(x).tanh()
        return left


@pytest.mark.parametrize("module", [Places(), Spare(), torch.nn.Identity(), torch.nn.LayerNorm(4)])
def test_a_layer_has_the_gradients_of_the_library(module: torch.nn.Module) -> None:
    layer = Layer(0, module)
    entered, gradient = torch.randn(1, 3, 4, requires_grad=True), torch.randn(1, 3, 4)
    for parameter in layer.parameters:
        parameter.grad = torch.ones_like(parameter)  # of somebody else
    expected = torch.autograd.grad(layer.run(entered), [entered, *layer.parameters], gradient, allow_unused=True)
    into, found = layer.gradients(entered, layer.run(entered), gradient)
    for one, other in zip((into, *found), expected, strict=True):
        assert (one is None and other is None) or (one is not None and other is not None and torch.equal(one, other))
    assert entered.grad is None and all(parameter.grad is None for parameter in layer.parameters)


class Twice(torch.nn.Module):
    """Uses what enters in three places, and its weights in two."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        once = self.linear(x).tanh()
        left: torch.Tensor = self.linear(once * x) + x.sin()
        return left


def test_layers_in_one_backward_pass_have_the_bits_of_each_by_itself() -> None:
    torch.manual_seed(4)
    kinds = [Twice, Spare, Places, Twice, torch.nn.Identity, Places, Spare, Twice]
    layers = [Layer(index, torch.nn.Sequential(kind())) for index, kind in enumerate(kinds)]
    entered, gradient = torch.randn(1, 3, 4), torch.randn(1, 3, 4)

    def passed(ends: list[int]) -> list[torch.Tensor]:
        """With these ends of runs: what entered, then the gradients of all layers in order."""
        starts, value = [], entered
        for first, last in pairwise([0, *ends]):
            into = left = value.detach().requires_grad_()
            for layer in layers[first:last]:
                left = layer.run(left)
            starts.append((into, left, layers[first:last]))
            value = left
        found: list[list[torch.Tensor]] = []
        back: torch.Tensor | None = gradient
        for into, left, run in reversed(starts):
            assert back is not None
            back, of_run = gradients_of([each.parameters for each in run], into, left, back, [None] * len(run))
            found = [*map(whole, [each.parameters for each in run], of_run), *found]
        assert back is not None
        return [back, *(part for parts in private(found, back) for part in parts)]

    one_by_one = passed(list(range(1, len(layers) + 1)))
    for ends in ([8], [1, 8], [3, 5, 8], [2, 4, 6, 8], [7, 8]):
        together = passed(ends)
        assert all(map(torch.equal, together, one_by_one)), ends
        assert len({part.untyped_storage().data_ptr() for part in together}) == len(together), (
            "all in memory of its own"
        )


def test_what_is_passed_on_stays_as_it_is_while_the_sum_grows() -> None:
    layer = Layer(0, Places())
    sums = StepSums([layer], 2)
    passed_on, sent, tables = [], [], []
    for g in range(2):
        entered = torch.randn(1, 3, 4, requires_grad=True)
        into, found = layer.gradients(entered, layer.run(entered), torch.randn(1, 3, 4))
        (table,) = found
        assert into is not None and table is not None and into.data_ptr() == table.data_ptr()
        passed_on.append(into)
        sent.append(into.clone())
        tables.append(table.clone())
        sums.leaf(0, g, private([whole(layer.parameters, found)], into)[0])
    assert torch.equal(sums.total(0), tables[0] + tables[1])
    assert all(torch.equal(now, then) for now, then in zip(passed_on, sent, strict=True))


def test_gradients_in_one_memory_become_leaves_of_their_own() -> None:
    both = torch.arange(6.0)
    first, second = private([[both[:3]], [both[3:]]])
    parts = [*first, *second]
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 2
    assert [part.tolist() for part in parts] == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    apart = [torch.ones(2), torch.ones(3)]
    assert all(one is other for one, other in zip(private([apart])[0], apart, strict=True))


def test_a_gradient_that_is_missing_is_zero_and_all_have_the_widest_type() -> None:
    parameters = [torch.zeros(2), torch.zeros(3, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)]
    parts = whole(parameters, [None, torch.ones(3, dtype=torch.bfloat16), None])
    assert [(part.dtype, part.tolist()) for part in parts] == [
        (torch.float32, [0.0, 0.0]),
        (torch.float32, [1.0, 1.0, 1.0]),
        (torch.float32, [0.0]),
    ]
    assert [part.tolist() for part in whole(parameters[:1], ())] == [[0.0, 0.0]]


def test_a_pass_adds_to_the_leaf_on_its_left_what_would_be_added_later() -> None:
    torch.manual_seed(2)
    layer = Layer(0, Spare())
    at_once, later = StepSums([layer], 5), StepSums([layer], 5)
    for g in (0, 1, 3, 2, 4):
        entered, gradient = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4)
        for sums in (at_once, later):
            onto = sums.left_of(0, g) if sums is at_once else None
            assert (onto is not None) == (sums is at_once and g == 1), "of 2 and 3 the left one came last"
            _, found = layer.gradients(entered, layer.run(entered), gradient, onto)
            if onto is None:
                sums.leaf(0, g, private([whole(layer.parameters, found)])[0])
            else:
                sums.pair(0, g, onto)
    assert torch.equal(at_once.total(0), later.total(0)) and at_once.total(0).any()
