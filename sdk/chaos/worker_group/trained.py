"""Which parameters and buffers a chain has, and which are trained, from the moment when its optimizers are made."""

from __future__ import annotations

import torch

from chaos.frameworks.torch_places import came_later
from chaos.frameworks.torch_watch import refuse_another_set
from chaos.saying import say


class TrainedSet:
    """As the script's model has it when this is made. That has the parameters of layers, too, which others hold: a set
    that one worker alone has changed is seen there, and not first by whoever gets the layer."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._wanted = self._now()
        self._buffers = self._buffers_now()
        self._told: set[str] = set()

    def check(self, round: int) -> None:
        """Raises ChangedOutside for another one. A parameter that was frozen meanwhile would go on moving, by its
        momentum and weight decay; one that is to be trained from now on has no optimizer. Of what came into the
        model later is told once: that may be a script's own."""
        now = self._now()
        later = [name for name in sorted(self._buffers_now()) if name not in self._buffers | self._told]
        if now == self._wanted and not later:
            return
        came = [name for name in now if name not in self._wanted and name not in self._told]
        if told := came_later(came, later, round):
            self._told.update(came, later)
            say(told)
        thawed = [name for name, wants in now.items() if wants and not self._wanted.get(name, True)]
        frozen = [name for name, wants in now.items() if self._wanted.get(name, False) and not wants]
        refuse_another_set(thawed, frozen, round)

    def _now(self) -> dict[str, bool]:
        return {name: parameter.requires_grad for name, parameter in self._module.named_parameters()}

    def _buffers_now(self) -> set[str]:
        """The names of the persistent ones."""
        return {
            f"{path}.{key}" if path else key
            for path, module in self._module.named_modules()
            for key, tensor in module._buffers.items()
            if tensor is not None and key not in module._non_persistent_buffers_set
        }
