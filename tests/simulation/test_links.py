"""What holds of links and of what is heard over them, in a simulated run."""

from __future__ import annotations

from tests.simulator.faults import all_are_members, begin
from tests.simulator.world import World

HEARD_S = 2.0
"""As old as what a site says of any other may be, up to four links away (spec 3.15)."""


def line_of(count: int) -> World:
    """A run of so many sites, each with a link to the one before."""
    world = World(3)
    for number in range(count):
        world.add("abcdefg"[number], founder=number == 0, peers=("abcdefg"[number - 1],) if number else ())
    for node in world.nodes.values():
        begin(node)
    assert world.run_until(lambda: all_are_members(world), limit_s=60.0)
    return world


def test_every_site_knows_where_every_other_stands_as_of_two_seconds_ago() -> None:
    world = line_of(5)
    world.run(world.now_s + 1.0)
    for _ in range(40):
        world.run(world.now_s + 0.1)
        for node in world.nodes.values():
            machine = node.machine
            assert machine is not None
            for other in world.nodes.values():
                if other is node:
                    continue
                step = machine.network.steps.of(other.site)  # type: ignore[arg-type]
                assert step is not None, f"{node.name} has not heard of {other.name}"
                age_s = world.now_s - step.at_s
                assert age_s <= HEARD_S, f"{node.name} heard of {other.name} {age_s:.2f} s ago"


def test_what_is_known_of_a_silent_site_grows_old_everywhere() -> None:
    world = line_of(4)
    silent = world.node("d")
    silent.stop(for_good=True)
    world.run(world.now_s + 5.0)
    for name in "abc":
        machine = world.node(name).machine
        assert machine is not None
        step = machine.network.steps.of(silent.site)  # type: ignore[arg-type]
        assert step is not None and world.now_s - step.at_s > 4.0
