"""A plan in the words of the protocols: what the planner wants done, and the orders that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from chaos_protocols.streams import Share
from chaos_protocols.worker_group.member_phases import Kept
from chaos_protocols.worker_group.messages import PlanOrder, Refresh, StateMove
from chaos_protocols.worker_group.round_steps import RoundSteps
from chaos_protocols.worker_group.settings import GroupSettings
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
    part: bool = False
    """Some layers have no state until one comes from other sites."""
    kept: Mapping[int, frozenset[int]] | None = None
    """Where optimizers' states are sharded, the layers whose whole state a worker keeps; None: all that it holds."""

    @property
    def workers(self) -> frozenset[int]:
        """Those that hold layers; the others are here and have nothing to do."""
        return frozenset(worker for worker, share in self.shares.items() if share.last_layer > share.first_layer)

    def layers_of(self, workers: Set[int]) -> frozenset[int]:
        """Layers whose state one of these has."""
        return frozenset().union(*(self._kept_by_one(worker) for worker in self.shares.keys() & workers))

    def _kept_by_one(self, worker: int) -> frozenset[int]:
        share = self.shares[worker]
        held = frozenset(range(share.first_layer, share.last_layer))
        return held if self.kept is None else held & self.kept.get(worker, frozenset())

    def kept_by(self, workers: Set[int]) -> Kept:
        """What these have of the layers' states."""
        held = self.layers_of(workers)
        return Kept.ALL if held == self.layers_of(self.workers) else Kept.PART if held else Kept.NOTHING

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

    def orders(
        self, generation: Generation, step: Step, rounds: RoundSteps, settings: GroupSettings
    ) -> dict[int, PlanOrder]:
        """What each worker is told."""
        found: dict[int, PlanOrder] = {}
        moves: dict[int, list[StateMove]] = {worker: [] for worker in self.shares}
        for move in self.moves:
            for worker in {move.source, move.target} & moves.keys():
                moves[worker].append(move)
        taken: set[int] = set()
        refreshes = self._refreshes()
        for worker, share in sorted(self.shares.items()):
            layers = self._kept_by_one(worker)
            found[worker] = PlanOrder(
                generation=generation,
                step=step,
                share=share,
                moves=tuple(moves[worker]),
                lowest=tuple(sorted(layers - taken)),
                keeps=None if self.kept is None else tuple(sorted(layers)),
                refreshes=tuple(each for each in refreshes if worker in each.holders),
                audit=settings.audit,
                timed=settings.timed,
                part=self.part,
                vain=rounds.vain,
            )
            taken |= layers
        return found

    def _refreshes(self) -> list[Refresh]:
        """Of the layers that a worker holds without keeping them."""
        holders: dict[int, list[int]] = {}
        for worker, share in sorted(self.shares.items()):
            for layer in range(share.first_layer, share.last_layer):
                holders.setdefault(layer, []).append(worker)
        keepers = {
            layer: tuple(worker for worker in held if layer in self._kept_by_one(worker))
            for layer, held in holders.items()
        }
        return [
            Refresh(layer=layer, holders=tuple(held), keepers=keepers[layer])
            for layer, held in sorted(holders.items())
            if len(keepers[layer]) < len(held)
        ]
