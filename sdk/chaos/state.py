"""The whole training state as one region of bytes: laid out, copied, hashed, without knowing what the numbers are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from blake3 import blake3

from chaos.collector import held_back
from chaos.frameworks.base import Bytes, StateItem
from chaos_protocols.rounds.state_check import HALF_BYTES, middle
from chaos_protocols.wire.state_spec import ITEM_ALIGNMENT_BYTES, state_spec
from chaos_protocols.wire.worker import StateDigests, StateSpec

PAGE_BYTES = 4096
WARMED_AT_ONCE_BYTES = 64 << 20
"""Between two looks at what the daemon says: 10 ms of memory that was touched before, a quarter of a second of memory
that the machine has to find first."""


class State:
    """The items of a training as one region."""

    def __init__(self, items: Sequence[StateItem]) -> None:
        self._items = tuple(items)
        with held_back():
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

    def warm_up(self) -> Iterator[None]:
        """Touch the memory that a state is about to be loaded into, a piece at a time; changes no value. Copying into
        pages that were never written costs ten times as much as into touched ones, and more in a virtual machine: a
        worker that waits for its state has the time."""
        for entry, tensor in zip(self._items, self.spec.tensors, strict=True):
            if tensor.size_bytes < PAGE_BYTES:
                continue  # it shares its pages with others: to look where it lies would cost more
            memory = entry.memory()
            if memory is None:
                continue
            for start in range(0, memory.size, WARMED_AT_ONCE_BYTES):
                pages = memory[start : start + WARMED_AT_ONCE_BYTES : PAGE_BYTES]
                np.bitwise_or(pages, 0, out=pages)
                yield

    def digests(self, start: int, stop: int) -> StateDigests:
        """Of these bytes of the region, without a region: the arrays that lie in them, and nothing of the gaps."""
        cut = middle((start, stop))
        first, second = (self._digest_of(*half) for half in ((start, cut), (cut, stop)))
        tensors = self.spec.tensors
        there = [tensors[index] for index in range(*self._tensors_in(start, stop)) if tensors[index].size_bytes]
        single = len(there) == 1 or stop - start <= ITEM_ALIGNMENT_BYTES
        name = there[0].name if single and there else ""
        return StateDigests(start=start, stop=stop, first=first, second=second, array=name)

    def _digest_of(self, start: int, stop: int) -> bytes:
        digest = blake3()
        for index in range(*self._tensors_in(start, stop)):
            tensor = self.spec.tensors[index]
            if tensor.size_bytes:
                data = self._items[index].get()
                digest.update(data[max(0, start - tensor.offset) : max(0, stop - tensor.offset)].data)
        return digest.digest(length=HALF_BYTES)

    def _tensors_in(self, start: int, stop: int) -> tuple[int, int]:
        """Indices of the arrays of which bytes lie in [start, stop): from the first to the one after the last."""
        tensors = self.spec.tensors
        first = bisect_right(tensors, start, key=lambda tensor: tensor.offset + tensor.size_bytes)
        return first, max(first, bisect_left(tensors, stop, key=lambda tensor: tensor.offset))

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
