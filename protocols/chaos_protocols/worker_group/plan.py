"""A plan in the words of the protocols: what the planner wants done, and the orders that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from chaos_protocols.streams import Share
from chaos_protocols.worker_group.messages import PlanOrder, StateMove
from chaos_protocols.worker_group.tags import Generation, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A share for every worker that is here, and the state that moves for it.

    `step_s`, `transition_s`: what the planner expects of a step and of the way there. `shape`: for people.
    """

    policy: str
    reason: str
    shares: Mapping[int, Share]
    moves: tuple[StateMove, ...] = ()
    step_s: float = 0.0
    transition_s: float = 0.0
    shape: str = ""

    @property
    def workers(self) -> frozenset[int]:
        """Those that hold layers; the others are here and have nothing to do."""
        return frozenset(worker for worker, share in self.shares.items() if share.last_layer > share.first_layer)

    def layers_of(self, workers: Set[int]) -> frozenset[int]:
        """Layers that one of these holds."""
        shares = [share for worker, share in self.shares.items() if worker in workers]
        return frozenset(layer for share in shares for layer in range(share.first_layer, share.last_layer))

    def facts(self) -> dict[str, object]:
        """For the history."""
        return {
            "policy": self.policy,
            "shape": self.shape,
            "step_s": self.step_s,
            "transition_s": self.transition_s,
            "workers": sorted(self.workers),
            "moved_bytes": sum(move.stop - move.start for move in self.moves),
        }

    def orders(self, generation: Generation, step: Step, *, audit: bool) -> dict[int, PlanOrder]:
        """What each worker is told."""
        found: dict[int, PlanOrder] = {}
        moves: dict[int, list[StateMove]] = {worker: [] for worker in self.shares}
        for move in self.moves:
            for worker in {move.source, move.target} & moves.keys():
                moves[worker].append(move)
        taken: set[int] = set()
        for worker, share in sorted(self.shares.items()):
            layers = set(range(share.first_layer, share.last_layer))
            found[worker] = PlanOrder(
                generation=generation,
                step=step,
                share=share,
                moves=tuple(moves[worker]),
                lowest=tuple(sorted(layers - taken)),
                audit=audit,
            )
            taken |= layers
        return found
