"""Gradients as leaves of a step's sums: what a backward pass leaves, and in whose memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import pytest
import torch
from tests.unit.sdk.worker_group.test_groups import OPEN, built
from tests.unit.sdk.worker_group.test_groups import together as at_the_same_time

from chaos.worker_group.chain.backward import gradients_of
from chaos.worker_group.chain.layers import Layer
from chaos.worker_group.exchange.channels import Receipt
from chaos.worker_group.exchange.groups import Groups
from chaos.worker_group.exchange.summing import StepSums, private, whole
from chaos_protocols.streams import Sum
from chaos_protocols.sums import remaining


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


def test_a_layer_of_several_types_is_summed_in_the_widest() -> None:
    """Its second micro-batch ended the training: a parameter in 16 bits was to take the sum in float32."""
    torch.manual_seed(2)
    layer, halved = Layer(0, Spare()), Layer(1, torch.nn.Linear(4, 4, dtype=torch.bfloat16))
    assert isinstance(layer.module, Spare)
    layer.module.unused.to(torch.bfloat16)
    sums = StepSums([layer, halved], 2)
    expected = torch.zeros(40)
    for g in range(2):
        entered, gradient = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4)
        onto = sums.left_of(0, g)
        assert onto is None, "a backward pass adds in the type of each parameter"
        _, found = layer.gradients(entered, layer.run(entered), gradient, onto)
        parts = private([whole(layer.parameters, found)])[0]
        expected += torch.cat([part.reshape(-1) for part in parts])
        sums.leaf(0, g, parts)
        sums.leaf(1, g, [torch.ones_like(each) for each in halved.parameters])
    assert torch.equal(sums.total(0), expected) and sums.total(0).dtype is torch.float32
    assert sums.total(1).dtype is torch.bfloat16


class Noted:
    """Real groups; what is sent is kept, with a copy of what it was."""

    def __init__(self, groups: Groups) -> None:
        self._groups, self.sent = groups, list[tuple[torch.Tensor, torch.Tensor]]()
        self.at_once, self.receive, self.wait = groups.at_once, groups.receive, groups.wait

    def send(self, group: tuple[int, ...], peer: int, tensor: torch.Tensor) -> Receipt:
        self.sent.append((tensor, tensor.clone()))
        return self._groups.send(group, peer, tensor)


def summed(layers: Sequence[Layer], grow: int) -> Callable[[Sequence[int]], StepSums]:
    """Of eight micro-batches, each with gradients so many times as large as the one before: what a worker has summed
    that was dealt these."""
    gradients = {
        (layer.index, g): [torch.randn_like(p) * grow**g for p in layer.parameters]
        for layer in layers
        for g in range(8)
    }

    def sums(micro_batches: Sequence[int]) -> StepSums:
        found = StepSums(layers, 8)
        for g in micro_batches:
            for layer in layers:
                found.leaf(layer.index, g, [part.clone() for part in gradients[layer.index, g]])
        return found

    return sums


@pytest.mark.parametrize(
    ("dealt", "messages"),
    [([range(4), range(4, 8)], 1), ([range(4, 8), range(4)], 1), ([range(3), range(3, 8)], 2), ([range(8), ()], 2)],
    ids=("halves", "later half first", "uneven", "all and nothing"),
)
def test_two_holders_close_the_sum_of_one_process_in_as_few_messages_as_it_takes(
    dealt: list[Sequence[int]], messages: int
) -> None:
    torch.manual_seed(3)
    layers = [Layer(0, torch.nn.Linear(5, 3)), Layer(1, torch.nn.Linear(3, 4))]
    sums = summed(layers, 10)
    whole_sums = sums(range(8))
    expected = [whole_sums.total(layer.index) for layer in layers]
    total = Sum((0, 1), (0, 1), tuple(remaining(each, 8) for each in dealt))
    _, made = built(2, (0, 1))
    noted, mine = [Noted(groups) for groups in made], [sums(each) for each in dealt]
    assert at_the_same_time(*(partial(mine[w].close, total, w, noted[w], print) for w in range(2))) == [None, None]
    while OPEN:
        OPEN.pop().close()
    for each in mine:
        assert [torch.equal(each.total(layer), there) for layer, there in enumerate(expected)] == [True, True]
    assert len(noted[0].sent) == messages
    assert all(torch.equal(tensor, copy) for each in noted for tensor, copy in each.sent), "it may not have left yet"


@pytest.mark.parametrize("dealt", [[range(4), range(4, 8)], [range(3), range(3, 8)]], ids=("exchanged", "by pieces"))
def test_layers_of_unlike_types_are_summed_each_in_its_own(dealt: list[Sequence[int]]) -> None:
    """Beside one in float32 the last additions of those in 16 bits were made in float32, where another worker had a
    part of them: not the bits of one process."""
    torch.manual_seed(3)
    half, linear = torch.bfloat16, torch.nn.Linear
    modules = [linear(5, 3, dtype=half), torch.nn.Identity(), linear(3, 4), linear(4, 4, dtype=half)]
    layers = [Layer(index, module) for index, module in enumerate(modules)]
    sums = summed(layers, 3)
    whole_sums = sums(range(8))
    total = Sum((0, 1, 2, 3), (0, 1), tuple(remaining(each, 8) for each in dealt))
    _, made = built(2, (0, 1))
    mine = [sums(each) for each in dealt]
    assert at_the_same_time(*(partial(mine[w].close, total, w, made[w], print) for w in range(2))) == [None, None]
    while OPEN:
        OPEN.pop().close()
    for each in mine:
        for layer in (0, 2, 3):
            found, expected = each.total(layer), whole_sums.total(layer)
            assert found.dtype is expected.dtype and torch.equal(found, expected), layer
