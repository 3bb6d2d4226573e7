"""Which run each site is in, where an operator recovers one without a majority of its voters (invariant 12).

The other oracles judge one run. When a site makes a new one they begin again with that, and who stays in the former is
a stray to them until it follows. What holds over all runs is judged here: a site goes over to another run at its own
operator's word alone, no two recoveries are one run, and rounds go on counting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos_protocols import effects, wishes
from chaos_protocols.agreement.commands import SetRestorePoint, decode_roster
from tests.simulator.strays import FORMER

if TYPE_CHECKING:
    from tests.simulator.node import Node
    from tests.simulator.worker import Worker
    from tests.simulator.world import World


NEXT_LIFE_S = 0.02
"""Between two lives of a daemon that goes over to another run."""


class Base:
    """What the first site of a recovered run had: its worker, with the state of `worker_round`, and its checkpoints."""

    def __init__(self, node: Node, worker: Worker | None, stored: int) -> None:
        self.node, self.worker, self.stored = node, worker, stored
        self.worker_round = worker.round if worker is not None else 0


class Runs:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.judged = ""
        """The recovered run that the oracles look at; empty: the first run."""
        self.recovered: dict[str, Base] = {}
        """Recovered runs, and what each had to go on from."""
        self._said: dict[str, int] = {}
        """Sites whose operators have said that they go over, and in which life of the daemon."""
        self._restored: set[str] = set()

    def says(self, node: Node, event: wishes.RecoverWithout | wishes.FollowWanted) -> None:
        """A site's operator says that it goes over to another run."""
        self._said[node.site] = node.disk.incarnation
        node.handle(event)

    def started(self, node: Node) -> None:
        """A daemon begins, with what its disk holds."""
        origin, site = node.disk.origin, node.site
        if origin is None:
            return
        run = origin.statement.run_id
        if origin.statement.by == site and run not in self.recovered:
            self._founded(node, run)
        if node.stray in ("", FORMER):
            node.stray = "" if run == self.judged else FORMER

    def _founded(self, node: Node, run: str) -> None:
        """This site has made a new run: it is judged from here on, and nobody else is in it."""
        # Late: the oracles know this module by way of the world.
        from tests.simulator.oracles import Oracles

        world = self.world
        stored = max((one.round for one in node.keeper.files), default=0)
        self.recovered[run], self.judged = Base(node, node.worker, stored), run
        for other in world.nodes.values():
            other.stray = other.stray or FORMER
        world.oracles = Oracles(world)

    def ended(self, node: Node, *, again: bool) -> None:
        """A daemon has ended itself; `again`: to begin another life, with the worker that has outlived this one."""

        def begin() -> None:
            if not node.alive:
                node.start()
                node.reconnect_worker()

        node.left = not again
        node.kill(worker_too=not again)
        if again:
            self.world.schedule(NEXT_LIFE_S, begin)

    def restored(self, command: SetRestorePoint) -> None:
        """Invariant 12: a recovered run first goes on from what its first site had, and counts on."""
        base = self.recovered.get(self.judged)
        if base is None or self.judged in self._restored or command.operator:
            return
        self._restored.add(self.judged)
        lives = base.worker is not None and base.node.worker is base.worker
        had = base.worker_round if lives else base.stored
        if command.round < had:
            self.world.oracles.fail(
                12, f"the recovered run goes on from round {command.round}, and round {had} was there"
            )

    def executed(self, node: Node, effect: effects.StartOver) -> None:
        """Invariant 12: it goes over to another run only if its own operator has just said so."""
        fail, run = self.world.oracles.fail, effect.origin.statement.run_id
        if self._said.get(node.site) != node.disk.incarnation:
            fail(12, f"{node.name} goes over to run {run[:8]}, and its operator has not said so")
        if node.machine is not None and run == node.machine.roster.run_id:
            fail(12, f"{node.name} goes over to another run of the same id")
        if effect.snapshot is not None and run in self.recovered:
            fail(12, f"{node.name} makes a run of its own with the id of another one")
        if effect.snapshot is not None and len(decode_roster(effect.snapshot.state).sites) != 1:
            fail(12, f"{node.name} takes others along into run {run[:8]}")
