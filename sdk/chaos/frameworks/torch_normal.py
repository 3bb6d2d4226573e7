"""Work of the SDK within a script's `torch.inference_mode()`: what it makes there must be of use outside of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_normal_mode(work: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same, outside of inference mode. A script evaluates in it, and calls `common_model`, or lets the rounds of a
    pause be applied: a tensor that is made within it (a view that is kept, a moment) can never be changed outside."""

    @functools.wraps(work)
    def normal(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        if not torch.is_inference_mode_enabled():
            return work(*arguments, **named)
        with torch.inference_mode(False):
            return work(*arguments, **named)

    return normal
