"""What a layer takes and gives, measured once with the first micro-batch: seconds, bytes, shapes. The planner's facts
come from here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from chaos.worker_group.chain.layers import Layer
from chaos.worker_group.chain.refused import check_gradients, check_hooks, check_number, check_told
from chaos.worker_group.compute.data import Loader
from chaos.worker_group.compute.interpreter import Loss
from chaos.worker_group.exchange.devices import HOST, Device

IN_PLACE = "in-place operation"
"""In torch's words for that."""

REPEATS = 3
"""The shortest of so many runs is told: what else ran on the machine only adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMeasure:
    """One micro-batch through one layer, and one step of its optimizer."""

    forward_s: float
    backward_s: float
    update_s: float
    kept_bytes: int
    output_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """`boundaries[l]`: shape and type of what enters layer l."""

    layers: Sequence[LayerMeasure]
    boundaries: Sequence[tuple[tuple[int, ...], torch.dtype]]


def measure(layers: Sequence[Layer], loss: Loss, loader: Loader, device: Device = HOST) -> Measured:
    """Run the first micro-batch through the model. Changes no state.

    Raises ValueError, naming the layer, where the chain does not fit together.
    """
    check_hooks(layers)
    sample = loader.micro_batch(0, 0)
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise ValueError("the data set must give pairs (input, target), which become one tensor each in a micro-batch")
    value, target = map(device.moved, sample)
    boundaries: list[tuple[tuple[int, ...], torch.dtype]] = []
    measures: list[LayerMeasure] = []
    before = device.drawn()
    try:
        for layer in layers:
            if not isinstance(value, torch.Tensor):
                raise ValueError(f"a {type(value).__name__} enters layer {layer.name}; it must be one tensor")
            boundaries.append((tuple(value.shape), value.dtype))
            value, found = _layer(layer, value, device)
            measures.append(found)
        if value.is_floating_point():
            value = value.requires_grad_().clone()  # no leaf: a loss may write into it, as in a step
        told = loss(value, target)
        check_number(told)
        check_told(told, value, layers)
    finally:
        device.draw_from(before)
    return Measured(layers=measures, boundaries=boundaries)


def _layer(layer: Layer, value: torch.Tensor, device: Device) -> tuple[torch.Tensor, LayerMeasure]:
    forward_s: list[float] = []
    backward_s: list[float] = []
    left: Any = None
    for _ in range(REPEATS):
        entered, kept = value.detach(), layer.statistics()
        if entered.is_floating_point():
            entered.requires_grad_()
        device.synchronize()
        began_s = perf_counter()
        try:
            left = layer.run(entered)
        except RuntimeError as error:
            raise ValueError(_why_not(layer, entered, error)) from error
        device.synchronize()
        forward_s.append(perf_counter() - began_s)
        _check_statistics(layer, kept)
        if not isinstance(left, torch.Tensor):
            raise ValueError(
                f"layer {layer.name} gives a {type(left).__name__}; each layer must take one tensor and give one"
            )
        if not backward_s and left.requires_grad and layer.adds:
            _check_backward(layer, entered, left)
        began_s = perf_counter()
        if left.requires_grad and (entered.requires_grad or layer.parameters):
            _, found = layer.gradients(entered, left, torch.ones_like(left))
            check_gradients(layer, found)
        device.synchronize()
        backward_s.append(perf_counter() - began_s)
    size = left.numel() * left.element_size()
    measured = LayerMeasure(
        forward_s=min(forward_s),
        backward_s=min(backward_s),
        update_s=_update_s(layer, device),
        kept_bytes=2 * size,
        output_bytes=size,
    )
    return left.detach(), measured


def _why_not(layer: Layer, entered: torch.Tensor, error: RuntimeError) -> str:
    """Why it does not compute what enters it."""
    if IN_PLACE in str(error) and _takes(layer, entered.clone()):
        return (
            f"layer {layer.name} changes in place what enters it, which is another layer's, or a message of another "
            "worker: make a new tensor (x = x * 2 in the place of x *= 2, ReLU() without inplace=True), or put it and "
            "the layer before it into one, torch.nn.Sequential(first, second)"
        )
    return f"layer {layer.name} cannot take what the one before gives ({tuple(entered.shape)} {entered.dtype}): {error}"


def _takes(layer: Layer, entered: torch.Tensor) -> bool:
    try:
        layer.run(entered)
    except RuntimeError:
        return False
    return True


def _check_statistics(layer: Layer, kept: dict[str, bytes]) -> None:
    """Raises ValueError for a forward pass that writes into the state: each holder would have what its own micro-
    batches made of it, in their order, and no two plans the same bits."""
    now = layer.statistics()
    changed = [name for name, data in kept.items() if now.get(name) != data]
    if changed:
        raise ValueError(
            f"the forward pass of layer {layer.name} changes its buffer {changed[0]!r}, so that the state would depend "
            "on which worker computes which micro-batch; freeze it (track_running_stats=False, or eval() of that "
            "module), or keep the model whole with replicate()"
        )


def _check_backward(layer: Layer, entered: torch.Tensor, left: torch.Tensor) -> None:
    """Raises ValueError for a backward pass within which another one runs: it would add the gradient of a parameter up
    in parts, and in another order where there is something to be added to."""
    wanted = [each for each in (entered, *layer.parameters) if each.requires_grad]
    try:
        torch.autograd.grad(left, wanted, torch.ones_like(left), retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        text = str(error).splitlines()[0]
        raise ValueError(
            f"layer {layer.name} cannot be taken backward by itself: {text} (checkpoints need use_reentrant=False)"
        ) from error


def _update_s(layer: Layer, device: Device) -> float:
    """One step of the layer's optimizer, tried on copies of its parameters."""
    copies = [torch.nn.Parameter(p.detach().clone()) for p in layer.parameters]
    if not copies:
        return 0.0
    optimizer = layer.optimizer_of(copies)
    took_s = []
    for _ in range(REPEATS):  # the first one also makes what the optimizer keeps
        for copy in copies:
            copy.grad = torch.zeros_like(copy)
        began_s = perf_counter()
        optimizer.step()
        device.synchronize()
        took_s.append(perf_counter() - began_s)
    return min(took_s)
