"""Modules of which other workers have the parameters: whoever uses one here is told so.

Its parameters are on `meta` meanwhile. A script that saved them would write a file without numbers, and learn of it
when it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

WHAT_TO_DO = (
    "with stages each worker has the parameters of its own layers: save those of `layer.module` for each `layer` of "
    "`model.layers` that is `layer.held`, or have every worker hold all layers, with --pp 1 or replicate() "
    "(docs/site.md)"
)


class Handle(Protocol):
    """What torch gives for a hook."""

    def remove(self) -> None: ...


class LayerElsewhere(RuntimeError):
    """The script uses a layer that other workers hold."""


def absent(module: torch.nn.Module, name: str) -> list[Handle]:
    """From now on; until the handles are removed. `name`: of the layer."""

    def used(what: str) -> Callable[..., Any]:
        def refuse(*_: Any) -> None:
            raise LayerElsewhere(f"layer {name} is held by other workers and cannot be {what} here: {WHAT_TO_DO}")

        return refuse

    found: list[Handle] = []
    for part in module.modules():
        if part._parameters or part._buffers:
            found.append(part.register_forward_pre_hook(used("computed"), prepend=True))
            found.append(part.register_state_dict_pre_hook(used("saved")))  # type: ignore[no-untyped-call]
    return found
