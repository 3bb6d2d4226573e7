"""What a mode with local steps needs of a framework: the same training, with what a site keeps to itself told apart.

Between two rounds such a mode runs the optimizers at home. What they keep (moments, step counters) is the site's own,
and so are the live parameters, of which the mode has a common copy. Shared is the rest: frozen parameters, buffers, the
options of the optimizers, the schedulers. Local steps change that, too, so its value at the end of the last round
is kept apart (`CommittedItem`): that is what a snapshot, a digest and a joiner see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from chaos.frameworks.base import Bytes, Slot, StateItem
from chaos_protocols.wire.state_spec import Item


class LocalTraining(Protocol):
    """Implemented by `frameworks.torch_local` and `frameworks.numpy_local`."""

    @property
    def items(self) -> Sequence[StateItem]:
        """The shared state in canonical order, but for the values of the trained parameters."""
        ...

    @property
    def optimizers(self) -> Sequence[str]:
        """Names of what updates the parameters."""
        ...

    def step(self, number: int, optimizers: Sequence[str]) -> str:
        """One step of these optimizers at home, on the gradients as they stand; `number`: how many the schedule has
        seen with it (1: the first of the run). The gradients are cleared. Returns why nothing was done (a gradient is
        not finite, by name); empty: it was done."""
        ...

    def finish(self, round: int, steps: int, metrics: Mapping[str, float]) -> Sequence[Slot]:
        """Round `round` was applied: the live parameters and buffers are those of its end. The schedules stand where
        `steps` steps after the last round leave them, whatever this site did; the function of the user runs. Returns
        the parameters that it changed."""
        ...

    def restore(self) -> None:
        """What is shared is again as the last round left it; gradients are cleared. The live parameters are the
        mode's affair."""
        ...


class CommittedItem:
    """An item whose live value changes between rounds: what it was at the end of the last one counts."""

    __slots__ = ("_committed", "_live")

    def __init__(self, live: StateItem) -> None:
        self._live = live
        self._committed: Bytes = live.get().copy()

    @property
    def item(self) -> Item:
        return self._live.item

    def get(self) -> Bytes:
        return self._committed

    def put(self, data: Bytes, /) -> None:
        self._committed[...] = data
        self._live.put(self._committed)

    def memory(self) -> Bytes | None:
        return None

    def commit(self) -> None:
        """The live value is that of the end of a round."""
        self._committed[...] = self._live.get()

    def restore(self) -> None:
        """The live value as it was committed."""
        if bytes(self._live.get()) != bytes(self._committed):
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
