"""What an optimizer of torch keeps elsewhere than in the state of its parameters and its options: a joiner would not
be sent it, and nobody would be told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

KEPT_IN_PLACE = frozenset({"param_groups", "state", "defaults"})
DEPTH_MAX = 4
"""Of lists and dicts among its attributes."""


class Elsewhere:
    """Of one optimizer, from before a step is tried on."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._before = {path: (there, there._version) for path, there in _tensors_of(optimizer)}

    def check(self, name: str) -> None:
        """After it. Raises ValueError for what no joiner could be sent."""
        optimizer = self._optimizer
        named = f"{name} ({type(optimizer).__name__})"
        odd = next((key for key in optimizer.state if not isinstance(key, torch.Tensor)), None)
        if odd is not None:
            raise ValueError(
                f"{named} keeps state under {odd!r}, which is none of its parameters, so a joiner would not be sent "
                "it: it belongs into the state of a parameter, or, if it is a number, into a group's options"
            )
        for path, there in _tensors_of(optimizer):
            before, version = self._before.get(path, (None, 0))
            if before is not there or version != there._version:
                raise ValueError(
                    f"{named} keeps a tensor in its attribute {path!r}, which its step() has changed, so a joiner "
                    "would not be sent it: it belongs into the state of a parameter (self.state[parameter])"
                )


def check_within(name: str, optimizer: torch.optim.Optimizer) -> None:
    """Raises ValueError for one that leaves what it keeps to another one, and does not show it as its own state."""
    for path, inner in _found_in(optimizer):
        if not isinstance(inner, torch.optim.Optimizer) or inner is optimizer or inner.state is optimizer.state:
            continue
        ours = optimizer.state
        hidden = any(
            value is not None and ours.get(parameter, {}).get(key) is not value
            for parameter, kept in inner.state.items()
            for key, value in kept.items()
        )
        if hidden:
            kind = type(inner).__name__
            raise ValueError(
                f"{name} ({type(optimizer).__name__}) keeps its state in an optimizer of its own, {path!r} ({kind}), "
                f"so a joiner would not be sent it: register {kind}(model.parameters(), ...) itself (a site is one "
                "process, so nothing is gained by sharding its state); a wrapper of your own may show that "
                f"state as its own (self.state = self.{path}.state)"
            )


def _tensors_of(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """Those that it keeps by itself, but for its parameters."""
    parameters = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for path, found in _found_in(optimizer):
        if isinstance(found, torch.Tensor) and id(found) not in parameters:
            yield path, found


def _found_in(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    for key, value in list(vars(optimizer).items()):
        if key not in KEPT_IN_PLACE:
            yield from _walk(key, value, DEPTH_MAX)


def _walk(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor | torch.optim.Optimizer):
        yield path, value
    elif depth and isinstance(value, dict):
        for key, each in value.items():
            yield from _walk(f"{path}[{key!r:.40}]", each, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _walk(f"{path}[{index}]", each, depth - 1)
