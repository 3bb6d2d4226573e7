"""Operators who act while the faults go on (`--operators`): they decide from which state the run goes on, want sites
out and take that back, want other bounds, and change links.

Random faults alone leave hardly a moment in which an operator's word matters: somebody has the state nearly always. So
some acts make such a moment (`state lost`): all workers die, the newest state stays away for a while, an operator
decides for another one, and what came of that may be lost as well. Each act has a number beside those of the strikes,
and a random generator of its own: it is left out by itself when a run is shrunk, and no other seed is changed by it.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chaos_protocols import events
from chaos_protocols.names import SiteId
from chaos_protocols.settings import CheckpointSettings
from chaos_protocols.wire.bounds import UNBOUNDED, Bounds
from chaos_protocols.wishes import BoundsWanted
from tests.simulator.hanging import SEEDS_APART
from tests.simulator.outside import Outside
from tests.simulator.strays import COPIES
from tests.simulator.strikes import begin

if TYPE_CHECKING:
    from tests.simulator.node import Node
    from tests.simulator.world import World

FIRST_NUMBER = 101
"""Of an act: strikes have the numbers below."""
FIRST_S = 2.5
MEAN_S = 1.3
"""Between two acts."""
LOOKS_EVERY_S = 0.1
PATIENCE_S = 5.0
"""So long an operator waits for a moment in which nobody trains."""
KEEPS_SHARE = 0.75
"""Of the runs: sites keep checkpoints, so that there is something to choose from."""
SLOW_DISKS_SHARE = 0.4
"""Of these."""
BOUNDS = (Bounds(weight_max=7.5), Bounds(weight_max=11.5), Bounds(clip_radius=1.0), UNBOUNDED)


def act(world: World, until_s: float, only: frozenset[int] | None) -> None:
    """To be called before the sites start."""
    rng = random.Random(f"operators/{world.seed}")
    _keep(world, rng)
    operators = Operators(world, until_s)
    kinds = random.Random(f"operators' acts/{world.seed}")
    at_s, number = FIRST_S, FIRST_NUMBER
    while at_s < until_s:
        kind = kinds.choice(KINDS)
        if only is None or number in only:
            world.schedule(at_s, functools.partial(operators.strike, number, kind))
        at_s, number = at_s + kinds.expovariate(1 / MEAN_S), number + 1
    world.schedule(0.0, operators.look)
    world.schedule(until_s, operators.calm)


def _keep(world: World, rng: random.Random) -> None:
    """Checkpoints more often than in other runs, on disks of which more are slow."""
    if rng.random() >= KEEPS_SHARE:
        return
    keep = CheckpointSettings(
        memory_checkpoint_every_rounds=rng.choice((0, 0, 2, 7)),
        checkpoint="fixed",
        checkpoint_every_rounds=rng.choice((2, 5, 11)),
    )
    world.settings = replace(world.settings, keep=keep)
    disk_range_s = (1.0, 6.0) if rng.random() < SLOW_DISKS_SHARE else (0.01, 0.3)
    for node in world.nodes.values():
        node.keeper.disk_range_s = disk_range_s


class Operators:
    """See the module."""

    def __init__(self, world: World, until_s: float) -> None:
        self._world, self._until_s = world, until_s
        self._requests = 0
        self._ban: tuple[Node, bool] | None = None
        """Who is wanted out, and whether for good."""
        self._gives_up_s: dict[str, float] = {}
        self._outside = Outside(world)

    def strike(self, number: int, kind: str) -> None:
        """It begins now."""
        self._world.tell(f"!! {number}: operators: {kind}")
        rng = random.Random(f"operators' act/{self._world.seed}/{number}")
        ACTS[kind](self, rng)

    # -- from which state the run goes on

    def recover(self, rng: random.Random) -> None:
        """Most often an operator waits until no member trains, and then a while."""
        patience_s = PATIENCE_S if rng.random() < 0.8 else 0.0
        self._when_it_stands(self._world.now_s + patience_s, rng)
        if rng.random() < 0.3:  # another one decides, too
            later_s = rng.uniform(0.0, 1.0)
            self._world.schedule(later_s, lambda: self._when_it_stands(self._world.now_s + patience_s, rng))

    def _when_it_stands(self, until_s: float, rng: random.Random) -> None:
        if self._stands() or self._world.now_s >= until_s:
            self._world.schedule(rng.choice((0.0, 0.5, 1.5, 3.0)) * rng.random(), lambda: self._decide(rng))
        else:
            self._world.schedule(LOOKS_EVERY_S, lambda: self._when_it_stands(until_s, rng))

    def _stands(self) -> bool:
        """No member trains."""
        roster = self._world.oracles.newest
        machines = [node.machine for node in self._world.nodes.values() if node.machine is not None]
        begun = roster is not None and roster.started and roster.model is not None
        return begun and not any(one.rounds.active for one in machines)

    def _decide(self, rng: random.Random) -> None:
        world = self._world
        there = [node for node in world.nodes.values() if node.machine is not None and not world.bans.is_out(node)]
        inside = [node for node in there if node.machine is not None and node.machine.membership.in_roster]
        if not there:
            return
        if inside and rng.random() < 0.9:
            there = inside
        node, (origin, number) = rng.choice(there), self._choice(rng)
        self._requests += 1
        request = f"operator-{self._requests}"
        world.tell(f"!! {request} at {node.name}: {f'{origin}:{number}' if origin else 'anew'}")
        node.handle(events.RecoverRequested(request=request, origin=origin, round=number))
        if rng.random() < 0.35:
            world.schedule(rng.uniform(0.1, 3.0), lambda: self._lose_scheduler(rng))

    def _choice(self, rng: random.Random) -> tuple[str, int]:
        """A state that is there, or none; who has it by its id, the beginning of that, or its name."""
        held = [(node, number) for node in self._world.nodes.values() for number in sorted(_rounds_of(node))]
        offered = [(node, number) for node, number in held if node.alive and number in _offered_by(node)]
        draw = rng.random()
        if draw < 0.2 or not held:
            return "", 0
        node, number = rng.choice(offered if offered and rng.random() < 0.85 else held)
        if draw < 0.3:
            number += rng.randint(1, 3)
        return rng.choice((node.site, node.name, node.site[:2], node.site[:2])), number

    def _lose_scheduler(self, rng: random.Random) -> None:
        leading = [
            one for one in self._world.nodes.values() if one.machine is not None and one.machine.scheduler.leading
        ]
        for node in leading[: int(self._is_trouble)]:
            self._world.tell(f"!! the scheduler's daemon dies, at {node.name}")
            node.kill(worker_too=False)
            self._world.schedule(rng.uniform(0.1, 3.0), functools.partial(begin, node))

    def lose_state(self, rng: random.Random) -> None:
        """All workers die, and some daemons; the newest checkpoint may stay away for a while. Then operators decide,
        and the same may happen again."""
        world = self._world
        if not self._has_begun() or not self._is_trouble:
            return
        nodes = [node for node in world.nodes.values() if not world.bans.is_out(node)]
        newest = max(nodes, key=lambda node: max((one.round for one in node.keeper.files), default=0))
        for node in nodes:
            if node is newest and rng.random() < 0.6:
                node.kill()
                world.schedule(rng.uniform(2.0, 7.0), functools.partial(begin, node))
            elif rng.random() < 0.25:
                node.kill()
                world.schedule(rng.uniform(0.1, 2.0), functools.partial(begin, node))
            else:
                node.kill_worker()
                world.schedule(rng.uniform(0.1, 2.0), functools.partial(_start_worker, node))
        if rng.random() < 0.7:
            world.schedule(rng.uniform(0.5, 3.0), lambda: self._when_it_stands(world.now_s + PATIENCE_S, rng))
        if rng.random() < 0.5:
            world.schedule(rng.uniform(2.5, 7.0), lambda: self.lose_state(rng))

    @property
    def _is_trouble(self) -> bool:
        """Nothing is broken in the calm, whatever is decided then."""
        return self._world.now_s < self._until_s

    def _has_begun(self) -> bool:
        roster = self._world.oracles.newest
        return roster is not None and roster.started

    # -- who is wanted out

    def ban(self, rng: random.Random) -> None:
        """Most want a site out, each at a moment of his own; sometimes one takes it back before a majority is there.
        All do later, but where it is for good. The site may be away when they say it, and its state be waited for."""
        world, roster = self._world, self._world.oracles.newest
        nodes = [node for node in world.nodes.values() if not world.bans.is_out(node)]
        if self._ban is not None or roster is None or not roster.started or len(nodes) < 3 or not self._can_ban():
            return
        members = roster.member_ids()
        spared = set() if world.rotation is None else {world.rotation.site, world.rotation.approver}
        targets = [node for node in nodes if node.site not in spared]
        if not targets or len(members) < 3 or len(nodes) - 1 <= world.floor_sites:
            return
        target = rng.choice(targets)
        others, for_good = [node for node in nodes if node is not target], rng.random() < 0.3
        self._ban = (target, for_good)
        spread_s, after_s = rng.choice((0.2, 2.0, 4.0)), 0.0
        if rng.random() < 0.6:
            after_s = rng.choice((0.0, 1.5, 1.5))  # it may be out by then, as it failed
            self._goes_away(target, others, rng)
        for node in others:
            if for_good or rng.random() < 0.8:
                at_s = after_s + rng.uniform(0.0, spread_s)
                world.schedule(at_s, functools.partial(self._wants_out, node, target))
        if rng.random() < 0.4:
            node = rng.choice(others)
            world.schedule(rng.uniform(0.0, spread_s), lambda: _restart(node, rng) if self._is_trouble else None)
        if not for_good:
            if rng.random() < 0.25:
                doubter = rng.choice(others)
                world.schedule(rng.uniform(0.0, spread_s), lambda: world.bans.wants(doubter, target, out=False))
            world.schedule(after_s + spread_s + rng.uniform(0.5, 6.0), self._take_back)

    def _goes_away(self, target: Node, others: list[Node], rng: random.Random) -> None:
        """For a while; the workers of the others may die then, so that it alone has the state."""
        world = self._world
        world.tell(f"!! {target.name} is away")
        target.kill(worker_too=rng.random() < 0.5)
        world.schedule(rng.uniform(1.5, 6.0), lambda: begin(target))
        if rng.random() < 0.6:
            for node in others:
                world.schedule(0.5, functools.partial(self._lose_worker, node))
                world.schedule(rng.uniform(0.6, 1.5), functools.partial(_start_worker, node))

    def _lose_worker(self, node: Node) -> None:
        if self._is_trouble:
            node.kill_worker()

    def _can_ban(self) -> bool:
        """Not where a machine is copied, or a member lies: each is another trouble with who is let in."""
        return self._world.seed % SEEDS_APART != COPIES and not self._world.liar

    def _is_needed(self, target: Node) -> bool:
        """Without it nobody can be elected, and nothing be agreed on, its removal neither (spec 5.5, 5.12): by what is
        in the journals of the others, also of an entry that is not known to be committed."""
        logs = {node.site: _log_of(node) for node in self._world.nodes.values() if not self._world.bans.is_out(node)}
        logs.pop(target.site, None)
        return not any(could_be_elected(site, logs) for site in logs)

    def _wants_out(self, node: Node, target: Node) -> None:
        if self._ban is not None and self._ban[0] is target:
            self._world.bans.wants(node, target, out=True)

    def _take_back(self) -> None:
        if self._ban is None or (self._ban[1] and not self._is_needed(self._ban[0])):
            return
        target, self._ban = self._ban[0], None
        for node in self._world.bans.by(target):
            self._world.bans.wants(node, target, out=False)

    def look(self) -> None:
        """An institution whose site is out for good gives up, with all that it has: its site does not come back."""
        world, roster = self._world, self._world.oracles.newest
        world.schedule(LOOKS_EVERY_S, self.look)
        if roster is None:
            return
        if world.now_s > self._until_s:
            self._take_back()
        for node in world.nodes.values():
            wanted_out = self._ban is not None and self._ban == (node, True)
            parted = wanted_out and len(world.bans.by(node)) >= len(world.nodes) - 1 - len(world.bans.gone)
            out = node.site in roster.banned or (parted and roster.record(SiteId(node.site)) is None)
            if not out or world.bans.is_out(node):
                continue
            since_s = self._gives_up_s.setdefault(node.site, world.now_s)
            if world.now_s - since_s > 2.0 or world.now_s > self._until_s:
                world.tell(f"!! {node.name} is out for good, and gives up")
                node.kill()
                node.worker = None
                node.keeper.files.clear()
                world.bans.gone.add(node.site)
        self._outside.look(roster)

    def calm(self) -> None:
        """Nobody has second thoughts any more, and what is not for good is taken back; so is it of who is needed."""
        self._take_back()
        if self._ban is not None:
            target, _ = self._ban
            for node in self._world.nodes.values():
                if node is not target and not self._world.bans.is_out(node):
                    self._world.bans.wants(node, target, out=True)

    # -- bounds and links

    def bounds(self, rng: random.Random) -> None:
        """Most want the same, and some take it back."""
        world, wanted = self._world, rng.choice(BOUNDS)
        for site in world.nodes:
            if rng.random() < 0.8:
                world.schedule(rng.uniform(0, 2.0), functools.partial(world.want_bounds, site, wanted))
            if rng.random() < 0.2:
                unwanted: Any = functools.partial(world.nodes[site].handle, BoundsWanted(bounds=None))
                world.schedule(rng.uniform(0, 4.0), unwanted)

    def links(self, rng: random.Random) -> None:
        """One has a link added or removed, and the scheduler is lost meanwhile."""
        world, roster = self._world, self._world.oracles.newest
        if roster is None or not roster.links:
            return
        one, other = rng.choice(roster.links).key
        add = rng.random() < 0.4
        if add:
            one, other = (SiteId(site) for site in rng.sample(list(world.nodes), 2))
        self._requests += 1
        changed = events.LinkChangeRequested(request=f"link-of-operator-{self._requests}", other=other, add=add)
        world.nodes[one].handle(changed)
        if rng.random() < 0.7:
            world.schedule(rng.uniform(0.0, 0.3), lambda: self._lose_scheduler(rng))


def _rounds_of(node: Node) -> set[int]:
    """Of the states that it has."""
    held = {one.round for one in node.keeper.files}
    return held | ({node.worker.round} if node.worker is not None and node.worker.round else set())


def _offered_by(node: Node) -> tuple[int, int]:
    """What it says that it has: its worker's, and its newest checkpoint."""
    return (
        node.worker.round if node.worker is not None else 0,
        max((one.round for one in node.keeper.files), default=0),
    )


Log = tuple[tuple[int, int], tuple[str, ...]]
"""Term and index of its last entry, and who has a vote by its newest configuration."""


def _log_of(node: Node) -> Log:
    """As it is in its journal."""
    entries, snapshot = node.disk.entries, node.disk.snapshot
    ends = (entries[-1].term, entries[-1].index) if entries else (snapshot.term, snapshot.index) if snapshot else (0, 0)
    changes = [one.configuration for one in entries if one.configuration is not None]
    newest = changes[-1] if changes else snapshot.configuration if snapshot else None
    return ends, newest.voters if newest is not None else ()


def could_be_elected(site: str, logs: dict[str, Log]) -> bool:
    """By those that have a vote by its own journal, and are there."""
    ends, voters = logs[site]
    grant = [one for one in voters if one in logs and (0, 0) < logs[one][0] <= ends]
    return site in voters and 2 * len(grant) > len(voters)


def _start_worker(node: Node) -> None:
    if node.alive and node.worker is None:
        node.start_worker()


def _restart(node: Node, rng: random.Random) -> None:
    node.kill(worker_too=False)
    node.world.schedule(rng.uniform(0.1, 2.0), lambda: begin(node))


ACTS: dict[str, Callable[[Operators, random.Random], None]] = {
    "recover": Operators.recover,
    "state lost": Operators.lose_state,
    "ban": Operators.ban,
    "bounds": Operators.bounds,
    "links": Operators.links,
}
KINDS = ("recover", "recover", "recover", "state lost", "state lost", "ban", "bounds", "links")
