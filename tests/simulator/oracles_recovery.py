"""Invariant 8: a dead link is noticed in bounded time, and once faults stop everybody goes on, or says why it cannot.

Who must go on: every site whose user wants it in the run. The one excuse is a state that died: no worker alive has one,
and no disk. Then no fresh worker may be taken for the run (spec 13.4), every site must say what it waits for, and an
operator has the run begin anew: then it must.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from chaos_protocols.links.liveness import LinkPhase
from chaos_protocols.links.silence import BEHIND_BULK_FACTOR
from tests.simulator.oracles_standing import STAND_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulator.node import Node
    from tests.simulator.world import World

    Fail = Callable[[int, str], NoReturn]

SLACK_S = 0.35
"""Beyond the timeout: a beat until the next look, a step of the timer, clocks that drift."""


class RecoveryOracle:
    def __init__(self, fail: Fail, world: World) -> None:
        self._fail, self._world, self._beat_s = fail, world, world.settings.beat_s
        self._heard_s: dict[tuple[str, str], float] = {}
        self._awake_s: dict[str, float] = {}
        self._stepped_s: dict[str, float] = {}

    # -- silence

    def delivered(self, node: Node, source: str) -> None:
        self._heard_s[node.site, source] = self._world.now_s

    def after_step(self, node: Node, *, timer: bool) -> None:
        """A link over which nothing arrives for longer than the limit is not called up, by a site that was awake."""
        world, machine = self._world, node.machine
        assert machine is not None
        now_s, here = world.now_s, node.site
        stood_s = now_s - self._stepped_s.get(here, now_s)
        if stood_s > self._beat_s + SLACK_S:
            self._awake_s[here] = now_s  # it stood still itself
        elif stood_s > self._beat_s:  # for less; that time is nobody's silence either
            for site in machine.links.neighbours:
                self._heard_s[here, site] = min(now_s, self._heard_s.get((here, site), 0.0) + stood_s)
        self._stepped_s[here] = now_s
        if not timer:
            return
        awake_s = self._awake_s.get(here, 0.0)
        for site, neighbour in machine.links.neighbours.items():
            if neighbour.phase is not LinkPhase.UP:
                continue
            since_s = max(self._heard_s.get((here, site), 0.0), awake_s)
            limit_s = machine.links.silence_limit_s(site)  # what the link has shown, within the range of the rule
            if now_s <= neighbour.watch.received_s + limit_s + self._beat_s + SLACK_S:
                limit_s *= BEHIND_BULK_FACTOR  # bulk came lately: words may queue behind it
            if now_s - since_s > limit_s + self._beat_s + SLACK_S:
                self._fail(
                    8, f"{node.name} still calls its link to {site} up, {now_s - since_s:.2f} s after its last word"
                )

    def connected(self, one: str, other: str) -> None:
        self._heard_s[one, other] = self._heard_s[other, one] = self._world.now_s

    def started(self, node: Node) -> None:
        self._awake_s[node.site] = self._stepped_s[node.site] = self._world.now_s

    # -- after the faults

    def newest_round(self) -> int:
        """The newest round that a live member of the present roster knows to be done, or that was resolved."""
        roster = self._world.oracles.newest
        if roster is None:
            return 0
        newest = roster.resolved_round
        for record in roster.sites:
            machine = self._world.nodes[record.site].machine
            if record.state == "member" and machine is not None and machine.incarnation == record.incarnation:
                newest = max(newest, machine.rounds.known_round)
        return newest

    def state_is_lost(self) -> bool:
        """Rounds were done, and no worker alive has a state, and no disk a checkpoint, but for what an operator has
        given up. In a run that has not started, since it waits for its first sites, there is nothing to lose."""
        nodes, roster = self._world.nodes.values(), self._world.oracles.newest
        if roster is None or not roster.started:
            return False
        given_up = self._world.oracles.restore.is_given_up
        kept = (one for node in nodes for one in node.keeper.files.values() if one is not None)
        if any(not given_up(roster, number, state) for number, state in kept):
            return False
        workers = (node.worker for node in nodes if node.worker is not None and node.worker.round)
        return all(given_up(roster, worker.round, worker.state) for worker in workers)

    def waits_as_it_must(self) -> None:
        """The state is lost: nobody trains, and whoever waits for it says so; one that began just now, soon."""
        self._world.run_until(lambda: not any(self._silent()), limit_s=STAND_S)
        for node in self._silent():
            self._fail(8, f"{node.name} waits for a state that is lost, and does not say so")

    def _silent(self) -> Iterator[Node]:
        """Who waits and has not said why yet."""
        for node in self._world.nodes.values():
            machine = node.machine
            if machine is None or node.worker is None:
                continue
            roster = self._world.oracles.newest
            record = roster.record(node.site) if roster is not None else None  # type: ignore[arg-type]
            if record is None or record.incarnation != machine.incarnation:
                continue  # removed, and does not know it yet: no round can come of what it does
            if machine.rounds.active:
                self._fail(8, f"{node.name} trains, though the newest state is lost")
            if not machine.participation.pause.reason():
                yield node
