"""State of learning-rate schedulers of torch as items of the training state: the numbers in it, wherever they are."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from chaos.frameworks.base import StateItem, fact_item, like, number_item
from chaos.frameworks.torch_state import plain_text, replaced_tensor_item
from chaos_protocols.wire.state_spec import fact

TREE_DEPTH_MAX = 16


def scheduler_items(prefix: str, scheduler: Any) -> Iterator[StateItem]:
    """Numbers and tensors of a scheduler's `state_dict`, at any depth; loading goes through `load_state_dict`.

    Raises ValueError for a scheduler that needs a metric (ReduceLROnPlateau): sites would disagree on it.
    """
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ValueError(
            f"{prefix} is a ReduceLROnPlateau: each site would follow its own metric and the models would drift apart; "
            "use a scheduler that depends on the number of steps alone"
        )
    yield fact_item(fact(f"{prefix}: {type(scheduler).__name__}"))
    for path, value in _leaves(scheduler.state_dict(), ()):
        name = ".".join([prefix, *map(str, path)])
        if isinstance(value, bool | int | float):
            yield _scheduler_number(name, scheduler, path)
        elif isinstance(value, torch.Tensor):
            yield replaced_tensor_item(name, lambda path=path: _at(scheduler.state_dict(), path))  # type: ignore[misc]
        else:
            yield fact_item(fact(f"{name}: {plain_text(value)}"))


def _scheduler_number(name: str, scheduler: Any, path: tuple[Any, ...]) -> StateItem:
    def put(value: float) -> None:
        tree = scheduler.state_dict()
        old = _at(tree, path)
        if old != value:  # the many constants of a scheduler are equal already
            scheduler.load_state_dict(_with(tree, path, like(old, value)))

    return number_item(name, lambda: float(_at(scheduler.state_dict(), path)), put)


def _leaves(tree: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if len(path) > TREE_DEPTH_MAX:
        raise ValueError(f"the state of a scheduler is nested deeper than {TREE_DEPTH_MAX}")
    if isinstance(tree, dict):
        for key in sorted(tree, key=str):
            yield from _leaves(tree[key], (*path, key))
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from _leaves(value, (*path, index))
    else:
        yield path, tree


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _with(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the tree with one leaf replaced; containers keep their types (MultiStepLR counts in a Counter)."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(tree, tuple):
        return tuple(_with(v, rest, value) if i == key else v for i, v in enumerate(tree))
    changed = copy.copy(tree)
    changed[key] = _with(tree[key], rest, value)
    return changed
