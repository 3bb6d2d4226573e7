"""A worker that stands still, a user who insists: facts that no closed connection brings to a daemon."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from chaos_protocols import events
from chaos_protocols.wire.worker import DaemonMessage, WorkerRefused

if TYPE_CHECKING:
    from tests.simulator.node import Node
    from tests.simulator.worker import Worker
    from tests.simulator.world import World

SEEDS_APART = 16
HANGS, FORCED = 11, 13
"""Of sixteen seeds one has a worker that hangs, another a site that is forced to stop. The others are as they were
before there was this kind of trouble."""


class Hang:
    """A worker that stands still for good while its connection stays: only who looks at the process can tell. Another
    one is started once the daemon has parted with it."""

    def __init__(self, node: Node) -> None:
        self.times = 0
        """So often the daemon parted with one."""
        self._node = node
        self._worker: Worker | None = None
        self._daemon = 0
        """The life of the daemon to which it is connected."""

    @property
    def lasts(self) -> bool:
        """The daemon has its connection still, and refuses any other worker meanwhile."""
        node = self._node
        return self._worker is not None and self._worker is node.connected and self._daemon == node._generation

    def strike(self) -> None:
        """If a worker is there, and is not the last one with the state."""
        node = self._node
        if node.alive and node.listening is not None and not node.world.must_live(node):
            node.world.tell(f"!! the worker of {node.name} hangs")
            self._worker, node.worker, self._daemon = node.worker, None, node._generation
            node.handle(events.WorkerStopped(reason="the worker process is stopped (SIGSTOP)"))

    def told(self, message: DaemonMessage) -> None:
        """It reads nothing any more; whom the daemon refuses it has parted with all the same."""
        if isinstance(message, WorkerRefused) and self.lasts:
            self.ended()

    def ended(self) -> None:
        """The daemon parts with it."""
        node = self._node
        assert self._worker is not None and self._worker is node.connected, "it runs, or is another one"
        self._worker = node.connected = None
        self.times += 1
        node.later(0.1, lambda: node.start_worker() if node.worker is None else None)


def force(node: Node) -> None:
    """The user presses Ctrl+C again, and starts the site once more a while later."""
    if node.alive and not node.world.must_live(node):
        node.world.tell(f"!! {node.name} is forced to stop")
        node.handle(events.ForcedStop(reason="forced by the user"))


def trouble(world: World, until_s: float) -> None:
    """By the seed: a worker that hangs, a site that is forced to stop, or neither."""
    kind = world.seed % SEEDS_APART
    if kind not in (HANGS, FORCED):
        return
    rng = random.Random(f"hanging/{world.seed}")
    for _ in range(3):
        node = rng.choice(list(world.nodes.values()))
        at_s = rng.uniform(2.0, until_s)
        world.schedule(at_s, node.hang.strike if kind == HANGS else lambda node=node: force(node))  # type: ignore[misc]
