"""A worker that has lost a part of its state brings the rest forward by results, and only what it lost is sent."""

from __future__ import annotations

import functools
import re

import pytest
from tests.simulation.mutants.planting import Bug, Patch, planted
from tests.simulation.three_sites import three_sites
from tests.simulator.damaging import damage
from tests.simulator.node import Node
from tests.simulator.violation import Violation
from tests.simulator.worker import STATE_BYTES
from tests.simulator.world import World

from chaos_protocols.wire.bulk import CELL_BYTES


def trains(node: Node) -> bool:
    return node.machine is not None and node.machine.rounds.active and node.machine.rounds.caught_up


def held_bytes(world: World, name: str) -> list[int]:
    """What transfers to that site did not have to send, one by one."""
    pattern = rf"{name}: transfer .* verified;.*?(?:; ([\d,]+) were here already|$)"
    found = [re.search(pattern, line) for line in world.story]
    return [int((each[1] or "0").replace(",", "")) for each in found if each]


def rescued(*struck: str, lost: tuple[int, int]) -> list[int]:
    """Bytes that were not sent to each of these when they had lost those, all at once: one is given the state after
    the other, and what is done meanwhile waits for who comes later."""
    world = three_sites(5)
    before = {name: len(held_bytes(world, name)) for name in struck}
    for name in struck:
        world.schedule(0.0, functools.partial(damage, world.node(name), lost, 0.0))

    def all_there() -> bool:
        return all(len(held_bytes(world, name)) > before[name] and trains(world.node(name)) for name in struck)

    assert world.run_until(all_there, limit_s=30.0), world.story[-40:]
    return [held for name in struck for held in held_bytes(world, name)[before[name] :]]


@pytest.mark.parametrize(
    ("lost", "sent_cells"),
    [
        ((CELL_BYTES, 2 * CELL_BYTES), 1),
        ((CELL_BYTES + (1 << 14), 3 * CELL_BYTES), 2),
        ((2 * CELL_BYTES - (1 << 14), 2 * CELL_BYTES + (1 << 14)), 2),
    ],
)
def test_only_the_cells_that_were_lost_are_sent(lost: tuple[int, int], sent_cells: int) -> None:
    assert rescued("b", lost=lost) == [STATE_BYTES - sent_cells * CELL_BYTES]


def test_what_is_done_while_another_site_gets_the_state_is_brought_to_what_is_left() -> None:
    assert rescued("b", "c", lost=LOST) == [STATE_BYTES - CELL_BYTES] * 2


def test_a_part_of_a_history_that_was_given_up_is_found_out_by_its_hashes() -> None:
    """Seed 9048600: a round that its site had done alone was done anew, then its workers lost a part of the former."""
    world = three_sites(5)
    before, node = len(held_bytes(world, "c")), world.node("c")

    def strike() -> None:
        damage(world.node("b"), LOST, 0.0)  # which comes first, and rounds are done before the other gets the state
        assert node.worker is not None
        node.worker.state = "of a round that does not stand"
        damage(node, LOST, 0.0)

    world.schedule(0.0, strike)
    assert world.run_until(lambda: len(held_bytes(world, "c")) > before and trains(node), limit_s=30.0)
    (held,) = held_bytes(world, "c")[before:]
    assert held < STATE_BYTES // 2  # a third is the same in all states


LOST = (CELL_BYTES, 2 * CELL_BYTES)
DELIVERY = "chaos_protocols.rounds.delivery:ResultDelivery"
STATE = "chaos_protocols.state.machine:WorkerState"
BUGS = {
    "results are given beyond the round of the plan": Patch(
        f"{DELIVERY}._bring_forward", "or following > self._forward_to or", "or"
    ),
    "results since are not kept": Patch(
        f"{DELIVERY}.came_damaged", "self.collecting, self._queue = round_number, True,", "_, self._queue = 0, True,"
    ),
    "the transfer begins before what is left is written": Patch(
        f"{STATE}._start_fetch", "self._rounds.delivery.is_damaged", "False"
    ),
    "what is left counts as the state": Patch(f"{DELIVERY}.applied", "if self.is_damaged:", "if False:"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_in_the_rule_of_parts_does_not_go_unnoticed(name: str) -> None:
    """Planted bugs of spec 11.18."""
    with planted(Bug(name=name, patches=(BUGS[name],), breaks=())):
        try:
            found = rescued("b", "c", lost=LOST)
        except (AssertionError, Violation):
            return
    assert found != [STATE_BYTES - CELL_BYTES] * 2
