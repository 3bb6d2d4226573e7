"""Where models keep their parameters, buffers and layers: whether rounds still train what the models compute with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch

from chaos.errors import ChangedOutside
from chaos.frameworks.torch_names import Part, parts_of, persistent_buffers_in
from chaos.frameworks.torch_registered import Registered

_asked = attrgetter("_parameters", "_modules", "_buffers", "_non_persistent_buffers_set")


class ModelPlaces:
    """Of one registered training."""

    def __init__(self, registered: Registered, models: Mapping[str, torch.nn.Module]) -> None:
        self._registered = registered
        self._models = models
        here = _together(registered.parts)
        self._used = registered.in_models
        self._added: list[tuple[str, torch.Tensor]] = []
        """Parameters that came into the models later."""
        self._remember(here)
        saved = zip(here, self._saved, strict=True)
        self._buffers = {(id(module), key): module for (_, module), keys in saved for key in keys}
        """Those that are registered, and those that were told; their modules are kept, so that a number stays one's."""

    def look(self, round: int) -> str:
        """A warning, once, about what came into the models after `register`; empty: nothing did. Raises ChangedOutside
        for what is trained and registered nowhere, or registered and used nowhere. A layer in another place, or in
        another wrapper, is no harm as long as the model has its parameters."""
        told = ""
        if not self._as_remembered():
            here = self._walked()
            self._check_used(here)
            self._check_renamed()
            known = {id(parameter) for _, parameter in self._added}
            self._added = list(self._unregistered(here))
            parameters = [name for name, parameter in self._added if id(parameter) not in known]
            told = came_later(parameters, self._new_buffers(here), round)
            self._remember(here)
        for name, parameter in self._added:
            if parameter.grad is not None and parameter.requires_grad:
                raise ChangedOutside(
                    f"the parameter {name!r} came into the model after register(), and has a gradient at the step "
                    f"after round {round}: no registered optimizer trains it, and no other site has it; end the "
                    "scripts, and start a run whose model has that layer before register(), at all sites"
                )
        return told

    def name_of(self, parameter: torch.Tensor) -> str:
        """Under which name it is registered, or lies in the models now; empty: nowhere."""
        later = (name for name, there in self._unregistered(self._walked()) if there is parameter)
        return self._registered.name_of(parameter) or next(later, "")

    def _walked(self) -> list[Part]:
        return _together({prefix: parts_of(prefix, model) for prefix, model in self._models.items()})

    def _remember(self, here: Sequence[Part]) -> None:
        """In columns: Python's collector of cycles would go through a tuple for each of very many."""
        self._keepers: list[dict[str, Any]] = []
        """Where modules keep their parameters and layers."""
        self._buffers_of: list[dict[str, Any]] = []
        self._not_saved: list[set[str]] = []
        self._saved: list[Sequence[str]] = []
        """Of each module, its buffers, the names of those that are not persistent, and of those that were."""
        for _, module in here:
            parameters, layers, buffers, not_saved = _asked(module)
            self._keepers += (parameters, layers)
            self._buffers_of.append(buffers)
            self._not_saved.append(not_saved)
            self._saved.append(_saved(buffers, not_saved) if buffers else ())
        self._kept_in = [keeper for keeper in self._keepers for _ in keeper.values()]
        self._keys = [key for keeper in self._keepers for key, _ in keeper.items()]
        self._kept = [held for keeper in self._keepers for held in keeper.values()]
        """Of each parameter and layer, where it is kept, under which key, and itself."""

    def _as_remembered(self) -> bool:
        if sum(map(len, self._keepers)) != len(self._kept):
            return False
        for keeper, key, held in zip(self._kept_in, self._keys, self._kept, strict=True):
            if key not in keeper or keeper[key] is not held:
                return False
        for buffers, not_saved, saved in zip(self._buffers_of, self._not_saved, self._saved, strict=True):
            if (buffers or saved) and _saved(buffers, not_saved) != saved:
                return False
        return True

    def _check_used(self, here: Iterable[Part]) -> None:
        gone = self._used - self._among(here)
        for number, at in self._registered.at.items():
            if number in gone:
                name = self._registered.names[at]
                raise ChangedOutside(
                    f"the parameter {name!r} of the model is not the one that was registered any more, so rounds would "
                    "train what the model does not use: replace or resize layers, and move the model, before register()"
                )

    def _check_renamed(self) -> None:
        """A layer that has its parameter under another name computes with what it makes of it."""
        for keeper, key, held in zip(self._kept_in, self._keys, self._kept, strict=True):
            if key not in keeper and (name := self._registered.name_of(held)):
                raise ChangedOutside(
                    f"the layer of the parameter {name!r} does not keep it as {key!r} any more, as "
                    "after torch.nn.utils.prune or parametrize: masks and the like that came after register() reach no "
                    "joiner, and other sites compute something else: apply them (or take them off) before register(), "
                    "on all sites"
                )

    def _among(self, here: Iterable[Part]) -> set[int]:
        """Which of the parameters the models have now."""
        there = [id(parameter) for _, module in here for parameter in module._parameters.values()]
        return {number for number in there if number in self._registered.at}

    def _new_buffers(self, here: Iterable[Part]) -> list[str]:
        """Those that were not told yet. Another place for a tensor that is registered is no harm."""
        shared = {id(getattr(module, key, None)) for (_, key), module in self._buffers.items()}
        now = [each for each in persistent_buffers_in(here) if (id(each.module), each.key) not in self._buffers]
        self._buffers.update(((id(each.module), each.key), each.module) for each in now)
        return [each.name for each in now if id(each.tensor) not in shared]

    def _unregistered(self, here: Iterable[Part]) -> Iterator[tuple[str, torch.Tensor]]:
        seen: set[int] = set()
        for path, module in here:
            for key, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in self._registered.at and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"{path}.{key}", parameter


def _together(parts: Mapping[str, Iterable[Part]]) -> list[Part]:
    return [part for one in parts.values() for part in one]


def _saved(buffers: Mapping[str, Any], not_saved: Iterable[str]) -> Sequence[str]:
    """Under which keys a module has its persistent buffers; in their place it may put other tensors."""
    return tuple(key for key, tensor in buffers.items() if tensor is not None and key not in not_saved)


def came_later(parameters: Sequence[str], buffers: Sequence[str], round: int) -> str:
    """What to tell of parameters and buffers that came into a model after `register`; empty: there are none."""
    told = []
    if parameters:
        told.append(
            f"the parameter {_first_of(parameters)} came into the model after register(), by round {round}: no "
            "optimizer that is registered trains it, and no joiner is sent it"
        )
    if buffers:
        told.append(
            f"the buffer {_first_of(buffers)} came into the model after register(), by round {round}: no round "
            "averages it, and no joiner is sent it (register_buffer(..., persistent=False), where it is to be each "
            "site's own)"
        )
    return "; ".join([*told, "what all sites are to have is added before register()"]) if told else ""


def _first_of(names: Sequence[str]) -> str:
    return f"{names[0]!r}" + (f" and {len(names) - 1} more" if names[1:] else "")
