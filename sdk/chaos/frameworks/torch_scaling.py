"""Scaled losses (AMP with float16): their gradients cannot be summed as they are."""

from __future__ import annotations

import gc

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


def _scales() -> bool:
    """Only what refers to the class is asked for. A list of all objects holds half-made tuples of other threads as
    well, and Python refuses to go on with a tuple that somebody else has (`SystemError` in that thread)."""
    kinds: list[type] = [torch.amp.GradScaler]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return any(issubclass(type(each), torch.amp.GradScaler) and each.is_enabled() for each in gc.get_referrers(*kinds))
