"""A mode with local steps at work on one training: the phase at home, what is given of it, what a result changes. What
the modes are: `chaos.sync.local_steps`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from chaos.finite import first_not_finite
from chaos.frameworks.base import Bytes, Framework, MadeItem, SlotKind, StateItem, What, by_name, fact_item
from chaos.skipped import BY_THE_SCRIPT
from chaos.sync.anchors import Anchor
from chaos.sync.base import IDLE_WEIGHT, Due, Part, SharedData
from chaos.sync.fragments import Fragments
from chaos.sync.local_plan import LocalPlan
from chaos.sync.notes import Agreed, NotesLayout, RoundNote
from chaos.sync.pace import LocalPace
from chaos.sync.phases import PhaseAtHome, UnderWay
from chaos.sync.runs import runs_of
from chaos.sync.statistics import OwnStatistics
from chaos_protocols.names import WEIGHT_MAX
from chaos_protocols.wire.state_spec import Item, contribution_spec, fact
from chaos_protocols.wire.worker import ContributionSpec


class LocalStepsSession:
    """The vector: notes, differences of float64 parameters, buffers (all float64), then all other differences
    (float32); of the parameters one part in each round."""

    def __init__(
        self,
        framework: Framework,
        plan: LocalPlan,
        notes: NotesLayout,
        facts: Sequence[str],
        data: SharedData | None = None,
    ) -> None:
        """Raises ValueError for what this plan cannot do with this training."""
        if data is not None and plan.delay:
            raise ValueError(
                "sampler= deals the samples of the next round by what all said in the last one, so its result must be "
                "there: leave out delay= (fragments= may stay)"
            )
        self._framework, self._plan, self._notes, self._data = framework, plan, notes, data
        self._local = framework.local_training()
        self._pace = LocalPace(plan.steps, by_time=plan.by_time)
        notes_count = notes.count + self._pace.count + (data.count if data is not None else 0)
        self._notes_bytes = 8 * notes_count
        self._data_at = notes.count + self._pace.count
        runs = runs_of(framework.slots, self._notes_bytes)
        self._fragments = Fragments(runs, plan.fragments, self._notes_bytes)
        trained = [run for run in runs if run.kind is SlotKind.PARAMETER]
        self._anchors = {id(run): Anchor.of(run, framework, plan.outer) for run in trained}
        self._samples = [0.0] * plan.fragments  # of each part: since its last round
        self._phase = PhaseAtHome()
        self._round = 0
        self._under_way: UnderWay | None = None
        self._to_merge: int | None = None
        """The part whose result is in the anchor, and not yet in the live parameters."""
        longest = max(window.stop - window.start for window in self._fragments.windows) if plan.delay else 0
        self._merging: Bytes = np.zeros(longest, dtype=np.uint8)
        self._statistics = OwnStatistics(framework, [r for r in runs if r.kind is SlotKind.BUFFER and plan.delay])
        self._given_part = 0
        self._own: dict[int, Bytes] = {}
        """Memory for this site's own parameters, once the common model was shown."""
        self._common: list[tuple[Anchor, Bytes]] | None = None
        """While the common model is in the parameters: this site's own."""
        self.agreed: Agreed | None = None
        self.notice = ""
        # The mode comes first: of two sites that differ in it, that is what either is told.
        self.items: Sequence[StateItem] = [
            *(fact_item(fact(text)) for text in (*facts, *(data.facts() if data is not None else ()))),
            *(data.items if data is not None else ()),
            *self._pace.items,
            *(item for anchor in self._anchors.values() for item in anchor.items(plan.outer)),
            *self._local.items,
        ]
        float64, float32 = self._fragments.numbers("float64"), self._fragments.numbers("float32")
        self.contribution: ContributionSpec = contribution_spec(
            notes_count + float64, float32, self._fragments.bounded, parts=plan.fragments
        )

    @property
    def round(self) -> int:
        """The last one whose result is here."""
        return self._round

    @property
    def steps(self) -> int:
        """Of the run, with those of this site since the last round."""
        rounds = self._round if self._under_way is None else self._under_way.round
        return rounds * self._plan.steps + self._pace.position

    @property
    def steps_of_a_phase(self) -> float:
        """Of a site on average, at most, in the phase of a part that the last round was about."""
        return self._pace.steps_at_most * self._plan.fragments

    # ---- the phase at home

    def check(self, part: Part) -> None:
        if part.optimizers is not None:
            by_name(self._local.optimizers, part.optimizers)
        self._notes.check(part.metrics)

    def stepped(self, part: Part) -> Due:
        self.check(part)
        if self._common is not None:
            raise ValueError("the common model is in the parameters: make steps after the block of common_model()")
        phase, samples = self._phase, max(self._samples) + part.samples
        if samples > WEIGHT_MAX:
            raise ValueError(
                f"the samples of this phase are {samples:g}, above {WEIGHT_MAX:g}; step(samples=) takes how many "
                "samples are behind one step"
            )
        phase.wants_to_end = part.wants_to_end
        phase.metrics.update(part.metrics)
        if part.idle:
            return Due.ROUND
        self._local.check_step(self._plan.steps if self._plan.by_time else None)
        number = self.steps + 1
        phase.steps += 1
        advance = self._pace.stepped()
        counts = self._data is None or self._data.stepped(part.counted)
        if part.skip or not counts:
            self._local.leave_out(advance)
            why = "the script skips it" if part.skip else "others have its samples now"
        else:
            known = self._local.optimizers
            chosen = known if part.optimizers is None else by_name(known, part.optimizers)
            why = self._local.step(number, chosen, advance)
        if why:
            phase.left_out, phase.why = phase.left_out + 1, why
        else:
            self._samples = [before + part.samples for before in self._samples]
        return self._due()

    def _due(self) -> Due:
        if not self._plan.delay:
            return Due.ROUND if self._pace.is_over else Due.NOTHING
        if self._pace.position >= self._plan.delay:
            if self._under_way is not None:
                return Due.RESULT
            self._merge()
        return Due.GIVE if self._pace.is_over else Due.NOTHING

    # ---- the round

    def contribute(self, vector: Bytes, round: int) -> float:
        part, phase = self._fragments.of(round), self._phase
        self._given_part = part
        samples = self._samples[part]
        if not samples and self._data is None:
            self._goes_on(round, None)
            return 0.0
        note = RoundNote(optimizers=frozenset(), wants_to_end=phase.wants_to_end, metrics=phase.metrics)
        numbers, weight = vector[: self._notes_bytes].view(np.float64), samples or IDLE_WEIGHT
        self._notes.write(note, numbers[: self._notes.count])
        self._pace.write(weight, numbers[self._notes.count : self._data_at])
        if self._data is not None:
            self._data.write(numbers[self._data_at :])
        for window in self._fragments.windows:
            piece = window.pieces[part]
            end = window.start + piece.size_bytes
            given = vector[window.start : end]
            self._fragments.read(self._framework, piece, given)
            vector[end : window.stop] = 0
            if (anchor := self._anchors.get(id(window.run))) is not None:
                live = given.view(anchor.values.dtype)
                np.subtract(anchor.part(piece), live, out=live)
            elif self._plan.delay:
                self._statistics.given(window.run, given)
        self._goes_on(round, part)
        return weight

    def _goes_on(self, round: int, part: int | None) -> None:
        """With a delay the next phase begins here."""
        if not self._plan.delay:
            return
        self._under_way = UnderWay(round, part)
        self._local.close_phase(self._plan.steps)
        self.notice = self._left_out(round)
        self._begin_phase()
        if part is not None:
            self._samples[part] = 0.0

    def average(self, vector: Bytes) -> None:
        """The mean of the differences is no gradient: there is nothing to show."""

    def apply(self, vector: Bytes, round: int) -> None:
        numbers = vector[: self._notes_bytes].view(np.float64)
        self.agreed = agreed = self._notes.read(numbers[: self._notes.count])
        self._pace.read(numbers[self._notes.count : self._data_at])
        trained = self._data is None or self._data.settle(numbers[self._data_at :]) > 0
        part, under_way = self._fragments.of(round), self._under_way
        gave = under_way is not None and under_way.round == round and under_way.part is not None
        for window in self._fragments.windows:
            piece = window.pieces[part]
            data = vector[window.start : window.start + piece.size_bytes]
            anchor = self._anchors.get(id(window.run))
            if anchor is not None and trained:
                anchor.step(piece, self._plan.outer_of(round), data)
            if anchor is None and gave:
                self._statistics.came(window.run, data)
            if anchor is None or not gave:
                data = data if anchor is None else anchor.bytes[piece.start : piece.stop]
                self._fragments.write(self._framework, piece, data)
        self._finish(round, part, agreed.metrics, gave)
        if gave:
            self._statistics.go_on()
        self._applied(round, part, gave)

    def _finish(self, round: int, part: int, metrics: Mapping[str, float], gave: bool) -> None:
        """A function of the user sees the common model; what it changes of that, the anchor follows, and the live
        parameters where they are the anchor now."""
        if not self._local.has_hook:
            self._local.finish(round, self._plan.steps, metrics, {})
            return
        self._statistics.shown()
        kept = [] if self._plan.is_plain else self._show()
        common = {id(slot): values for anchor in self._anchors.values() for slot, values in anchor.slots()}
        changed = {id(slot) for slot in self._local.finish(round, self._plan.steps, metrics, common)}
        for anchor in self._anchors.values() if changed else ():
            anchor.take_over(self._framework, changed)
        for anchor, own in kept:
            self._framework.write(What.VALUE, anchor.run.slots, own)
        for window in self._fragments.windows if changed and kept and not gave else ():
            if (found := self._anchors.get(id(window.run))) is not None:
                piece = window.pieces[part]
                self._fragments.write(self._framework, piece, found.bytes[piece.start : piece.stop])

    def _applied(self, round: int, part: int, gave: bool) -> None:
        """What this site does at home after the result of a round."""
        self._round = round
        if self._common:
            self._go_back()
            self._samples = [0.0] * self._plan.fragments
        if self._under_way is None or self._under_way.round != round:
            self.notice = self._left_out(round)
            self._samples[part] = 0.0
            self._begin_phase()
        self._under_way, self._to_merge = None, part if gave else None
        if self._pace.position >= self._plan.delay:
            self._merge()

    def _merge(self) -> None:
        """The live parameters follow a result that came while this site went on."""
        part, self._to_merge = self._to_merge, None
        if part is None:
            return
        for window in self._fragments.windows:
            if (anchor := self._anchors.get(id(window.run))) is None:
                continue
            piece, kind = window.pieces[part], anchor.values.dtype.type
            live = self._merging[: piece.size_bytes]
            self._fragments.read(self._framework, piece, live)
            values = live.view(anchor.values.dtype)
            values -= anchor.part(piece)
            values *= kind(self._plan.own_share)
            values += anchor.part(piece)
            self._fragments.write(self._framework, piece, live)
        self._statistics.merge()

    def averaged_over(self, weight: float) -> None:
        """Nothing here follows it."""

    def skip(self, round: int) -> None:
        """`round`: the one that is void, or that begins again."""
        if self._under_way is None:
            self.notice = self._left_out(round)
        self._go_back()
        self._begin(self._round)
        if self._data is not None:
            self._data.resolve()

    def withheld(self) -> None:
        if self._data is not None:
            self._data.withheld()
        if not self._plan.is_plain:  # what is not finite would stay in the parts whose turn has not come
            under_way = self._under_way
            self._go_back()
            self._begin(self._round)
            self._under_way = None if under_way is None else UnderWay(under_way.round, None)

    def name_at(self, start: int) -> str:
        if start < self._notes_bytes:
            return "a figure that the script reports"
        slot = self._fragments.slot_at(start, self._given_part)
        return f"{slot.name!r}, after the local steps" if slot.kind is SlotKind.PARAMETER else repr(slot.name)

    def apply_alone(self, round: int) -> str:
        vector: Bytes = np.zeros(self.contribution.size_bytes, dtype=np.uint8)
        if not self.contribute(vector, round):
            self.skip(round)
            return BY_THE_SCRIPT
        odd = first_not_finite(vector, self.contribution)
        if odd is not None:
            why = f"{self.name_at(odd)} is not finite"
            self.withheld()
            self.skip(round)
            return why
        self.apply(vector, round)
        return ""

    def reset(self, round: int) -> None:
        self.notice = ""
        self._go_back()
        self._begin(round)
        if self._data is not None:
            self._data.resolve()

    def begin_afresh(self, round: int) -> None:
        """As `reset`, and with fresh inner optimizers, where several processes of the site must begin alike."""
        self.reset(round)
        self._local.begin_afresh()

    def go_on(self, round: int, steps: int) -> None:
        """The state, this site's own with it, came from another process of the site: that of `steps` local steps after
        the end of `round`. Of a plan without delay and pace by time."""
        self._round = round
        self._pace.position = steps
        self._local.go_on(steps)

    @property
    def behind(self) -> StateItem:
        """Samples of each part since its last round: this site's own, which go with the rest of its phase."""

        def put(data: Bytes) -> None:
            self._samples = data.view(np.float64).tolist()

        item = Item("phase.samples", "float64", (self._plan.fragments,))
        return MadeItem(item=item, get=lambda: np.array(self._samples).view(np.uint8), put=put)

    # ---- the common model

    @contextlib.contextmanager
    def common_model(self) -> Iterator[None]:
        """What all sites have in common is in the parameters and buffers meanwhile; this site's own are kept apart."""
        if self._common is not None:
            raise ValueError("the common model is in the parameters already")
        self._common = self._show()
        try:
            with self._local.common_buffers():
                yield
        finally:
            kept, self._common = self._common, None
            for anchor, own in kept or ():
                self._framework.write(What.VALUE, anchor.run.slots, own)

    def _show(self) -> list[tuple[Anchor, Bytes]]:
        """Put the common values into the parameters; beside each anchor this site's own, to be put back."""
        kept = []
        for key, anchor in self._anchors.items():
            if key not in self._own:
                self._own[key] = np.zeros(anchor.bytes.size, dtype=np.uint8)
            self._framework.read(What.VALUE, anchor.run.slots, self._own[key])
            self._framework.write(What.VALUE, anchor.run.slots, anchor.bytes)
            kept.append((anchor, self._own[key]))
        return kept

    # ---- within

    def _begin_phase(self) -> None:
        self._phase = PhaseAtHome()
        self._pace.begin()

    def _begin(self, round: int) -> None:
        self._begin_phase()
        self._round = round
        self._under_way = self._to_merge = None
        self._samples = [0.0] * self._plan.fragments

    def _go_back(self) -> None:
        """The live parameters are the anchor: whatever was done since is void."""
        if self._common:
            self._common.clear()
        for anchor in self._anchors.values():
            self._framework.write(What.VALUE, anchor.run.slots, anchor.bytes)
        self._local.restore()

    def _left_out(self, round: int) -> str:
        phase = self._phase
        if not phase.left_out:
            return ""
        return f"{phase.left_out} of {phase.steps} local steps of round {round} were left out: {phase.why}"
