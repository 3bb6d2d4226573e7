"""Who stands says why, and for whom: nothing waits in silence (invariant 8).

Judged from what was done, not from what a machine believes: when no round was done for a while, every site that takes
part and was awake all the time has, or had until a moment ago, a reason to tell its user; and whom it names counts in
that round, and has not given its part, or has given it a moment ago.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from chaos_protocols.scheduler.waits import BEHIND

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos_protocols.site import SiteMachine
    from chaos_protocols.wire.plans import Tag
    from tests.simulator.node import Node
    from tests.simulator.world import World

    Fail = Callable[[int, str], NoReturn]

LOOK_S = 0.5
STAND_S = 6.0
"""So long may a run stand with one scheduler before every site must say why: what is told takes two timeouts until it
is told, and one more until it is told again."""

TOLD_OF_S = 3.5
"""So long after a site has given its part others may still name it: its report goes out with a beat, the scheduler
says at the next that it is waited for no more, and where that word does not come through, what was said before lasts
`waits_stale_s` (spec 9.22). A scheduler that names sites that have given is found as before: hung scripts stand for
longer, and so do those who wait for them."""


class StandingOracle:
    """See the module."""

    def __init__(self, fail: Fail, world: World) -> None:
        self._fail, self._world = fail, world
        self._rounds = self._term = 0
        self._done_s = 0.0
        """Since when no round is done by any site, under the present scheduler."""
        self._awake_s: dict[str, float] = {}
        self._lives: dict[str, int] = {}
        self._told_s: dict[str, float] = {}
        """When each site last had a reason, or nothing to tell: one that has just ended is not silence yet."""
        self._gave_s: dict[str, tuple[Tag, float]] = {}
        """To which tag each site has given its part, and since when that is seen."""
        self._reached_s: dict[str, float] = {}
        """Since when the scheduler has a way to each site: what is told of one comes from its reports alone."""
        self.judged = 0
        """So often a site that stood was asked."""

    def watch(self) -> None:
        """From now on, twice a second."""
        self._look()
        self._world.schedule(LOOK_S, self.watch)

    def _look(self) -> None:
        world = self._world
        done = sum(node.machine.rounds.completed_round for node in world.nodes.values() if node.machine is not None)
        machines = (node.machine for node in world.nodes.values() if node.machine is not None)
        leading = [one for one in machines if one.scheduler.leading and one.scheduler.taken_over]
        scheduler = max(leading, key=lambda one: one.term, default=None)
        term = scheduler.term if scheduler is not None else 0
        if done != self._rounds or term > self._term:
            self._rounds, self._term, self._done_s = done, max(term, self._term), world.now_s
        self._note_given()
        self._note_reached(scheduler)
        for node in world.nodes.values():
            machine = node.machine
            again = self._lives.get(node.site) != node._generation
            self._lives[node.site] = node._generation
            if machine is None or again or node.stopped or machine.leaving or not machine.membership.takes_part:
                self._awake_s[node.site] = world.now_s
            else:
                self._judge(node, machine)

    def _note_reached(self, scheduler: SiteMachine | None) -> None:
        reached = scheduler.reachable() if scheduler is not None else frozenset()
        self._reached_s = {site: self._reached_s.get(site, self._world.now_s) for site in reached}

    def _note_given(self) -> None:
        given: dict[str, tuple[Tag, float]] = {}
        for node in self._world.nodes.values():
            tag = node.machine.rounds.running if node.machine is not None and node.machine.rounds.own.given else None
            if tag is not None:
                before = self._gave_s.get(node.site)
                given[node.site] = before if before is not None and before[0] == tag else (tag, self._world.now_s)
        self._gave_s = given

    def _all_compute(self, machine: SiteMachine) -> bool:
        """Somebody is at its part, and nobody that trains has given one to the machine's round or to a newer one:
        nobody waits for a script yet. Who has not the state gives weight 0 at once, which is no part: it waits for
        the state (see `_judge`). Who was cut off, and removed, has its part to a round that has been void since."""
        machines = [one.machine for one in self._world.nodes.values() if one.machine is not None]
        training = [one.rounds for one in machines if one.rounds.active]
        begun = _order(machine.rounds.running)
        return bool(training) and not any(one.own.given and _order(one.running) >= begun for one in training)

    def _judge(self, node: Node, machine: SiteMachine) -> None:
        now_s = self._world.now_s
        stood_s = now_s - max(self._done_s, self._awake_s.get(node.site, now_s))
        if machine.participation.pause.reason():
            self._told_s[node.site] = now_s
        lacks_state = machine.state.session.present and machine.rounds.worker_round is None
        if self._all_compute(machine) and not lacks_state:
            self._told_s[node.site] = now_s  # there is nothing to tell yet
            return
        if stood_s < STAND_S:
            return
        self.judged += 1
        if now_s - self._told_s.get(node.site, -STAND_S) >= STAND_S:
            self._fail(8, f"{node.name} stands for {STAND_S:g} s, and does not say why")
        for wait in machine.participation.waits.waited_for:
            if wait.reason not in ("", BEHIND):
                continue  # it has given, and that does not arrive
            if wait.seconds > TOLD_OF_S and not self._counts(machine, wait.site):
                self._fail(8, f"{node.name} says that it waits for {wait.site}, which does not count in that round")
            given = self._gave_s.get(wait.site)
            since_s = max(given[1], self._reached_s.get(wait.site, now_s)) if given is not None else now_s
            counts = given is not None and given[0] == machine.rounds.running and self._is_newest(given[0])
            if counts and now_s - since_s > TOLD_OF_S:
                self._fail(8, f"{node.name} says that it waits for {wait.site}, which has given its part")

    def _is_newest(self, tag: Tag) -> bool:
        """Nobody is in that round under a newer tag. Who does not follow the last change is waited for although it has
        given its part to the one before, and says so itself."""
        machines = (node.machine for node in self._world.nodes.values())
        return not any(one is not None and _order(one.rounds.running) > _order(tag) for one in machines)

    def _counts(self, machine: SiteMachine, site: str) -> bool:
        """Whether a site counts in the round that is said to wait for it, or this one does not know that round's view
        yet. A joiner counts from its snapshot's round on, and may be told of the one before."""
        running, told, newest = machine.rounds.running, machine.participation.waits._told, self._world.oracles.newest
        if running is None or told is None or newest is None:
            return True
        number = min(told.round, running.round)
        view = newest.view_of(number)
        known = view is not None and (view.epoch == running.epoch or number < running.round)
        if view is None or not known or view.epoch > machine.roster.epoch:
            return True
        return site in view.members


def _order(tag: Tag | None) -> tuple[int, int]:
    """Of what was agreed one after the other: a round that is done again comes after those that it makes void."""
    return (tag.epoch, tag.round) if tag is not None else (0, 0)
