"""A contribution that is given in pieces while the backward pass still computes the rest (`EveryStep(overlap=True)`).

What is ready is always the beginning of the vector: its float64 numbers (notes, buffers), then gradients in the reverse
order of registration, which is about the order in which a backward pass completes them. Each is copied where it belongs
as soon as it is there, looked at, and told when enough has come together. What was told does not change any more
(spec 9.38): of that the rest of the round is sure, and a step that is not made in the end makes the round void.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chaos.errors import ChangedOutside
from chaos.finite import first_not_finite
from chaos.frameworks.base import Bytes, GradientSource, Slot, SlotKind
from chaos.sync.runs import Run
from chaos_protocols.wire.state_spec import contribution_spec
from chaos_protocols.wire.worker import ContributionSpec

PIECES = 32
"""So many are told of a vector at most: more would not begin earlier what a link has to carry."""
PIECE_BYTES_MIN = 256 << 10
AGAIN_AFTER_ROUNDS = 50
"""After a round that this site has made void it gives so many parts whole."""


class Pieces:
    """Of one registered training; used again in every round. Calls `tell` with how many bytes are ready."""

    def __init__(self, source: GradientSource, runs: Sequence[Run], size_bytes: int) -> None:
        self._source = source
        self._slots: list[Slot] = []
        self._starts: list[int] = []
        for run in runs:
            start = run.start
            for slot in run.slots if run.kind is SlotKind.PARAMETER else ():
                self._slots.append(slot)
                self._starts.append(start)
                start += slot.size_bytes
        self._index = {slot.name: index for index, slot in enumerate(self._slots)}
        self._step_bytes = max(PIECE_BYTES_MIN, size_bytes // PIECES)
        self._whole_until = 0
        self._lead: Callable[[], None] | None = None
        self._tell: Callable[[int], None] | None = None
        self._vector: Bytes | None = None
        self._reset()

    def _reset(self) -> None:
        self._copied = [False] * len(self._slots)
        self._zeroed: frozenset[str] = frozenset()
        self._prefix = 0
        self._led = self._stuck = False
        self.told_bytes = 0
        self.looked_bytes = 0
        """The vector's first bytes that were found finite."""

    @property
    def active(self) -> bool:
        """A round was begun, and is not over."""
        return self._vector is not None

    def may_begin(self, round: int) -> bool:
        """Whether the part of this round may be given in pieces."""
        return round > self._whole_until

    def check(self) -> None:
        """Raises ValueError for a script whose gradients must not be given as they come."""
        self._source.begins()

    def begin(
        self, vector: Bytes, zeroed: frozenset[str], lead: Callable[[], None], tell: Callable[[int], None]
    ) -> None:
        """The backward pass is about to run. `lead` writes what lies before the gradients; it is called when the first
        of these comes, for the forward pass is over then. `zeroed`: names of parameters that give zeros."""
        self._reset()
        self._vector, self._zeroed, self._lead, self._tell = vector, zeroed, lead, tell
        for name in zeroed:
            index = self._index[name]
            self._span(index)[:] = 0
            self._copied[index] = True
        self._source.follow(self._came)

    def pass_is_over(self) -> None:
        """No gradient comes any more."""
        self._source.follow(None)

    def complete(self) -> None:
        """Write all that is not there yet. Raises ChangedOutside where what was told is not what the gradients say
        now."""
        self._source.check()
        done = [index for index, copied in enumerate(self._copied) if copied and self._name(index) not in self._zeroed]
        slot = self._source.changed([self._slots[index] for index in done], [self._span(index) for index in done])
        if slot is not None:
            raise ChangedOutside(
                f"the gradient of {slot.name!r} was changed after overlap(), but pieces of it have been given to the "
                "round while it was computed: clip the average instead (register(on_average=...)), and leave a "
                "GradScaler away (bfloat16 needs none), or call step() without overlap()"
            )
        if not self._led and self._lead is not None:
            self._lead()
        for index, copied in enumerate(self._copied):
            if not copied:
                self._source.copy(self._slots[index], self._span(index))

    def drop(self, round: int = 0) -> None:
        """The round is over, or what was begun for it is void. `round`: it was this site that made it so."""
        if round and self.told_bytes:
            self._whole_until = round + AGAIN_AFTER_ROUNDS
        self._source.follow(None)
        self._vector = self._lead = self._tell = None
        self._reset()

    def _came(self, slot: Slot) -> None:
        index = self._index[slot.name]
        if slot.name in self._zeroed:
            return
        if self._copied[index]:
            raise ValueError(
                f"the gradient of {slot.name!r} came twice within overlap(), which is for one backward pass: make the "
                "others (gradient accumulation) before it; activation checkpoints that make backward passes of their "
                "own are asked not to: torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
            )
        self._source.copy(slot, self._span(index))
        self._copied[index] = True
        if not self._led and self._lead is not None:
            self._led = True
            self._lead()
            assert self._vector is not None
            self._look(0, self._starts[0], "float64")
        while not self._stuck and self._prefix < len(self._slots) and self._copied[self._prefix]:
            start = self._starts[self._prefix]
            self._look(start, start + self._slots[self._prefix].size_bytes, self._slots[self._prefix].summed_as)
            self._prefix += 1
        if self._tell is not None and self.looked_bytes - self.told_bytes >= self._step_bytes:
            self.told_bytes = self.looked_bytes
            self._tell(self.told_bytes)

    def _look(self, start: int, stop: int, dtype: str) -> None:
        """Go on behind it if it is finite; else nothing more is told, and `step` says which number is not."""
        assert self._vector is not None
        if first_not_finite(self._vector[start:stop], _spec(dtype, stop - start)) is None:
            self.looked_bytes = stop
        else:
            self._stuck = True

    def _name(self, index: int) -> str:
        return self._slots[index].name

    def _span(self, index: int) -> Bytes:
        assert self._vector is not None
        return self._vector[self._starts[index] : self._starts[index] + self._slots[index].size_bytes]


def _spec(dtype: str, size_bytes: int) -> ContributionSpec:
    wide = dtype == "float64"
    return contribution_spec(size_bytes // 8 if wide else 0, 0 if wide else size_bytes // 4)
