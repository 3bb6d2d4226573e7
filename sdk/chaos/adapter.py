"""What the SDK needs to know of a framework: its state and its gradients as bytes. torch and numpy are two adapters.

The state is a list of `StateItem`s in canonical order; the core lays them out (chaos_protocols.state_spec), copies them
to and from the arena and hashes them, without knowing what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from chaos_protocols.state_spec import ITEM_ALIGNMENT_BYTES, Item, state_spec
from chaos_protocols.worker import ContributionSpec, StateSpec

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateItem:
    """One array of the state. `get` gives its present bytes (contiguous; may be a view); `put` takes new ones over."""

    item: Item
    get: Callable[[], Bytes]
    put: Callable[[Bytes], None]


class Adapter(Protocol):
    """One registered training: what is averaged in a round, how a result is applied, and the whole state."""

    @property
    def items(self) -> Sequence[StateItem]:
        """The state in canonical order, the same on every site."""
        ...

    @property
    def contribution(self) -> ContributionSpec:
        """The vector of a round."""
        ...

    def write_contribution(self, vector: Bytes) -> None:
        """Copy gradients and buffers into `vector`. Changes nothing of the training state."""
        ...

    def apply(self, vector: Bytes, round: int) -> None:
        """Apply an averaged vector: the state becomes that of the end of `round`."""
        ...

    def apply_alone(self, round: int) -> None:
        """The same update from this site's own gradients: a round without others, without a vector."""
        ...


class State:
    """The state of an adapter as one region of bytes."""

    def __init__(self, items: Sequence[StateItem]) -> None:
        self._items = tuple(items)
        self.spec: StateSpec = state_spec(entry.item for entry in self._items)

    def write(self, region: Bytes) -> None:
        """Copy the state into `region` (the gaps are set to zero)."""
        for offset, stop, data in self._pieces():
            region[offset : offset + data.size] = data
            region[offset + data.size : stop] = 0

    def load(self, region: Bytes) -> None:
        """Take the state over from `region`."""
        for entry, tensor in zip(self._items, self.spec.tensors, strict=True):
            if tensor.size_bytes:
                entry.put(region[tensor.offset : tensor.offset + tensor.size_bytes])

    def digest(self) -> str:
        """BLAKE3 of the region that `write` would give, without a region: equal to `state_digest` of a snapshot."""
        digest = blake3()
        for offset, stop, data in self._pieces():
            digest.update(data.data)
            digest.update(bytes(stop - offset - data.size))
        return digest.hexdigest()

    def _pieces(self) -> Iterator[tuple[int, int, Bytes]]:
        for entry, tensor in zip(self._items, self.spec.tensors, strict=True):
            if not tensor.size_bytes:
                continue
            data = entry.get()
            if data.size != tensor.size_bytes:
                raise ValueError(
                    f"{tensor.name!r} had {tensor.size_bytes} bytes when it was registered and has {data.size} now; "
                    "shapes and types of the training state must stay as registered"
                )
            stop = -(-(tensor.offset + tensor.size_bytes) // ITEM_ALIGNMENT_BYTES) * ITEM_ALIGNMENT_BYTES
            yield tensor.offset, stop, data


def number_item(name: str, get: Callable[[], float], put: Callable[[float], None]) -> StateItem:
    """A single number, kept as float64."""

    def read() -> Bytes:
        return np.array([get()], dtype=np.float64).view(np.uint8)

    def write(data: Bytes) -> None:
        put(float(data.view(np.float64)[0]))

    return StateItem(item=Item(name, "float64", ()), get=read, put=write)


def fact_item(item: Item) -> StateItem:
    """An entry without bytes (chaos_protocols.state_spec.fact)."""
    return StateItem(item=item, get=lambda: np.empty(0, dtype=np.uint8), put=lambda data: None)


def like(old: object, value: float) -> bool | int | float:
    """`value` in the type that the framework had there, if nothing is lost by it."""
    if isinstance(old, bool):
        return bool(value)
    if isinstance(old, int) and value.is_integer():
        return int(value)
    return value
