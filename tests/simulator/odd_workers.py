"""Workers that are not as they should be, though their processes run: what they compute is no finite number, they train
another model, they hang for a while, they pause on purpose.

What a hung worker is told waits for it, and it says nothing; its daemon can only see that no contribution comes. Parts
that are not finite come in two kinds: those that the script sees itself, and those of a script that does not look,
which are averaged, so that the result is one that nobody may apply.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from chaos_protocols import events
from chaos_protocols.agreement.roster import ModelFacts
from tests.simulator.contents import TAINT
from tests.simulator.piecewise import Piecewise

if TYPE_CHECKING:
    from tests.simulator.node import Node
    from tests.simulator.worker import Worker
    from tests.simulator.world import World

SEEDS_WITH = 0.3
"""Of all seeds."""
STRIKES = 4
NAN = "the gradient of 'w' is not finite"


class OddWorker:
    """Of one site: what becomes of its workers."""

    def __init__(self, node: Node) -> None:
        self.skips = self.taints = self.others = 0
        """So many contributions more are not finite, and seen to be, or not seen; so many workers more train another
        model."""
        self.overdue = 0
        """So often the run has waited too long for one: what `on_hang` is for."""
        self.pieces = Piecewise(node)
        self._node = node
        self._hung: tuple[Worker, list[Callable[[], None]]] | None = None
        self._pauses = False
        self._woke_s = float("-inf")

    # -- what it computes

    def model(self, usual: ModelFacts) -> ModelFacts:
        """Of the next worker."""
        if not self.others:
            return usual
        self.others -= 1
        return msgspec.structs.replace(usual, spec_digest="cd" * 16)

    def contribution(self, worker: Worker) -> events.WorkerContributed:
        """It has computed: what it says."""
        number = worker.round + 1
        if self.skips:
            self.skips -= 1
            return events.WorkerContributed(round=number, weight=0.0, reason=NAN)
        token: tuple[Any, ...] = (number, worker.number, worker.state)
        if self.taints and not self.pieces.begun(token):  # of which the first are finite
            self.taints -= 1
            token = (*token, TAINT)
        self._node.contribution = token
        return events.WorkerContributed(round=number, weight=10.0 + worker.number)

    def reads_that_it_is_behind(self, worker: Worker) -> None:
        """It gives up what it computes, and says that it is here."""
        worker.training, worker.attempt = False, worker.attempt + 1
        self._node.handle_later(events.ScriptResumed())

    # -- whether it answers

    @property
    def answers(self) -> bool:
        """The worker that is there neither hangs nor pauses."""
        return self._hung is None or self._hung[0] is not self._node.worker

    @property
    def computes(self) -> bool:
        """What it gives next is finite."""
        return self.answers and not self.skips and not self.taints

    @property
    def answers_already(self) -> bool:
        """It has done so for a beat: its daemon may have begun to read it."""
        world = self._node.world
        return self.answers and world.now_s > self._woke_s + world.settings.beat_s

    def hang(self) -> None:
        """The worker that is there does nothing and says nothing until `wake`."""
        node = self._node
        if node.worker is not None and self._hung is None:
            node.world.tell(f"!! the worker of {node.name} hangs, and runs")
            self._hung = (node.worker, [])

    def pause(self) -> None:
        """Its script does something else until `wake`, and says so."""
        node = self._node
        worker = node.listening
        if worker is None or self._hung is not None or not worker.training:
            return
        node.world.tell(f"!! the script of {node.name} pauses")
        worker.training, worker.attempt = False, worker.attempt + 1
        node.handle(events.ScriptPaused(reason="its script evaluates"))
        self._hung, self._pauses = (worker, []), True

    def wake(self) -> None:
        """It goes on where it was."""
        if self._hung is None:
            return
        node, pauses, self._woke_s = self._node, self._pauses, self._node.world.now_s
        (worker, waiting), self._hung, self._pauses = self._hung, None, False
        if worker is not node.worker:
            return
        node.world.tell(f"!! the script of {node.name} goes on")
        if pauses and worker is node.connected:
            node.handle(events.ScriptResumed())
        for action in waiting:
            action()

    def when_it_answers(self, action: Callable[[], None]) -> None:
        """At once, or when it goes on; never, if another one has come."""
        if self._hung is not None and self._hung[0] is self._node.worker:
            self._hung[1].append(action)
        else:
            action()


def trouble(world: World, until_s: float) -> None:
    """By the seed: some of it, at some of the sites, or none."""
    rng = random.Random(f"odd workers/{world.seed}")
    if rng.random() >= SEEDS_WITH:
        return
    for _ in range(STRIKES):
        node, kind = rng.choice(list(world.nodes.values())), rng.choice(tuple(KINDS))
        strike = KINDS[kind]
        world.schedule(rng.uniform(2.0, until_s), functools.partial(strike, node, rng))
    world.schedule(until_s, lambda: _calm(world))


def _calm(world: World) -> None:
    for node in world.nodes.values():
        node.odd.skips = node.odd.taints = node.odd.others = 0
        node.odd.wake()


def _not_finite(node: Node, rng: random.Random) -> None:
    node.odd.skips += rng.randint(1, 5)


def _not_finite_unseen(node: Node, rng: random.Random) -> None:
    node.odd.taints += rng.randint(1, 3)


def _another_model(node: Node, rng: random.Random) -> None:
    """Its script is started again, changed; and once more, as it was."""
    world = node.world
    if not node.alive or node.worker is None or node.hang.lasts or world.must_live(node):
        return
    world.tell(f"!! the script of {node.name} comes back with another model")
    node.kill_worker()
    node.odd.others = 1
    for at_s in (rng.uniform(0.01, 0.5), rng.uniform(0.6, 3.0)):
        world.schedule(at_s, lambda: node.start_worker() if node.worker is None and node.alive else None)


def _hang(node: Node, rng: random.Random) -> None:
    node.odd.hang()
    node.world.schedule(rng.choice((0.5, 3.0, 15.0)) * rng.uniform(0.5, 1.5), node.odd.wake)


def _pause(node: Node, rng: random.Random) -> None:
    node.odd.pause()
    node.world.schedule(rng.uniform(0.2, 15.0), node.odd.wake)


KINDS: dict[str, Callable[[Node, random.Random], None]] = {
    "not finite": _not_finite,
    "not finite, unseen": _not_finite_unseen,
    "another model": _another_model,
    "hang": _hang,
    "pause": _pause,
}
