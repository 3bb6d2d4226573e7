"""Workers that lose a part of their state and live: of several processes all that held some layers are gone.

As such a worker group does, it says hello anew, with the round of what it has left; that it brings forward by results,
and writes when it is asked for a snapshot (spec 11.18). Which bytes are lost is drawn from the seed.
"""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from chaos_protocols.wire.worker import TrainFrom
from tests.simulator.contents import Region
from tests.simulator.worker import STATE_BYTES, Worker

if TYPE_CHECKING:
    from tests.simulator.node import Node
    from tests.simulator.world import World

SEEDS_WITH = 0.2
"""Of all seeds."""
STRIKES = 5
GRAIN_BYTES = 1 << 14
AGAIN_S = (0.0, 0.01, 0.1, 1.0)
"""From the end of the connection to the next hello: the processes that are left settle who holds what."""

BEGUN_AGAIN_S = 0.5
"""Until a user starts a script that has ended once more."""


def damage(node: Node, lost: tuple[int, int], after_s: float) -> None:
    """What these bytes were is gone, if there is a worker with a state and it is not the last one with that."""
    old = node.listening
    if not node.alive or node.stopped or old is None or not old.round or old.updating or node.world.must_live(node):
        return
    node.world.tell(f"!! the worker of {node.name} loses bytes {lost[0]} to {lost[1]} of its state")
    node.kill_worker()
    astray = node.world.oracles.rounds.is_given_up(old.round, old.state)
    region = Region(STATE_BYTES)
    left = replace(
        old, region=region, round=0, part=old.round, lost=lost, astray=astray, training=False, snapshot_due=None
    )
    node.later(after_s, lambda: _back(node, left))


def _back(node: Node, worker: Worker) -> None:
    if node.alive and node.worker is None and not node.hang.lasts:
        node.worker = worker
        node._hello(worker)


def gives_up(node: Node, worker: Worker, message: object) -> bool:
    """Told to train with what it has: it is to begin the run anew, as a fresh one, which it is not. Its script ends and
    says so (`RunMember._train_from`); its user starts another one."""
    if not worker.part or not isinstance(message, TrainFrom):
        return False
    if message.round != 1:
        node.world.oracles.fail(4, f"{node.name} is to train in round {message.round} with a part of a state")
    node.world.tell(f"!! the worker of {node.name} has a part of a state only, and ends")
    node.kill_worker()
    node.later(BEGUN_AGAIN_S, lambda: node.start_worker() if node.worker is None else None)
    return True


def trouble(world: World, until_s: float) -> None:
    """By the seed: some of it, or none."""
    rng = random.Random(f"damaging/{world.seed}")
    if rng.random() >= SEEDS_WITH:
        return
    for _ in range(STRIKES):
        node = rng.choice(list(world.nodes.values()))
        start, stop = sorted(rng.sample(range(0, STATE_BYTES + 1, GRAIN_BYTES), 2))
        strike = functools.partial(damage, node, (start, stop), rng.choice(AGAIN_S))
        world.schedule(rng.uniform(2.0, until_s), strike)
