"""A member that makes up what others say of their states while it passes through: nobody whose state is as the others'
gives it up (spec 11.19). Whole sites in the simulator; the lies and what else goes wrong are drawn from the seed."""

from __future__ import annotations

import random

import pytest
from tests.simulation.mutants.planting import Bug, Patch, changed, planted
from tests.simulation.test_drifting_states import restart, training
from tests.simulator.check_lies import CheckLies
from tests.simulator.violation import Violation
from tests.simulator.world import World

from chaos_protocols.wire.versions import CHECKS_SINCE

LIES = 150
"""Headers of one seed that are changed."""
WORDS = "chaos_protocols.rounds.check_words"
STATE_CHECK = "chaos_protocols.rounds.state_check"
FAULTS = {
    "nobody asks who has signed it": Patch(
        f"{WORDS}:CheckWords._is_true", "return self._keys.has_signed(site, record.public_key, signature, words)",
        "return True",
    ),
    "who was not heard does not count": Patch(f"{STATE_CHECK}:_vote", "if missing and", "if False and"),
    "what nobody has signed is judged": Patch(f"{STATE_CHECK}:StateCheck.judge", "are_signed(roster)", "False"),
}  # fmt: skip


def holds_the_rule(world: World) -> bool:
    machines = [node.machine for node in world.nodes.values()]
    return all(machine is not None and machine.roster.rules >= CHECKS_SINCE for machine in machines)


def play(seed: int) -> None:
    """Raises Violation where somebody is judged who is as the others are."""
    rng = random.Random(seed)
    world = training(seed, "abcdef"[: rng.choice((3, 4, 5, 6))])
    assert world.run_until(lambda: holds_the_rule(world), limit_s=60.0)
    liar = rng.choice(list(world.nodes.values()))
    world.liar, world.check_lies = liar.name, CheckLies(world, liar)
    lies = world.check_lies
    others = [node for node in world.nodes.values() if node is not liar]
    if len(others) > 2 and rng.random() < 0.5:
        victim = rng.choice(others)
        world.schedule(rng.uniform(0.5, 4.0), lambda: restart(world, victim))
    done = world.oracles.rounds_done
    assert world.run_until(lambda: lies.told >= LIES, limit_s=240.0)
    assert world.oracles.rounds_done > done + LIES // 4, "and rounds go on"


@pytest.mark.parametrize("seed", range(6))
def test_whoever_passes_on_what_others_say_of_their_states_has_none_of_them_give_its_own_up(seed: int) -> None:
    play(seed)


@pytest.mark.parametrize("name", FAULTS)
def test_the_patch_of_every_fault_still_applies(name: str) -> None:
    assert changed((FAULTS[name],))


@pytest.mark.mutants
@pytest.mark.parametrize("name", FAULTS)
def test_a_rule_against_made_up_words_is_missed(name: str) -> None:
    with planted(Bug(name=name, patches=(FAULTS[name],), breaks=())):
        assert any(fails(seed) for seed in range(10))


def fails(seed: int) -> bool:
    try:
        play(seed)
    except Violation:
        return True
    return False
