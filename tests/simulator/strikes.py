"""What may go wrong with a site, its disk, its worker, a link or a transfer: each strike by name.

A strike gets a random generator of its own, made from the run's seed and its number: whether another one is left out
changes nothing about it, so that a run can be shrunk.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chaos_protocols import events
from tests.simulator.network import CONTROL
from tests.simulator.node import Node
from tests.simulator.outbox import AVERAGING, STATES
from tests.simulator.world import World

BLACKOUTS_SHARE = 0.3
"""Of the strikes of this kind: all sites at once leave little for other trouble."""

BACK_WITHIN_S = (0.5, 0.5, 3.0, 3.0, 12.0, 150.0)
"""Seconds, some of them within those that others wait, and minutes."""

PERSISTS_WITHIN_S = 0.3
"""So long a site that is to lose power in a write may still run without one."""


def begin(node: Node) -> None:
    if not node.alive and not node.world.bans.is_out(node):
        node.start()
        if node.worker is None:
            node.start_worker()
        else:
            node.reconnect_worker()


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """`node` is hit; `other` is the far end, where there is one (never `node` itself for kinds in PAIRED)."""

    world: World
    rng: random.Random
    number: int
    node: Node
    other: Node

    def later(self, low_s: float, high_s: float, action: Callable[[], Any]) -> None:
        self.world.schedule(self.rng.uniform(low_s, high_s), action)

    def restart(self, low_s: float, high_s: float) -> Callable[[], None]:
        """To be called when the process has died."""
        return lambda: self.later(low_s, high_s, lambda: begin(self.node))

    @property
    def ways(self) -> tuple[tuple[str, str], tuple[str, str]]:
        return (self.node.site, self.other.site), (self.other.site, self.node.site)


def _kill(strike: Strike) -> None:
    strike.node.kill(worker_too=not strike.world.must_live(strike.node))
    strike.restart(0.05, 4.0)()


def _kill_daemon(strike: Strike) -> None:
    strike.node.kill(worker_too=False)
    strike.restart(0.05, 3.0)()


def _kill_worker(strike: Strike) -> None:
    node = strike.node
    if not strike.world.must_live(node):
        node.kill_worker()
        strike.later(0.05, 2.0, lambda: node.start_worker() if node.worker is None and node.alive else None)


def _stop(strike: Strike) -> None:
    strike.node.stop()
    strike.later(0.1, 3.0, strike.node.go_on)


def _crash(strike: Strike) -> None:
    strike.node.crash_at_persist(durable=strike.rng.random() < 0.5, restart=strike.restart(0.05, 3.0))


def _crash_scheduler(strike: Strike) -> None:
    """Between the entry on its disk and the announcement, or before the entry is there."""
    leading = [one for one in strike.world.nodes.values() if one.machine is not None and one.machine.scheduler.leading]
    if leading:
        node = strike.rng.choice(leading)
        restart: Callable[[], None] = lambda: strike.later(0.05, 3.0, lambda: begin(node))  # noqa: E731
        node.crash_at_persist(durable=strike.rng.random() < 0.7, restart=restart)


def _power(strike: Strike) -> None:
    strike.node.power_fails_at_persist(restart=strike.restart(0.05, 3.0))


def _blackout(strike: Strike) -> None:
    """Power fails everywhere, for some in the middle of a write; the machines come back seconds or minutes apart."""
    world, rng = strike.world, strike.rng
    if rng.random() >= BLACKOUTS_SHARE:
        return
    window_s = rng.choice(BACK_WITHIN_S)
    for node in world.nodes.values():
        dark_s = rng.uniform(0.05, window_s)
        if not node.alive:
            continue
        back: Callable[[], None] = functools.partial(world.schedule, dark_s, functools.partial(begin, node))
        node.dark_until_s = world.now_s + PERSISTS_WITHIN_S + dark_s
        if rng.random() < 0.5:
            node.kill()
            back()
        else:
            node.power_fails_at_persist(restart=back)
            world.schedule(PERSISTS_WITHIN_S, functools.partial(_goes_dark, node, back))


def _goes_dark(node: Node, back: Callable[[], None]) -> None:
    """Now, if it has not in a write."""
    if node.alive and node.disk.tear is not None:
        node.disk.calm()
        node.kill()
        back()


def _disk_fails(strike: Strike) -> None:
    strike.node.disk_fails(restart=strike.restart(0.05, 3.0))


def _slow_disk(strike: Strike) -> None:
    for _ in range(4):
        at_s = strike.rng.uniform(0.0, 1.0)
        strike.world.schedule(at_s, strike.node.stop)
        strike.later(at_s + 0.02, at_s + 0.3, strike.node.go_on)


def _slow_worker(strike: Strike) -> None:
    node = strike.node
    node.slowdowns += 1  # one is as slow as several
    strike.later(0.5, 3.0, lambda: setattr(node, "slowdowns", node.slowdowns - 1))


def _cut(strike: Strike, ways: tuple[tuple[str, str], ...]) -> None:
    network, for_s = strike.world.network, strike.rng.uniform(0.2, 4.0)
    for way in ways:
        network.cut(*way)
        strike.world.schedule(for_s, lambda way=way: network.heal(*way))  # type: ignore[misc]


def _narrow(strike: Strike) -> None:
    """Large packets vanish on the way there, and sometimes back: heartbeats pass, bulk and new links do not."""
    network, for_s = strike.world.network, strike.rng.uniform(0.5, 6.0)
    for way in strike.ways if strike.rng.random() < 0.5 else strike.ways[:1]:
        network.narrow(*way)
        strike.world.schedule(for_s, lambda way=way: network.widen(*way))  # type: ignore[misc]


def _forget_flow(strike: Strike) -> None:
    """A middlebox forgets one connection of the link, or one way of it: control, averaging or states. It stays so
    until somebody notices."""
    network, rng = strike.world.network, strike.rng
    connection = network.between(strike.node.site, strike.other.site)
    kind = rng.choice((CONTROL, CONTROL, AVERAGING, AVERAGING, *STATES))
    if connection is not None:
        for site in connection.ends if rng.random() < 0.5 else connection.ends[:1]:
            network.forget(connection, site, kind)


def _isolate(strike: Strike) -> None:
    here = strike.node.site
    others = [far for far in strike.world.nodes if far != here]
    _cut(strike, tuple(way for far in others for way in ((here, far), (far, here))))


def _slow_link(strike: Strike) -> None:
    """Twenty times the delay both ways, for a while."""
    network, for_s = strike.world.network, strike.rng.uniform(0.5, 3.0)
    for way in strike.ways:
        usual_s = network.slowed.setdefault(way, network.latency_s[way])  # it may be slow already
        network.latency_s[way] = min(0.2, 20 * usual_s)
        strike.world.schedule(for_s, functools.partial(network.latency_s.__setitem__, way, usual_s))


def _clog(strike: Strike) -> None:
    network, way = strike.world.network, strike.ways[0]
    network.clog(*way, message_s=strike.rng.uniform(0.01, 0.15))
    strike.later(0.5, 3.0, lambda: network.unclog(*way))


def _reorder(strike: Strike) -> None:
    """What this site hands on for others comes late, and out of order."""
    network, here = strike.world.network, strike.node.site
    late_s, for_s = strike.rng.uniform(0.05, 0.8), strike.rng.uniform(0.5, 3.0)
    for far in strike.world.nodes:
        if far != here:
            network.reorder(here, far, late_s)
            strike.world.schedule(for_s, lambda far=far: network.keep_order(here, far))  # type: ignore[misc]


def _replay(strike: Strike) -> None:
    for _ in range(10):
        strike.later(0.0, 0.5, lambda: strike.world.replay(strike.rng))


def _repeat(strike: Strike) -> None:
    for _ in range(10):
        strike.later(0.0, 1.5, lambda: strike.world.repeat(strike.rng))


def _stall(strike: Strike) -> None:
    strike.node.to_bulk(lambda bulk: bulk.stall(True))
    strike.later(0.1, 3.0, lambda: strike.node.to_bulk(lambda bulk: bulk.stall(False)))  # given up after two


def _slow_transfer(strike: Strike) -> None:
    strike.node.transfer_delay_s = strike.rng.uniform(0.2, 1.5)
    strike.later(0.5, 4.0, lambda: setattr(strike.node, "transfer_delay_s", 0.0))


def _spoil(strike: Strike) -> None:
    count = strike.rng.randint(1, 4)
    strike.node.to_bulk(lambda bulk: bulk.spoil(count))


def _spoil_result(strike: Strike) -> None:
    count = strike.rng.randint(1, 4)
    strike.node.to_bulk(lambda bulk: bulk.spoil_results(count))


def _torn_frame(strike: Strike) -> None:
    """The link ends in the middle of the next chunk or block, and again when it has come back: what was said over it
    is said anew, and part of it comes twice."""
    network, way = strike.world.network, strike.ways[0]
    for number in range(strike.rng.randint(1, 4)):
        strike.world.schedule(number * strike.rng.uniform(0.02, 0.4), functools.partial(network.tear, *way))


def _late_frames(strike: Strike) -> None:
    """Chunks and blocks on this way begin to arrive, and end much later: their round may be over by then."""
    network, way = strike.world.network, strike.ways[0]
    network.drag(*way, frame_s=strike.rng.uniform(0.02, 0.5))
    strike.later(0.3, 2.0, lambda: network.undrag(*way))


def _flap(strike: Strike) -> None:
    """The link ends several times in a second, and comes back: what was on its way is lost, and said again."""
    one, other = strike.node.site, strike.other.site
    for _ in range(strike.rng.randint(2, 5)):
        strike.later(0.0, 1.0, lambda: strike.world.reset(one, other))


def _pry(strike: Strike) -> None:
    """A site asks its neighbours for states that are meant for somebody else."""
    node, nodes = strike.node, strike.world.nodes

    def ask() -> None:
        for site in sorted(node.connections):
            bulk = nodes[site].bulk if site in nodes else None  # a guest has no state to give
            served = bulk.transfers.served.values() if bulk is not None else ()
            for transfer in [plan.transfer for plan, _ in served if plan.joiner != node.site]:
                node.to_bulk(lambda own, site=site, transfer=transfer: own.pry(site, transfer))

    for _ in range(4):
        strike.later(0.0, 1.5, ask)


def _leave(strike: Strike) -> None:
    node = strike.node
    if strike.world.must_live(node):
        return
    node.handle(events.LeaveRequested(request="leave", reason="nemesis"))
    strike.later(2.0, 5.0, lambda: begin(node))
    if strike.rng.random() < 0.2:  # in its last rounds
        strike.later(0.0, 0.6, lambda: node.kill(worker_too=not strike.world.must_live(node)))


def _link(strike: Strike, *, add: bool) -> None:
    request = f"{'link' if add else 'unlink'}-{strike.number}"
    changed = events.LinkChangeRequested(request=request, other=strike.other.site, add=add)  # type: ignore[arg-type]
    strike.node.handle(changed)


STRIKES: dict[str, Callable[[Strike], None]] = {
    "kill": _kill,
    "kill daemon": _kill_daemon,
    "kill worker": _kill_worker,
    "stop": _stop,
    "crash": _crash,
    "crash scheduler": _crash_scheduler,
    "power": _power,
    "blackout": _blackout,
    "disk fails": _disk_fails,
    "slow disk": _slow_disk,
    "slow worker": _slow_worker,
    "cut": lambda strike: _cut(strike, strike.ways),
    "one-way": lambda strike: _cut(strike, strike.ways[:1]),
    "narrow path": _narrow,
    "forgotten flow": _forget_flow,
    "isolate": _isolate,
    "reset": lambda strike: strike.world.reset(strike.node.site, strike.other.site),
    "slow link": _slow_link,
    "clog": _clog,
    "reorder": _reorder,
    "replay": _replay,
    "repeat": _repeat,
    "stall": _stall,
    "slow transfer": _slow_transfer,
    "abort": lambda strike: strike.node.to_bulk(lambda bulk: bulk.abort()),
    "spoil": _spoil,
    "wrong result": _spoil_result,
    "torn frame": _torn_frame,
    "late frames": _late_frames,
    "flap": _flap,
    "pry": _pry,
    "leave": _leave,
    "link": lambda strike: _link(strike, add=True),
    "unlink": lambda strike: _link(strike, add=False),
}
PAIRED = (
    *("cut", "one-way", "link", "unlink", "reset", "slow link", "clog"),
    *("torn frame", "late frames", "flap", "narrow path", "forgotten flow"),
)
OF_THE_LIVING = (
    *("kill", "kill daemon", "kill worker", "stop", "leave", "crash", "power", "disk fails", "slow disk", "reorder"),
)
"""Kinds that need a daemon that runs."""
