"""What the models and optimizers of a training have, found in one walk: of very many tensors each costs what is asked
of it, so it is asked once, and whoever needs it is given what was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from chaos.frameworks.torch_buffers import ModelBuffer, check_places, new_buffers_in
from chaos.frameworks.torch_kinds import Kind, asked, kind_of, plain
from chaos.frameworks.torch_names import PLAIN, Part, check_whole, parts_of


class Registered:
    """Of one training. `parts`: of each model. `parameters`: of the models, and of the optimizers alone, by name;
    `names` and `kinds`: of the same, in the same order, by their `id`. `buffers`: the persistent ones. `trained`: names
    of the trained parameters, and which optimizers train each."""

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
            self._add_those_in(parts)
            self.buffers += list(new_buffers_in(parts, self.buffers))
        self.trained = self._trained_by(optimizers)

    def _add_those_in(self, parts: Iterable[Part]) -> None:
        """In torch's own order; a tied one once, under its first name."""
        names: dict[int, str] = {}
        tensors: list[torch.Tensor] = []
        for path, module in parts:
            for key, parameter in module._parameters.items():
                number = id(parameter)
                if parameter is not None and number not in names and number not in self.names:
                    names[number] = f"{path}.{key}"
                    tensors.append(parameter)
        named = dict(zip(names.values(), tensors, strict=True))
        if twice := next((name for name in named if name in self.parameters), ""):
            raise ValueError(f"two models have a parameter named {twice!r}: register them under other names")
        kinds = self._kinds_of(named)
        self.parameters |= named
        self.names |= names
        self.kinds |= dict(zip(names, kinds, strict=True))

    def _kinds_of(self, named: Mapping[str, torch.Tensor]) -> Sequence[Kind]:
        """Raises ValueError on what cannot be averaged. One after the other is checked only where any of them is
        odd."""
        tensors = list(named.values())
        if not all(tensor.__class__ in PLAIN for tensor in tensors):
            _check_each(named)  # before it is asked: a lazy one has no shape
        kinds = list(map(asked, tensors))
        self._known.update((kind, plain(kind)) for kind in set(kinds).difference(self._known))
        usual = all(device.type != "meta" and layout is torch.strided for _, device, _, _, layout in self._known)
        if not (usual and all(map(torch.Tensor.is_contiguous, tensors))):
            _check_each(named)
        return [self._known[kind] for kind in kinds]

    def _trained_by(self, optimizers: Mapping[str, torch.optim.Optimizer]) -> dict[str, tuple[str, ...]]:
        trained: dict[str, tuple[str, ...]] = {}
        for optimizer_name, optimizer in optimizers.items():
            alone = (optimizer_name,)
            for group_index, group in enumerate(optimizer.param_groups):
                for index, parameter in enumerate(group["params"]):
                    name = self.names.get(id(parameter))
                    if name is None:  # trained, but in no registered model (a learnt temperature)
                        name = f"{optimizer_name}.group{group_index}.parameter{index}"
                        self._add_alone(name, parameter)
                    dtype, _, _, wanted, _ = self.kinds[id(parameter)]
                    if not wanted:
                        continue
                    if dtype.is_complex:
                        raise ValueError(f"the parameter {name!r} is complex; only real parameters can be averaged")
                    trained[name] = (*trained[name], optimizer_name) if name in trained else alone
        if not trained:
            raise ValueError("there is nothing to average: the registered optimizers train no parameter")
        return trained

    def _add_alone(self, name: str, parameter: torch.Tensor) -> None:
        check_whole(name, parameter)
        kind = kind_of(parameter)
        self.parameters[name] = parameter
        self.names[id(parameter)] = name
        self.kinds[id(parameter)] = self._known.setdefault(kind, kind)


def _check_each(named: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in named.items():
        check_whole(name, parameter)
        check_places("the parameter", name, parameter, "torch.nn.Parameter(tensor.clone())")
