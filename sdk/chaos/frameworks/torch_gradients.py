"""Gradients of torch parameters: into a vector, out of it, and whether they are numbers."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def read_gradients(views: list[torch.Tensor], parameters: list[torch.Tensor]) -> None:
    """A parameter without a gradient gives zeros."""
    gradients, there = [], []
    for view, parameter in zip(views, parameters, strict=True):
        gradient = parameter.grad
        if gradient is None:
            view.zero_()
        else:
            gradients.append(gradient.to_dense() if gradient.is_sparse else gradient)
            there.append(view)
    if gradients:
        torch._foreach_copy_(there, gradients)


def write_gradients(views: list[torch.Tensor], parameters: list[torch.Tensor]) -> None:
    gradients = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None or not _is_writable(gradient):
            gradient = parameter.grad = torch.empty_like(parameter)
        gradients.append(gradient)
    if gradients:
        torch._foreach_copy_(gradients, views)


def _is_writable(gradient: torch.Tensor) -> bool:
    """Whether each of its numbers has a place in memory of its own: not in what `expand()` made, which
    `torch.autograd.grad` gives for a sum."""
    if gradient.is_sparse or gradient.is_contiguous():
        return not gradient.is_sparse
    return not is_expanded(gradient)


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether several numbers of a dense tensor lie in one place, as in what `expand()` makes."""
    if tensor.is_contiguous():
        return False
    return any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def odd_gradient(named: Iterable[tuple[str, torch.Tensor | None]]) -> str:
    """The name of the first gradient that holds a number that is none; empty: all are. One question to each device, as
    long as there is no such number."""
    there = [(name, gradient) for name, gradient in named if gradient is not None]
    dense = [gradient.coalesce().values() if gradient.is_sparse else gradient for _, gradient in there]
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for gradient in dense:
        by_device.setdefault(gradient.device, []).append(gradient)
    with torch.no_grad():
        norms = [torch.stack(torch._foreach_norm(some)).sum() for some in by_device.values()]
        if all(bool(torch.isfinite(norm)) for norm in norms):
            return ""
        finite = (bool(torch.isfinite(gradient).all()) for gradient in dense)
        return next((name for (name, _), fine in zip(there, finite, strict=True) if not fine), "")
