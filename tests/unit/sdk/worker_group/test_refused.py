"""What workers would leave untrained, or could not add up, is refused with its name and what to write instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.integration.site_training import CLASSES, WIDTH, Points, make_model, make_optimizer

from chaos import ChangedOutside, Coordinator

LOSS = torch.nn.functional.cross_entropy


class Weighed(torch.nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self, trained: bool = True) -> None:
        super().__init__()
        self.margin = torch.nn.Parameter(torch.ones(()), trained)

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return LOSS(output * self.margin, target)


@pytest.mark.parametrize(
    "loss", [Weighed(), Weighed().forward, functools.partial(Weighed())], ids=("module", "method", "partial")
)
def test_a_loss_with_parameters_of_its_own_is_refused_with_their_names(loss: Any) -> None:
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        with pytest.raises(ValueError, match=r"loss= has parameters of its own, .*: 'margin'.* a layer of the model"):
            coordinator.parallelize(make_model(), loss=loss)


def closed_over(module: torch.nn.Module) -> Any:
    """A loss that says nothing of the parameter that it uses."""
    inner = Weighed()
    return lambda output, target: inner(output, target)


def decayed(module: torch.nn.Module) -> Any:
    return lambda output, target: LOSS(output, target) + module.get_parameter("0.weight").square().sum()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (closed_over, r"loss= uses a parameter of shape \(\),"),
        (decayed, "loss= uses the parameter 'weight' of layer 0"),
    ],
    ids=("closed-over", "of-a-layer"),
)
def test_a_loss_that_uses_a_parameter_is_refused_with_the_first_step(make: Callable[[Any], Any], text: str) -> None:
    module = make_model()
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(module, loss=make(module))
        coordinator.register(model=model, optimizer=make_optimizer)
        with pytest.raises(ValueError, match=text):
            model.step(next(iter(coordinator.loader(Points(), global_batch=8, micro_batch=4))))


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda o, t: (LOSS(o, t), {"right": 0.5}), r"not a tuple of 2; .*\[0\].*coordinator\.log"),
        (lambda o, t: {"loss": LOSS(o, t), "right": 0.5}, r"not a dict of 2; .*\['loss'\]"),
        (lambda o, t: LOSS(o, t, reduction="none"), r"not a tensor of shape \(2,\); take its mean: .*\.mean\(\)"),
        (lambda o, t: LOSS(o, t).item(), r"not a float; return the tensor .*no \.item\(\)"),
        (lambda o, t: None, "not nothing; return the tensor"),
    ],
    ids=("pair", "dict", "each", "float", "none"),
)
def test_a_loss_that_gives_something_else_than_a_number_is_refused_with_what_to_write(loss: Any, text: str) -> None:
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(make_model(), loss=loss)
        coordinator.register(model=model, optimizer=make_optimizer)
        batch = next(iter(coordinator.loader(Points(), global_batch=4, micro_batch=2, steps=1)))
        with pytest.raises(ValueError, match=text):
            model.step(batch)


def test_a_loss_may_have_frozen_parameters() -> None:
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(make_model(), loss=Weighed(trained=False))
        coordinator.register(model=model, optimizer=make_optimizer)
        (report,) = map(model.step, coordinator.loader(Points(), global_batch=8, micro_batch=4, steps=1))
    assert report.loss > 0


@pytest.mark.parametrize(
    "given", [torch.ones(4, 8), (torch.ones(4, 8), torch.ones(4)), None], ids=["tensor", "pair", "none"]
)
def test_a_step_of_something_else_than_a_batch_of_the_loader_is_refused(given: Any) -> None:
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(make_model(), loss=LOSS)
        coordinator.register(model=model, optimizer=make_optimizer)
        loader = coordinator.loader(Points(), global_batch=8, micro_batch=4)
        for _ in range(2):
            with pytest.raises(ValueError, match=r"step\(\) takes a batch of coordinator.loader\(...\), not a"):
                model.step(given)
            model.step(next(iter(loader)))


def test_batches_that_are_taken_without_a_step_are_told_and_not_given_for_ever() -> None:
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(make_model(), loss=LOSS)
        coordinator.register(model=model, optimizer=make_optimizer)
        loader = coordinator.loader(Points(), global_batch=8, micro_batch=4, steps=3)
        with pytest.raises(ValueError, match=r"step 1 was given 1000 times, and model.step\(batch\) was never called"):
            list(loader)
        assert [model.step(batch).step for batch in loader] == [1, 2, 3]


class LookedUp(torch.nn.Module):
    """Looks rows of a table up without a module for it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.ones(4, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = (x[:, :1].detach() > 0).long()
        return torch.nn.functional.embedding(rows, self.table, sparse=True).sum(1)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: torch.nn.Sequential(torch.nn.Sequential(torch.nn.Embedding(4, 4, sparse=True))),
            r"layer 0 has sparse gradients \('0', Embedding\(4, 4, sparse=True\)\), .*make it with sparse=False",
        ),
        (
            lambda: torch.nn.Sequential(LookedUp()),
            "layer 0 LookedUp gives a sparse gradient of its parameter 'table'; .* sparse=False",
        ),
    ],
    ids=("module", "function"),
)
def test_sparse_gradients_are_refused_with_what_has_them(make: Callable[[], torch.nn.Module], text: str) -> None:
    def first_step() -> None:
        with Coordinator(standalone=True, handle_signals=False) as coordinator:
            model = coordinator.parallelize(make(), loss=LOSS)
            coordinator.register(model=model, optimizer=make_optimizer)
            model.step(next(iter(coordinator.loader(Points(), global_batch=8, micro_batch=4))))

    with pytest.raises(ValueError, match=text):
        first_step()


@pytest.mark.parametrize("listed", [torch.nn.ModuleList, torch.nn.ModuleDict])
def test_a_list_of_modules_in_the_place_of_a_layer_is_refused_with_how_they_are_named(listed: Any) -> None:
    parts = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)]
    inner = listed(parts) if listed is torch.nn.ModuleList else listed(dict(zip("ab", parts, strict=True)))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), inner)
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        with pytest.raises(ValueError, match=rf"layer 1 is a {listed.__name__}, which .*layers=lambda m"):
            coordinator.parallelize(model, loss=LOSS)


def test_a_model_of_which_nothing_is_trained_is_refused() -> None:
    """It made all of its steps, and said a loss for each."""
    module = make_model()
    module.requires_grad_(False)
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(module, loss=LOSS)
        with pytest.raises(ValueError, match=r"no parameter of the model is trained.*requires_grad_\(True\)"):
            coordinator.register(model=model, optimizer=make_optimizer)


@pytest.mark.parametrize(
    ("part", "wants", "text"),
    [
        ("2.linear.bias", False, r"'2\.linear\.bias' was trained and wants no gradients after round 1"),
        ("2", False, r"'2\.linear\.weight' and 1 more were trained and wants no"),
        ("0", True, r"'0\.weight' and 1 more were frozen when it was registered and wants gradients"),
    ],
    ids=("parameter", "layer", "thawed"),
)
def test_another_trained_set_than_was_registered_is_told_at_the_next_step(part: str, wants: bool, text: str) -> None:
    """The frozen bias went on moving by its momentum, and the thawed layer was never trained."""
    module = make_model()
    module[0].requires_grad_(False)
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(module, loss=LOSS)
        coordinator.register(model=model, optimizer=make_optimizer)
        batches = iter(coordinator.loader(Points(), global_batch=8, micro_batch=4, steps=4))
        model.step(next(batches))
        changed: Any = module.get_parameter(part) if part.count(".") else module.get_submodule(part)
        changed.requires_grad_(wants)
        before = {name: each.clone() for name, each in module.state_dict().items()}
        with pytest.raises(ChangedOutside, match=text):
            model.step(next(batches))
        assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())


@pytest.mark.parametrize("loss", [lambda output, target: LOSS(output.detach(), target), lambda o, t: (o > 0).sum()])
def test_a_loss_that_is_cut_off_from_the_output_is_refused(loss: Any) -> None:
    """It ended the training with thirty lines of the library's, and "element 0 of tensors does not require grad"."""
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(make_model(), loss=loss)
        coordinator.register(model=model, optimizer=make_optimizer)
        batch = next(iter(coordinator.loader(Points(), global_batch=8, micro_batch=4, steps=2)))
        with pytest.raises(ValueError, match=r"nothing can be learnt from: .* detached \(\.detach\(\), "):
            model.step(batch)


def test_a_layer_may_be_frozen_between_two_steps() -> None:
    module = make_model()
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(module, loss=LOSS)
        coordinator.register(model=model, optimizer=make_optimizer)
        for batch in coordinator.loader(Points(), global_batch=8, micro_batch=4, steps=2):
            model.step(batch)
            module.requires_grad_(False)
            module(torch.ones(1, 8))
            module.requires_grad_(True)


def test_what_comes_into_the_model_after_register_is_told_once_by_its_name(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing trained the layer, and no worker that got the other one was sent the buffer, in silence."""
    module = make_model()
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(module, loss=LOSS)
        coordinator.register(model=model, optimizer=make_optimizer)
        for step, batch in enumerate(coordinator.loader(Points(), global_batch=8, micro_batch=4, steps=4)):
            if step == 1:
                module[0].register_buffer("table", torch.zeros(1), persistent=False)
                module[0].register_buffer("seen", torch.zeros(1))
                module[0].beside = torch.nn.Linear(1, 1)
            model.step(batch)
    said = capfd.readouterr().err
    assert (
        said.count("the parameter '0.beside.weight' and 1 more came into the model after register(), by round 1") == 1
    )
    assert said.count("the buffer '0.seen' came into the model after register(), by round 1") == 1
    assert said.count("came into") == 2


@pytest.mark.parametrize("place", ["5", "0.weight"], ids=("layer", "parameter"))
def test_a_layer_that_is_replaced_after_register_is_told_at_the_next_step(place: str) -> None:
    """The workers went on with the one that the model does not use any more, in silence; as after
    `resize_token_embeddings` of a model of transformers."""
    module = make_model()
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(module, loss=LOSS)
        coordinator.register(model=model, optimizer=make_optimizer)
        batches = iter(coordinator.loader(Points(), global_batch=8, micro_batch=4, steps=4))
        model.step(next(batches))
        if place == "5":
            module[5] = torch.nn.Linear(WIDTH, CLASSES)
        else:
            module[0].weight = torch.nn.Parameter(module[0].weight.detach().clone())
        with pytest.raises(ChangedOutside, match=rf"'{place[0]}\.weight' of the model is not the one .* parallelize"):
            model.step(next(batches))


def clamped(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(-1e-3, 1e-3)


@pytest.mark.parametrize("late", [False, True], ids=("before", "after"))
@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_parameter_is_refused_with_what_to_use(hook: str, late: bool) -> None:
    """One on gradients stayed behind when its layer went to another worker; one on sums saw those of as many
    micro-batches as the worker had."""
    module = make_model()
    parameter = module.get_parameter("2.linear.weight")

    def first_step(coordinator: Coordinator) -> None:
        if not late:
            getattr(parameter, hook)(clamped)
        model = coordinator.parallelize(module, loss=LOSS)
        coordinator.register(model=model, optimizer=make_optimizer)
        getattr(parameter, hook)(clamped)
        model.step(next(iter(coordinator.loader(Points(), global_batch=8, micro_batch=4, steps=2))))

    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        with pytest.raises(ValueError, match=r"layer 2 .*the parameter 'linear\.weight' has a hook.*replicate\(\)"):
            first_step(coordinator)


def test_a_layer_may_be_compiled_and_may_have_a_forward_pass_that_was_put_there() -> None:
    """They were taken for a list of modules."""

    class Put(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(WIDTH, WIDTH)
            self.forward = self.inner.forward  # type: ignore[method-assign]

    layers = [torch.nn.Linear(8, WIDTH), torch.compile(torch.nn.Linear(WIDTH, WIDTH), backend="eager"), Put()]
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, CLASSES)), loss=LOSS)
        coordinator.register(model=model, optimizer=make_optimizer)
        for batch in coordinator.loader(Points(), global_batch=8, micro_batch=4, steps=2):
            model.step(batch)
