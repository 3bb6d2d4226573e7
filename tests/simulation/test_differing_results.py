"""Sites that hold different results of one round (bad memory; no network brings it about): nobody's daemon ends, most
of them count, and the others get the state of the run again."""

from __future__ import annotations

import msgspec
import pytest
from tests.simulator.faults import begin
from tests.simulator.node import Node
from tests.simulator.world import World

from chaos_protocols.wire.control import RoundStatusReply


def training(names: str) -> World:
    world = World(5)
    for number, name in enumerate(names):
        world.add(name, founder=number == 0, peers=tuple(names[:number]), min_sites=len(names))
    for node in list(world.nodes.values()):
        begin(node)
    assert world.run_until(lambda: world.oracles.rounds_done > 5, limit_s=20.0)
    return world


def done_at(node: Node) -> int:
    assert node.machine is not None
    return node.machine.rounds.completed_round


def answer_wrongly(node: Node) -> None:
    """Once: this site's result of the round to be resolved is another than it was."""
    machine = node.machine
    assert machine is not None
    honest = machine.participation.reporting.round_status

    def wrong() -> RoundStatusReply:
        answer = honest()
        return msgspec.structs.replace(answer, digest="00" * 32 if answer.digest else "", has_state=False)

    machine.participation.reporting.round_status = wrong  # type: ignore[method-assign]


@pytest.mark.parametrize("wrong", ["b", "c", "scheduler"])
def test_the_site_with_another_result_is_removed_and_comes_back(wrong: str) -> None:
    world = training("abcd")
    leader = next(node for node in world.nodes.values() if node.machine and node.machine.scheduler.leading)
    liar = leader if wrong == "scheduler" else world.node(wrong)
    victim = next(node for node in world.nodes.values() if node not in (liar, leader))
    answer_wrongly(liar)
    assert world.run_until(lambda: len({done_at(node) for node in world.nodes.values()}) == 1, limit_s=5.0)
    done = world.oracles.rounds_done
    victim.kill()
    world.run(world.now_s + 2.0)
    assert liar.machine is not None
    del liar.machine.participation.reporting.round_status
    others = [node for node in world.nodes.values() if node not in (liar, victim)]

    def trains_again() -> bool:
        rounds_go_on = world.oracles.rounds_done > done + 20
        return rounds_go_on and liar.machine is not None and liar.machine.rounds.active

    assert world.run_until(trains_again, limit_s=40.0), "\n".join(world.story[-30:])
    assert all(node.alive for node in others)
    assert any("is not that of" in line for line in world.story), "\n".join(world.story[-30:])
