"""The frameworks that the SDK can train: torch and numpy, each a `Framework` (bytes in and out). `framework_of`
chooses.

torch is imported only when something of it is registered: the SDK works without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chaos.frameworks.base import Framework, Slot, SlotKind, StateItem, What
from chaos.frameworks.numpy import Apply, Array, NumpyFramework

__all__ = [
    "Apply",
    "Array",
    "Framework",
    "NumpyFramework",
    "Slot",
    "SlotKind",
    "StateItem",
    "What",
    "framework_of",
]


def framework_of(
    model: Any,
    optimizer: Any,
    scheduler: Any,
    *,
    arrays: Mapping[str, Array] | None,
    apply: Apply | None,
    gradients: Mapping[str, Array] | None,
    set_to_none: bool,
) -> Framework:
    """From the arguments of `Coordinator.register`. Raises ValueError on what does not go together."""
    if arrays is not None:
        if model is not None or optimizer is not None or scheduler is not None or apply is None:
            raise ValueError("numpy training takes arrays= and apply=, and neither model, optimizer nor scheduler")
        return NumpyFramework(arrays, apply, gradients)
    if model is None or optimizer is None or apply is not None or gradients is not None:
        raise ValueError("register(model=..., optimizer=...) for torch, register(arrays=..., apply=...) for numpy")
    try:
        from chaos.frameworks.torch import TorchFramework
    except ImportError as error:
        raise ValueError(
            f"torch cannot be imported ({error}); install chaos-train[torch], or register numpy arrays"
        ) from error
    return TorchFramework(
        _named(model, "model"), _named(optimizer, "optimizer"), _named(scheduler, "scheduler"), set_to_none=set_to_none
    )


def _named(thing: Any, name: str) -> dict[str, Any]:
    """One thing, several by name, or a list: always a dict of named things."""
    if thing is None:
        return {}
    if isinstance(thing, Mapping):
        return {f"{name}.{key}": thing[key] for key in sorted(thing)}
    if isinstance(thing, Sequence) and not isinstance(thing, str):
        return {f"{name}.{index}": value for index, value in enumerate(thing)}
    return {name: thing}
