"""One training, one site: what is told where a callback is used for a second one."""

from __future__ import annotations

from typing import Any

from chaos.coordinator import Coordinator


def check_unused(callback: Any, coordinator: Coordinator) -> None:
    """Raises ValueError where this callback has trained already, be it that the training ended or failed."""
    if coordinator.status().phase != "unregistered" or coordinator.left:
        name = type(callback).__name__
        raise ValueError(
            f"this {name} has been in a training already, and a site joins its run with a new one: make a new Trainer "
            f"with a new {name}() (the model may be the same: it gets the state of the run)"
        )
