"""What an optimizer of torch keeps elsewhere than in the state of its parameters and its options: a joiner would not
be sent it, and nobody would be told."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

KEPT_IN_PLACE = frozenset({"param_groups", "state", "defaults"})
DEPTH_MAX = 4
"""Of lists and dicts among its attributes."""


class Elsewhere:
    """Of one optimizer, from before a step is tried on."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._before = {path: (there, there._version) for path, there in _tensors_of(optimizer)}
        self._numbers = dict(_numbers_of(optimizer))
        self._shown = {id(tensor) for tensor in _shown_by(optimizer)}
        """Tensors that a joiner is sent: an attribute may be a further name of one. One that the first step makes is
        not among them, since the next one might make it anew for one of the two places alone."""

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
            if before is there and (version == there._version or id(there) in self._shown):
                continue
            if before is None:
                where = "it belongs into the state of a parameter (self.state[parameter])"
            else:
                where = (
                    "it belongs into the state of a parameter (self.state[parameter]); one that every step changes in "
                    "place, a buffer for scratch work, too, can be shown as an option before register(): "
                    f"optimizer.param_groups[0]['kept'] = optimizer.{path}"
                )
            raise ValueError(
                f"{named} keeps a tensor in its attribute {path!r}, which its step() has changed, so a joiner would "
                f"not be sent it: {where}"
            )

    def odd_numbers(self, name: str) -> str:
        """After it, what is to be told; empty: nothing. Whether steps depend on such numbers nobody knows: an optimizer
        may write down its losses."""
        for path, number in _numbers_of(self._optimizer):
            if self._numbers.get(path) != number:
                return (
                    f"{name} ({type(self._optimizer).__name__}) keeps a number in {path!r}, which its step() has "
                    "changed; what lies in a list, a dict or an array of its own no joiner is sent, who begins with "
                    "what it has: if steps depend on it, keep it among the options "
                    "(optimizer.param_groups[0]['name']), or as a number in an attribute"
                )
        return ""


def _shown_by(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    places = [*optimizer.state.values(), *optimizer.param_groups]
    for place in places:
        if isinstance(place, dict):
            yield from (value for value in place.values() if isinstance(value, torch.Tensor))


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
    tensors = [(path, found) for path, found in _found_in(optimizer) if isinstance(found, torch.Tensor)]
    parameters = {id(p) for group in optimizer.param_groups for p in group["params"]} if tensors else set()
    yield from ((path, found) for path, found in tensors if id(found) not in parameters)


def _found_in(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    """But for state, its own or of an optimizer within it, that has one more name (`self.fast_state =
    self.inner.state`): `check_within` looks at that."""
    own = vars(optimizer)
    states = {id(optimizer.state)}
    for key, value in list(own.items()):
        if key not in KEPT_IN_PLACE:
            states.update(id(o.state) for _, o in _walk(key, value, DEPTH_MAX) if isinstance(o, torch.optim.Optimizer))
    for key, value in list(own.items()):
        if key not in KEPT_IN_PLACE and id(value) not in states:
            yield from _walk(key, value, DEPTH_MAX)


def _numbers_of(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, object]]:
    """Those in lists, dicts and arrays that are attributes of its own; a plain one is part of the state."""
    for path, found in _found_in(optimizer):
        if isinstance(found, np.ndarray | np.generic):
            yield path, found.tobytes()
        elif isinstance(found, bool | int | float) and path not in vars(optimizer):
            yield path, found


def _walk(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor | torch.optim.Optimizer | bool | int | float | np.ndarray | np.generic):
        yield path, value
    elif depth and isinstance(value, dict):
        for key, each in value.items():
            shown = "parameter" if isinstance(key, torch.Tensor) else f"{key!r:.40}"
            yield from _walk(f"{path}[{shown}]", each, depth - 1)
    elif depth and isinstance(value, list | tuple | deque):
        for index, each in enumerate(value):
            yield from _walk(f"{path}[{index}]", each, depth - 1)
