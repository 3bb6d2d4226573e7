"""Random trouble from a seed: sites join, leave, die, stop, come back; links are cut, slow, asked for and given up."""

from __future__ import annotations

import random

from chaos_protocols import events
from tests.simulator.node import Node
from tests.simulator.world import World

KINDS = (
    *("kill", "kill daemon", "kill worker", "stop", "cut", "one-way", "leave", "link", "unlink", "isolate"),
    *("crash", "slow disk", "reset", "slow link", "replay", "stall", "abort"),
)
PAIRED = ("cut", "one-way", "link", "unlink", "reset", "slow link")
NAMES = "abcdefghijklmnopqrstuvwxyz"


def build(seed: int, sites: int, *, verbose: bool = False) -> World:
    """A world of `sites` sites: the first founds the run; the others know two or three of those before them."""
    world = World(seed, verbose=verbose)
    rng = random.Random(f"build/{seed}")
    for number in range(sites):
        known = list(range(number))
        rng.shuffle(known)
        peers = tuple(NAMES[one] for one in known[: rng.choice((1, 2, 2, 3))])
        world.add(NAMES[number], founder=number == 0, peers=peers, min_sites=min(3, sites))
    for one in world.nodes:
        for other in world.nodes:
            world.network.latency_s[one, other] = rng.uniform(0.001, 0.02)
        world.drift[one] = rng.uniform(-1e-3, 1e-3)
    for node in world.nodes.values():
        world.schedule(rng.uniform(0, 1.0), lambda node=node: begin(node))  # type: ignore[misc]
    return world


def begin(node: Node) -> None:
    if not node.alive:
        node.start()
        if node.worker is None:
            node.start_worker()
        else:
            node.reconnect_worker()


class Nemesis:
    """`calm()` ends all trouble: everybody who did not leave comes back, every cut heals."""

    def __init__(self, world: World, *, until_s: float, mean_s: float = 0.7) -> None:
        self.world, self.until_s, self.mean_s = world, until_s, mean_s
        self.rng = random.Random(f"nemesis/{world.seed}")
        self.faults = 0
        world.schedule(2.0, self._next)

    def _next(self) -> None:
        if self.world.now_s >= self.until_s:
            self.calm()
            return
        self.faults += 1
        self._strike()
        self.world.schedule(self.rng.expovariate(1 / self.mean_s), self._next)

    def _pick(self) -> Node:
        return self.rng.choice(list(self.world.nodes.values()))

    def _strike(self) -> None:
        rng, node = self.rng, self._pick()
        other = self._pick()
        kind = rng.choice(KINDS)
        if kind in ("kill", "kill daemon", "kill worker", "stop", "leave", "crash", "slow disk") and not node.alive:
            return
        self.world.tell(f"!! {kind} {node.name} {other.name if kind in PAIRED else ''}")
        if kind == "kill":
            node.kill()
            self._later(rng.uniform(0.05, 4.0), lambda: begin(node))
        elif kind == "kill daemon":
            node.kill(worker_too=False)
            self._later(rng.uniform(0.05, 3.0), lambda: begin(node))
        elif kind == "kill worker":
            node.kill_worker()
            self._later(rng.uniform(0.05, 2.0), lambda: self._new_worker(node))
        elif kind == "stop":
            node.stop()
            self._later(rng.uniform(0.1, 3.0), node.go_on)
        elif kind == "crash":
            node.crash_at_persist(
                durable=rng.random() < 0.5, restart=lambda: self._later(rng.uniform(0.05, 3.0), lambda: begin(node))
            )
        elif kind == "slow disk":
            for _ in range(4):
                at_s = rng.uniform(0.0, 1.0)
                self._later(at_s, node.stop)
                self._later(at_s + rng.uniform(0.02, 0.3), node.go_on)
        elif kind == "reset" and node is not other:
            self.world.reset(node.site, other.site)
        elif kind == "slow link" and node is not other:
            self._slow(node.site, other.site, rng.uniform(0.5, 3.0))
        elif kind == "replay":
            for _ in range(10):
                self._later(rng.uniform(0.0, 0.5), lambda: self.world.replay(rng))
        elif kind == "stall":
            node.to_bulk(lambda bulk: bulk.stall(True))
            self._later(rng.uniform(0.1, 3.0), lambda: node.to_bulk(lambda bulk: bulk.stall(False)))
        elif kind == "abort":
            node.to_bulk(lambda bulk: bulk.abort())
        elif kind in ("cut", "one-way") and node is not other:
            self._cut(node.site, other.site, both=kind == "cut", for_s=rng.uniform(0.2, 4.0))
        elif kind == "isolate":
            for_s = rng.uniform(0.2, 4.0)
            for far in self.world.nodes:
                if far != node.site:
                    self._cut(node.site, far, both=True, for_s=for_s)
        elif kind == "leave":
            node.handle(events.LeaveRequested(request="leave", reason="nemesis"))
            self._later(rng.uniform(2.0, 5.0), lambda: begin(node))
        elif kind in ("link", "unlink") and node is not other:
            request = f"{kind}-{self.faults}"
            add = kind == "link"
            changed = events.LinkChangeRequested(request=request, other=other.site, add=add)  # type: ignore[arg-type]
            node.handle(changed)

    def _new_worker(self, node: Node) -> None:
        if node.worker is None and node.alive:
            node.start_worker()

    def _cut(self, one: str, other: str, *, both: bool, for_s: float) -> None:
        network = self.world.network
        ways = ((one, other), (other, one)) if both else ((one, other),)
        for way in ways:
            network.cut(*way)
        for way in ways:
            self._later(for_s, lambda way=way: network.heal(*way))

    def _slow(self, one: str, other: str, for_s: float) -> None:
        """Twenty times the delay both ways, for a while."""
        latency_s = self.world.network.latency_s
        for way in ((one, other), (other, one)):
            before_s = latency_s[way]
            latency_s[way] = min(0.2, 20 * before_s)
            self._later(for_s, lambda way=way, before_s=before_s: latency_s.update({way: before_s}))

    def _later(self, delay_s: float, action: object) -> None:
        self.world.schedule(delay_s, action)  # type: ignore[arg-type]

    def calm(self) -> None:
        self.world.tell("!! calm")
        for way in list(self.world.network.cuts):
            self.world.network.heal(*way)
        for node in self.world.nodes.values():
            if node.stopped:
                node.go_on()
            if not node.alive:
                begin(node)
            elif node.worker is None:
                node.start_worker()


def all_are_members(world: World) -> bool:
    """Everybody is a member, trains, and has the newest results but one."""
    alive = [node for node in world.nodes.values() if node.alive and node.machine is not None]
    if len(alive) < len(world.nodes):
        return False
    rosters = {node.machine.roster.member_ids() for node in alive if node.machine is not None}
    active = all(node.machine is not None and node.machine.rounds.active for node in alive)
    return len(rosters) == 1 and len(rosters.pop()) == len(world.nodes) and active


def revive(world: World) -> None:
    """Whoever has left or lost its worker in the calm comes back (a leave may end after it)."""
    for node in world.nodes.values():
        if not node.alive:
            begin(node)
        elif node.worker is None:
            node.start_worker()


def run_seed(
    seed: int, *, sites: int = 5, trouble_s: float = 20.0, heal_s: float = 60.0, verbose: bool = False
) -> World:
    """Trouble, then calm; safety all the time, liveness within `heal_s` of virtual time afterwards."""
    world = build(seed, sites, verbose=verbose)
    Nemesis(world, until_s=trouble_s)
    world.run(trouble_s + 5.0)
    revive(world)
    if not world.run_until(lambda: all_are_members(world), limit_s=heal_s):
        if world.state_is_lost():
            world.tell("the newest state is lost with all workers that had it: the run waits, as it must")
            world.lost_state = True
            return world
        world.oracles.fail(8, f"not all sites are members {heal_s:g} s after the faults ended")
    before = world.oracles.rounds_done
    if not world.run_until(lambda: world.oracles.rounds_done > before + 5, limit_s=10.0):
        world.oracles.fail(8, "rounds do not go on after the faults ended")
    return world
