"""Modes with local steps: every site runs its own optimizer for a while, and a round averages how far each has come.

The shared state is the *anchor*: the trained parameters as the last round left them, in the type in which they are
averaged, with what the outer optimizer keeps; beside it buffers, options and schedules. Only a result changes it, so a
snapshot, a digest, a checkpoint is the same at any time between two rounds. The live parameters and the state of the
optimizers are each site's own, and never compared.

A round: every site starts its phase at the anchor a and makes its steps, which leads it to t_i. It gives a - t_i,
weighted by the samples of the phase. The mean is the gradient of the outer optimizer (Douillard et al., 2023: DiLoCo);
with lr = 1 and no momentum the new anchor is the mean of the t_i (local SGD, federated averaging). A site that is sent
results without having given anything to them, a joiner say, comes to the same anchor.

The first rounds of a run are plain means. Fresh parameters change much in every phase, and each time in another
direction: a momentum outside carries the first ones on and on, and what that spoils stays (benchmark
`convergence_bars`).

With fragments (Douillard et al., 2025: Streaming DiLoCo) a round carries one part of the model, in turn, and a part's
phase is that since its own last round. With a delay a site goes on while the round is under way: the result changes the
anchor when it comes, and the live parameters so many steps after they were given.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaos.frameworks.base import Framework
from chaos.sync.base import SharedData
from chaos.sync.local_plan import LocalPlan
from chaos.sync.local_session import LocalStepsSession
from chaos.sync.notes import NotesLayout
from chaos.sync.outer import MEAN, OuterSGD, is_number
from chaos_protocols.names import PARTS_MAX
from chaos_protocols.wire.state_spec import MODE
from chaos_protocols.worker_group.said import NotesSpec

EVERY_MAX = 1_000_000
"""Steps of a phase: what is more is a slip."""

WARMUP_ROUNDS = 10
"""For as many rounds as a momentum of 0.9 looks back on, 1 / (1 - 0.9), there is none."""

OWN_SHARE = 0.5
"""Of a delayed result: so much stays of what the site has (alpha of Streaming DiLoCo)."""


class DiLoCo:
    """`every` steps at home, then a round: `register(..., sync=DiLoCo(every=50))` (docs/training-modes.md).

    every: steps of the registered optimizers between two rounds of the same parameters, 1 to EVERY_MAX; the traffic
    falls by it. outer: what the mean difference does to the common parameters (default: Nesterov momentum 0.9, lr 0.7).
    metrics: names of the figures that `report` may tell. All the same at all sites; another one is refused, with both
    modes. Which optimizers are registered must be alike, too; their moments are each site's own.

    fragments: the model goes in so many parts of equal size, in turn: a round of one part after every `every /
    fragments` steps. It must divide `every`. delay: the script goes on while a round is under way, and takes its result
    over so many steps after it gave to it; less than `every / fragments`. own_share: how much of its own parameters a
    site keeps then, 0 to below 1 (OWN_SHARE where there is a delay); the rest is the common value.

    pace: `"steps"`: every site makes `every` steps. `"time"`: every site works as long as `every` steps take on average
    over the sites, so a slower one makes fewer, a faster one more, and nobody waits; schedules go by the run's clock.

    warmup_rounds: in so many rounds of each part, the run's first ones, the common parameters become the plain mean of
    the sites', and the momentum outside begins after them (default: WARMUP_ROUNDS where `outer` has a momentum). 0
    where the run begins with parameters that have learnt something.

    Raises ValueError for what makes no sense.
    """

    def __init__(
        self,
        *,
        every: int,
        outer: OuterSGD | None = None,
        metrics: Sequence[str] = (),
        fragments: int = 1,
        delay: int = 0,
        own_share: float | None = None,
        pace: str = "steps",
        warmup_rounds: int | None = None,
    ) -> None:
        if not _is_whole(every) or not 1 <= every <= EVERY_MAX:
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
        _check_streaming(every, fragments, delay, own_share)
        _check_pace(pace, delay)
        outer = outer if outer is not None else OuterSGD()
        self.plan = LocalPlan(
            every=every,
            outer=outer,
            fragments=fragments,
            delay=delay,
            by_time=pace == "time",
            warmup_rounds=_warmup_rounds(warmup_rounds, outer),
            own_share=(OWN_SHARE if own_share is None else float(own_share)) if delay else 0.0,
        )
        self._metrics = tuple(metrics)

    def noted(self) -> NotesSpec:
        """Which numbers stand in front of a round's vector, for people's figures and a common end."""
        return NotesSpec(optimizers=0, metrics=NotesLayout((), self._metrics).metrics)

    def facts(self) -> Sequence[str]:
        plan = self.plan
        streaming = f" fragments={plan.fragments}" if plan.fragments > 1 else ""
        streaming += f" delay={plan.delay} own_share={plan.own_share!r}" if plan.delay else ""
        streaming += " pace=time" if plan.by_time else ""
        streaming += f" warmup_rounds={plan.warmup_rounds}" if plan.warmup_rounds else ""
        return (f"{MODE}{self._named()}{streaming}" + (f" metrics={sorted(self._metrics)}" if self._metrics else ""),)

    def start(self, framework: Framework, data: SharedData | None = None) -> LocalStepsSession:
        return LocalStepsSession(framework, self.plan, NotesLayout((), self._metrics), self.facts(), data)

    def _named(self) -> str:
        return f"DiLoCo every={self.plan.every} outer={self.plan.outer}"


class LocalSGD(DiLoCo):
    """`every` steps at home, then the common parameters are the mean of the sites', weighted by samples. The rest as
    for `DiLoCo`, whose outer optimizer is then plain descent with lr = 1."""

    def __init__(self, *, every: int, metrics: Sequence[str] = (), pace: str = "steps") -> None:
        super().__init__(every=every, outer=MEAN, metrics=metrics, pace=pace)

    def _named(self) -> str:
        return f"LocalSGD every={self.plan.every}"


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _warmup_rounds(wanted: int | None, outer: OuterSGD) -> int:
    """Raises ValueError for what makes no sense."""
    if wanted is None:
        return WARMUP_ROUNDS if outer.momentum else 0
    if not _is_whole(wanted) or not 0 <= wanted <= EVERY_MAX:
        raise ValueError(
            f"warmup_rounds = {wanted!r}: the first rounds of the run, which are plain means, must be a whole number "
            f"from 0 to {EVERY_MAX:,}; {WARMUP_ROUNDS} is usual, 0 where the run begins with trained parameters"
        )
    return wanted


def _check_pace(pace: str, delay: int) -> None:
    """Raises ValueError for what makes no sense."""
    if pace not in ("steps", "time"):
        raise ValueError(f'pace = {pace!r}: "steps" (every site makes as many) or "time" (every site works as long)')
    if pace == "time" and delay:
        raise ValueError('pace="time" goes with delay=0: the time of a step could not be told from the wait for a link')


def _check_streaming(every: int, fragments: int, delay: int, own_share: float | None) -> None:
    """Raises ValueError for what makes no sense."""
    if _is_whole(fragments) and fragments > PARTS_MAX:
        raise ValueError(f"fragments = {fragments}: at most {PARTS_MAX:,}")
    if not _is_whole(fragments) or fragments < 1 or every % fragments:
        fitting = [str(number) for number in range(1, min(every, 100) + 1) if every % number == 0]
        raise ValueError(
            f"fragments = {fragments!r}: must divide every = {every}, so that a round falls due after a whole number "
            f"of steps: {', '.join(fitting[-12:])}"
        )
    between = every // fragments
    if not _is_whole(delay) or not 0 <= delay < between:
        raise ValueError(
            f"delay = {delay!r}: a result must be taken over before the next round is given to, "
            f"every / fragments = {between} steps later: a whole number from 0 to {between - 1}"
        )
    if own_share is not None and not delay:
        raise ValueError(f"own_share = {own_share!r} is about results that come later: give delay= above 0 as well")
    if own_share is not None and not (is_number(own_share) and 0 <= own_share < 1):
        raise ValueError(
            f"own_share = {own_share!r}: must be a number of at least 0 and below 1; Streaming DiLoCo has 0.5"
        )
