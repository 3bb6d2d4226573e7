"""Which parameters and buffers a chain has, and which are trained, from the moment when its optimizers are made."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chaos.errors import ChangedOutside
from chaos.frameworks.torch_names import persistent_buffers
from chaos.frameworks.torch_places import came_later
from chaos.frameworks.torch_watch import refuse_another_set
from chaos.saying import say
from chaos.worker_group.chain.layers import Layer


class TrainedSet:
    """As the script's model has it when this is made. That has the parameters of layers, too, which others hold: a set
    that one worker alone has changed is seen there, and not first by whoever gets the layer."""

    def __init__(self, module: torch.nn.Module, layers: Sequence[Layer]) -> None:
        self._module, self._layers = module, layers
        self._wanted = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
        self._buffers = self._buffers_now()
        self._told: set[str] = set()

    def check(self, round: int) -> None:
        """Raises ChangedOutside for another one. A parameter that was frozen meanwhile would go on moving, by its
        momentum and weight decay; one that is to be trained from now on has no optimizer; and beside one that was
        replaced the layer would go on with the old one. Of what came into the model is told once: that may be a
        script's own."""
        registered = {id(parameter) for layer in self._layers for parameter in layer.registered}
        came: list[str] = []
        thawed: list[str] = []
        frozen: list[str] = []
        for name, parameter in self._module.named_parameters():
            wanted, wants = self._wanted.get(name), parameter.requires_grad
            if wanted is None:
                came.append(name)
            elif id(parameter) not in registered:
                raise ChangedOutside(
                    f"the parameter {name!r} of the model is not the one that was registered any more, after step "
                    f"{round}: the workers train the one before it, which the model does not use; replace or resize "
                    "layers, and move the model, before parallelize()"
                )
            elif wants != wanted:
                (thawed if wants else frozen).append(name)
        refuse_another_set(thawed, frozen, round)
        later = sorted(self._buffers_now() - self._buffers - self._told)
        if told := came_later([name for name in came if name not in self._told], later, round):
            self._told.update(came, later)
            say(told)

    def _buffers_now(self) -> set[str]:
        """The names of the persistent ones."""
        return {found.name.removeprefix(".") for found in persistent_buffers("", self._module)}
