"""Scaled losses (AMP with float16): their gradients cannot be summed as they are, and do not show it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable

import torch


def refuse_scaled_losses(why: str) -> None:
    """Raises ValueError, with `why` and what to write instead, where this process has a GradScaler that is enabled.

    Its loss is multiplied by a number that each process changes by itself, when one of its gradients is not finite. A
    gradient does not show whether that was done, so its maker is looked for, once, among all objects of the process:
    some ten milliseconds.
    """
    if not _scales():
        return
    gc.collect()  # one that nobody has any more may be among them
    if _scales():
        raise ValueError(
            f"{why}, and this script has a GradScaler that is enabled: each process would scale by a number of its "
            "own. Leave it out: loss.backward(), then coordinator.step(); torch.autocast with bfloat16 needs no "
            "scaling (GradScaler(enabled=False) may stay)"
        )


def scaled_by() -> float:
    """By what a GradScaler of this process has scaled its first loss, where none has unscaled anything yet; 0: none
    has. One that was updated has been through that: it belongs to a training that goes on, or is over."""
    scalers = _scalers()
    if any(_has_unscaled(each) for each in scalers):
        return 0.0
    return next((factor for each in scalers if (factor := _first_scale(each))), 0.0)


class Unscaled:
    """Whether optimizers whose gradients a GradScaler has unscaled once are given scaled ones later. What it has done
    for an optimizer torch keeps until `update()`; nothing is asked of gradients."""

    def __init__(self) -> None:
        self._scalers = [weakref.ref(each) for each in _scalers()]
        self._usual: set[int] = set()

    def forgotten(self, optimizers: Iterable[torch.optim.Optimizer]) -> bool:
        """At a step for these optimizers. Told once until it is unscaled again."""
        known = self._usual
        for optimizer in optimizers if self._scalers else ():
            key = id(optimizer)
            states = [getattr(alive, "_per_optimizer_states", {}) for each in self._scalers if (alive := each())]
            if any(getattr(state[key].get("stage"), "name", "READY") != "READY" for state in states if key in state):
                known.add(key)
            elif key in known:
                known.discard(key)
                return True
        return False


def _has_unscaled(scaler: torch.amp.GradScaler) -> bool:
    """torch keeps what was done for each optimizer until `update()`."""
    states = getattr(scaler, "_per_optimizer_states", {}).values()
    return any(getattr(state.get("stage"), "name", "READY") != "READY" for state in states)


def _first_scale(scaler: torch.amp.GradScaler) -> float:
    """torch makes both tensors with the first loss, and changes one of them with every `update()`."""
    scale, tracker = getattr(scaler, "_scale", None), getattr(scaler, "_growth_tracker", None)
    if scale is None or tracker is None:
        return 0.0
    first = (getattr(scaler, "_init_scale", None), getattr(scaler, "_init_growth_tracker", None))
    return float(scale) if (float(scale), int(tracker)) == first else 0.0


def _scales() -> bool:
    return bool(_scalers())


def _scalers() -> list[torch.amp.GradScaler]:
    """Those that are enabled. Only what refers to the class is asked for. A list of all objects holds half-made tuples
    of other threads as well, and Python refuses to go on with a tuple that somebody else has (`SystemError` in that
    thread)."""
    kinds: list[type] = [torch.amp.GradScaler]
    for kind in kinds:
        kinds += kind.__subclasses__()
    found = (each for each in gc.get_referrers(*kinds) if issubclass(type(each), torch.amp.GradScaler))
    return [each for each in found if each.is_enabled()]
