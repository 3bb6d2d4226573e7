"""Items of the shared state that local steps change: their value at the end of the last round is kept apart, and that
is what a snapshot, a digest and a joiner see (`chaos.frameworks.base.LocalTraining`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chaos.frameworks.base import Bytes, MadeItem, StateItem
from chaos_protocols.wire.state_spec import Item


class CommittedItem:
    """An item whose live value changes between rounds: what it was at the end of the last one counts. `own`: the live
    value is this site's alone, like the moments, and what is shared stays as it is."""

    __slots__ = ("_committed", "_live", "own")

    def __init__(self, live: StateItem) -> None:
        self._live = live
        self._committed: Bytes = live.get().copy()
        self.own = False

    @property
    def item(self) -> Item:
        return self._live.item

    def get(self) -> Bytes:
        return self._committed

    def put(self, data: Bytes, /) -> None:
        self._committed[...] = data
        if not self.own:
            self._live.put(self._committed)

    def memory(self) -> Bytes | None:
        return None

    @property
    def flag(self) -> StateItem:
        """`own` as an item."""

        def put(data: Bytes) -> None:
            self.own = bool(data[0])

        item = Item(f"{self.item.name}.own", "uint8", (1,))
        return MadeItem(item=item, get=lambda: np.array([self.own], dtype=np.uint8), put=put)

    def live(self) -> Bytes:
        """Its present value (may be a view)."""
        return self._live.get()

    def commit(self, value: Bytes | None = None) -> None:
        """The live value is that of the end of a round; `value`: this one is, and the live value stays."""
        if not self.own:
            self._committed[...] = self._live.get() if value is None else value

    def begin_afresh(self) -> None:
        """As restored; and nothing of it is this site's alone any more."""
        self.own = False
        self.restore()

    def restore(self) -> None:
        """The live value as it was committed."""
        if not self.own and bytes(self._live.get()) != bytes(self._committed):
            self._live.put(self._committed)


def kept_apart(live: Sequence[StateItem]) -> tuple[Sequence[StateItem], Sequence[CommittedItem]]:
    """These items with what holds numbers committed, and the committed ones alone."""
    items: list[StateItem] = []
    committed: list[CommittedItem] = []
    for item in live:
        if item.get().size:
            committed.append(CommittedItem(item))
            items.append(committed[-1])
        else:
            items.append(item)
    return items, committed
