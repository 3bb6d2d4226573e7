"""States that drift apart at random moments, beside other trouble: every site hears of it, most sites count, and the
others get the state of the run. Whole sites in the simulator, with joins and dead workers drawn from the seed."""

from __future__ import annotations

import random

import pytest
from tests.simulation.mutants.planting import Bug, Patch, changed, planted
from tests.simulator.drifting import drift
from tests.simulator.faults import begin
from tests.simulator.node import Node
from tests.simulator.worker import STATE_BYTES
from tests.simulator.world import World

from chaos_protocols.rounds.state_check import CHECK_EVERY_ROUNDS

PIECES = -(-STATE_BYTES // (256 << 10))
FOUND_WITHIN_ROUNDS = 2 * CHECK_EVERY_ROUNDS * PIECES
"""A turn, the halving, and a turn that a failure has spoilt."""


def training(seed: int, names: str) -> World:
    world = World(seed)
    for number, name in enumerate(names):
        world.add(name, founder=number == 0, peers=tuple(names[:number]), min_sites=len(names))
    for node in list(world.nodes.values()):
        begin(node)
    assert world.run_until(lambda: world.oracles.rounds_done > 3, limit_s=20.0)
    return world


def drifts(world: World) -> set[str]:
    """Of the workers that are there."""
    return {node.worker.drift for node in world.nodes.values() if node.worker is not None}


def all_train(world: World) -> bool:
    machines = [node.machine for node in world.nodes.values()]
    return all(machine is not None and machine.rounds.active for machine in machines)


def trains_on(world: World, done: int) -> bool:
    return world.oracles.rounds_done > done + 10 and all_train(world)


def told(world: World) -> list[str]:
    return [line for line in world.story if "drift" in line and "is not that of" in line]


def play(seed: int) -> None:
    """One or two states drift; raises AssertionError where that is not found, or does not end as it must."""
    rng = random.Random(seed)
    names = "abcde"[: rng.choice((2, 3, 3, 4, 5))]
    world = training(seed, names)
    nodes = list(world.nodes.values())
    odd = rng.sample(nodes, 2 if len(nodes) == 5 else 1)
    for number, node in enumerate(odd):
        drift(node, f"drift {number}")
    began = world.oracles.rounds_done
    victim = rng.choice([node for node in nodes if node not in odd])
    trouble = rng.choice(("none", "worker", "daemon")) if len(nodes) > 2 else "none"
    if trouble == "worker":
        victim.kill_worker()
        world.schedule(1.0, victim.start_worker)
    elif trouble == "daemon":
        restart(world, victim)
    assert world.run_until(lambda: len(drifts(world)) == 1 and bool(told(world)), limit_s=120.0), tail(world)
    assert world.oracles.rounds_done - began <= FOUND_WITHIN_ROUNDS + 60, tail(world)
    if trouble == "none" and len(nodes) > 2:
        assert drifts(world) == {""}, "most sites count"  # a site that died meanwhile may leave no honest majority
    assert all("first in 'array " in line for line in told(world)), tail(world)
    done = world.oracles.rounds_done
    assert world.run_until(lambda: trains_on(world, done), limit_s=60.0), tail(world)


@pytest.mark.parametrize("seed", range(10))
def test_drift_is_found_everywhere_and_the_site_gets_the_state_of_the_run(seed: int) -> None:
    play(seed)


CHECK = "chaos_protocols.rounds.state_check"
ROUNDS = "chaos_protocols.rounds.machine:RoundMachine"
FAULTS = {
    "what is said is not compared": Patch(f"{CHECK}:_Told.differ", "len(set(self.halves.values())) > 1", "False"),
    "the other half is looked at": Patch(f"{CHECK}:StateCheck.judge", "if first_differs", "if not first_differs"),
    "several arrays are judged as one": Patch(
        f"{CHECK}:StateCheck.judge", "if piece[1] - piece[0] > ITEM_ALIGNMENT_BYTES and not array:", "if False:"
    ),
    "the fewest count": Patch(f"{CHECK}:_vote", "(-len(sites),", "(len(sites),"),
    "who is outvoted keeps its state": Patch(f"{ROUNDS}._judge", "if self.site in found.outvoted and", "if False and"),
    "the others give theirs up": Patch(f"{ROUNDS}._judge", "in found.outvoted", "in found.majority"),
    "no worker is asked": Patch(f"{ROUNDS}._to_digest", "if view is None or model is None:", "if True:"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_patch_of_every_fault_still_applies(name: str) -> None:
    assert changed((FAULTS[name],))


@pytest.mark.mutants
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_rule_that_finds_drift_does_not_go_unnoticed(name: str) -> None:
    """Planted bugs of spec 11.14 to 11.17; the other planted bugs are looked for where nothing drifts."""
    with planted(Bug(name=name, patches=(FAULTS[name],), breaks=())):
        assert any(fails(seed) for seed in range(10))


def fails(seed: int) -> bool:
    try:
        play(seed)
    except AssertionError:
        return True
    return False


def restart(world: World, node: Node) -> None:
    node.kill()

    def back() -> None:
        node.start()
        node.start_worker()

    world.schedule(2.0, back)


def tail(world: World) -> str:
    return "\n".join(world.story[-40:])


def test_equal_states_are_never_said_to_differ() -> None:
    world = training(1, "abc")
    assert world.run_until(lambda: world.oracles.rounds_done > 3 * FOUND_WITHIN_ROUNDS, limit_s=200.0)
    assert told(world) == []
