"""What a step that is only tried has changed of an optimizer's options and state is put back where it lies: what refers
to it from elsewhere (a view of a tensor, a list, an attribute) refers to it afterwards, too."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

DEPTH_MAX = 4
"""Of lists and dicts among options and state; what lies deeper is put back as a copy."""


@dataclass(frozen=True, slots=True)
class Before:
    """Of an optimizer before a step is tried: the names of each group's options, and numbers of its own."""

    options: Sequence[frozenset[str]]
    numbers: Mapping[str, Any]


@contextlib.contextmanager
def undone(optimizer: torch.optim.Optimizer, tried: Sequence[torch.Tensor]) -> Iterator[Before]:
    """After the block parameters, gradients, groups, state and numbers of the optimizer are as before it, bit for bit;
    `tried`: the parameters that may change. It begins without gradients."""
    values = [p.detach().clone() for p in tried]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters]
    for p, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            p.grad = None
    groups = [{k: kept(v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    numbers = {k: v for k, v in vars(optimizer).items() if is_plain(v)}
    lists = {k: kept(v) for k, v in vars(optimizer).items() if not is_plain(v) and is_of_numbers(v)}
    states = {p: kept(state) for p, state in optimizer.state.items()}
    random_state = torch.get_rng_state()
    try:
        yield Before([frozenset(group) for group in groups], numbers)
    finally:
        torch.set_rng_state(random_state)
        with torch.no_grad():
            for p, value in zip(tried, values, strict=True):
                p.copy_(value)
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            for key in set(group) - {"params", *before}:
                del group[key]
            group.update({key: back() for key, back in before.items()})
        own = vars(optimizer)
        for key in [key for key, value in own.items() if is_plain(value) and key not in numbers]:
            del own[key]
        own.update(numbers)
        own.update({key: back() for key, back in lists.items()})
        there = {p: back() for p, back in states.items()}
        optimizer.state.clear()
        optimizer.state.update(there)


def is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float)


def is_of_numbers(value: object, depth: int = DEPTH_MAX) -> bool:
    """A number, an array, or a list or dict of such: nothing that another object could be looked for in. An empty dict
    may be the state of an optimizer within it."""
    if isinstance(value, dict | list | tuple | deque):
        parts = value.values() if isinstance(value, dict) else value
        return (
            depth > 0
            and (bool(value) or not isinstance(value, dict))
            and all(is_of_numbers(part, depth - 1) for part in parts)
        )
    return value is None or is_plain(value) or isinstance(value, np.ndarray | np.generic)


def kept(value: Any, depth: int = DEPTH_MAX) -> Callable[[], Any]:
    """A function that returns `value` with what is in it now."""
    if isinstance(value, torch.Tensor):
        return _kept_tensor(value)
    if depth and isinstance(value, dict):
        return _kept_dict(value, depth)
    if isinstance(value, np.ndarray):
        return _kept_array(value)
    if depth and isinstance(value, list | tuple | deque):
        parts = [kept(part, depth - 1) for part in value]

        def back() -> Any:
            there = [part() for part in parts]
            if not isinstance(value, tuple):
                value.clear()
                value.extend(there)
            return value

        return back
    try:
        copied = copy.deepcopy(value)
    except Exception:  # a handle: nothing in it is the step's to change
        copied = value
    return lambda: copied


def _kept_tensor(tensor: torch.Tensor) -> Callable[[], Any]:
    then = tensor.detach().clone()

    def back() -> Any:
        if tensor.shape != then.shape:
            return then
        with torch.no_grad():
            tensor.copy_(then)
        return tensor

    return back


def _kept_array(array: np.ndarray[Any, Any]) -> Callable[[], Any]:
    then = array.copy()

    def back() -> Any:
        array[...] = then
        return array

    return back


def _kept_dict(value: dict[Any, Any], depth: int) -> Callable[[], Any]:
    parts = {key: kept(part, depth - 1) for key, part in value.items()}

    def back() -> Any:
        there = {key: part() for key, part in parts.items()}
        value.clear()
        value.update(there)
        return value

    return back
