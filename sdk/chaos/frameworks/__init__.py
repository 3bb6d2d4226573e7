"""The frameworks that the SDK can train: torch and numpy, each a `Framework` (bytes in and out). `framework_of`
chooses.

Driven by the sync modes (`chaos.sync`), which decide when. torch is imported only when something of it is registered:
the SDK works without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chaos.collector import held_back
from chaos.frameworks.base import Framework, Slot, SlotKind, StateItem, Update, UpdateHook, What
from chaos.frameworks.numpy import Apply, Array, NumpyFramework

Setting = str | int | float | bool | None
"""What `register(alike=...)` can compare."""

FROZEN = ("replicate", "compare")

__all__ = [
    "Apply",
    "Array",
    "Framework",
    "NumpyFramework",
    "Setting",
    "Slot",
    "SlotKind",
    "StateItem",
    "Update",
    "UpdateHook",
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
    on_average: UpdateHook | None = None,
    on_update: UpdateHook | None = None,
    rounds_per_epoch: int | None = None,
    frozen: str = "replicate",
    alike: Mapping[str, Setting] | None = None,
) -> Framework:
    """From the arguments of `Coordinator.register`. Raises ValueError on what does not go together."""
    facts = facts_of(rounds_per_epoch, frozen, alike or {})
    if arrays is not None:
        if model is not None or optimizer is not None or scheduler is not None or apply is None:
            raise ValueError("numpy training takes arrays= and apply=, and neither model, optimizer nor scheduler")
        _check_arrays(arrays=arrays, gradients=gradients)
        if not callable(apply):
            raise ValueError(
                f"register(apply=...) takes a function of two arguments, gradients and round, not {apply!r:.80}"
            )
        if on_average is not None or on_update is not None:
            raise ValueError("numpy training has apply=, which is the whole update: do it there")
        if frozen != "replicate":
            raise ValueError("frozen= is for torch models; numpy training shares what arrays= names, and nothing else")
        return NumpyFramework(arrays, apply, gradients, facts=facts)
    if model is None or optimizer is None or apply is not None or gradients is not None:
        raise ValueError("register(model=..., optimizer=...) for torch, register(arrays=..., apply=...) for numpy")
    try:
        from chaos.frameworks.torch import TorchFramework
    except ImportError as error:
        raise ValueError(
            f"torch cannot be imported ({error}); install chaos-train[torch], or register numpy arrays"
        ) from error
    _check_kinds(_named(model, "model"), _named(optimizer, "optimizer"))
    _check_schedulers(_named(scheduler, "scheduler"))
    _check_hooks(on_average=on_average, on_update=on_update)
    with held_back():
        return TorchFramework(
            _named(model, "model"),
            _named(optimizer, "optimizer"),
            _named(scheduler, "scheduler"),
            set_to_none=set_to_none,
            on_average=on_average,
            on_update=on_update,
            facts=facts,
            compare_frozen=frozen == "compare",
        )


def _check_arrays(**named: Any) -> None:
    """Raises ValueError for what is no mapping of names to arrays."""
    for keeper, arrays in named.items():
        if arrays is not None and not (isinstance(arrays, Mapping) and all(isinstance(name, str) for name in arrays)):
            raise ValueError(f"register({keeper}=...) takes arrays by name, such as {{'weights': array}}")


def _check_kinds(models: Mapping[str, Any], optimizers: Mapping[str, Any]) -> None:
    """Raises ValueError where one was given in the other's place, or something else."""
    import torch

    for things, kind in ((models, torch.nn.Module), (optimizers, torch.optim.Optimizer)):
        for name, thing in things.items():
            if not isinstance(thing, kind):
                wanted = "torch.nn.Module" if kind is torch.nn.Module else "torch.optim.Optimizer"
                raise ValueError(f"register(model=..., optimizer=...): {name} is a {type(thing).__name__}, no {wanted}")


def _check_schedulers(schedulers: Mapping[str, Any]) -> None:
    """Raises ValueError for what is none: anything with the three calls is one."""
    for name, thing in schedulers.items():
        if isinstance(thing, type):
            raise ValueError(f"{name} is the class {thing.__name__}: make one, {thing.__name__}(optimizer, ...)")
        if not all(callable(getattr(thing, call, None)) for call in ("step", "state_dict", "load_state_dict")):
            raise ValueError(
                f"{name} is a {type(thing).__name__}, no learning-rate scheduler, which has step(), state_dict() and "
                "load_state_dict(): a function of the step goes into torch.optim.lr_scheduler.LambdaLR(optimizer, ...)"
            )


def _check_hooks(**hooks: Any) -> None:
    for name, hook in hooks.items():
        if hook is not None and not callable(hook):
            raise ValueError(f"register({name}=...) takes a function of one argument, the update, not {hook!r:.80}")


def facts_of(rounds_per_epoch: int | None, frozen: str, alike: Mapping[str, Setting]) -> list[str]:
    """What else must be equal on all sites."""
    if frozen not in FROZEN:
        raise ValueError(f"frozen={frozen!r}: one of {', '.join(map(repr, FROZEN))}")
    facts = [_agreed(name, value) for name, value in sorted(alike.items())]
    if rounds_per_epoch is not None:
        if rounds_per_epoch < 1:
            raise ValueError(f"rounds_per_epoch = {rounds_per_epoch}: must be at least 1")
        facts.append(f"an epoch has {rounds_per_epoch} rounds")
    return facts


def _agreed(name: str, value: Setting) -> str:
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError(
            f"alike={{{name!r}: ...}} is a {type(value).__name__}; texts and numbers can be compared between sites"
        )
    for plain in (bool, int, float, str):  # of one that extends it, numpy's float64 say, the text depends on releases
        if isinstance(value, plain):
            return f"setting {name} = {plain.__repr__(value)}"
    return f"setting {name} = None"


def _named(thing: Any, name: str) -> dict[str, Any]:
    """One thing, several by name, or a list: always a dict of named things."""
    if thing is None:
        return {}
    if isinstance(thing, Mapping):
        return {f"{name}.{key}": thing[key] for key in sorted(thing)}
    if isinstance(thing, Sequence) and not isinstance(thing, str):
        return {f"{name}.{index}": value for index, value in enumerate(thing)}
    return {name: thing}
