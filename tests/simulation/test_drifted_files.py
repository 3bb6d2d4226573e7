"""A run that all sites have lost goes on from no file of a site whose state was found to differ (spec 12.17)."""

from __future__ import annotations

from tests.simulation.test_drifting_states import drifts, told
from tests.simulation.test_keeping import three_sites
from tests.simulator.drifting import MARK, drift
from tests.simulator.world import World

from chaos_protocols.settings import CheckpointSettings


def drifted_files(world: World, name: str) -> list[int]:
    """Rounds of the files of that site in which the state lies that is not the run's."""
    files = world.node(name).keeper.files
    return [one.round for one, state in files.items() if state is not None and MARK in state[1]]


def lost_and_back(odd: str) -> World:
    """The state of `odd` drifts, it writes some of it, and that it differs is found; then everybody dies at once, and
    comes again."""
    world = three_sites(CheckpointSettings(checkpoint="fixed", checkpoint_every_rounds=5))
    drift(world.node(odd), "drift")
    assert world.run_until(lambda: bool(drifted_files(world, odd)), limit_s=60.0), world.story[-40:]
    assert not told(world)
    assert world.run_until(lambda: bool(told(world)), limit_s=60.0), world.story[-40:]
    for node in list(world.nodes.values()):
        node.kill()
    for node in list(world.nodes.values()):
        node.start()
        node.start_worker()
    done = world.oracles.rounds_done
    assert world.run_until(lambda: world.oracles.rounds_done > done + 3, limit_s=120.0), world.story[-40:]
    return world


def test_the_run_goes_on_from_a_state_that_most_had() -> None:
    """Where files are equally new, that of `a` would be taken."""
    world = lost_and_back("a")
    assert drifts(world) == {""}
    assert not drifted_files(world, "a")
