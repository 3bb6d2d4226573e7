"""A joiner whose worker applies results more slowly than the run makes them: it gets in, and the run waits once."""

from __future__ import annotations

import pytest
from tests.simulation.three_sites import three_sites
from tests.simulator.faults import begin
from tests.simulator.node import Node
from tests.simulator.world import World

from chaos_protocols.state.result_log import RESULTS_BYTES_MAX, RESULTS_MIN, RESULTS_QUEUED_MAX

SENDS_FOR_S = 0.02
"""A state from three sources takes one or two such moments."""


def with_joiner(apply_s: float, *, contribution_bytes: int = 0, sends_every_s: float = 0.0) -> tuple[World, Node]:
    """a, b, c train in rounds of about 40 ms; d joins, and needs `apply_s` for each result. With `sends_every_s` a
    state is sent only at such moments, so that a transfer takes about so long."""
    world = three_sites(3)
    joiner = world.add("d", peers=("a", "b", "c"))
    joiner.apply_s, joiner.contribution_bytes = apply_s, contribution_bytes
    if sends_every_s:
        for name in ("a", "b", "c"):
            _hold(world, world.node(name), sends_every_s)
    begin(joiner)
    return world, joiner


def _hold(world: World, node: Node, every_s: float) -> None:
    def send() -> None:
        node.to_bulk(lambda bulk: bulk.stall(False))
        world.schedule(SENDS_FOR_S, lambda: node.to_bulk(lambda bulk: bulk.stall(True)))
        world.schedule(every_s, send)

    node.to_bulk(lambda bulk: bulk.stall(True))
    world.schedule(every_s, send)


def hold_once(world: World, for_s: float) -> None:
    """Sources send nothing for so long, then everything at once."""
    for name in ("a", "b", "c"):
        node = world.node(name)
        node.to_bulk(lambda bulk: bulk.stall(True))
        world.schedule(for_s, lambda node=node: node.to_bulk(lambda bulk: bulk.stall(False)))  # type: ignore[misc]


def trains(node: Node) -> bool:
    return node.machine is not None and node.machine.rounds.active and node.machine.rounds.caught_up


def waits(world: World) -> list[str]:
    return [line for line in world.story if "waits for it" in line]


def longest_gap_s(world: World, *, limit_s: float, until: object = None) -> float:
    """The longest time without a new round, until the condition holds or the time is over."""
    longest_s, since_s, known = 0.0, world.now_s, world.oracles.rounds_done
    end_s = world.now_s + limit_s
    while world.now_s < end_s and not (callable(until) and until()):
        world.run(world.now_s + 0.01)
        if world.oracles.rounds_done > known:
            longest_s, since_s, known = max(longest_s, world.now_s - since_s), world.now_s, world.oracles.rounds_done
    return max(longest_s, world.now_s - since_s)


def test_a_joiner_that_keeps_pace_makes_nobody_wait() -> None:
    world, joiner = with_joiner(0.001, sends_every_s=0.8)
    gap_s = longest_gap_s(world, limit_s=10.0, until=lambda: trains(joiner))
    assert trains(joiner) and waits(world) == [] and joiner.fetched == [False]
    assert gap_s < 0.15


def test_a_joiner_that_falls_behind_takes_a_second_transfer_of_what_changed() -> None:
    """The first takes a second, in which more happens than its worker catches up with; the second is short."""
    world, joiner = with_joiner(0.06)
    hold_once(world, 0.8)
    gap_s = longest_gap_s(world, limit_s=20.0, until=lambda: trains(joiner))
    assert trains(joiner) and joiner.fetched == [False, True]
    assert waits(world) == [] and gap_s < 0.3


def test_where_a_second_transfer_does_not_help_one_round_waits() -> None:
    world, joiner = with_joiner(0.06, sends_every_s=0.8)
    gap_s = longest_gap_s(world, limit_s=30.0, until=lambda: trains(joiner))
    assert trains(joiner) and joiner.fetched == [False, True]
    assert len(waits(world)) == 4, "every site's event log says for whom a round waits"
    assert 0.3 < gap_s < 3.0
    assert world.oracles.newest is not None and len(world.oracles.newest.member_ids()) == 4
    before = world.oracles.rounds_done
    assert world.run_until(lambda: world.oracles.rounds_done > before + 20, limit_s=10.0)
    assert len(waits(world)) == 4, "once, not at every round"


def test_results_beyond_the_bound_are_not_kept_and_a_second_transfer_is_taken() -> None:
    world, joiner = with_joiner(0.001, contribution_bytes=RESULTS_BYTES_MAX)
    hold_once(world, 1.0)
    assert world.run_until(lambda: trains(joiner), limit_s=20.0)
    assert joiner.fetched == [False, True]
    assert any(f"more than {RESULTS_MIN} results wait" in line for line in world.story)


def test_a_joiner_that_never_catches_up_by_results_is_waited_for_once_and_then_while_it_gets_the_state() -> None:
    """It would be a member that never counts, and fetches the state again for ever."""
    world, joiner = with_joiner(4.0, sends_every_s=0.8)
    assert world.run_until(lambda: any("not caught up in time" in line for line in world.story), limit_s=60.0)
    assert not trains(joiner)
    before = world.oracles.rounds_done
    assert world.run_until(lambda: trains(joiner), limit_s=60.0)
    assert any("the rounds were too fast for it each time before" in line for line in world.story)
    assert world.oracles.rounds_done < before + 3 * RESULTS_QUEUED_MAX
    world.oracles.counted.begin()
    before = world.oracles.rounds_done
    assert world.run_until(lambda: world.oracles.rounds_done > before + 5, limit_s=60.0), "at its pace"
    assert world.oracles.counted.uncounted() == []


def test_a_round_waits_for_a_joiner_that_does_not_catch_up_not_longer_than_the_deadline() -> None:
    world, joiner = with_joiner(4.0, sends_every_s=0.8)
    assert world.run_until(lambda: bool(waits(world)), limit_s=60.0)
    gap_s = longest_gap_s(world, limit_s=15.0)
    limit_s = world.settings.transfer_stall_s
    assert len(waits(world)) == 4
    assert any("not caught up in time" in line for line in world.story)
    assert gap_s == pytest.approx(limit_s, abs=1.0)
    assert not trains(joiner)


def test_a_joiner_that_dies_while_a_round_waits_for_it_is_waited_for_no_more() -> None:
    world, joiner = with_joiner(0.5, sends_every_s=0.8)
    assert world.run_until(lambda: bool(waits(world)), limit_s=30.0)
    world.run(world.now_s + 0.3)
    joiner.kill_worker()
    assert longest_gap_s(world, limit_s=5.0) < 0.5
