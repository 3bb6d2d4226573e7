"""Who stands says why, and for whom: nothing waits in silence (invariant 8).

Judged from what was done, not from what a machine believes: when no round was done for a while, every site that takes
part and was awake all the time has, or had until a moment ago, a reason to tell its user; and where a round waits for
hung scripts alone, a site that has given its part names only sites that have not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos_protocols.site import SiteMachine
    from tests.simulator.node import Node
    from tests.simulator.world import World

    Fail = Callable[[int, str], NoReturn]

LOOK_S = 0.5
STAND_S = 6.0
"""So long may a run stand before every site must say why: what is told takes two timeouts until it is told, one more
until it is told again, and as long again with a new scheduler."""


class StandingOracle:
    """See the module."""

    def __init__(self, fail: Fail, world: World) -> None:
        self._fail, self._world = fail, world
        self._rounds = 0
        self._done_s = 0.0
        self._awake_s: dict[str, float] = {}
        self._lives: dict[str, int] = {}
        self._told_s: dict[str, float] = {}
        """When each site last had a reason: one that has just ended is not silence yet."""
        self.judged = 0
        """So often a site that stood was asked."""

    def watch(self) -> None:
        """From now on, twice a second."""
        self._look()
        self._world.schedule(LOOK_S, self.watch)

    def _look(self) -> None:
        world = self._world
        done = sum(node.machine.rounds.completed_round for node in world.nodes.values() if node.machine is not None)
        if done != self._rounds:
            self._rounds, self._done_s = done, world.now_s
        for node in world.nodes.values():
            machine = node.machine
            again = self._lives.get(node.site) != node._generation
            self._lives[node.site] = node._generation
            if machine is None or again or node.stopped or machine.leaving or not machine.membership.takes_part:
                self._awake_s[node.site] = world.now_s
            else:
                self._judge(node, machine)

    def _all_compute(self) -> bool:
        """Nobody has given its part, and somebody is at it: nobody waits yet."""
        machines = [one.machine for one in self._world.nodes.values() if one.machine is not None]
        return any(one.rounds.active for one in machines) and not any(one.rounds.own.given for one in machines)

    def _judge(self, node: Node, machine: SiteMachine) -> None:
        now_s = self._world.now_s
        stood_s = now_s - max(self._done_s, self._awake_s.get(node.site, now_s))
        if machine.participation.pause.reason():
            self._told_s[node.site] = now_s
        if stood_s < STAND_S or self._all_compute():
            return
        self.judged += 1
        if now_s - self._told_s.get(node.site, -STAND_S) >= STAND_S:
            self._fail(8, f"{node.name} stands for {STAND_S:g} s, and does not say why")
        for wait in machine.participation.waits.waited_for:
            far = self._world.nodes[wait.site].machine
            if far is not None and far.rounds.own.given and far.rounds.running == machine.rounds.running:
                self._fail(8, f"{node.name} says that it waits for {wait.site}, which has given its part")
