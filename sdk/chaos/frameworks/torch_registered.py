"""What the models and optimizers of a training have, found in one walk: of very many tensors each costs what is asked
of it, so it is asked once, and whoever needs it is given what was found."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from chaos.frameworks.torch_buffers import ModelBuffer, check_places, new_buffers_in
from chaos.frameworks.torch_kinds import Kind, kind_of
from chaos.frameworks.torch_names import Part, check_whole, parameters_in, parts_of


class Registered:
    """Of one training. `parts`: of each model. `parameters`: of the models, and of the optimizers alone, by name;
    `names` and `kinds` of them by their `id`. `buffers`: the persistent ones. `trained`: names of the trained
    parameters, and which optimizers train each."""

    def __init__(self, models: Mapping[str, torch.nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        """Raises ValueError on what cannot be averaged, naming it."""
        self.parts: dict[str, list[Part]] = {name: parts_of(name, model) for name, model in sorted(models.items())}
        self.parameters: dict[str, torch.Tensor] = {}
        self.names: dict[int, str] = {}
        self.kinds: dict[int, Kind] = {}
        self.buffers: list[ModelBuffer] = []
        self._known: dict[Kind, Kind] = {}
        """Equal ones are one object: a model has few kinds of very many parameters."""
        for parts in self.parts.values():
            for found in parameters_in(parts):
                if id(found.tensor) not in self.names:
                    check_places("the parameter", found.name, found.tensor, "torch.nn.Parameter(tensor.clone())")
                    self._add(found.name, found.tensor)
            self.buffers += list(new_buffers_in(parts, self.buffers))
        self.trained = self._trained_by(optimizers)

    def _add(self, name: str, parameter: torch.Tensor) -> None:
        self.names[id(parameter)] = name
        self.parameters[name] = parameter
        kind = kind_of(parameter)
        self.kinds[id(parameter)] = self._known.setdefault(kind, kind)

    def _trained_by(self, optimizers: Mapping[str, torch.optim.Optimizer]) -> dict[str, tuple[str, ...]]:
        trained: dict[str, tuple[str, ...]] = {}
        for optimizer_name, optimizer in optimizers.items():
            alone = (optimizer_name,)
            for group_index, group in enumerate(optimizer.param_groups):
                for index, parameter in enumerate(group["params"]):
                    name = self.names.get(id(parameter))
                    if name is None:  # trained, but in no registered model (a learnt temperature)
                        name = f"{optimizer_name}.group{group_index}.parameter{index}"
                        check_whole(name, parameter)
                        self._add(name, parameter)
                    dtype, _, _, wanted = self.kinds[id(parameter)]
                    if not wanted:
                        continue
                    if dtype.is_complex:
                        raise ValueError(f"the parameter {name!r} is complex; only real parameters can be averaged")
                    trained[name] = (*trained[name], optimizer_name) if name in trained else alone
        if not trained:
            raise ValueError("there is nothing to average: the registered optimizers train no parameter")
        return trained
