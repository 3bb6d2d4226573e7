"""A worker that hangs for good: its daemon parts with it, and another one comes; never two at once."""

from __future__ import annotations

import pytest
from tests.simulation.test_faults import training
from tests.simulator.batch import sites_of
from tests.simulator.faults import all_are_members, begin, run_seed
from tests.simulator.hanging import FORCED, HANGS

from chaos_protocols import events
from chaos_protocols.wire.worker import WorkerRefused


@pytest.mark.parametrize("kind", [HANGS, FORCED])
def test_seeds_come_by_hanging_workers_and_forced_stops(kind: int) -> None:
    told = ("(SIGSTOP)", "forced by the user")[kind == FORCED]
    stories = [run_seed(seed, sites=sites_of(seed)).story for seed in (kind, kind + 32)]
    assert any(told in line for story in stories for line in story)


def test_no_other_worker_comes_beside_one_that_hangs() -> None:
    """The daemon's socket refuses it; with two, the machine took the state of the first for that of the second."""
    world = training("abc")
    node = world.node("c")
    node.hang.strike()
    before = node.connected
    node.start_worker()
    assert node.worker is None and node.connected is before
    assert world.run_until(lambda: node.hang.times == 1 and all_are_members(world), limit_s=60.0)
    assert node.worker is not None and node.worker is node.connected is not before
    node.hang.strike()
    node.kill(worker_too=False)
    begin(node)  # the daemon that was killed had the connection; another one has not
    assert node.worker is not None
    assert world.run_until(lambda: all_are_members(world), limit_s=60.0)


def test_a_worker_that_hangs_and_is_refused_makes_way_for_another() -> None:
    """It reads nothing, and its daemon parts with it all the same (seed 5002267, 3 sites, a guest)."""
    world = training("abc")
    node = world.node("c")
    node.hang.strike()
    assert node.hang.lasts and node.machine is not None
    node.machine.state.session.tell(WorkerRefused(reason="another model"))
    node.machine.participation.session_end.over("another model")
    node.handle(events.TimerFired())
    assert not node.hang.lasts
    assert world.run_until(lambda: all_are_members(world), limit_s=60.0)


def test_a_worker_that_has_not_said_hello_to_a_new_daemon_cannot_hang_on_its_connection() -> None:
    """Where it could, that daemon would never part with it, and no other one would be let in (seed 2875, 3 sites)."""
    world = training("abc")
    node = world.node("c")
    node.odd.hang()  # so it does not come back to the daemon before it goes on
    node.kill(worker_too=False)
    begin(node)
    assert node.listening is None
    node.hang.strike()
    assert not node.hang.lasts
    node.odd.wake()
    assert world.run_until(lambda: all_are_members(world), limit_s=60.0)


def test_a_script_that_pauses_has_answered_when_it_has_been_back_for_a_beat() -> None:
    """Its daemon, stopped meanwhile, let it go in that moment, and had read nothing of it (seed 9306315, 5 sites)."""
    world = training("abc")
    odd = world.node("c").odd
    assert world.run_until(lambda: world.node("c").listening.training, limit_s=10.0)  # type: ignore[union-attr]
    odd.pause()
    assert not odd.answers_already
    odd.wake()
    assert odd.answers and not odd.answers_already
    world.run(world.now_s + 2 * world.settings.beat_s)
    assert odd.answers_already
