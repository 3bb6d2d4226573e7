"""Modes with local steps: every site runs its own optimizer for a while, and a round averages how far each has come.

The shared state is the *anchor*: the trained parameters as the last round left them, in the type in which they are
averaged, with what the outer optimizer keeps; beside it buffers, options and schedules. Only a result changes it, so a
snapshot, a digest, a checkpoint is the same at any time between two rounds. The live parameters and the state of the
optimizers are each site's own, and never compared.

A round: every site starts its phase at the anchor a and makes its steps, which leads it to t_i. It gives a - t_i,
weighted by the samples of the phase. The mean is the gradient of the outer optimizer (Douillard et al., 2023: DiLoCo);
with lr = 1 and no momentum the new anchor is the mean of the t_i (local SGD, federated averaging). A site that is sent
results without having given anything to them, a joiner say, comes to the same anchor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from chaos.frameworks.base import Bytes, Framework, Slot, SlotKind, StateItem, What, by_name, fact_item
from chaos.sync.base import IDLE_WEIGHT, Due, Part, SharedData
from chaos.sync.notes import Agreed, NotesLayout, RoundNote
from chaos.sync.outer import Numbers, OuterSGD
from chaos.sync.runs import Run, bounded_of, runs_of, slot_at
from chaos_protocols.names import WEIGHT_MAX
from chaos_protocols.wire.state_spec import MODE, Item, contribution_spec, fact
from chaos_protocols.wire.worker import ContributionSpec

EVERY_MAX = 1_000_000
"""Steps of a phase: what is more is a slip."""


class DiLoCo:
    """`every` steps at home, then a round: `register(..., sync=DiLoCo(every=50))` (docs/training-modes.md).

    every: steps of the registered optimizers between two rounds, 1 to EVERY_MAX; the traffic falls by it. outer: what
    the mean difference does to the common parameters (default: Nesterov momentum 0.9, lr 0.7). metrics: names of the
    figures that `report` may tell. All the same at all sites; another one is refused, with both modes. Which optimizers
    are registered must be alike, too; their moments are each site's own.

    Raises ValueError for what makes no sense.
    """

    def __init__(self, *, every: int, outer: OuterSGD | None = None, metrics: Sequence[str] = ()) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or not 1 <= every <= EVERY_MAX:
            raise ValueError(
                f"every = {every!r}: the steps between two rounds must be a whole number from 1 to {EVERY_MAX:,}; "
                "50 to 500 are usual across a WAN"
            )
        if outer is not None and not isinstance(outer, OuterSGD):
            raise ValueError(
                f"outer = {outer!r}: give chaos.OuterSGD(lr=0.7, momentum=0.9, nesterov=True), an optimizer for the "
                "mean of the sites; those of a framework belong into register(optimizer=...)"
            )
        NotesLayout((), metrics)
        self.every = every
        self.outer = outer if outer is not None else OuterSGD()
        self._metrics = tuple(metrics)

    def facts(self) -> Sequence[str]:
        return (f"{MODE}{self._named()}" + (f" metrics={sorted(self._metrics)}" if self._metrics else ""),)

    def start(self, framework: Framework, data: SharedData | None = None) -> LocalStepsSession:
        layout = NotesLayout((), self._metrics)
        return LocalStepsSession(framework, self.every, self.outer, layout, self.facts(), data)

    def _named(self) -> str:
        return f"DiLoCo every={self.every} outer={self.outer}"


class LocalSGD(DiLoCo):
    """`every` steps at home, then the common parameters are the mean of the sites', weighted by samples. The rest as
    for `DiLoCo`, whose outer optimizer is then plain descent with lr = 1."""

    def __init__(self, *, every: int, metrics: Sequence[str] = ()) -> None:
        super().__init__(every=every, outer=OuterSGD(lr=1.0, momentum=0.0, nesterov=False), metrics=metrics)

    def _named(self) -> str:
        return f"LocalSGD every={self.every}"


@dataclass(slots=True)
class _Anchor:
    """The common value of the parameters of one run, flat, with what the outer optimizer keeps of them."""

    run: Run
    values: Numbers
    kept: Sequence[Numbers]

    @property
    def bytes(self) -> Bytes:
        return self.values.view(np.uint8)


@dataclass(slots=True)
class _Phase:
    """What this site has done since the last round."""

    steps: int = 0
    samples: float = 0.0
    left_out: int = 0
    why: str = ""
    wants_to_end: bool = False
    metrics: dict[str, float] = field(default_factory=dict)


class _ViewItem:
    """A piece of flat memory as an array of the state."""

    __slots__ = ("_data", "item")

    def __init__(self, name: str, slot: Slot, data: Bytes) -> None:
        self.item = Item(name, slot.summed_as, slot.shape)
        self._data = data

    def get(self) -> Bytes:
        return self._data

    def put(self, data: Bytes, /) -> None:
        self._data[...] = data

    def memory(self) -> Bytes | None:
        return self._data


class LocalStepsSession:
    """The vector: notes, differences of float64 parameters, buffers (all float64), then all other differences
    (float32)."""

    def __init__(
        self,
        framework: Framework,
        every: int,
        outer: OuterSGD,
        notes: NotesLayout,
        facts: Sequence[str],
        data: SharedData | None = None,
    ) -> None:
        self._framework, self._every, self._outer, self._notes = framework, every, outer, notes
        self._data = data
        self._local = framework.local_training()
        self._notes_count = notes.count + (data.count if data is not None else 0)
        self._notes_bytes = 8 * self._notes_count
        self._runs = runs_of(framework.slots, self._notes_bytes)
        self._anchors = {run.start: self._anchor_of(run) for run in self._runs if run.kind is SlotKind.PARAMETER}
        self._phase = _Phase()
        self._round = 0
        self.agreed: Agreed | None = None
        self.notice = ""
        # The mode comes first: of two sites that differ in it, that is what either is told.
        self.items: Sequence[StateItem] = [
            *(fact_item(fact(text)) for text in (*facts, *(data.facts() if data is not None else ()))),
            *(data.items if data is not None else ()),
            *(item for anchor in self._anchors.values() for item in self._anchor_items(anchor)),
            *self._local.items,
        ]
        float64 = sum(slot.count for slot in framework.slots if slot.summed_as == "float64")
        float32 = sum(slot.count for slot in framework.slots if slot.summed_as != "float64")
        numbers = float64 + self._notes_count
        self.contribution: ContributionSpec = contribution_spec(numbers, float32, bounded_of(self._runs))

    @property
    def steps(self) -> int:
        """Of the run, with those of this site since the last round."""
        return self._round * self._every + self._phase.steps

    # ---- the phase at home

    def check(self, part: Part) -> None:
        if part.optimizers is not None:
            by_name(self._local.optimizers, part.optimizers)
        self._notes.check(part.metrics)

    def stepped(self, part: Part) -> Due:
        self.check(part)
        phase = self._phase
        if phase.samples + part.samples > WEIGHT_MAX:
            raise ValueError(
                f"the samples of this phase are {phase.samples + part.samples:g}, above {WEIGHT_MAX:g}; step(samples=) "
                "takes how many samples are behind one step"
            )
        phase.wants_to_end = part.wants_to_end
        phase.metrics.update(part.metrics)
        if part.idle:
            return Due.ROUND
        phase.steps += 1
        counts = self._data is None or self._data.stepped(part.counted)
        if part.skip or not counts:
            self._framework.discard()
            why = "the script skips it" if part.skip else "others have its samples now"
        else:
            names = part.optimizers
            chosen = by_name(self._local.optimizers, names) if names is not None else self._local.optimizers
            why = self._local.step(self._round * self._every + phase.steps, chosen)
        if why:
            phase.left_out, phase.why = phase.left_out + 1, why
        else:
            phase.samples += part.samples
        return Due.ROUND if phase.steps >= self._every else Due.NOTHING

    # ---- the round

    def contribute(self, vector: Bytes) -> float:
        phase = self._phase
        if not phase.samples and self._data is None:
            return 0.0
        note = RoundNote(optimizers=frozenset(), wants_to_end=phase.wants_to_end, metrics=phase.metrics)
        numbers = vector[: self._notes_bytes].view(np.float64)
        self._notes.write(note, numbers[: self._notes.count])
        if self._data is not None:
            self._data.write(numbers[self._notes.count :])
        for run in self._runs:
            part = vector[run.start : run.stop]
            self._framework.read(What.VALUE, run.slots, part)
            anchor = self._anchors.get(run.start)
            if anchor is not None:
                live = part.view(anchor.values.dtype)
                np.subtract(anchor.values, live, out=live)
        return phase.samples or IDLE_WEIGHT

    def average(self, vector: Bytes) -> None:
        """The mean of the differences is no gradient: there is nothing to show."""

    def apply(self, vector: Bytes, round: int) -> None:
        numbers = vector[: self._notes_bytes].view(np.float64)
        self.agreed = agreed = self._notes.read(numbers[: self._notes.count])
        trained = self._data is None or self._data.settle(numbers[self._notes.count :]) > 0
        self.notice = self._left_out(round)
        for run in self._runs:
            part, anchor = vector[run.start : run.stop], self._anchors.get(run.start)
            if anchor is not None and trained:
                self._outer.step(anchor.values, anchor.kept, part.view(anchor.values.dtype))
            if anchor is not None:
                part = anchor.bytes
            self._framework.write(What.VALUE, run.slots, part)
        changed = {id(slot) for slot in self._local.finish(round, self._every, agreed.metrics)}
        if changed:
            self._take_over(changed)
        self._begin(round)

    def skip(self, round: int) -> None:
        """`round`: the one that is void, or that begins again."""
        self.notice = self._left_out(round)
        self._go_back()
        self._begin(self._round)
        if self._data is not None:
            self._data.resolve()

    def withheld(self) -> None:
        if self._data is not None:
            self._data.withheld()

    def name_at(self, start: int) -> str:
        if start < self._notes_bytes:
            return "a figure that the script reports"
        slot = slot_at(self._runs, start)
        return f"{slot.name!r}, after the local steps" if slot.kind is SlotKind.PARAMETER else repr(slot.name)

    def apply_alone(self, round: int) -> bool:
        vector: Bytes = np.zeros(self.contribution.size_bytes, dtype=np.uint8)
        if not self.contribute(vector):
            self.skip(round)
            return False
        self.apply(vector, round)
        return True

    def reset(self, round: int) -> None:
        self.notice = ""
        self._go_back()
        self._begin(round)
        if self._data is not None:
            self._data.resolve()

    # ---- within

    def _begin(self, round: int) -> None:
        self._phase = _Phase()
        self._round = round

    def _go_back(self) -> None:
        """The live parameters are the anchor: whatever was done since is void."""
        for anchor in self._anchors.values():
            self._framework.write(What.VALUE, anchor.run.slots, anchor.bytes)
        self._local.restore()

    def _left_out(self, round: int) -> str:
        phase = self._phase
        if not phase.left_out:
            return ""
        return f"{phase.left_out} of {phase.steps} local steps of round {round} were left out: {phase.why}"

    def _take_over(self, changed: set[int]) -> None:
        """The function of the user has changed live parameters (a constraint): so the anchor is."""
        for anchor in self._anchors.values():
            start = 0
            for slot in anchor.run.slots:
                stop = start + slot.size_bytes
                if id(slot) in changed:
                    self._framework.read(What.VALUE, [slot], anchor.bytes[start:stop])
                start = stop

    def _anchor_of(self, run: Run) -> _Anchor:
        data: Bytes = np.zeros(run.stop - run.start, dtype=np.uint8)
        self._framework.read(What.VALUE, run.slots, data)
        values = data.view(run.summed_as)
        return _Anchor(run, values, [np.zeros_like(values) for _ in self._outer.kept])

    def _anchor_items(self, anchor: _Anchor) -> Sequence[StateItem]:
        items: list[StateItem] = []
        named = [("", anchor.values), *((f".outer.{n}", k) for n, k in zip(self._outer.kept, anchor.kept, strict=True))]
        for suffix, values in named:
            data, start = values.view(np.uint8), 0
            for slot in anchor.run.slots:
                items.append(_ViewItem(slot.name + suffix, slot, data[start : start + slot.size_bytes]))
                start += slot.size_bytes
        return items
