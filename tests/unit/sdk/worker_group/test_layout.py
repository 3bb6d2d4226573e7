"""A chain of layers has the state and the vector of an ordinary script of the same model, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from tests.integration import site_training

from chaos.frameworks import framework_of
from chaos.frameworks.base import Bytes
from chaos.replica import Replica
from chaos.sync import DiLoCo
from chaos.sync.base import Part
from chaos.sync.every_step import EveryStepSession
from chaos.worker_group.chain.layers import Layer, MakeOptimizer, MakeScheduler, chain
from chaos.worker_group.chain.layout import ModelLayout
from chaos.worker_group.chain.vectors import LayerVectors, LocalVectors
from chaos.worker_group.others import LayersSession
from chaos_protocols.wire.encodings import ENCODINGS_SINCE
from chaos_protocols.wire.state_spec import first_difference, state_spec
from chaos_protocols.wire.worker import StateSpec
from chaos_protocols.worker_group.events import GreetRun, Kept
from chaos_protocols.worker_group.messages import RunSpecs
from chaosd.worker_group.run_line import greeting


def model() -> torch.nn.Sequential:
    """Layers with several parameters, with buffers and nothing else, of float64, frozen in part, without anything."""
    made = site_training.make_model()
    made[1].linear.bias.requires_grad_(False)  # type: ignore[union-attr]
    counted = torch.nn.Identity()
    counted.register_buffer("steps", torch.tensor([3, 5]))
    return torch.nn.Sequential(*made[:3], counted, torch.nn.Linear(16, 16).double(), torch.nn.ReLU(), made[5])


MAKERS: dict[str, MakeOptimizer] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "plain": lambda p: torch.optim.SGD(p, lr=1e-2),
    "scheduled": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.1),
    "groups": lambda p: torch.optim.AdamW(
        [{"params": [w for w in p if w.dim() > 1]}, {"params": [b for b in p if b.dim() < 2], "weight_decay": 0.0}]
    ),
}


def warmed_up(optimizer: torch.optim.Optimizer) -> Any:
    """Several schedules behind each other, with state in lists and in a counter."""
    rises = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=2)
    falls = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1, 2])
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [rises, falls], milestones=[2])


SCHEDULES: dict[MakeOptimizer, MakeScheduler] = {
    MAKERS["adamw"]: lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: min(1.0, 0.2 * step)),
    MAKERS["momentum"]: lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=20),
    MAKERS["scheduled"]: warmed_up,
}
"""Of some of them."""


@pytest.fixture(params=MAKERS)
def make(request: Any) -> MakeOptimizer:
    return MAKERS[request.param]


def ordinary(make: MakeOptimizer, seed: int = 3) -> EveryStepSession:
    """As `Coordinator.register` makes it."""
    torch.manual_seed(seed)
    module = model()
    optimizer = make([p for p in module.parameters() if p.requires_grad])
    scheduler = SCHEDULES[make](optimizer) if make in SCHEDULES else None
    return EveryStepSession(
        framework_of(module, optimizer, scheduler, arrays=None, apply=None, gradients=None, set_to_none=True)
    )


def chained(make: MakeOptimizer, seed: int = 3) -> tuple[list[Layer], ModelLayout]:
    torch.manual_seed(seed)
    module = model()
    layers, schedule = chain(list(module)), SCHEDULES.get(make)
    for layer in layers:
        layer.train_with(make, schedule)
    return layers, ModelLayout(module, layers, make, None, schedule)


def region(session: Any, spec: StateSpec) -> Bytes:
    whole = np.zeros(spec.size_bytes, dtype=np.uint8)
    for entry, tensor in zip(session.items, spec.tensors, strict=True):
        whole[tensor.offset : tensor.offset + tensor.size_bytes] = entry.get()
    return whole


def vector_of(session: EveryStepSession, scale: float) -> Bytes:
    """What a round might come to."""
    size = session.contribution.size_bytes
    edge = 8 * sum(each.count for each in session.contribution.segments if each.dtype == "float64")
    found = np.zeros(size, dtype=np.uint8)
    found[:edge].view(np.float64)[:] = scale * np.arange(edge // 8)
    found[edge:].view(np.float32)[:] = scale * np.arange((size - edge) // 4, dtype=np.float32)
    return found


def spec_of(session: Any) -> StateSpec:
    return state_spec(each.item for each in session.items)


def test_in_an_encoding_workers_say_of_themselves_what_an_ordinary_script_says(make: MakeOptimizer) -> None:
    script = ordinary(make)
    said = Replica(script, "int8")
    layers, layout = chained(make)
    vectors = LayerVectors(layout, "int8")
    assert vectors.state == said.spec != spec_of(script) and vectors.contribution == said.contribution
    whole = np.zeros(vectors.state.size_bytes, dtype=np.uint8)
    for layer in layers:
        vectors.write(whole, layer)
    assert bytes(whole) == bytes(region(script, spec_of(script)))
    started = replace(said.hello(), pid=0, held=False)
    specs = RunSpecs(state=vectors.state, contribution=vectors.contribution, weight=8.0)
    greeted = greeting(GreetRun(reached=0, kept=Kept.ALL), specs, started.arena_bytes)
    assert replace(greeted, pid=0) == started and started.oldest == ENCODINGS_SINCE
    said.arena.close()


def test_workers_whose_numbers_are_all_float64_are_refused_an_encoding() -> None:
    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)).double()
    layers = chain(list(module))
    for layer in layers:
        layer.train_with(MAKERS["plain"])
    with pytest.raises(ValueError, match="all that is averaged here is float64, which is never encoded"):
        LayerVectors(ModelLayout(module, layers, MAKERS["plain"], None), "int8")


def test_state_and_vector_are_those_of_an_ordinary_script(make: MakeOptimizer) -> None:
    script = ordinary(make)
    layers, layout = chained(make)
    session = LayersSession(layers, layout, None)
    spec = spec_of(script)
    assert first_difference(spec_of(session), spec) == "" and spec_of(session) == spec
    assert session.contribution == script.contribution
    assert bytes(region(session, spec)) == bytes(region(script, spec))
    for round in range(1, 4):
        vector = vector_of(script, 0.01 * round)
        script.apply(vector, round)
        session.apply(vector, round)
        assert bytes(region(session, spec)) == bytes(region(script, spec)), round


def test_each_layer_writes_and_loads_its_part_of_the_state_of_an_ordinary_script(make: MakeOptimizer) -> None:
    script = ordinary(make)
    layers, layout = chained(make, seed=4)  # other numbers
    vectors, spec = LayerVectors(layout), spec_of(script)
    assert vectors.state == spec
    script.apply(vector_of(script, 0.01), 1)
    wanted = region(script, spec)
    for layer in layers:
        vectors.load(wanted, layer)
        layer.loaded()
    written = np.zeros_like(wanted)
    for layer in reversed(layers):
        vectors.write(written, layer)
    assert bytes(written) == bytes(wanted)
    for start, stop in ((0, 9), (5, 1000), (len(wanted) - 700, len(wanted)), (1021, 1022)):
        piece = np.zeros(stop - start, dtype=np.uint8)
        for layer in layers:
            vectors.copy(piece, start, stop, layer)
        assert bytes(piece) == bytes(wanted[start:stop])
    script.apply(vector_of(script, 0.02), 2)
    for layer in layers:
        vectors.update(vector_of(script, 0.02), layer, 1.0, 2)
        vectors.write(written, layer)
    assert bytes(written) == bytes(region(script, spec))


def test_what_a_layer_gives_lies_where_an_ordinary_script_gives_it(make: MakeOptimizer) -> None:
    script = ordinary(make)
    layers, layout = chained(make)
    vectors = LayerVectors(layout)
    wanted = vector_of(script, 0.5)
    given = np.zeros_like(wanted)
    script.contribute(given)  # no gradients: the buffers alone
    again = np.zeros_like(wanted)
    for layer in layers:
        vectors.give(again, layer, torch.zeros(layer.gradient_size) if layer.parameters else None)
    assert bytes(again) == bytes(given) and again.any()
    for layer in layers:
        if layer.parameters:
            vectors.give(again, layer, vectors.gradient(wanted, layer.index))
    for slot, start in zip(layout.slots, starts(layout), strict=True):
        there = slice(start, start + slot.size_bytes)
        assert bytes(again[there]) == bytes((wanted if slot.optimizers else given)[there]), slot.name
        assert vectors.name_at(start) == slot.name == vectors.name_at(start + slot.size_bytes - 1)


def starts(layout: ModelLayout) -> list[int]:
    found = [0]
    for slot in layout.slots[:-1]:
        found.append(found[-1] + slot.size_bytes)
    return found


def test_with_local_steps_state_and_vector_are_those_of_an_ordinary_script(make: MakeOptimizer) -> None:
    """Of a phase of two steps on the same gradients, and of its result."""
    mode = DiLoCo(every=2, warmup_rounds=1)
    torch.manual_seed(3)
    module = model()
    optimizer = make([p for p in module.parameters() if p.requires_grad])
    scheduler = SCHEDULES[make](optimizer) if make in SCHEDULES else None
    script = mode.start(
        framework_of(module, optimizer, scheduler, arrays=None, apply=None, gradients=None, set_to_none=True)
    )
    torch.manual_seed(3)
    other = model()
    layers, schedule = chain(list(other)), SCHEDULES.get(make)
    for layer in layers:
        layer.train_with(make, schedule, mode)
    layout = ModelLayout(other, layers, make, None, schedule, mode)
    vectors, spec = LocalVectors(layout), spec_of(script)
    assert first_difference(vectors.state, spec) == "" and vectors.state == spec
    assert vectors.contribution == script.contribution
    for round in (1, 2, 3):
        for step in (1, 2):
            for mine, same in zip(module.parameters(), other.parameters(), strict=True):
                if mine.requires_grad:
                    mine.grad = torch.full_like(mine, 0.01 * round + step)
                    same.grad = None
            script.stepped(Part())
            for layer in layers:
                if layer.parameters:
                    gradient = torch.full((layer.gradient_size,), 0.01 * round + step, dtype=layer.gradient_dtype)
                    layer.update(gradient, round)
        given, wanted = (np.zeros(script.contribution.size_bytes, dtype=np.uint8) for _ in range(2))
        script.contribute(wanted, round)
        for layer in layers:
            vectors.give(given, layer, None)
        assert bytes(given) == bytes(wanted) and given.any()
        script.apply(wanted, round)
        written = np.zeros(spec.size_bytes, dtype=np.uint8)
        for layer in layers:
            vectors.update(wanted, layer, 1.0, round)
            vectors.write(written, layer)
        assert bytes(written) == bytes(region(script, spec)), round


def test_a_clipped_chain_is_told_apart_from_an_ordinary_script() -> None:
    make = MAKERS["plain"]
    module = model()
    layers = chain(list(module))
    for layer in layers:
        layer.train_with(make)
    clipped = LayersSession(layers, ModelLayout(module, layers, make, 1.0), 1.0)
    assert "clip_norm: 1.0" in first_difference(spec_of(clipped), spec_of(ordinary(make)))


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1 / len(p)),
        lambda p: torch.optim.SGD(p, lr=0.1, nesterov=len(p) > 2, momentum=0.9),
        lambda p: torch.optim.AdamW(p) if len(p) > 2 else torch.optim.SGD(p, lr=1e-3),
    ],
    ids=("a-number", "a-switch", "a-kind"),
)
def test_an_optimizer_that_depends_on_the_parameters_is_refused(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    with pytest.raises(ValueError, match="must not depend on the parameters"):
        chained(make)


def test_a_scheduler_that_depends_on_the_parameters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=len(optimizer.param_groups[0]["params"]))

    make = MAKERS["adamw"]
    monkeypatch.setitem(SCHEDULES, make, schedule)
    with pytest.raises(ValueError, match=r"the scheduler that scheduler= makes for layer 0 .* must not depend"):
        chained(make)


def test_layers_with_more_than_the_model_has_are_laid_out_by_themselves() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner, self.scale = inner, torch.nn.Parameter(torch.ones(1))

    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    layers = chain([Scaled(each) for each in module])
    for layer in layers:
        layer.train_with(MAKERS["adamw"])
    layout = ModelLayout(module, layers, MAKERS["adamw"], None)
    assert [item.name for item in layout.items][:2] == ["model.0.scale", "model.0.inner.weight"]
