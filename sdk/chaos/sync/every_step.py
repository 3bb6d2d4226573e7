"""Every step is a round: the gradients are averaged over all sites, weighted by samples, and every site runs the same
optimizer step (FlexiTrain section 3.1: sum(w g) / sum(w)). Buffers are averaged with them.

With notes (`chaos.sync.notes`) a site may give gradients for some optimizers only. An average is then divided by the
share of the weight that is behind it: sum(w g) / sum(w) over those who gave. An optimizer to which nobody gave does not
step: its moments are not fed with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from chaos.frameworks.base import Bytes, Framework, SlotKind, StateItem, What, by_name, fact_item
from chaos.skipped import BY_THE_SCRIPT
from chaos.sync.base import IDLE_WEIGHT, Due, Part, SharedData
from chaos.sync.learning_rate import LearningRateRule, LearningRates
from chaos.sync.notes import Agreed, NotesLayout, Numbers, RoundNote, out_of_phase
from chaos.sync.pieces import Pieces
from chaos.sync.runs import Run, bounded_of, ready_order, runs_of, slot_at
from chaos_protocols.wire.state_spec import MODE, contribution_spec, fact
from chaos_protocols.wire.worker import ContributionSpec
from chaos_protocols.worker_group.said import NotesSpec


class EveryStep:
    """See the module. The default of `Coordinator.register`, without notes.

    notes: rounds carry notes; `step(optimizers=...)`, `should_stop` and `report` need them. metrics:
    names of the figures that `report` may tell. Both must be the same on all sites; a site that has them otherwise is
    refused with the difference. overlap: the round begins while the backward pass still runs, within
    `Coordinator.overlap`; torch only, and alike at all sites, whether they use that or not. lr_rule: learning rates
    follow the weight of the rounds (`LearningRateRule`), alike at all sites; rounds carry notes then. Raises ValueError
    for metrics without notes, or names that are none.
    """

    def __init__(
        self,
        *,
        notes: bool = False,
        metrics: Sequence[str] = (),
        overlap: bool = False,
        lr_rule: LearningRateRule | None = None,
    ) -> None:
        if lr_rule is not None and not isinstance(lr_rule, LearningRateRule):
            raise ValueError(
                f'lr_rule = {lr_rule!r}: give chaos.LearningRateRule(kind="linear", reference=4), or leave it away'
            )
        if metrics and not notes and lr_rule is None:
            raise ValueError("metrics travel in the notes of a round: EveryStep(notes=True, metrics=...)")
        NotesLayout((), metrics)
        self._notes, self._metrics, self._overlap = notes or lr_rule is not None, tuple(metrics), overlap
        self._rule = lr_rule

    @property
    def overlaps(self) -> bool:
        """Whether rounds begin while gradients are computed."""
        return self._overlap

    @property
    def rule(self) -> LearningRateRule | None:
        """That learning rates follow."""
        return self._rule

    def noted(self, optimizers: Sequence[str]) -> NotesSpec | None:
        """Which numbers stand in front of a round's vector; None: none do."""
        if not self._notes:
            return None
        metrics = NotesLayout((), self._metrics).metrics
        return NotesSpec(optimizers=len(optimizers), metrics=metrics, weighed=self._rule is not None)

    def facts(self) -> Sequence[str]:
        words = ["every step"]
        if self._notes:
            words = [f"every step, with notes; metrics {sorted(self._metrics)}"]
        if self._rule is not None:
            words.append(f"learning rates {self._rule}")
        if self._overlap:
            words.append("given while gradients are computed")
        return (MODE + "; ".join(words),) if words != ["every step"] else ()  # as sites of releases from before notes

    def start(self, framework: Framework, data: SharedData | None = None) -> EveryStepSession:
        layout = NotesLayout(framework.optimizers, self._metrics) if self._notes or data is not None else None
        return EveryStepSession(framework, layout, self.facts(), data, overlap=self._overlap, rule=self._rule)


class EveryStepSession:
    """The vector: notes, gradients of float64 parameters, buffers (all float64), then all other gradients
    (float32)."""

    def __init__(
        self,
        framework: Framework,
        notes: NotesLayout | None = None,
        facts: Sequence[str] = (),
        data: SharedData | None = None,
        *,
        overlap: bool = False,
        rule: LearningRateRule | None = None,
    ) -> None:
        """`data` and `rule` need `notes`. Raises ValueError for `overlap` or `rule` with a training that cannot do
        it."""
        if rule is not None:
            framework.check_learning_rates()
        self._framework = framework
        self._notes, self._data, self._rates = notes, data, LearningRates(rule)
        self._notes_count = notes.count if notes is not None else 0
        self._data_at = self._notes_count + self._rates.count
        self._notes_bytes = 8 * (self._data_at + (data.count if data is not None else 0))
        self._runs = runs_of(ready_order(framework.slots) if overlap else framework.slots, self._notes_bytes)
        self._part = Part()
        self._gave: RoundNote | None = None
        """To the round that is not applied yet."""
        self._told_by: EveryStepSession | None = None
        self.agreed: Agreed | None = None
        self.notice = ""
        shared = [*self._rates.items, *(data.items if data is not None else ())]
        texts = (*facts, *(data.facts() if data is not None else ()))
        self.items: Sequence[StateItem] = [*framework.items, *shared, *(fact_item(fact(text)) for text in texts)]
        wide = sum(run.stop - run.start for run in self._runs if run.summed_as == "float64")
        narrow = sum(run.stop - run.start for run in self._runs if run.summed_as != "float64")
        self.contribution: ContributionSpec = contribution_spec(
            (self._notes_bytes + wide) // 8, narrow // 4, bounded_of(self._runs)
        )
        self.pieces: Pieces | None = None
        if overlap:
            self.pieces = Pieces(framework.gradients_as_they_come(), self._runs, self.contribution.size_bytes)

    def check(self, part: Part) -> None:
        if self._notes is None and part != Part(samples=part.samples, skip=part.skip, idle=part.idle):
            raise ValueError(
                "step(optimizers=...), should_stop() and report() need notes in the rounds: "
                "register(..., sync=EveryStep(notes=True)), on all sites"
            )
        if self._notes is not None:
            self._note(part)

    def stepped(self, part: Part) -> Due:
        self.check(part)
        if self._notes is None or not part.skip:  # else it is not known who steps
            self._framework.check_step(self._chosen(part.optimizers))
        counts = self._data is None or self._data.stepped(part.counted)
        self._part = part if counts and not part.idle else replace(part, skip=True)
        return Due.ROUND

    def begin(self, vector: Bytes, tell: Callable[[float, int], None]) -> None:
        """The backward pass of the step that was just told is about to run; `tell` hears its weight and how many bytes
        of the vector are ready, again and again. Then comes `contribute`."""
        pieces, part = self.pieces, self._part
        if pieces is None or part.skip:
            return
        zeroed: frozenset[str] = frozenset()
        if self._notes is not None:
            chosen = self._note(part).optimizers
            zeroed = frozenset(
                one.name for one in self._framework.slots if one.optimizers and chosen.isdisjoint(one.optimizers)
            )
        pieces.begin(vector, zeroed, lambda: self._lead(vector), lambda ready: tell(part.samples, ready))

    def _lead(self, vector: Bytes) -> None:
        """What lies before the gradients: the forward pass is over."""
        if self._notes is not None:
            self._say(self._note(self._part), vector[: self._notes_bytes].view(np.float64))
        for run in self._runs:
            if run.kind is SlotKind.BUFFER:
                self._framework.read(What.VALUE, run.slots, vector[run.start : run.stop])

    def leave_out(self) -> None:
        """The step that was told gives nothing after all."""
        self._part = replace(self._part, skip=True)

    def break_off(self) -> None:
        """The step is not made, whatever of it was given."""
        if self._data is not None:
            self._data.withheld()
        self._framework.discard()

    def contribute(self, vector: Bytes, round: int = 0) -> float:
        if self._part.skip and self._data is None:
            self._gave = None
            return 0.0
        note = self._note(self._part) if self._notes is not None else None
        self._gave = note if self._data is None else None  # sites that have run out of data are in no other phase
        if self.pieces is not None and self.pieces.active and not self._part.skip:
            self.pieces.complete()
            return self._part.samples
        if note is None:
            for run in self._runs:
                self._framework.read(_what(run), run.slots, vector[run.start : run.stop])
            return self._part.samples
        self._say(note, vector[: self._notes_bytes].view(np.float64))
        if self._part.skip:
            self._framework.discard()
        for run in self._runs:
            self._framework.read(_what(run), run.slots, vector[run.start : run.stop])
            for start, stop in _of_others(run, note.optimizers):
                vector[start:stop] = 0
            if self._part.skip and run.kind is SlotKind.PARAMETER:
                vector[run.start : run.stop] = 0
        return IDLE_WEIGHT if self._part.skip else self._part.samples

    def average(self, vector: Bytes) -> None:
        for run in self._runs:
            if run.kind is SlotKind.PARAMETER:
                self._framework.write(_what(run), run.slots, vector[run.start : run.stop])

    def apply(self, vector: Bytes, round: int) -> None:
        self._drop_pieces()
        if self._notes is None:
            for run in self._runs:
                self._framework.write(_what(run), run.slots, vector[run.start : run.stop])
            self.update(round)
            return
        self.agreed = agreed = self._learn(vector[: self._notes_bytes].view(np.float64))
        self.notice = out_of_phase(self._gave, agreed, round) if self._gave is not None else ""
        self._gave = None
        for run in self._runs:
            self._framework.write(_what(run), run.slots, vector[run.start : run.stop])
        self._framework.optimizer_step(round, agreed.shares, agreed.metrics, self._rates.factor)

    def update(self, round: int) -> None:
        """The optimizers step on the gradients as they stand."""
        told = self._told_by or self
        if told.agreed is None:
            self._framework.optimizer_step(round)
        else:
            self._framework.optimizer_step(round, told.agreed.shares, told.agreed.metrics, told.lr_factor)

    def follow(self, other: EveryStepSession) -> None:
        """What was said in a round is heard by another session of the same training, whose vector has notes."""
        self._told_by = other

    def learn(self, numbers: Numbers) -> Agreed:
        """What all sites said in a round, from its averaged notes."""
        self.agreed = self._learn(numbers)
        return self.agreed

    def averaged_over(self, weight: float) -> None:
        """See `SyncSession`: learning rates may follow it."""
        self._rates.averaged_over(weight)

    @property
    def lr_factor(self) -> float:
        """See `Coordinator.lr_factor`."""
        return self._rates.factor

    def skip(self, round: int) -> None:
        self._drop_pieces()
        self._framework.discard()
        if self._data is not None:
            self._data.resolve()

    def withheld(self) -> None:
        if self._data is not None:
            self._data.withheld()

    def name_at(self, start: int) -> str:
        slot = slot_at(self._runs, start)
        return f"the gradient of {slot.name!r}" if slot.kind is SlotKind.PARAMETER else repr(slot.name)

    def apply_alone(self, round: int) -> str:
        self._drop_pieces()
        if self._part.skip:
            self._framework.discard()
            if self._data is None:
                return BY_THE_SCRIPT
        elif odd := self._framework.not_finite(self._chosen(self._part.optimizers)):
            self.withheld()
            self.skip(round)
            return f"{odd} is not finite"
        if self._notes is None:
            self._framework.optimizer_step(round)
            return ""
        numbers = np.zeros(self._notes_bytes // 8)
        self._say(self._note(self._part), numbers)
        self.agreed = agreed = self._learn(numbers)
        self._framework.optimizer_step(round, agreed.shares, agreed.metrics, self._rates.factor)
        self.averaged_over(self._part.samples)
        return ""

    def reset(self, round: int) -> None:
        """Gradients belong to the step that is being computed: nothing is kept from round to round."""
        self._drop_pieces()
        self._gave, self.notice = None, ""
        self._rates.averaged_over(0.0)
        self._framework.discard()  # what the script's next backward pass would add to otherwise
        self._framework.settle()
        if self._data is not None:
            self._data.resolve()

    def _drop_pieces(self) -> None:
        if self.pieces is not None:
            self.pieces.drop()

    def _say(self, note: RoundNote, numbers: Numbers) -> None:
        assert self._notes is not None
        self._notes.write(note, numbers[: self._notes_count])
        self._rates.write(numbers[self._notes_count : self._data_at])
        if self._data is not None:
            self._data.write(numbers[self._data_at :])

    def _learn(self, numbers: Numbers) -> Agreed:
        assert self._notes is not None
        self._rates.read(numbers[self._notes_count : self._data_at])
        if self._data is not None:
            self._data.settle(numbers[self._data_at :])
        return self._notes.read(numbers[: self._notes_count])

    def _note(self, part: Part) -> RoundNote:
        assert self._notes is not None
        chosen = frozenset(self._chosen(part.optimizers))
        self._notes.check(part.metrics)
        return RoundNote(
            optimizers=frozenset() if part.skip else chosen,
            wants_to_end=part.wants_to_end,
            metrics=part.metrics,
        )

    def _chosen(self, optimizers: Sequence[str] | None) -> Sequence[str]:
        """Those that a part with these is for."""
        known = self._framework.optimizers
        return by_name(known, optimizers) if optimizers is not None else known


def _what(run: Run) -> What:
    """A buffer has a value only."""
    return What.VALUE if run.kind is SlotKind.BUFFER else What.GRADIENT


def _of_others(run: Run, optimizers: frozenset[str]) -> list[tuple[int, int]]:
    """Bytes of gradients that are for none of these, one behind the other as far as they are."""
    parts: list[tuple[int, int]] = []
    start = run.start
    for slot in run.slots:
        stop = start + slot.size_bytes
        if slot.optimizers and optimizers.isdisjoint(slot.optimizers):
            if parts and parts[-1][1] == start:
                parts[-1] = (parts[-1][0], stop)
            else:
                parts.append((start, stop))
        start = stop
    return parts
