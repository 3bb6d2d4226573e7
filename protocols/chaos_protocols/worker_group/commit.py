"""The two-phase step: collects what workers say of a step, and says when and how all of them update.

Alone, the last `Reduced` makes the commit. In a run of institutions the result of the round does (`member`).
"""

from __future__ import annotations

import math

from chaos_protocols.worker_group.messages import CommitStep, Reduced, Stepped
from chaos_protocols.worker_group.round_steps import RoundSteps
from chaos_protocols.worker_group.said import PhaseSaid, Said, together
from chaos_protocols.worker_group.tags import Step

NORM_EPSILON = 1e-6
"""As torch.nn.utils.clip_grad_norm_: keeps the factor finite."""


NAMED_MAX = 4
"""Micro-batches, in a sentence."""


class NotFinite(ValueError):
    """The gradient of a step is infinite or not a number."""


class ReplicasDiffer(ValueError):
    """Two holders of a layer do not have the same bits after a step: an audit has found what must never be."""


def clip_factor(norm: float, bound: float | None) -> float:
    """What a gradient of this norm is multiplied with, so that its norm stays within the bound."""
    return 1.0 if bound is None else min(1.0, bound / (norm + NORM_EPSILON))


class StepCollector:
    """Of one generation: the step under way."""

    def __init__(
        self,
        *,
        step: Step,
        workers: frozenset[int],
        layers: int,
        micro_batches: int,
        clip_norm: float | None,
        rounds: RoundSteps = RoundSteps(),  # noqa: B008 - frozen
        phase: PhaseSaid | None = None,
    ) -> None:
        """`phase`: of the local steps before one that computes nothing."""
        self.step = step
        self._rounds, self._phase = rounds, phase or PhaseSaid()
        self._workers = workers
        self._layers, self._micro_batches, self._clip_norm = layers, micro_batches, clip_norm
        self._reduced: set[int] = set()
        self._squares: dict[int, float] = {}
        self._losses: dict[int, float] = {}
        self.behind = 0.0
        """Local steps that are in what the site gives with the step under way."""
        self._said: dict[int, Said] = {}
        self._stepped: dict[int, Stepped] = {}

    @property
    def reduced(self) -> frozenset[int]:
        """Who has the sums of the step under way."""
        return frozenset(self._reduced)

    @property
    def updated(self) -> frozenset[int]:
        """Who has updated by the commit that was sent last."""
        return frozenset(self._stepped)

    def take_reduced(self, worker: int, message: Reduced) -> bool:
        """True with the last one of the step."""
        if message.step != self.step or worker not in self._workers or worker in self._reduced:
            return False
        self._reduced.add(worker)
        self._squares.update(message.squares)
        self._losses.update(message.losses)
        self.behind = max(self.behind, message.behind)
        self._said.update(message.said)
        return self._reduced == self._workers

    def complete(self) -> CommitStep:
        """The commit of this step; the next one is under way from now on. Raises `NotFinite`."""
        commit = self.summed()
        self.go_to(self.step + 1, self._rounds)
        return commit

    def go_to(self, step: Step, rounds: RoundSteps) -> None:
        """That step is under way from now on."""
        self.step, self._rounds = step, rounds
        self._reduced.clear()
        self._squares.clear()
        self._losses.clear()
        self.behind = 0.0
        self._said.clear()
        self._stepped.clear()

    def factor(self, norm: float) -> float:
        """What the gradient is multiplied with, so that its norm stays within bounds."""
        return clip_factor(norm, self._clip_norm)

    def summed(self) -> CommitStep:
        """What this site's own gradients come to.

        Squares are added in order of layers and losses in order of micro-batches, so that the result does not depend on
        the plan. Raises `NotFinite`.
        """
        if not self._rounds.computes(self.step):
            phase = self._phase
            words, void = phase.said, not phase.counted
            return CommitStep(
                step=self.step, divisor=1.0, factor=1.0, loss=phase.loss, norm=phase.norm, said=words, void=void
            )
        if set(self._squares) != set(range(self._layers)) or len(self._losses) != self._micro_batches:
            raise AssertionError(
                f"step {self.step} was reduced with {len(self._squares)} of {self._layers} layers and "
                f"{len(self._losses)} of {self._micro_batches} losses told"
            )
        norm = math.sqrt(sum(self._squares[layer] for layer in range(self._layers))) / self._micro_batches
        loss = sum(self._losses[g] for g in range(self._micro_batches)) / self._micro_batches
        if not math.isfinite(norm):
            text = f"the gradient of step {self.step + 1} is not finite (loss {loss:g}); {self._remedy()}"
            raise NotFinite(text)
        divisor, factor = float(self._micro_batches), self.factor(norm)
        said = together(self._said)
        return CommitStep(step=self.step, divisor=divisor, factor=factor, loss=loss, norm=norm, said=said)

    def _remedy(self) -> str:
        """Of a gradient that is not finite, by which of the losses are."""
        odd = [g for g in range(self._micro_batches) if not math.isfinite(self._losses[g])]
        if odd and 2 * len(odd) <= self._micro_batches:
            shown = ", ".join(map(str, odd[:NAMED_MAX])) + (", ..." if len(odd) > NAMED_MAX else "")
            return (
                f"of {self._micro_batches} micro-batches only number {shown} (counted from 0) had no finite loss: "
                f"look at its samples, which loader.samples({self._rounds.reads(self.step)}, {odd[0]}) names"
            )
        clip = ", or give register() a clip_norm if single steps explode" if self._clip_norm is None else ""
        return f"lower the learning rate{clip}"

    def void(self) -> CommitStep:
        """The commit of a step whose gradient is not finite: it counts, and the state stays as it is."""
        loss = sum(self._losses[g] for g in range(self._micro_batches)) / self._micro_batches
        said = together(self._said)
        return CommitStep(step=self.step, divisor=1.0, factor=1.0, loss=loss, norm=math.nan, said=said, void=True)

    def take_stepped(self, worker: int, message: Stepped, *, whole: bool = True) -> tuple[str, ...] | None:
        """With the last answer of the step whose commit was sent last, the digest of each layer (none without audit,
        and none where some layers were made anew: not `whole`). Raises `ReplicasDiffer`."""
        if message.step != self.step or worker not in self._workers:
            return None
        self._stepped[worker] = message
        if self._stepped.keys() != self._workers:
            return None
        if not whole:
            return ()
        found: dict[int, str] = {}
        for each, answer in sorted(self._stepped.items()):
            for layer, digest in answer.digests:
                if found.setdefault(layer, digest) != digest:
                    raise ReplicasDiffer(f"the replicas of layer {layer} differ after step {self.step}: worker {each}")
        return tuple(found[layer] for layer in sorted(found))
