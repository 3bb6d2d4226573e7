"""A chain of layers in a run of institutions: where each layer lies in the vector of a round and in the whole state.

The same on all sites, however many workers a site has and whichever of them holds a layer. The vector: the mean
gradient of each layer, flat, one layer behind the other; layers of float64 first. The state: the items of each layer,
in their order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from chaos.frameworks.base import Bytes, StateItem, fact_item
from chaos.worker_group.layers import HeldPart, Layer
from chaos_protocols.wire.state_spec import Item, contribution_spec, fact, state_spec
from chaos_protocols.wire.worker import ContributionSpec, TensorSpec


class _OfLayer:
    """An item of a layer under the name that it has in the whole state."""

    __slots__ = ("get", "item", "memory", "put")

    def __init__(self, layer: Layer, entry: StateItem) -> None:
        self.item = Item(f"{layer.index}.{entry.item.name}", entry.item.dtype, entry.item.shape)
        self.get, self.put, self.memory = entry.get, entry.put, entry.memory


@dataclass(frozen=True, slots=True)
class _Place:
    start: int
    stop: int
    dtype: torch.dtype


def items_of(layers: Sequence[Layer], clip_norm: float | None) -> list[StateItem]:
    """The whole state of layers that are all held. Whoever keeps the items keeps the memory of the layers."""
    facts = [fact(f"parallelize: {len(layers)} layers"), fact(f"clip_norm: {clip_norm}")]
    items: list[StateItem] = [_OfLayer(layer, entry) for layer in layers for entry in layer.items]
    return items + [fact_item(each) for each in facts]


class Vectors(ABC):
    """What is given to a round, and the state, for parts of a model. `state`, `contribution`: their layouts."""

    contribution: ContributionSpec

    def __init__(self, items: Sequence[StateItem], parts: Sequence[HeldPart]) -> None:
        """`items`: the whole state, the parts' own first and in their order. Raises ValueError on names that are too
        long."""
        self.state = state_spec(entry.item for entry in items)
        self._tensors: list[tuple[TensorSpec, ...]] = []
        at = 0
        for part in parts:
            self._tensors.append(self.state.tensors[at : at + len(part.items)])
            at += len(part.items)

    @abstractmethod
    def give(self, vector: Bytes, part: int, mean: torch.Tensor) -> None:
        """Write a part's mean gradient, flat, into the vector."""

    @abstractmethod
    def gradient(self, vector: Bytes, part: int) -> torch.Tensor:
        """What the vector says of a part, flat."""

    def write(self, region: Bytes, part: HeldPart) -> None:
        """Copy a part's state into the region of the whole one."""
        for entry, tensor in zip(part.items, self._tensors[part.index], strict=True):
            if tensor.size_bytes:
                region[tensor.offset : tensor.offset + tensor.size_bytes] = entry.get()

    def load(self, region: Bytes, part: HeldPart) -> None:
        """Take a part's state over from the region of the whole one."""
        for entry, tensor in zip(part.items, self._tensors[part.index], strict=True):
            if tensor.size_bytes:
                entry.put(region[tensor.offset : tensor.offset + tensor.size_bytes])

    def copy(self, piece: Bytes, start: int, stop: int, part: HeldPart) -> None:
        """Copy what a part has of bytes [start, stop) of the whole state into `piece`, which begins with byte
        `start`."""
        for entry, tensor in zip(part.items, self._tensors[part.index], strict=True):
            first, last = max(start, tensor.offset), min(stop, tensor.offset + tensor.size_bytes)
            if first < last:
                piece[first - start : last - start] = entry.get()[first - tensor.offset : last - tensor.offset]


class LayerVectors(Vectors):
    """Of a chain. Made when every layer is held and has its optimizer."""

    def __init__(self, layers: Sequence[Layer], clip_norm: float | None) -> None:
        super().__init__(items_of(layers, clip_norm), layers)
        wide = [layer for layer in layers if layer.gradient_dtype == torch.float64]
        narrow = [layer for layer in layers if layer.gradient_dtype != torch.float64]
        self._places: dict[int, _Place] = {}
        start = 0
        for dtype, group in ((torch.float64, wide), (torch.float32, narrow)):
            for layer in group:
                stop = start + layer.gradient_size * dtype.itemsize
                self._places[layer.index] = _Place(start, stop, dtype)
                start = stop
        float64, float32 = (sum(layer.gradient_size for layer in group) for group in (wide, narrow))
        self.contribution = contribution_spec(float64, float32)

    def give(self, vector: Bytes, layer: int, mean: torch.Tensor) -> None:
        """Write a layer's mean gradient into the vector."""
        self.gradient(vector, layer).copy_(mean)

    def gradient(self, vector: Bytes, layer: int) -> torch.Tensor:
        """A layer's part of the vector, flat; a view."""
        place = self._places[layer]
        return torch.from_numpy(vector[place.start : place.stop]).view(place.dtype)

    def layer_at(self, start: int) -> int:
        """Whose part of the vector has this byte."""
        return next(layer for layer, place in self._places.items() if place.start <= start < place.stop)
