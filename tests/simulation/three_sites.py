"""Three sites that train, to begin from."""

from __future__ import annotations

from tests.simulator.faults import begin
from tests.simulator.world import World

from chaos_protocols.settings import SiteSettings


def three_sites(seed: int) -> World:
    """a, b, c, which train along one tree in rounds of about 40 ms."""
    world = World(seed, settings=SiteSettings())
    world.planner.trees = 1
    for name, peers in (("a", ()), ("b", ("a",)), ("c", ("a", "b"))):
        world.add(name, founder=name == "a", peers=peers, min_sites=3)
    for node in world.nodes.values():
        begin(node)
    assert world.run_until(lambda: world.oracles.rounds_done > 20, limit_s=20.0)
    return world
