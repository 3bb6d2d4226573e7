"""Memory of a layer, given back and taken again. The library moves each module's tensors by themselves, so weights that
two places of a layer share would be two afterwards, each with a state of its own."""

from __future__ import annotations

from collections import defaultdict

import torch

Place = tuple[dict[str, torch.nn.Parameter | None] | dict[str, torch.Tensor | None], str]


def give_back(module: torch.nn.Module) -> None:
    """Its tensors are on `meta`."""
    shared = _shared(module)
    module.to("meta")
    _share(shared)


def take_again(module: torch.nn.Module, device: torch.device) -> None:
    """With memory, whatever stands there."""
    shared = _shared(module)
    module.to_empty(device=device)
    _share(shared)


def _shared(module: torch.nn.Module) -> list[list[Place]]:
    """The places of each tensor that has several."""
    places: dict[int, list[Place]] = defaultdict(list)
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    places[id(tensor)].append((held, name))
    return [each for each in places.values() if len(each) > 1]


def _share(shared: list[list[Place]]) -> None:
    for (held, name), *others in shared:
        for other, key in others:
            other[key] = held[name]  # type: ignore[assignment]
