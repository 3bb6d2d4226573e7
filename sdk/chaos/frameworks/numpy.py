"""Training without torch: named numpy arrays, named gradients, and a function of the user that applies the average."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaos.errors import ChangedOutside
from chaos.frameworks.base import (
    Bytes,
    GradientSource,
    LocalTraining,
    MadeItem,
    Slot,
    SlotKind,
    StateItem,
    What,
    fact_item,
    in_vector_order,
)
from chaos.frameworks.numpy_unchanged import Unchanged
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
        named: dict[str, object] = {"arrays": arrays, "gradients": gradients}
        if gradients is None:
            gradients = {name: np.zeros_like(array) for name, array in self._arrays.items() if array.dtype.kind == "f"}
        for name, array in gradients.items():
            _check(f"gradient of {name}", array)
            if array.dtype.kind != "f":
                raise ValueError(f"the gradient of {name!r} has dtype {array.dtype}; gradients must be floating point")
        if not gradients:
            raise ValueError("there is nothing to average: no registered array is floating point")
        self.gradients: dict[str, Array] = {name: gradients[name] for name in sorted(gradients)}
        _check_apart(self._arrays, self.gradients)
        named["coordinator.gradients"] = self.gradients
        self._held = [(keeper, there, {**there}) for keeper, there in named.items() if isinstance(there, dict)]
        """The script's own; another mapping may make an array whenever it is asked."""
        self.slots: Sequence[Slot] = [
            Slot(
                name=name,
                shape=tuple(array.shape),
                kind=SlotKind.PARAMETER,
                summed_as="float64" if array.dtype == np.float64 else "float32",
            )
            for name, array in self.gradients.items()
        ]
        self._unchanged = Unchanged(self._arrays, self.gradients)
        self._averaged = {slot.name: _read_only(self.gradients[slot.name]) for slot in in_vector_order(self.slots)}
        """What `apply` gets: views, since a copy would lie in fresh memory in every round."""
        self.facts: Sequence[StateItem] = [
            *(
                fact_item(fact(f"averaged {slot.name}: {_shape(self.gradients[slot.name])}"))
                for slot in in_vector_order(self.slots)
            ),
            *(fact_item(fact(text)) for text in facts),
        ]
        self.items: Sequence[StateItem] = [
            *(_array_item(name, array) for name, array in self._arrays.items()),
            *self.facts,
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
        self,
        round: int,
        shares: Mapping[str, float] | None = None,
        metrics: Mapping[str, float] | None = None,
        lr_factor: float = 1.0,
    ) -> None:
        share = 1.0 if shares is None else shares.get("apply", 0.0)
        if share not in (0.0, 1.0):
            for gradient in self.gradients.values():
                gradient *= 1.0 / share
        if share == 0.0:
            self.discard()
            return
        self.run_apply(round)
        self.discard()

    def run_apply(self, number: int) -> None:
        """The function of the user, on the gradients as they stand."""
        with self._unchanged.applying():
            self._apply(self._averaged, number)

    def check_step(self, optimizers: Sequence[str]) -> None:
        """`apply` has its own schedule."""

    def not_finite(self, optimizers: Sequence[str]) -> str:
        there = self.gradients.items() if optimizers else ()
        odd = next((name for name, gradient in there if not np.isfinite(gradient).all()), None)
        return "" if odd is None else f"the gradient of {odd!r}"

    def check_learning_rates(self) -> None:
        """`apply` has its own, and takes the factor from `Coordinator.lr_factor`."""

    def gradients_as_they_come(self) -> GradientSource:
        raise ValueError("EveryStep(overlap=True) follows the backward pass of torch; with numpy arrays leave it away")

    def local_training(self) -> LocalTraining:
        return NumpyLocalTraining(self)

    def discard(self) -> None:
        for gradient in self.gradients.values():
            gradient.reshape(-1).view(np.uint8).fill(0)  # a zero is zero bytes: 0.6 of the time of `[...] = 0`

    def settle(self) -> None:
        """Arrays do not tell who wrote to them: what a script changes by hand is left to the digests."""

    def untouched(self) -> bool:
        return True

    def changed_outside(self, round: int, optimizers: Sequence[str] | None = None, *, leaving: bool = False) -> str:
        """Nothing is averaged of an array that was put in a registered one's place, and nobody else gets it."""
        for keeper, there, registered in self._held:
            name = next((name for name, array in registered.items() if there.get(name, array) is not array), None)
            if name is not None:
                raise ChangedOutside(
                    f"{keeper}[{name!r}] is not the array that was registered any more, after round {round}, so rounds "
                    f"do not see what is in it: write into the registered one, {keeper}[{name!r}][...] = value, and do "
                    f"not put another in its place ({keeper}[{name!r}] = value)"
                )
        return self._unchanged.told()

    def odd_gradients(self, round: int, optimizers: Sequence[str] | None = None, *, averaged: bool = True) -> str:
        """A gradient of numpy is always there."""
        return ""

    def release(self) -> None:
        """Nothing of a region is kept."""

    def _array(self, what: What, slot: Slot) -> Array:
        if what is What.GRADIENT:
            return self.gradients[slot.name]
        self.check_value(slot)
        return self._arrays[slot.name]

    def check_value(self, slot: Slot) -> None:
        """Raises ValueError for a gradient that has no array."""
        if slot.name not in self._arrays:
            raise ValueError(f"the gradient {slot.name!r} belongs to no registered array, so it has no value")
        array = self._arrays[slot.name]
        if array.shape != slot.shape or array.dtype.kind != "f":
            raise ValueError(
                f"the array {slot.name!r} is {_shape(array)}, and its gradient {_shape(self.gradients[slot.name])}: in "
                "a mode with local steps the array itself is averaged, so both must have one shape, in floating point"
            )


class NumpyLocalTraining:
    """For modes with local steps: `apply` is the optimizer of each site. Arrays with a gradient are trained; the others
    (moments, counters) belong to `apply`, each site its own."""

    def __init__(self, framework: NumpyFramework) -> None:
        """Raises ValueError for a gradient without an array of its name: it would have no value to average."""
        for slot in framework.slots:
            framework.check_value(slot)
        self._framework = framework
        self.items: Sequence[StateItem] = framework.facts
        self.optimizers: Sequence[str] = framework.optimizers
        self.has_hook = False

    def check_step(self, steps: int | None) -> None:
        """`apply` has its own schedule."""

    def step(self, number: int, optimizers: Sequence[str], advance: int = 1) -> str:
        """`apply(gradients, number)`."""
        odd = self._framework.not_finite(self.optimizers)
        if not odd:
            self._framework.run_apply(number)
        self._framework.discard()
        return f"{odd} is not finite" if odd else ""

    def leave_out(self, advance: int) -> None:
        self._framework.discard()

    def close_phase(self, steps: int) -> None:
        """Arrays have no schedule."""

    def go_on(self, steps: int) -> None:
        """Nothing is counted here."""

    def begin_afresh(self) -> None:
        """What a script keeps beside its arrays is not known."""
        self.restore()

    def common_buffers(self) -> AbstractContextManager[None]:
        """There are none."""
        return nullcontext()

    def finish(
        self, round: int, steps: int, metrics: Mapping[str, float], common: Mapping[int, Bytes]
    ) -> Sequence[Slot]:
        """Arrays have no schedule: `apply` has the number of its step."""
        self._framework.discard()
        return ()

    def restore(self) -> None:
        self._framework.discard()


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
    if array.dtype.hasobject:
        raise ValueError(f"{name!r} holds Python objects (dtype {array.dtype}), which no other site can be sent")
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError(f"{name!r} must be contiguous and writable; register a copy: np.ascontiguousarray(...).copy()")


def _check_apart(arrays: Mapping[str, Array], gradients: Mapping[str, Array]) -> None:
    """Raises ValueError where a gradient lies in an array's memory: the round would write its average over the array,
    and the end of the update a zero."""
    placed = [(array.ctypes.data, array.nbytes, False, name) for name, array in arrays.items()]
    placed += [(array.ctypes.data, array.nbytes, True, name) for name, array in gradients.items()]
    reached = {False: (0, ""), True: (0, "")}
    for start, size, is_gradient, name in sorted(one for one in placed if one[1]):
        end, other = reached[not is_gradient]
        if start < end:
            of_arrays, of_gradients = (other, name) if is_gradient else (name, other)
            raise ValueError(
                f"the gradient {of_gradients!r} lies in the memory of the array {of_arrays!r}, which would be 0 after "
                "each round: leave out gradients= and fill coordinator.gradients, or give arrays of their own; where "
                "the arrays themselves are to be averaged, sync=LocalSGD(every=...) does it"
            )
        reached[is_gradient] = max(reached[is_gradient], (start + size, name))


def _array_item(name: str, array: Array) -> StateItem:
    flat = array.reshape(-1).view(np.uint8)

    def put(data: Bytes) -> None:
        flat[...] = data

    item = Item(name, str(array.dtype), tuple(array.shape))
    return MadeItem(item=item, get=lambda: flat, put=put, memory=lambda: flat)


def _shape(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"
