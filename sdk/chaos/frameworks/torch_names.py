"""Under which names, and where, the parameters and buffers of a model are found: the same on every site, whatever a
site has wrapped its model in.

`torch.compile` and `DistributedDataParallel` put the model one level deeper, under `_orig_mod` and `module`. That is a
site's own affair: the levels are left out of the names, so that a site with a wrapper trains with one without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

COMPILED = "_orig_mod"
WRAPPERS = frozenset({"DistributedDataParallel", "DataParallel"})
"""Modules whose only own thing is the model under `module`."""
LEVELS = frozenset({COMPILED, "module"})
"""Under which keys a wrapper may have its model."""
IN_PIECES = frozenset({"DTensor", "FlatParameter", "ShardedTensor"})
"""Classes of tensors of which this process holds a part only."""
PLAIN = (torch.nn.Parameter, torch.Tensor)
"""Classes of tensors, without those that extend them, that are whole and have numbers of their own."""

Part = tuple[str, torch.nn.Module]
"""A module, with its path from the name of the model on."""


@dataclass(slots=True)
class NamedTensor:
    """A parameter or persistent buffer: `module` keeps it under `key`."""

    name: str
    module: torch.nn.Module
    key: str
    tensor: torch.Tensor


def parts_of(prefix: str, model: torch.nn.Module) -> list[Part]:
    """Every module of it once, in torch's own order, levels of wrappers left out of the paths. Of a model of very many
    layers this walk takes its time: who needs several things of it makes one."""
    paths: dict[str, str] = {}
    parts: list[Part] = []
    for path, module in model.named_modules():
        above, _, key = path.rpartition(".")
        shown = paths.get(above, prefix)
        if path and not (key in LEVELS and _is_wrapped(model, above, key)):
            shown = f"{shown}.{key}"
        paths[path] = shown
        parts.append((shown, module))
    return parts


def parameters_of(prefix: str, model: torch.nn.Module) -> Iterator[NamedTensor]:
    """See `parameters_in`."""
    return parameters_in(parts_of(prefix, model))


def parameters_in(parts: Iterable[Part]) -> Iterator[NamedTensor]:
    """In torch's own order; a tied one comes once, under its first name. Raises ValueError for one in pieces."""
    seen: set[int] = set()
    for path, module in parts:
        for key, parameter in module._parameters.items():
            if parameter is None or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            name = f"{path}.{key}"
            check_whole(name, parameter)
            yield NamedTensor(name, module, key, parameter)


def buffers_of(prefix: str, model: torch.nn.Module) -> Iterator[NamedTensor]:
    """See `buffers_in`."""
    return buffers_in(parts_of(prefix, model))


def buffers_in(parts: Iterable[Part]) -> Iterator[NamedTensor]:
    """The persistent ones. Raises ValueError for one that is in pieces."""
    for found in persistent_buffers_in(parts):
        check_whole(found.name, found.tensor)
        yield found


def persistent_buffers(prefix: str, model: torch.nn.Module) -> Iterator[NamedTensor]:
    """See `persistent_buffers_in`."""
    return persistent_buffers_in(parts_of(prefix, model))


def persistent_buffers_in(parts: Iterable[Part]) -> Iterator[NamedTensor]:
    """As they are, whole or not."""
    for path, module in parts:
        buffers = module._buffers
        if not buffers:
            continue
        transient = module._non_persistent_buffers_set
        for key, tensor in buffers.items():
            if tensor is not None and key not in transient:
                yield NamedTensor(f"{path}.{key}", module, key, tensor)


def check_whole(name: str, tensor: Any) -> None:
    """Raises ValueError for a tensor of which this process holds a part only, or no numbers."""
    if tensor.__class__ not in PLAIN:
        _check_class(name, tensor)
    if tensor.is_meta:
        raise ValueError(
            f"{name!r} lies on the device 'meta', which keeps no numbers: the model was made without memory, or a "
            "part of it is offloaded; load it whole before register() (model.to_empty(device=...), then "
            "load_state_dict; without device_map= or offloading)"
        )


def _check_class(name: str, tensor: Any) -> None:
    if torch.nn.parameter.is_lazy(tensor):
        raise ValueError(
            f"{name!r} has no shape yet (a lazy layer): run one batch through the model before register(), with inputs "
            "of the same shape on all sites"
        )
    kind = _in_pieces(tensor.__class__)
    if kind:
        raise ValueError(
            f"{name!r} is a {kind}: this script shards its model over several processes (FSDP, tensor parallel), but a "
            "site trains with one process as yet; register a model that is whole in this process, without fully_shard "
            "or distribute_tensor"
        )
    if is_composed(tensor):
        raise ValueError(
            f"{name!r} is a {type(tensor).__name__}, which is made of other tensors (of torchao, or nested) and has "
            "no numbers of its own to average or to send: register the model before it is quantized so, or keep "
            "the tensors that it is made of as parameters and buffers"
        )


def is_composed(tensor: Any) -> bool:
    """Whether it is of a class that keeps its numbers in tensors within it."""
    return isinstance(tensor, torch.Tensor) and is_traceable_wrapper_subclass(tensor)


@cache
def _in_pieces(kind: type) -> str:
    return next((one.__name__ for one in kind.__mro__ if one.__name__ in IN_PIECES), "")


def _is_wrapped(model: torch.nn.Module, above: str, key: str) -> bool:
    return key == COMPILED or type(model.get_submodule(above)).__name__ in WRAPPERS
