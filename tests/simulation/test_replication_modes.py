"""The baselines of the Chaos paper (section VI-A) as modes of the daemon: who sends a newcomer the state."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.simulator import node as node_module
from tests.simulator import worker as worker_module
from tests.simulator.faults import begin
from tests.simulator.outbox import Frame
from tests.simulator.planner import SimulatedPlanner
from tests.simulator.worker import MODEL
from tests.simulator.world import World

from chaos_protocols.wire.bulk import BlockData

LARGE_BYTES = 64 << 20


def watched(name: str, send: Callable[[str, Frame], None], sent: set[str]) -> Callable[[str, Frame], None]:
    """`send`, noting who sends a state."""

    def note(site: str, frame: Frame) -> None:
        if isinstance(frame.header, BlockData):
            sent.add(name)
        send(site, frame)

    return note


def joined(policy: str) -> tuple[World, set[str], set[str]]:
    """A chain a - b - c trains; d joins at c, under `policy`. The world, who sent d state, d's links after it."""
    world = World(1)
    world.planner = SimulatedPlanner(1)
    world.planner.trees, world.planner.policy = 1, policy
    world.planner.all_sites = policy == "multi_source"
    for name, peers in (("a", ()), ("b", ("a",)), ("c", ("b",))):
        world.add(name, founder=name == "a", peers=peers, min_sites=3)
    for node in list(world.nodes.values()):
        begin(node)
    assert world.run_until(lambda: world.oracles.rounds_done > 5, limit_s=20.0)
    newcomer = world.add("d", peers=("c",))
    sent: set[str] = set()
    for node in world.nodes.values():
        if node.bulk is not None:
            for outbox in node.bulk.transfers.outboxes.values():
                outbox._send = watched(node.name, outbox._send, sent)  # type: ignore[method-assign]
    begin(newcomer)
    active = lambda: newcomer.machine is not None and newcomer.machine.rounds.active  # noqa: E731
    assert world.run_until(active, limit_s=30.0), world.story[-20:]
    world.run(world.now_s + 3.0)
    assert newcomer.machine is not None
    links = {world.nodes[site].name for site in newcomer.machine.links.up_sites()}
    return world, sent, links


@pytest.mark.parametrize("policy", ["chaos", "single", "equal", "round_robin"])
def test_only_neighbours_send_the_state(policy: str) -> None:
    _, sent, links = joined(policy)
    assert sent == {"c"} and links == {"c"}


def test_with_multi_source_every_member_sends_its_part_and_the_overlay_stays_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A state beyond what is asked for at once: a small one is here before the links to sources further away are up."""
    for module in (node_module, worker_module):
        monkeypatch.setattr(module, "STATE_BYTES", LARGE_BYTES)
    monkeypatch.setattr(node_module, "MODEL", msgspec.structs.replace(MODEL, state_bytes=LARGE_BYTES))
    world, sent, links = joined("multi_source")
    assert sent == {"a", "b", "c"}
    assert links == {"c"}
    roster = world.node("a").machine.roster  # type: ignore[union-attr]
    assert {frozenset(link.key) for link in roster.links} == {
        frozenset((world.site(one), world.site(other))) for one, other in (("a", "b"), ("b", "c"), ("c", "d"))
    }
