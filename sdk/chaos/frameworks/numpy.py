"""Training without torch: named numpy arrays, named gradients, and a function of the user that applies the average."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaos.frameworks.base import Bytes, MadeItem, Slot, SlotKind, StateItem, What, fact_item, in_vector_order
from chaos_protocols.wire.state_spec import Item, fact

Array = NDArray[Any]
Apply = Callable[[Mapping[str, Array], int], None]


class NumpyFramework:
    """See `Coordinator.register` for what `apply` gets. A slot is a gradient; its value is the array of the same
    name."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        apply: Apply,
        gradients: Mapping[str, Array] | None,
        *,
        facts: Sequence[str] = (),
    ) -> None:
        """`facts`: what else must be equal on all sites. Raises ValueError on arrays that cannot be shared in place."""
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
        self.slots: Sequence[Slot] = [
            Slot(
                name=name,
                shape=tuple(array.shape),
                kind=SlotKind.PARAMETER,
                summed_as="float64" if array.dtype == np.float64 else "float32",
            )
            for name, array in self.gradients.items()
        ]
        self._averaged = {slot.name: _read_only(self.gradients[slot.name]) for slot in in_vector_order(self.slots)}
        """What `apply` gets: views, since a copy would lie in fresh memory in every round."""
        self.items: Sequence[StateItem] = [
            *(_array_item(name, array) for name, array in self._arrays.items()),
            *(
                fact_item(fact(f"averaged {slot.name}: {_shape(self.gradients[slot.name])}"))
                for slot in in_vector_order(self.slots)
            ),
            *(fact_item(fact(text)) for text in facts),
        ]

    def read(self, what: What, slots: Sequence[Slot], out: Bytes) -> None:
        for slot, part in _parts(slots, out):
            part[...] = self._array(what, slot)

    def write(self, what: What, slots: Sequence[Slot], data: Bytes) -> None:
        for slot, part in _parts(slots, data):
            self._array(what, slot)[...] = part

    @property
    def optimizers(self) -> Sequence[str]:
        """The function of the user is one."""
        return ("apply",)

    def optimizer_step(
        self, round: int, shares: Mapping[str, float] | None = None, metrics: Mapping[str, float] | None = None
    ) -> None:
        share = 1.0 if shares is None else shares.get("apply", 0.0)
        if share not in (0.0, 1.0):
            for gradient in self.gradients.values():
                gradient *= 1.0 / share
        if share == 0.0:
            self.discard()
            return
        self._apply(self._averaged, round)
        self.discard()

    def discard(self) -> None:
        for gradient in self.gradients.values():
            gradient[...] = 0

    def settle(self) -> None:
        """Arrays do not tell who wrote to them: what a script changes by hand is left to the digests."""

    def changed_outside(self, round: int) -> str:
        return ""

    def release(self) -> None:
        """Nothing of a region is kept."""

    def _array(self, what: What, slot: Slot) -> Array:
        if what is What.GRADIENT:
            return self.gradients[slot.name]
        if slot.name not in self._arrays:
            raise ValueError(f"the gradient {slot.name!r} belongs to no registered array, so it has no value")
        return self._arrays[slot.name]


def _parts(slots: Sequence[Slot], vector: Bytes) -> list[tuple[Slot, Array]]:
    """Where each slot lies in the vector, in its own shape."""
    parts = []
    offset = 0
    for slot in slots:
        part = vector[offset : offset + slot.size_bytes].view(np.dtype(slot.summed_as)).reshape(slot.shape)
        parts.append((slot, part))
        offset += slot.size_bytes
    return parts


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _check(name: str, array: Array) -> None:
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name!r} is a {type(array).__name__}; register numpy arrays (they are updated in place)")
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError(f"{name!r} must be contiguous and writable; register a copy: np.ascontiguousarray(...).copy()")


def _array_item(name: str, array: Array) -> StateItem:
    flat = array.reshape(-1).view(np.uint8)

    def put(data: Bytes) -> None:
        flat[...] = data

    item = Item(name, str(array.dtype), tuple(array.shape))
    return MadeItem(item=item, get=lambda: flat, put=put, memory=lambda: flat)


def _shape(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"
