"""What a simulated daemon sees of its own connections without being told: bulk bytes that moved, or wait. As
`chaosd.monitor.watchdog` does, from the kernel's counters there, from the frames on their way here."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from chaos_protocols.events import ConnectionProgress, LinkProgressed, RatesMeasured
from chaos_protocols.wishes import SendLimitSet
from tests.simulator.hanging import SEEDS_APART
from tests.simulator.outbox import AVERAGING, STATES

if TYPE_CHECKING:
    from tests.simulator.network import Connection
    from tests.simulator.node import Node


RATES_LOOKS = 4
"""Rates stay the same for as many looks, so that some plan can be better often enough in a row."""
LIMITED = 9
"""Of sixteen seeds one has operators who limit what their sites send, and change their minds."""


def watch_links(node: Node) -> None:
    """Look at all connections twice in every heartbeat, for this life of the daemon."""
    seen: dict[tuple[int, str], tuple[int, int]] = {}
    pause_s = node.world.settings.beat_s / 2

    def look() -> None:
        node.later(pause_s, look)
        if node.stopped:
            return
        for site, connection in sorted(node.connections.items()):
            moved = _moved(connection, node.site, seen)
            if moved:
                node.handle(LinkProgressed(site=site, connections=moved))  # type: ignore[arg-type]
        _tell_rates(node, told)

    told: list[float] = [0.0]
    node.later(pause_s, look)


def _tell_rates(node: Node, told: list[float]) -> None:
    """Where trees are drawn, so are the rates of links, anew every few looks of the scheduler."""
    world = node.world
    if world.planner.trees == 1 or world.now_s < told[0]:
        return
    told[0] = world.now_s + RATES_LOOKS * world.settings.replan_every_s
    draw = random.Random(f"rates of {world.seed} {node.site} {told[0]:.3f}")
    rates = tuple((site, draw.uniform(1e6, 1e8)) for site in sorted(node.connections))
    node.handle(RatesMeasured(rates=rates))  # type: ignore[arg-type]
    if world.seed % SEEDS_APART == LIMITED:
        node.handle(SendLimitSet(bytes_per_s=draw.choice((0.0, draw.uniform(2e5, 1e7)))))


def _moved(
    connection: Connection, site: str, seen: dict[tuple[int, str], tuple[int, int]]
) -> tuple[ConnectionProgress, ...]:
    far, found = connection.far(site), []
    if not (connection.sent or connection.arrived or connection.pieces):
        return ()  # it has carried no bulk yet
    for number, kind in enumerate((AVERAGING, *STATES)):
        sent, arrived = connection.sent.get((site, kind), 0), connection.arrived.get((site, kind), 0)
        came = connection.arrived.get((far, kind), 0) + connection.pieces.get((far, kind), 0)
        went = arrived + connection.pieces.get((site, kind), 0)
        came_before, went_before = seen.get((connection.number, kind), (0, 0))
        received, acknowledged, waiting = came != came_before, went != went_before, sent > arrived
        if received or acknowledged:
            seen[connection.number, kind] = (came, went)
        if received or acknowledged or waiting:
            found.append(
                ConnectionProgress(stream=number, received=received, acknowledged=acknowledged, waiting=waiting)
            )
    return tuple(found)
