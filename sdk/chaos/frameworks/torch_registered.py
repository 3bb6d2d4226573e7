"""What the models and optimizers of a training have, found in one walk: of very many tensors each costs what is asked
of it, so it is asked once, and whoever needs it is given what was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from chaos.frameworks.torch_buffers import ModelBuffer, check_places, new_buffers_in
from chaos.frameworks.torch_kinds import Kind, asked, kind_of, plain
from chaos.frameworks.torch_names import PLAIN, Part, check_whole, parts_of


class Registered:
    """Of one training. `parts`: of each model. `buffers`: the persistent ones. Of each parameter of the models, then of
    those of the optimizers alone, in columns: `names`, `tensors`, `kinds`, and `owners`, which optimizers train it
    (none: it is frozen); `at`: by its `id`, where in them it stands. `in_models`: the `id` of those of the
    models."""

    def __init__(self, models: Mapping[str, torch.nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        """Raises ValueError on what cannot be averaged, naming it."""
        self.parts: dict[str, list[Part]] = {name: parts_of(name, model) for name, model in sorted(models.items())}
        self.buffers: list[ModelBuffer] = []
        self.at: dict[int, int] = {}
        self.names: list[str] = []
        self.tensors: list[torch.Tensor] = []
        self.kinds: list[Kind] = []
        self.owners: list[tuple[str, ...]] = []
        self._known: dict[Kind, Kind] = {}
        """Equal ones are one object: a model has few kinds of very many parameters."""
        for parts in self.parts.values():
            self._add_those_in(parts)
            self.buffers += list(new_buffers_in(parts, self.buffers))
        self.in_models = frozenset(self.at)
        self.owners = [()] * len(self.names)
        self._find_owners(optimizers)

    def name_of(self, thing: object) -> str:
        """Empty: it is none of these parameters."""
        at = self.at.get(id(thing))
        return "" if at is None else self.names[at]

    def kinds_of(self, parameters: Iterable[torch.Tensor]) -> list[Kind]:
        """Equal ones are one object."""
        at, kinds = self.at, self.kinds
        return [kinds[at[number]] for number in map(id, parameters)]

    def _add_those_in(self, parts: Iterable[Part]) -> None:
        """In torch's own order; a tied one once, under its first name."""
        at, names, tensors = self.at, self.names, self.tensors
        before = len(names)
        for path, module in parts:
            for key, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in at:
                    at[id(parameter)] = len(names)
                    names.append(f"{path}.{key}")
                    tensors.append(parameter)
        self._ask(names[before:], tensors[before:])

    def _ask(self, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
        """Raises ValueError on what cannot be averaged. One after the other is checked only where any is odd."""
        if not all(tensor.__class__ in PLAIN for tensor in tensors):
            _check_each(names, tensors)  # before it is asked: a lazy one has no shape
        known = self._known
        for kind in map(asked, tensors):
            if kind not in known:
                known[kind] = plain(kind)
            self.kinds.append(known[kind])
        usual = all(device.type != "meta" and layout is torch.strided for _, device, _, _, layout in known)
        if not (usual and all(map(torch.Tensor.is_contiguous, tensors))):
            _check_each(names, tensors)

    def _find_owners(self, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        for optimizer_name, optimizer in optimizers.items():
            alone = (optimizer_name,)
            for group_index, group in enumerate(optimizer.param_groups):
                for index, parameter in enumerate(group["params"]):
                    at = self.at.get(id(parameter))
                    if at is None:  # trained, but in no registered model (a learnt temperature)
                        at = self._add_alone(f"{optimizer_name}.group{group_index}.parameter{index}", parameter)
                    dtype, _, _, wanted, _ = self.kinds[at]
                    if wanted:
                        if dtype.is_complex:
                            name = self.names[at]
                            raise ValueError(f"the parameter {name!r} is complex; only real parameters can be averaged")
                        self.owners[at] = (*self.owners[at], optimizer_name) if self.owners[at] else alone
        if not any(self.owners):
            raise ValueError("there is nothing to average: the registered optimizers train no parameter")

    def _add_alone(self, name: str, parameter: torch.Tensor) -> int:
        check_whole(name, parameter)
        kind = kind_of(parameter)
        self.names.append(name)
        self.tensors.append(parameter)
        self.kinds.append(self._known.setdefault(kind, kind))
        self.owners.append(())
        at = self.at[id(parameter)] = len(self.names) - 1
        return at


def _check_each(names: Iterable[str], tensors: Iterable[torch.Tensor]) -> None:
    for name, parameter in zip(names, tensors, strict=True):
        check_whole(name, parameter)
        check_places("the parameter", name, parameter, "torch.nn.Parameter(tensor.clone())")
