"""Each fault of the simulator does what it says: what TCP, TLS and a disk may do to us, and what they may not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from tests.simulator.batch import sites_of
from tests.simulator.disk import Disk, DiskFailed, JournalDisk
from tests.simulator.faults import all_are_members, begin, run_seed
from tests.simulator.hanging import FORCED, HANGS
from tests.simulator.node import Node
from tests.simulator.world import World
from tests.unit.journal_faults import PowerLost

from chaos_protocols.raft import HardState, Persist
from chaos_protocols.raft.messages import LogEntry


def training(names: str, *, disk: Callable[[], Disk] = Disk) -> World:
    """All linked to all, members, and some rounds done."""
    world = World(5)
    for number, name in enumerate(names):
        node = world.add(name, founder=number == 0, peers=tuple(names[:number]), min_sites=len(names))
        node.disk = disk()
    for node in list(world.nodes.values()):
        begin(node)
    assert world.run_until(lambda: world.oracles.rounds_done > 5 and all_are_members(world), limit_s=20.0)
    return world


def leader(world: World) -> Node:
    return next(node for node in world.nodes.values() if node.machine and node.machine.scheduler.leading)


def comes_back(world: World, node: Node) -> Callable[[], None]:
    return lambda: world.schedule(0.5, lambda: begin(node))


def told(world: World, text: str) -> bool:
    return any(text in line for line in world.story)


def rejoin(world: World, node: Node) -> None:
    """Its worker starts anew, and gets the state."""
    node.kill_worker()
    node.start_worker()


def persisted(term: int, *indices: int) -> Persist:
    entries = tuple(LogEntry(index=index, term=term, command=b"x" * 100, configuration=None) for index in indices)
    return Persist(hard_state=HardState(term, None), truncate_from=None, entries=entries, snapshot=None)


@pytest.mark.parametrize("disk", [Disk, JournalDisk])
def test_a_write_that_power_cut_is_there_as_a_whole_or_not_at_all(disk: Callable[[], Disk]) -> None:
    found = set()
    for seed in range(40):
        one = disk()
        one.open()
        one.count_start()
        one.persist(persisted(1, 1))
        one.power_fails(random.Random(seed))
        with pytest.raises(PowerLost):
            one.persist(persisted(2, 2, 3))
        one.open()
        found.add((one.hard_state.term, tuple(entry.index for entry in one.entries)))
    assert found == {(1, (1,)), (2, (1, 2, 3))}


def test_starts_are_counted_through_losses_of_power() -> None:
    disk, starts = JournalDisk(), []
    for seed in range(10):
        disk.open()
        disk.count_start()
        starts.append(disk.incarnation)
        disk.power_fails(random.Random(seed))
        with pytest.raises(PowerLost):
            disk.persist(persisted(seed, seed + 1) if seed == 0 else persisted(seed))
    assert starts == sorted(set(starts))


@pytest.mark.parametrize("disk", [Disk, JournalDisk])
def test_a_failing_disk_ends_the_daemon_and_nothing_of_the_write_is_there(disk: Callable[[], Disk]) -> None:
    one = disk()
    one.open()
    one.persist(persisted(1, 1))
    one.fails()
    with pytest.raises(DiskFailed):
        one.persist(persisted(2, 2))
    one.open()
    assert one.hard_state.term == 1 and len(one.entries) == 1


@pytest.mark.parametrize("fault", ["disk_fails", "power_fails_at_persist"])
def test_a_scheduler_whose_disk_fails_is_replaced_and_comes_back(fault: str) -> None:
    world = training("abc", disk=JournalDisk)
    node = leader(world)
    getattr(node, fault)(restart=comes_back(world, node))
    victim = next(one for one in world.nodes.values() if one is not node)
    victim.kill()  # its removal is what the scheduler must write
    world.schedule(1.0, lambda: begin(victim))
    assert world.run_until(lambda: not node.alive, limit_s=5.0)
    assert told(world, f"{node.name} ends: its disk fails" if fault == "disk_fails" else "loses power while it writes")
    assert world.run_until(lambda: all_are_members(world), limit_s=30.0), "\n".join(world.story[-30:])


def test_a_source_with_wrong_bytes_is_given_up_and_the_state_comes_from_another() -> None:
    world = training("abc")
    for node in world.nodes.values():
        if node.name != "b":
            node.to_bulk(lambda bulk: bulk.spoil(1))
    rejoin(world, world.node("b"))
    assert world.run_until(lambda: all_are_members(world), limit_s=30.0), "\n".join(world.story[-30:])


def test_a_transfer_that_stalls_and_one_that_is_slow_end_too() -> None:
    world = training("abc")
    world.node("a").to_bulk(lambda bulk: bulk.stall(True))
    world.node("c").transfer_delay_s = 1.5
    rejoin(world, world.node("b"))
    assert world.run_until(lambda: all_are_members(world), limit_s=60.0), "\n".join(world.story[-30:])


def test_a_clogged_link_delays_everything_behind_it_in_order() -> None:
    world = training("ab")
    one, other = world.nodes
    arrived: list[tuple[float, int]] = []
    network = world.network
    deliver, connection = network._deliver, world.nodes[one].connections[other]
    network._deliver = lambda *args: arrived.append((world.now_s, args[3][1])) if args[2] == "test" else deliver(*args)
    network.clog(one, other, message_s=0.1)
    began_s = world.now_s
    for number in range(5):
        network.send(connection, one, "test", ("test", number))
    world.run(began_s + 3.0)
    assert [number for _, number in arrived] == list(range(5))
    assert arrived[-1][0] - began_s > 0.5
    assert all(later[0] - earlier[0] > 0.09 for earlier, later in itertools.pairwise(arrived))


def test_a_run_goes_on_through_the_real_codec() -> None:
    world = World(5)
    world.network.encodes = True
    for number, name in enumerate("abc"):
        world.add(name, founder=number == 0, peers=tuple("abc"[:number]), min_sites=3)
    for node in list(world.nodes.values()):
        begin(node)
    assert world.run_until(lambda: world.oracles.rounds_done > 5 and all_are_members(world), limit_s=20.0)


def test_the_last_worker_with_the_state_is_spared_only_where_the_run_says_so() -> None:
    world = training("ab")
    one, other = world.nodes.values()
    world.spares_last_holder = True
    assert not world.must_live(one)
    other.kill()
    assert world.must_live(one)
    world.spares_last_holder = False
    assert not world.must_live(one)


@pytest.mark.parametrize("kind", [HANGS, FORCED])
def test_seeds_come_by_hanging_workers_and_forced_stops(kind: int) -> None:
    told = ("(SIGSTOP)", "forced by the user")[kind == FORCED]
    stories = [run_seed(seed, sites=sites_of(seed)).story for seed in (kind, kind + 32)]
    assert any(told in line for story in stories for line in story)
