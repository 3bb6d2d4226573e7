"""What the script of a worker says beside its gradients, and what all sites said in the last round.

Said between two steps, it goes with the first micro-batch of the next one; said while a micro-batch is computed, with
that one. A step that is done again is said again, whether its script says the second or not, and counts once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from chaos.frameworks.base import Bytes, MadeItem, StateItem
from chaos.sync.every_step import EveryStep
from chaos.sync.learning_rate import LearningRates
from chaos.sync.local_steps import DiLoCo
from chaos.sync.notes import Agreed, NotesLayout, Numbers
from chaos_protocols.wire.state_spec import Item
from chaos_protocols.worker_group.said import NotesSpec, Said, newest

REPORTED, LOGGED = "reported", "logged"

Words = dict[tuple[str, str], float]
"""By kind and name."""


def _one() -> float:
    return 1.0


class SiteNotes:
    """Of one worker. `agreed`: what all sites said in the last round; None: nothing yet."""

    def __init__(self) -> None:
        self.spec: NotesSpec | None = None
        self.agreed: Agreed | None = None
        self.missing = "register(..., sync=EveryStep(notes=True)), on all sites"
        """What the script has to write to have notes."""
        self.samples = 0.0
        """Of a global batch."""
        self._read: Callable[[Numbers], Agreed] | None = None
        self._factor: Callable[[], float] = _one
        self._heard: Numbers | None = None
        """The numbers behind `agreed`."""
        self._ends: bool | None = None
        self._now: Words = {}
        self._before: Words = {}
        self._kept: Words = {}
        """Of `_before`, what went with micro-batches of the step under way."""
        self._dealt = self._tried = self._over = False
        self._figures: list[tuple[int, Mapping[str, float]]] = []

    def carry(self, spec: NotesSpec, read: Callable[[Numbers], Agreed], factor: Callable[[], float] = _one) -> None:
        """Rounds have these notes; `read` learns from their averages, also what `factor` learning rates have then."""
        self.spec, self._read, self._factor = spec, read, factor

    def carry_for_local_steps(self, mode: DiLoCo) -> StateItem:
        """Rounds have the notes of this mode. What was heard last, as an item: who comes within a phase has heard the
        same."""
        spec = mode.noted()
        self.carry(spec, NotesLayout((), spec.metrics).read)
        item = Item("phase.heard", "float64", (1 + spec.count,))
        return MadeItem(item=item, get=self._heard_bytes, put=self._hear_bytes)

    def _heard_bytes(self) -> Bytes:
        """Whether anything was heard, and what."""
        assert self.spec is not None
        heard = self._heard
        return np.array([0.0] * (1 + self.spec.count) if heard is None else [1.0, *heard]).view(np.uint8)

    def _hear_bytes(self, data: Bytes) -> None:
        known, *numbers = data.view(np.float64).tolist()
        self.forget() if not known else self.learn(numbers)

    def carry_for_layers(self, mode: EveryStep, optimizers: Sequence[str]) -> LearningRates:
        """Rounds have the notes of this mode, of a model of stages. What the layers' learning rates follow."""
        spec, rates = mode.noted(optimizers), LearningRates(mode.rule)
        if spec is not None:
            layout = NotesLayout(optimizers, spec.metrics)

            def read(numbers: Numbers) -> Agreed:
                rates.read(numbers[layout.count :])
                return layout.read(numbers[: layout.count])

            self.carry(spec, read, lambda: rates.factor)
        return rates

    # ---- what the script says

    def ask(self, mine: bool) -> bool:
        """See `Coordinator.should_stop`."""
        self._check("should_stop()")
        self._ends = mine
        return self.ends

    def report(self, figures: Mapping[str, float]) -> None:
        """See `Coordinator.report`."""
        self._check("report()")
        assert self.spec is not None
        if self._tried or self._over:
            return
        NotesLayout((), self.spec.metrics).check(figures)
        self._now.update({(REPORTED, name): value for name, value in figures.items()})

    def log(self, figures: Mapping[str, float]) -> bool:
        """See `Coordinator.log`. False: no micro-batch is being computed with which they could go."""
        if self._dealt:
            self._now.update({(LOGGED, name): value for name, value in figures.items()})
        return self._dealt or self._tried

    @property
    def metrics(self) -> dict[str, float]:
        """See `Coordinator.metrics`."""
        self._check("metrics")
        return {} if self.agreed is None else dict(self.agreed.metrics)

    @property
    def lr_factor(self) -> float:
        """See `Coordinator.lr_factor`."""
        return self._factor()

    @property
    def ends(self) -> bool:
        """Whether all sites wanted to end in the last round."""
        return self.agreed is not None and self.agreed.everybody_wants_to_end

    def _check(self, what: str) -> None:
        if self.spec is None:
            raise ValueError(f"{what} needs notes in the rounds; {self.missing}")

    def end(self) -> None:
        """No round is to come: what is reported goes nowhere. A spare that was never needed has no loss to tell."""
        self._over = True

    @contextlib.contextmanager
    def unheard(self) -> Iterator[None]:
        """A micro-batch is tried before the first step: what the loss or a layer says of it counts in none."""
        self._tried = True
        try:
            yield
        finally:
            self._tried = False

    # ---- what a step takes of it

    def dealt(self) -> None:
        """A micro-batch is computed next, or a step of all of them."""
        now, self._now = self._now, {}
        self._before |= now
        self._dealt = True

    def given(self) -> Said:
        """It was computed: what goes with it."""
        now, self._now = self._now, {}
        before, self._before = self._before, {}
        self._kept |= before
        self._dealt = False
        words = before | now
        return Said(self._ends, _named(words, REPORTED), newest(_named(words, LOGGED)))

    def passed(self) -> Said:
        """What a loss or a layer has said in a pass of the step."""
        now, self._now = self._now, {}
        return Said(None, _named(now, REPORTED), newest(_named(now, LOGGED)))

    def again(self) -> None:
        """A step is begun; where an earlier one did not count, it is that one, done again."""
        self._before, self._kept = self._kept | self._before, {}

    # ---- what comes of it

    def learn(self, numbers: Sequence[float] | Numbers) -> None:
        """A round was averaged over these."""
        if self._read is not None:
            self._heard = np.array(numbers, dtype=np.float64)
            self.agreed = self._read(self._heard)

    def forget(self) -> None:
        """The state came from elsewhere: nothing was heard of the round that led to it."""
        self.agreed = self._heard = None

    def learn_alone(self, said: Said, step: int) -> None:
        """The same of a step that is this site's alone; `step`: how many came before."""
        if self.spec is not None:
            self.learn(self.spec.numbers(said, self.samples if step else 0.0))

    def committed(self, step: int, said: Said) -> None:
        """The step counts, and leads to this one; the site has said this in it."""
        self._kept.clear()
        if said.logged:
            self._figures.append((step, said.logged))

    def figures(self) -> list[tuple[int, Mapping[str, float]]]:
        """What was logged in steps that count, each once."""
        found, self._figures = self._figures, []
        return found


def _named(words: Words, kind: str) -> dict[str, float]:
    return {name: value for (of, name), value in words.items() if of == kind}


def nowhere(step: int, figures: Mapping[str, float]) -> None:
    """Nobody is told what is logged."""
