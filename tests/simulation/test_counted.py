"""Who computes is counted: newcomers to a run whose rounds are shorter than a message to them takes, or than their
workers need for a result. And what the oracle takes for a site that is left out."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from tests.simulation.mutants.planting import Bug, Patch, planted
from tests.simulator.faults import begin
from tests.simulator.node import Node
from tests.simulator.oracles_counted import CountedOracle
from tests.simulator.violation import Violation
from tests.simulator.world import World

from chaos_protocols import events
from chaos_protocols.effects import Contribute
from chaos_protocols.names import SiteId
from chaos_protocols.settings import SiteSettings
from chaos_protocols.state.result_log import RESULTS_BYTES_MAX, RESULTS_MIN
from chaos_protocols.wire.plans import Tag

NEVER_ASKS = Bug(
    name="a site that is outrun never asks that the rounds wait",
    patches=(Patch("chaos_protocols.state.outrun:Outrun.asks", "self._times >= self._needed", "False"),),
    breaks=(8,),
)
FORGETS_PARTS = Bug(
    name="a part is left out where there is no result to clip it around, though nobody clips",
    patches=(
        Patch(
            "chaos_protocols.rounds.machine:RoundMachine._contribute",
            "if ahead.centred and part.has_bytes and not self.digest:",
            "if part.has_bytes and not self.digest:",
        ),
    ),
    breaks=(3,),
)

SHOWS_IT = 7
"""A quick run in which a newcomer needs the rule."""


def quick_run(seed: int) -> tuple[World, Node]:
    """One to three sites train in rounds of some 10 ms; a newcomer is far away, or slow, by the seed."""
    rng = random.Random(f"quick/{seed}")
    world = World(seed, settings=SiteSettings())
    world.compute_range_s = (0.005, rng.choice((0.006, 0.02)))
    world.results_kept = rng.choice((2, 5))
    names = "abc"[: rng.choice((1, 1, 2, 3))]
    for number, name in enumerate(names):
        world.add(name, founder=number == 0, peers=tuple(names[:number]), min_sites=len(names))
    for node in world.nodes.values():
        begin(node)
    assert world.run_until(lambda: world.oracles.rounds_done > 20, limit_s=30.0)
    newcomer = world.add("d", peers=tuple(names))
    newcomer.apply_s, newcomer.compute_factor = rng.choice((0.001, 0.02, 0.05)), rng.choice((1.0, 5.0))
    far_s, size = rng.choice((0.001, 0.02, 0.1)), rng.choice((0, RESULTS_BYTES_MAX // (RESULTS_MIN + 1)))
    for node in world.nodes.values():
        node.contribution_bytes = size
        node.transfer_delay_s = rng.choice((0.0, 0.1, 0.5))
        world.network.latency_s[node.site, newcomer.site] = world.network.latency_s[newcomer.site, node.site] = far_s
    begin(newcomer)
    return world, newcomer


def is_counted(world: World, newcomer: Node, *, limit_s: float = 40.0) -> bool:
    """Whether a round comes to have its part within that time."""
    world.oracles.counted.begin()
    return world.run_until(lambda: newcomer.name not in world.oracles.counted.uncounted(), limit_s=limit_s)


@pytest.mark.parametrize("seed", range(12))
def test_a_newcomer_to_a_quick_run_is_counted_and_stays_so(seed: int) -> None:
    world, newcomer = quick_run(seed)
    assert is_counted(world, newcomer), world.story[-10:]
    for _ in range(3):
        before = world.oracles.rounds_done
        world.oracles.counted.begin()
        assert world.run_until(lambda before=before: world.oracles.rounds_done > before + 5, limit_s=30.0)
        assert world.oracles.counted.uncounted() == []


def test_without_the_rule_a_newcomer_to_a_quick_run_fetches_the_state_for_ever() -> None:
    with planted(NEVER_ASKS):
        world, newcomer = quick_run(SHOWS_IT)
        with pytest.raises(Violation, match="d is in the run with a worker, and is not counted for") as found:
            is_counted(world, newcomer)
    assert found.value.invariant == 8


def test_a_part_that_lies_ready_and_is_not_given_is_found() -> None:
    with planted(FORGETS_PARTS), pytest.raises(Violation, match="though its worker's part of it lies ready") as found:
        quick_run(0)
    assert found.value.invariant == 3


def gives_nothing_though_it_lies_ready(
    world: World, node: Node, *, counted_past: bool, told_before: bool = False
) -> list[int]:
    """Which invariants are broken, in the eyes of the oracle, by a site that gives weight 0 to a round for which its
    worker has given its part. `counted_past`: it has counted that round as done between; `told_before`: its worker was
    told to train before the run went on from its present state."""
    machine, broken = node.machine, []
    assert machine is not None and node.worker is not None and node.worker.training
    oracle = CountedOracle(lambda invariant, _: broken.append(invariant), world)  # type: ignore[arg-type, return-value]
    number = node.worker.round + 1
    oracle.trains(node, 0 if told_before else machine.roster.epoch)
    oracle.after_step(node, events.WorkerContributed(round=number, weight=1.0))
    if counted_past:
        machine.rounds.completed_round += 1
        oracle.after_step(node, events.TimerFired())
        machine.rounds.completed_round -= 1
    tag = Tag(epoch=machine.roster.epoch, round=number)
    oracle.contributed(node, Contribute(tag=tag, weight=0.0, has_bytes=False))
    oracle.after_step(node, events.TimerFired())
    return broken


def test_a_part_whose_round_its_site_has_counted_past_is_asked_for_no_more() -> None:
    world, _ = quick_run(0)
    node = world.nodes["01a"]
    assert world.run_until(lambda: node.worker is not None and node.worker.training, limit_s=5.0)
    assert gives_nothing_though_it_lies_ready(world, node, counted_past=False) == [3]
    assert not gives_nothing_though_it_lies_ready(world, node, counted_past=True)
    assert not gives_nothing_though_it_lies_ready(world, node, counted_past=False, told_before=True), "of another state"


def test_who_waits_until_a_transfer_to_a_worker_that_stands_still_is_given_up_is_not_kept_out() -> None:
    """Seed 9375292, 6 sites: one transfer at a time, and the scheduler was another one meanwhile."""
    world, newcomer = quick_run(0)
    node, oracle = world.nodes["01a"], world.oracles.counted
    assert world.run_until(lambda: newcomer.site in node.connections and newcomer.worker is not None, limit_s=5.0)
    plan = SimpleNamespace(joiner=newcomer.site)
    world.oracles.agreement.roster = SimpleNamespace(replication=plan)  # type: ignore[assignment]
    counted = {SiteId(newcomer.site)}
    assert oracle._could_catch_up(node, counted)
    newcomer.odd.hang()
    assert not oracle._could_catch_up(node, counted)
    plan.joiner = node.site
    assert oracle._could_catch_up(node, counted), "its own turn"
