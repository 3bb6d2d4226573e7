"""What workers cannot train, or would leave untrained without a word: refused with what to write instead."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from chaos.worker_group.chain.layers import Layer

NAMED_MAX = 5
"""Parameters, in a sentence."""


def check_modules(modules: Sequence[torch.nn.Module]) -> None:
    """Raises ValueError for one that only holds others, as a `ModuleList` does."""
    for index, module in enumerate(modules):
        if getattr(module.forward, "__func__", None) is torch.nn.Module.forward:  # a compiled one's was put there
            raise ValueError(
                f"layer {index} is a {type(module).__name__}, which computes nothing by itself: name what it holds in "
                "its place, layers=lambda m: [m.embed, *m.blocks, m.head]"
            )


def check_loss(loss: Any, model: torch.nn.Module) -> None:
    """Raises ValueError for a loss with parameters of its own that want to be trained: they are in no layer, so no
    worker has an optimizer for them."""
    own = {id(parameter) for parameter in model.parameters()}
    found = [name for name, p in _owner(loss).named_parameters() if p.requires_grad and id(p) not in own]
    if found:
        more = f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
        raise ValueError(
            f"loss= has parameters of its own, which would not be trained: {', '.join(map(repr, found[:NAMED_MAX]))}"
            f"{more}. What is trained has to be in a layer of the model: put it into the last layer and let the loss "
            "take what that gives, or freeze it (requires_grad_(False))"
        )


def check_number(told: Any) -> None:
    """Raises ValueError for what a loss gives that is not one number, with what to write instead."""
    if isinstance(told, torch.Tensor):
        if told.dim() == 0:
            return
        what = f"a tensor of shape {tuple(told.shape)}"
        instead = "take its mean: loss=lambda output, target: yours(output, target).mean()"
    elif isinstance(told, tuple | list | dict):
        what = f"a {type(told).__name__} of {len(told)}"
        first = repr(next(iter(told))) if isinstance(told, dict) and told else "0"
        instead = (
            f"return the loss alone, as by loss=lambda output, target: yours(output, target)[{first}]; what else it "
            "counts stays with the worker that computes it, so evaluate such figures in the loop, and show them and "
            "the loss of the report by coordinator.log(...)"
        )
    else:
        what = "nothing" if told is None else f"a {type(told).__name__}"
        instead = "return the tensor that is to be minimized, as it is (no .item(), no float())"
    raise ValueError(
        f"loss= must give one number for (output, target), the mean over the micro-batch, not {what}; {instead}"
    )


def check_told(told: torch.Tensor, output: torch.Tensor, layers: Sequence[Layer]) -> None:
    """Raises ValueError for a loss that uses a parameter which wants to be trained, its own or one of a layer: the
    backward pass of a loss goes to the output alone. And for one that has none. `told`: the loss of this output."""
    if output.requires_grad and not told.requires_grad:
        raise ValueError(
            "loss= gives a number that nothing can be learnt from: on its way from the output it was detached "
            "(.detach(), .item(), torch.no_grad()), or made of whole numbers (argmax, a comparison); return what the "
            "output gives, as it is"
        )
    for leaf in _leaves(told):
        if leaf is output or not isinstance(leaf, torch.nn.Parameter):
            continue
        named = (f"the parameter {n!r} of layer {each.name}" for each in layers for n in _names(each, leaf))
        what = next(named, f"a parameter of shape {tuple(leaf.shape)}")
        raise ValueError(
            f"loss= uses {what}, which would get no gradient of it: a loss is "
            "a function of (output, target) alone. Put what is trained into the last layer and let the loss take what "
            "that gives (for a penalty on weights: weight_decay= of the optimizer), or detach() it"
        )


def check_layers(layers: Sequence[Layer]) -> None:
    """Raises ValueError for what the gradients of a layer could not be summed or moved with."""
    check_dense(layers)
    check_hooks(layers)


def check_hooks(layers: Sequence[Layer]) -> None:
    """Raises ValueError for hooks on trained parameters. A layer that goes to another worker gets other parameters
    there, without them, and so does one that a device group shares; and what a parameter has after a backward pass is
    a sum over as many micro-batches as the worker has computed."""
    for layer in layers:
        for name, parameter in layer.module.named_parameters():
            if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
                raise ValueError(
                    f"layer {layer.name}: the parameter {name!r} has a hook (register_hook, "
                    "register_post_accumulate_grad_hook), which would not go with it from worker to worker: hooks on "
                    "modules do (register_full_backward_hook); for what is done to gradients use clip_norm= or an "
                    "optimizer that does it, or keep the model whole with replicate()"
                )


def check_dense(layers: Sequence[Layer]) -> None:
    """Raises ValueError for modules whose gradients are sparse: sums are made of whole vectors."""
    for layer in layers:
        for name, part in layer.module.named_modules():
            if getattr(part, "sparse", False) is True and any(p.requires_grad for p in part.parameters(recurse=False)):
                where = f"{name!r}, {part}" if name else f"{part}"
                raise ValueError(
                    f"layer {layer.index} has sparse gradients ({where}), and workers add up whole ones; make it with "
                    "sparse=False, and the optimizer one for dense gradients (AdamW in the place of SparseAdam)"
                )


def check_gradients(layer: Layer, found: Sequence[torch.Tensor | None]) -> None:
    """As `check_dense`, for a layer whose code says nothing of it beforehand. `found`: of its trained parameters."""
    for parameter, gradient in zip(layer.parameters, found, strict=True):
        if gradient is not None and gradient.layout != torch.strided:
            name = next(map(repr, _names(layer, parameter)), f"of shape {tuple(parameter.shape)}")
            raise ValueError(
                f"layer {layer.name} gives a sparse gradient of its parameter {name}; workers add up whole ones: "
                "look its rows up with sparse=False"
            )


def _names(layer: Layer, wanted: torch.nn.Parameter) -> list[str]:
    return [name for name, parameter in layer.module.named_parameters() if parameter is wanted]


def _owner(loss: Any) -> torch.nn.Module:
    """The module that a loss is, or is a method of; one without parameters for others."""
    while isinstance(loss, functools.partial):
        loss = loss.func
    if not isinstance(loss, torch.nn.Module):
        loss = getattr(loss, "__self__", None)
    return loss if isinstance(loss, torch.nn.Module) else torch.nn.Identity()


def _leaves(told: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors whose gradients a backward pass would add up."""
    ahead: list[Any] = [told.grad_fn]
    seen: set[Any] = set()
    while ahead:
        function = ahead.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        if hasattr(function, "variable"):
            yield function.variable
        ahead.extend(following for following, _ in function.next_functions)
