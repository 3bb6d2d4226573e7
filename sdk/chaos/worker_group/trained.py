"""Which parameters of a chain are trained, from the moment when its optimizers are made."""

from __future__ import annotations

import torch

from chaos.frameworks.torch_watch import refuse_another_set


class TrainedSet:
    """As the script's model has it when this is made. That has the parameters of layers, too, which others hold: a set
    that one worker alone has changed is seen there, and not first by whoever gets the layer."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._wanted = self._now()

    def check(self, round: int) -> None:
        """Raises ChangedOutside for another one. A parameter that was frozen meanwhile would go on moving, by its
        momentum and weight decay; one that is to be trained from now on has no optimizer."""
        now = self._now()
        if now == self._wanted:
            return
        thawed = [name for name, wants in now.items() if wants and not self._wanted.get(name, True)]
        frozen = [name for name, wants in now.items() if self._wanted.get(name, False) and not wants]
        refuse_another_set(thawed, frozen, round)

    def _now(self) -> dict[str, bool]:
        return {name: parameter.requires_grad for name, parameter in self._module.named_parameters()}
