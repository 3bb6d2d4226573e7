"""Learning-rate schedulers of torch: their state as items of the training state (the numbers in it, wherever they are),
which of them step, and where they end."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from chaos.errors import ScheduleOver
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


def due_with(
    schedulers: Mapping[str, Any], stepping: Iterable[torch.optim.Optimizer], *, all_step: bool
) -> Iterator[tuple[str, Any]]:
    """Those that step with these optimizers: their own, and those that have none and count rounds."""
    stepped = {id(optimizer) for optimizer in stepping}
    for name, scheduler in schedulers.items():
        owner = getattr(scheduler, "optimizer", None)
        if owner is None or id(owner) in stepped or all_step:
            yield name, scheduler


def step_all(schedulers: Iterable[tuple[str, Any]]) -> None:
    """Raises RuntimeError, which names the one that fails."""
    for name, scheduler in schedulers:
        try:
            scheduler.step()
        except Exception as error:
            raise RuntimeError(
                f"{name!r} ({type(scheduler).__name__}) failed at its step {_position(scheduler)}: "
                f"{type(error).__name__}: {error}; a schedule must have a rate for each step that the run makes"
            ) from error


def check_not_over(schedulers: Iterable[tuple[str, Any]], steps: int) -> None:
    """Raises ScheduleOver where one of them cannot make so many more steps."""
    for name, scheduler in schedulers:
        end, kind = _end_of(scheduler)
        if _position(scheduler) + steps > end:
            raise ScheduleOver(
                f"{name!r} ({kind}) has an end, after {end:.0f} steps, and the run goes on beyond it: nothing of this "
                "step was given or applied, and the schedule of the other sites is over at the same one. End the loop "
                "there (coordinator.steps counts the steps of the run), or begin the run with a schedule that is as "
                "long; one that a script brings later takes over the numbers of the run's, its end among them"
            )


def _position(scheduler: Any) -> int:
    """How many steps it has made."""
    position = getattr(scheduler, "last_epoch", None)
    if position is None and (parts := getattr(scheduler, "_schedulers", None)):
        return _position(parts[0])  # chained ones step together
    return position if isinstance(position, int) else 0


def _end_of(scheduler: Any) -> tuple[float, str]:
    """After how many steps it fails, and the class that has that end."""
    if isinstance(scheduler, torch.optim.lr_scheduler.OneCycleLR):
        return float(scheduler.total_steps), "OneCycleLR"
    parts = getattr(scheduler, "_schedulers", ())
    if isinstance(scheduler, torch.optim.lr_scheduler.ChainedScheduler):
        return min((_end_of(part) for part in parts), default=(math.inf, ""))
    if isinstance(scheduler, torch.optim.lr_scheduler.SequentialLR):
        begins = [0, *scheduler._milestones]
        for part, begin, end in zip(parts, begins, [*begins[1:], math.inf], strict=True):
            length, kind = _end_of(part)
            if begin + length < end - 1:  # the step to `end` is the next one's first
                return begin + length, kind
    return math.inf, ""


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
