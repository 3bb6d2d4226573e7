"""Mirrors and checkpoints under virtual time: a worker comes back without the network, a run without a live state."""

from __future__ import annotations

import dataclasses
import random

import pytest
from tests.simulator.faults import Nemesis, all_are_members, begin, begin_anew, build, revive
from tests.simulator.keeping import keep_at_random
from tests.simulator.node import Node
from tests.simulator.world import World

from chaos_protocols import effects
from chaos_protocols.rounds.reached import ANEW_ROUNDS_MAX
from chaos_protocols.settings import CheckpointSettings, SiteSettings
from chaos_protocols.state.result_log import RESULTS_BYTES_MAX


def three_sites(keep: CheckpointSettings, *, seed: int = 1, rounds: int = 20) -> World:
    """a, b, c, fully meshed, training."""
    world = World(seed, settings=SiteSettings(keep=keep))
    for name, peers in (("a", ()), ("b", ("a",)), ("c", ("a", "b"))):
        world.add(name, founder=name == "a", peers=peers, min_sites=3)
    for node in world.nodes.values():
        begin(node)
    assert world.run_until(lambda: world.oracles.rounds_done > rounds, limit_s=20.0)
    return world


def told(world: World, kind: str, *, since: int = 0) -> list[str]:
    return [line for line in world.story[since:] if f": {kind} " in line]


def transfers(world: World) -> int:
    return len(told(world, "transfer"))


def members(world: World) -> int:
    return 0 if world.oracles.newest is None else len(world.oracles.newest.member_ids())


def trains(node: Node) -> bool:
    return node.machine is not None and node.machine.rounds.active


def restart_worker(world: World, node: Node, *, after_s: float = 0.2) -> None:
    node.kill_worker()
    world.run(world.now_s + after_s)
    assert not trains(node)
    node.start_worker()


def test_what_is_read_for_a_worker_that_is_gone_by_then_does_not_reach_the_next_one() -> None:
    """Seed 87 of 5 sites, `--operators`: it lay in the region into which the next one's state was fetched."""
    world = three_sites(CheckpointSettings(memory_checkpoint_every_rounds=1))
    node = world.node("b")
    before, kept = node.region, node.keeper.memory
    assert before is not None
    node.keeper.memory = (1, "of before")
    node.keeper.execute(effects.RestoreMemoryCheckpoint(attempt=1000))
    node.keeper.memory = kept
    node.kill_worker()
    node.start_worker()
    now = node.region
    world.run(world.now_s + node.keeper.copy_range_s[1])
    assert before.state == "of before" and now is not None and now.state != "of before"


# ---- the mirror


@pytest.mark.parametrize("every", [1, 3, 10])
def test_a_restarted_worker_gets_its_state_from_its_own_daemon(every: int) -> None:
    world = three_sites(CheckpointSettings(memory_checkpoint_every_rounds=every))
    node, before = world.node("b"), transfers(world)
    begun = world.oracles.rounds_done
    restart_worker(world, node)
    assert world.run_until(lambda: trains(node), limit_s=1.0)
    assert node.keeper.restored == ["mirror"] and transfers(world) == before
    assert world.run_until(lambda: world.oracles.rounds_done > begun + 20, limit_s=10.0)
    assert "from this daemon's in-memory checkpoint" in told(world, "restore")[-1]
    assert not told(world, "scale-out", since=len(world.story) - 1)


def test_without_a_memory_checkpoint_the_neighbours_are_asked() -> None:
    world = three_sites(CheckpointSettings())
    node, before = world.node("b"), transfers(world)
    restart_worker(world, node)
    assert world.run_until(lambda: trains(node), limit_s=5.0)
    assert node.keeper.restored == [] and transfers(world) == before + 1


def test_all_workers_die_at_once_and_the_run_goes_on_where_it_was() -> None:
    """Nobody's worker has the state; every daemon has it."""
    world = three_sites(CheckpointSettings(memory_checkpoint_every_rounds=5))
    before = transfers(world)
    for node in world.nodes.values():
        node.kill_worker()
    world.run(world.now_s + 0.3)
    done = max(node.machine.rounds.completed_round for node in world.nodes.values() if node.machine is not None)
    for node in world.nodes.values():
        node.start_worker()
    assert world.run_until(lambda: all(trains(node) for node in world.nodes.values()), limit_s=5.0)
    assert world.run_until(lambda: world.oracles.rounds_done > done + 5, limit_s=10.0)
    assert transfers(world) == before and not told(world, "restore-point", since=20)


def test_a_memory_checkpoint_that_needs_more_results_than_may_be_kept_is_given_up() -> None:
    world = three_sites(CheckpointSettings(memory_checkpoint_every_rounds=4))
    node = world.node("b")
    for one in world.nodes.values():
        one.contribution_bytes = RESULTS_BYTES_MAX // 10
    restart_worker(world, node)
    assert world.run_until(lambda: trains(node), limit_s=5.0)
    node.kill_worker()
    assert node.machine is not None
    done = node.machine.rounds.completed_round
    assert world.run_until(lambda: world.oracles.rounds_done > done + 30, limit_s=20.0)
    assert node.machine.state.memory.round is None and node.keeper.memory is None
    assert node.bulk is not None and len(node.bulk.averaging.results) <= 10
    before = transfers(world)
    node.start_worker()
    assert world.run_until(lambda: trains(node), limit_s=5.0)
    assert transfers(world) == before + 1


def test_a_worker_that_dies_of_its_memory_checkpoint_again_and_again_gets_its_neighbours_state() -> None:
    world = three_sites(CheckpointSettings(memory_checkpoint_every_rounds=1000))
    node = world.node("b")
    assert node.machine is not None
    memory, settings = node.machine.state.memory, node.machine.settings
    world.run_until(lambda: memory.round is not None, limit_s=1.0)
    if memory.round is None:  # the first copy would come with round 1000 (256 at most): ask for one now
        every_round = dataclasses.replace(settings.keep, memory_checkpoint_every_rounds=1)
        node.machine.outbox.settings = dataclasses.replace(settings, keep=every_round)
        assert world.run_until(lambda: memory.round is not None, limit_s=1.0)
        node.machine.outbox.settings = settings
    before = transfers(world)
    for _ in range(5):
        restart_worker(world, node, after_s=0.05)
        assert world.run_until(lambda: trains(node), limit_s=5.0)
    assert node.keeper.restored == ["mirror"] * 3 and transfers(world) > before


def test_a_joiner_is_served_while_memory_checkpoints_are_taken_every_round() -> None:
    """The worker's state region belongs to the joiner: no mirror overwrites what is served (oracle 4 watches)."""
    world = three_sites(CheckpointSettings(memory_checkpoint_every_rounds=1))
    joiner = world.add("d", peers=("a", "b", "c"))
    begin(joiner)
    assert world.run_until(lambda: trains(joiner), limit_s=10.0)
    world.run(world.now_s + 0.5)
    restart_worker(world, world.node("c"))
    assert world.run_until(lambda: trains(world.node("c")), limit_s=2.0)
    assert "mirror" in world.node("c").keeper.restored


def test_a_removed_site_forgets_its_memory_checkpoint() -> None:
    """It joins again as a joiner: what it had is of a history that the run may have left."""
    world = three_sites(CheckpointSettings(memory_checkpoint_every_rounds=1))
    node = world.node("b")
    for far in ("a", "c"):
        world.network.cut(node.site, world.site(far))
        world.network.cut(world.site(far), node.site)
    assert world.run_until(lambda: members(world) == 2, limit_s=10.0)
    for way in list(world.network.cuts):
        world.network.heal(*way)
    assert world.run_until(lambda: trains(node) and members(world) == 3, limit_s=20.0)
    assert node.keeper.restored == []


# ---- checkpoints


def test_the_run_goes_on_from_the_newest_checkpoint_when_all_sites_were_killed() -> None:
    world = three_sites(CheckpointSettings(checkpoint="fixed", checkpoint_every_rounds=10))
    kill_all(world)
    newest = max(checkpoint.round for node in world.nodes.values() for checkpoint in node.keeper.files)
    assert newest >= 10
    told_before = len(world.story)
    for node in world.nodes.values():
        begin(node)
    assert world.run_until(lambda: all_are_members(world), limit_s=20.0)
    assert f"goes on from its checkpoint, at round {newest}" in "\n".join(
        told(world, "restore-point", since=told_before)
    )
    assert sum(node.keeper.restored.count("checkpoint") for node in world.nodes.values()) == 1
    assert world.run_until(lambda: world.oracles.rounds_done > newest + 20, limit_s=20.0)


def test_a_worker_that_is_back_first_does_not_begin_anew_what_others_have_on_disk() -> None:
    """Found by the test with real processes on a loaded machine: the first script was up a second before the others."""
    world = three_sites(CheckpointSettings(checkpoint="fixed", checkpoint_every_rounds=10))
    kill_all(world)
    world.node("b").keeper.files = {}
    newest = max(checkpoint.round for node in world.nodes.values() for checkpoint in node.keeper.files)
    told_before = len(world.story)
    for node in world.nodes.values():
        node.start()
    for number, name in enumerate("bca"):
        world.schedule(1.5 + 1.5 * number, world.node(name).start_worker)
    assert world.run_until(lambda: all_are_members(world), limit_s=30.0)
    adopted = told(world, "restore-point", since=told_before)
    assert len(adopted) == 1 and f"from its checkpoint, at round {newest}" in adopted[0]


@pytest.mark.parametrize("daemons_too", [True, False])
def test_a_run_that_is_lost_in_its_first_rounds_begins_anew_by_itself_and_says_so(daemons_too: bool) -> None:
    """Checkpoints as by default: none is whole yet (decision 0018)."""
    world = three_sites(CheckpointSettings(), rounds=0)
    done = world.oracles.rounds_done
    for node in world.nodes.values():
        if daemons_too:
            node.kill()
        else:
            node.kill_worker()
        node.keeper.files = {}
    assert 0 < done <= ANEW_ROUNDS_MAX
    told_before = len(world.story)
    revive(world)
    assert world.run_until(lambda: all_are_members(world), limit_s=60.0)
    (adopted,) = told(world, "restore-point", since=told_before)
    assert "the run begins anew" in adopted
    assert world.run_until(lambda: world.oracles.rounds_done > 20, limit_s=20.0)


@pytest.mark.parametrize("whole", [False, True])
def test_a_run_that_is_lost_before_any_checkpoint_was_whole_begins_anew_by_itself(whole: bool) -> None:
    """However many rounds a slow disk takes. Once one was whole, though it is gone, an operator decides."""
    world = three_sites(CheckpointSettings(), rounds=0)
    for node in world.nodes.values():
        node.keeper.disk_range_s = (60.0, 60.0)
    if whole:
        world.node("b").keeper.disk_range_s = (0.5, 0.5)
    assert world.run_until(lambda: world.oracles.rounds_done > 60, limit_s=30.0)
    assert bool(world.node("b").keeper.files) is whole
    for node in world.nodes.values():
        node.kill()
        node.keeper.files = {}
    told_before = len(world.story)
    revive(world)
    assert world.run_until(lambda: all_are_members(world), limit_s=60.0) is not whole
    adopted = told(world, "restore-point", since=told_before)
    assert [("the run begins anew" in one, "rounds 1 to" in one) for one in adopted] == (
        [] if whole else [(True, True)]
    )


def test_a_run_that_begins_anew_has_its_first_checkpoint_as_soon_as_any_other() -> None:
    """It counted the rounds since the last checkpoint of the history that was given up: until it had come further than
    that one, it kept none."""
    world = three_sites(CheckpointSettings(checkpoint="fixed", checkpoint_every_rounds=10), rounds=100)
    for node in world.nodes.values():
        node.kill_worker()
    world.run(world.now_s + 1.0)  # what was being written is on disk
    for node in world.nodes.values():
        node.keeper.damage()
        node.start_worker()
    assert not world.run_until(lambda: all_are_members(world), limit_s=60.0)
    begin_anew(world)
    assert world.run_until(lambda: all_are_members(world), limit_s=20.0)
    assert world.run_until(lambda: world.oracles.rounds_done > 30, limit_s=20.0) and world.oracles.rounds_done < 50
    kept = [one.round for node in world.nodes.values() for one, state in node.keeper.files.items() if state is not None]
    assert kept and max(kept) < 50


def test_a_damaged_checkpoint_is_passed_over() -> None:
    world = three_sites(CheckpointSettings(checkpoint="fixed", checkpoint_every_rounds=5))
    assert world.run_until(lambda: world.oracles.rounds_done > 40, limit_s=20.0)
    kill_all(world)
    newest = max(checkpoint.round for node in world.nodes.values() for checkpoint in node.keeper.files)
    for node in world.nodes.values():
        node.keeper.files = {one: None if one.round == newest else state for one, state in node.keeper.files.items()}
    for node in world.nodes.values():
        begin(node)
    assert world.run_until(lambda: all_are_members(world), limit_s=60.0)
    assert any("failed" in line and f"checkpoint of round {newest}" in line for line in told(world, "restore"))
    assert world.run_until(lambda: world.oracles.rounds_done > newest + 10, limit_s=20.0)


def test_a_live_worker_is_better_than_any_checkpoint() -> None:
    """One worker outlives the daemons: its state is newer than what the disks have."""
    world = three_sites(CheckpointSettings(checkpoint="fixed", checkpoint_every_rounds=10))
    world.run(world.now_s + 0.2)
    for node in world.nodes.values():
        node.kill(worker_too=node.name != "c")
    survivor = world.node("c").worker
    assert survivor is not None
    had = survivor.round
    told_before = len(world.story)
    for node in world.nodes.values():
        begin(node)
    assert world.run_until(lambda: all_are_members(world), limit_s=20.0)
    adopted = "\n".join(told(world, "restore-point", since=told_before))
    assert f"goes on from its worker, at round {had}" in adopted and "checkpoint" not in adopted


def test_a_restarted_site_takes_no_checkpoint_while_others_train() -> None:
    world = three_sites(CheckpointSettings(checkpoint="fixed", checkpoint_every_rounds=5))
    node = world.node("b")
    node.kill()
    world.run(world.now_s + 0.3)
    begin(node)
    assert world.run_until(lambda: all_are_members(world), limit_s=20.0)
    assert node.keeper.files and node.keeper.restored == []


def test_an_older_checkpoint_than_the_known_round_is_taken_when_all_have_spoken_and_said_aloud() -> None:
    world = three_sites(CheckpointSettings(checkpoint="fixed", checkpoint_every_rounds=15))
    assert world.run_until(lambda: world.oracles.rounds_done > 27, limit_s=20.0)
    newest = max(checkpoint.round for node in world.nodes.values() for checkpoint in node.keeper.files)
    for node in world.nodes.values():
        node.kill_worker()
    world.run(world.now_s + 0.3)
    told_before = len(world.story)
    for node in list(world.nodes.values())[:2]:
        node.start_worker()
    world.run(world.now_s + 2 * world.settings.transfer_stall_s)
    assert not any(trains(node) for node in world.nodes.values()), "a worker is away that may have more"
    world.node("c").start_worker()
    assert world.run_until(lambda: all(trains(node) for node in world.nodes.values()), limit_s=5.0)
    adopted = told(world, "restore-point", since=told_before)[0]
    assert f"at round {newest}" in adopted and "are done again" in adopted
    assert world.run_until(lambda: world.oracles.rounds_done > newest + 40, limit_s=20.0)


def test_a_branch_that_was_given_up_is_not_taken_up_again() -> None:
    """Checkpoints of a site that was away while the run went back to an older state are older, whatever their round."""
    world = three_sites(CheckpointSettings(checkpoint="fixed", checkpoint_every_rounds=10))
    assert world.run_until(lambda: world.oracles.rounds_done > 45, limit_s=20.0)
    kill_all(world)
    kept = {node.name: node.keeper for node in world.nodes.values()}
    newest = max(kept["c"].files)
    for name in ("a", "b"):
        kept[name].files = {one: state for one, state in kept[name].files.items() if one.round < newest.round}
    away = dict(kept["c"].files)
    kept["c"].files = {}
    for node in world.nodes.values():
        begin(node)
    assert world.run_until(lambda: all_are_members(world), limit_s=60.0)
    older = max(checkpoint.round for checkpoint in kept["a"].files)
    assert world.run_until(lambda: any(one.lineage > newest.lineage for one in kept["a"].files), limit_s=20.0)
    kill_all(world)
    kept["c"].files = away
    told_before = len(world.story)
    for node in world.nodes.values():
        begin(node)
    assert world.run_until(lambda: all_are_members(world), limit_s=60.0)
    branch = max(kept["a"].files | kept["b"].files)
    assert branch.lineage > newest.lineage and branch.round > older
    assert "at round" in told(world, "restore-point", since=told_before)[0]
    assert f"at round {newest.round}" not in told(world, "restore-point", since=told_before)[0]


def kill_all(world: World) -> None:
    world.run(world.now_s + 0.5)  # what is being written is written
    for node in world.nodes.values():
        node.kill()
    world.run(world.now_s + 0.5)


def test_the_optimal_interval_is_that_of_the_equation() -> None:
    """FlashRecovery, equation (3): t* = sqrt(2 d k0 / m)."""
    world = three_sites(CheckpointSettings(checkpoint="optimum", mean_time_between_failures_s=3600.0))
    machine = world.node("a").machine
    assert machine is not None
    assert machine.state.files.interval_s(0.5) == pytest.approx((2 * 3600 * 0.5) ** 0.5)


# ---- random trouble


def test_what_slow_links_carry_is_what_the_workers_say_of_a_round() -> None:
    """Seed 500720, 4 sites: the last scheduler knew of no size of a round, and waited for no joiner."""
    world = build(500720, 4)
    carried = world.network.chunk_bytes * world.chunk_count
    assert world.network.rates and world.settings.keep != CheckpointSettings()
    assert {node.contribution_bytes for node in world.nodes.values()} == {carried}


@pytest.mark.parametrize("seed", range(24))
def test_invariants_hold_under_random_trouble_with_memory_checkpoints_and_checkpoints(seed: int) -> None:
    world = build(1000 + seed, 2 + seed % 5)
    keep_at_random(world, random.Random(f"keeping/{seed}"))
    Nemesis(world, until_s=15.0)
    world.run(20.0)
    revive(world)
    dark_s = max(0.0, *(node.dark_until_s - world.now_s for node in world.nodes.values()))
    if not world.run_until(lambda: all_are_members(world), limit_s=dark_s + 90.0):
        assert world.state_is_lost(), "\n".join(world.story[-60:])
        return
    before = world.oracles.rounds_done
    assert world.run_until(lambda: world.oracles.rounds_done > before + 5, limit_s=10.0)
