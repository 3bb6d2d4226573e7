"""Training without torch: named numpy arrays, named gradients, and a function of the user that applies the average."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaos.adapter import Bytes, StateItem, fact_item
from chaos_protocols.state_spec import Item, contribution_spec, fact
from chaos_protocols.worker import ContributionSpec

Array = NDArray[Any]
Apply = Callable[[Mapping[str, Array], int], None]


class NumpyAdapter:
    """See `Coordinator.register` for what `apply` gets."""

    def __init__(self, arrays: Mapping[str, Array], apply: Apply, gradients: Mapping[str, Array] | None) -> None:
        """Raises ValueError on arrays that cannot be shared in place."""
        self._arrays = {name: arrays[name] for name in sorted(arrays)}
        self._apply = apply
        for name, array in self._arrays.items():
            _check(name, array)
        if gradients is None:
            gradients = {name: np.zeros_like(array) for name, array in self._arrays.items() if array.dtype.kind == "f"}
        for name, array in gradients.items():
            _check(f"gradient of {name}", array)
            if array.dtype.kind != "f":
                raise ValueError(f"the gradient of {name!r} has dtype {array.dtype}; gradients must be floating point")
        if not gradients:
            raise ValueError("there is nothing to average: no registered array is floating point")
        self.gradients: dict[str, Array] = {name: gradients[name] for name in sorted(gradients)}
        wide = [name for name, array in self.gradients.items() if array.dtype == np.float64]
        narrow = [name for name, array in self.gradients.items() if array.dtype != np.float64]
        self._order = wide + narrow
        self.contribution: ContributionSpec = contribution_spec(
            sum(self.gradients[name].size for name in wide), sum(self.gradients[name].size for name in narrow)
        )
        self.items: Sequence[StateItem] = [
            *(_array_item(name, array) for name, array in self._arrays.items()),
            *(fact_item(fact(f"averaged {name}: {_shape(self.gradients[name])}")) for name in self._order),
        ]

    def write_contribution(self, vector: Bytes) -> None:
        offset = 0
        for name in self._order:
            gradient = self.gradients[name]
            part = _part(vector, offset, gradient)
            part[...] = gradient
            offset += part.nbytes

    def apply(self, vector: Bytes, round: int) -> None:
        averaged: dict[str, Array] = {}
        offset = 0
        for name in self._order:
            part = _part(vector, offset, self.gradients[name])
            offset += part.nbytes
            part = part.astype(self.gradients[name].dtype)  # a copy: the user may keep it
            averaged[name] = part
        self._update(averaged, round)

    def apply_alone(self, round: int) -> None:
        self._update({name: self.gradients[name].copy() for name in self._order}, round)

    def _update(self, averaged: Mapping[str, Array], round: int) -> None:
        self._apply(averaged, round)
        for gradient in self.gradients.values():
            gradient[...] = 0


def _part(vector: Bytes, offset: int, gradient: Array) -> Array:
    dtype = np.dtype(np.float64 if gradient.dtype == np.float64 else np.float32)
    return vector[offset : offset + dtype.itemsize * gradient.size].view(dtype).reshape(gradient.shape)


def _check(name: str, array: Array) -> None:
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name!r} is a {type(array).__name__}; register numpy arrays (they are updated in place)")
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError(f"{name!r} must be contiguous and writable; register a copy: np.ascontiguousarray(...).copy()")


def _array_item(name: str, array: Array) -> StateItem:
    flat = array.reshape(-1).view(np.uint8)

    def put(data: Bytes) -> None:
        flat[...] = data

    return StateItem(item=Item(name, str(array.dtype), tuple(array.shape)), get=lambda: flat, put=put)


def _shape(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"
