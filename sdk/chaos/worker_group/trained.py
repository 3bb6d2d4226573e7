"""Which parameters of a chain are trained, from the moment when its optimizers are made."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chaos.frameworks.torch_watch import refuse_another_set
from chaos.worker_group.layers import Layer


class TrainedSet:
    """As it is when this is made. Every worker has all layers here, those too that others hold: a set that one worker
    alone has changed is seen there, and not first by whoever gets the layer."""

    def __init__(self, module: torch.nn.Module, layers: Sequence[Layer]) -> None:
        named = {id(parameter): name for name, parameter in module.named_parameters()}
        self._layers = layers
        self._names = [named.get(id(each), layer.name) for layer in layers for each in layer.own]
        self._wanted = self._now()

    def check(self, round: int) -> None:
        """Raises ChangedOutside for another one. A parameter that was frozen meanwhile would go on moving, by its
        momentum and weight decay; one that is to be trained from now on has no optimizer."""
        now = self._now()
        if now == self._wanted:
            return
        of_all = list(zip(self._names, now, self._wanted, strict=True))
        thawed = [name for name, wants, wanted in of_all if wants and not wanted]
        refuse_another_set(thawed, [name for name, wants, wanted in of_all if wanted and not wants], round)

    def _now(self) -> list[bool]:
        return [each.requires_grad for layer in self._layers for each in layer.own]
