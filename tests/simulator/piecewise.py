"""Workers that give their part in pieces while they compute the rest (spec 9.38), and now and then not to its end."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chaos_protocols import effects, events
from tests.simulator.contents import TAINT

if TYPE_CHECKING:
    from tests.simulator.node import Node
    from tests.simulator.worker import Worker

SEEDS_WITH = 0.4
"""Of all seeds."""
PIECES_MAX = 3
LEFT_OUT = 0.03
"""Of all steps that were begun: the script does not make them in the end."""


class Piecewise:
    """Of one site. `token`: what the pieces of its present worker are of."""

    def __init__(self, node: Node) -> None:
        self.token: tuple[Any, ...] | None = None
        self._node = node
        self._rng = random.Random(f"pieces/{node.world.seed}/{node.name}")

    def computes(self, worker: Worker, delay_s: float) -> None:
        """It will be done after so long; pieces are before that."""
        node, rng, attempt = self._node, self._rng, worker.attempt
        if not node.world.piecewise or node.odd.taints:
            return
        chunks = node.world.chunk_count
        for share in sorted(rng.random() for _ in range(rng.randint(0, PIECES_MAX))):
            ready = int(share * (chunks + 1))  # none of them, or all, is none of them, or all but the last
            node._later(share * delay_s, lambda worker, ready=ready: self._piece(worker, attempt, ready))
        if rng.random() < LEFT_OUT:
            node.odd.skips += 1

    def begun(self, token: tuple[Any, ...]) -> bool:
        """Whether pieces of it may have left."""
        return self.token == token

    def _piece(self, worker: Worker, attempt: int, ready: int) -> None:
        if worker.training and worker.attempt == attempt:
            self.token = (worker.round + 1, worker.number, worker.state)
            weight = 10.0 + worker.number
            self._node.handle(events.WorkerContributed(round=worker.round + 1, weight=weight, ready_bytes=ready))


def ready_chunks(effect: effects.Contribute, chunk_count: int) -> int | None:
    """Of the whole vector; never the last one. None: all. (`ready_bytes` counts chunks here.)"""
    return None if effect.ready_bytes is None else min(effect.ready_bytes, chunk_count - 1)


@dataclass(slots=True)
class OwnPart:
    """What the engine of a site has of its own part. `ready`: so many chunks of one that was begun. `broken_from`: from
    this chunk on it is no number."""

    token: Any = None
    ready: int | None = None
    broken_from: int | None = None

    def take(self, effect: effects.Contribute, token: Any, chunk_count: int) -> None:
        before, self.ready = self.ready, ready_chunks(effect, chunk_count)
        if before is None:
            self.token = token
        elif not effect.has_bytes:
            self.broken_from = before

    def at(self, index: int) -> Any:
        """What is given to this chunk."""
        return self.token if self.broken_from is None or index < self.broken_from else (*self.token, TAINT)


@dataclass(frozen=True, slots=True)
class Given:
    """One contribution as it left for the engine. `token`: the worker's life and the state it was computed from."""

    incarnation: int
    weight: float
    token: Any
    ready: int | None = None
    """So many chunks of it; None: all."""
    broken_from: int | None = None
    """The rest is no number."""

    def wrong(self, effect: effects.Contribute, token: Any, ready: int | None) -> str:
        """Why it does not go on so (invariant 3): of a part that was begun more is given, in the same weight, or the
        rest is no number. Empty: it does."""
        if self.ready is None:
            return "it was whole"
        if effect.has_bytes and (token, effect.weight) != (self.token, self.weight):
            return f"with {token} in weight {effect.weight:g} goes on what was {self.token} in {self.weight:g}"
        return f"{ready} chunks are ready after {self.ready}" if ready is not None and ready < self.ready else ""

    def gone_on(self, effect: effects.Contribute, ready: int | None) -> Given:
        """With that."""
        broken_from = self.broken_from if effect.has_bytes else self.ready
        return Given(self.incarnation, self.weight, self.token, ready, broken_from)

    def at(self, index: int) -> Any:
        """What is given to this chunk."""
        return OwnPart(self.token, None, self.broken_from).at(index)
