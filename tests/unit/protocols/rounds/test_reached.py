"""What the journal knows of how far the run has come: notes are few, and one thing in them is exact."""

from __future__ import annotations

import itertools

import pytest
from tests.simulator.faults import begin
from tests.simulator.world import World
from tests.unit.protocols.follower import hello
from tests.unit.protocols.one_site import A, B, Bench, D, heartbeat, sent

from chaos_protocols import effects
from chaos_protocols.events import CheckpointWritten
from chaos_protocols.names import SiteId
from chaos_protocols.rounds import reached
from chaos_protocols.rounds.reached import ANEW_ROUNDS_MAX, NOTE_EVERY_S
from chaos_protocols.settings import CheckpointSettings, SiteSettings
from chaos_protocols.wire.control import JoinRequest
from chaos_protocols.wire.plans import Reached


def three_sites(
    rounds: int = 20, *, checkpoint: str = "off", disk_s: float = 0.1
) -> tuple[World, dict[str, list[tuple[float, Reached]]]]:
    """`disk_s`: what it takes to write a checkpoint at a, and at the others a thousand times that."""
    keep = CheckpointSettings(checkpoint=checkpoint)  # type: ignore[arg-type]
    world = World(1, settings=SiteSettings(keep=keep))
    noted: dict[str, list[tuple[float, Reached]]] = {"a": [], "b": [], "c": [], "d": []}
    executed = world.oracles.executed

    def watch(node: object, effect: object) -> None:
        if isinstance(effect, effects.NoteReached):
            noted[node.name].append((world.now_s, effect.reached))  # type: ignore[attr-defined]
        executed(node, effect)  # type: ignore[arg-type]

    world.oracles.executed = watch  # type: ignore[method-assign, assignment]
    for name, peers in (("a", ()), ("b", ("a",)), ("c", ("a", "b"))):
        world.add(name, founder=name == "a", peers=peers, min_sites=3)
    for node in world.nodes.values():
        node.keeper.disk_range_s = (disk_s, disk_s) if node.name == "a" else (1000 * disk_s, 1000 * disk_s)
        begin(node)
    assert world.run_until(lambda: world.oracles.rounds_done > rounds, limit_s=60.0)
    return world, noted


def test_the_first_rounds_are_noted_each_and_others_once_in_a_while() -> None:
    world, noted = three_sites(rounds=200)
    assert {*range(1, ANEW_ROUNDS_MAX + 2)} <= {note.round for _, note in noted["a"]}
    for name in "abc":
        notes = noted[name]
        assert notes[0][1].round <= 3, name
        later_ones = [one for one in notes if one[1].round > ANEW_ROUNDS_MAX]
        gaps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(later_ones)]
        assert min(gaps) >= NOTE_EVERY_S and max(gaps) < NOTE_EVERY_S + 0.5, name
        assert all(note.active for _, note in notes[1:])
        assert all(0 < note.applied <= world.node(name).machine.replica.applied for _, note in notes[1:])
        assert world.node(name).disk.reached == notes[-1][1]


def test_that_a_worker_is_gone_is_noted_before_anything_is_given_without_it() -> None:
    world, noted = three_sites()
    node = world.node("b")
    given: list[bool] = []
    contributed = world.oracles.rounds.contributed

    def watch(giver: object, effect: effects.Contribute) -> None:
        if giver is node and not effect.has_bytes:
            given.append(node.disk.reached.active)
        contributed(giver, effect)  # type: ignore[arg-type]

    world.oracles.rounds.contributed = watch  # type: ignore[method-assign, assignment]
    node.kill_worker()
    world.run(world.now_s + 1.0)
    assert given and not any(given)
    assert noted["b"][-1][1].active is False
    node.start_worker()
    assert world.run_until(lambda: node.disk.reached.active, limit_s=10.0)


def test_that_no_checkpoint_is_whole_yet_is_noted_from_the_first_rounds_until_one_ends() -> None:
    world, noted = three_sites(rounds=60, checkpoint="auto", disk_s=2.0)
    (written,) = world.node("a").keeper.files
    said = [note.unsaved for _, note in noted["a"] if note.round]
    assert said == sorted(said, reverse=True) and {*said} == {True, False}, "once it is whole it is never said again"
    assert all(note.unsaved for _, note in noted["b"] if note.round)
    b = world.node("b").machine
    assert b is not None and b.participation.reached.unsaved_in == b.roster.restore_epoch > 0
    assert not b.participation.reporting.status().unsaved, "a file is being written, and may be whole soon"
    assert not b.state.unsaved_in()
    a = world.node("a").machine
    assert a is not None and not a.state.unsaved_in(), "it was whole once"
    b.handle(CheckpointWritten(checkpoint=written, size_bytes=0, took_s=1.0, reason="disk full"), now_s=world.now_s)
    assert not b.participation.reached.noted.unsaved


@pytest.mark.parametrize("unsaved", [True, False])
def test_who_is_outside_says_in_its_request_to_join_that_no_checkpoint_was_whole_yet(unsaved: bool) -> None:
    bench = Bench(D).up(A, B)
    bench.machine.participation.reached.noted = Reached(lineage=4, round=9, unsaved=unsaved)
    hello(bench)
    ((_, request),) = sent(bench.hear(B, heartbeat(scheduler=A, knows_you=False)), JoinRequest)
    assert request.unsaved_in == (4 if unsaved else 0)


def with_a_newcomer() -> tuple[World, dict[str, list[tuple[float, Reached]]]]:
    """d comes after round 10, and nobody's first checkpoint is whole within the test."""
    world, noted = three_sites(rounds=10, checkpoint="auto", disk_s=60.0)
    late = world.add("d", peers=("a",), min_sites=3)
    begin(late)
    trains(world, "d")
    return world, noted


def trains(world: World, name: str) -> None:
    node = world.node(name)
    assert world.run_until(lambda: node.disk.reached.active, limit_s=60.0)


def test_who_is_new_in_the_run_says_that_no_checkpoint_is_whole() -> None:
    _, noted = with_a_newcomer()
    assert noted["d"][-1][1].round > ANEW_ROUNDS_MAX
    assert all(note.unsaved for _, note in noted["d"] if note.round)


@pytest.mark.parametrize("lost", [True, False])
def test_who_is_back_without_its_journal_does_not_say_that_no_checkpoint_is_whole(lost: bool) -> None:
    world, noted = with_a_newcomer()
    node = world.node("d")
    node.kill()
    a = world.node("a").machine
    assert a is not None
    assert world.run_until(lambda: a.roster.record(SiteId(node.site)) is None, limit_s=60.0)
    if lost:
        node.disk.reached = Reached()
    noted["d"].clear()
    begin(node)
    assert world.run_until(lambda: any(note.active for _, note in noted["d"]), limit_s=60.0)
    assert {note.unsaved for _, note in noted["d"] if note.active} == {not lost}


def test_who_keeps_no_checkpoints_does_not_say_that_none_is_whole() -> None:
    _, noted = three_sites()
    assert not any(note.unsaved for _, note in noted["a"])


def test_after_an_hour_without_a_checkpoint_a_run_is_none_of_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reached, "FIRST_CHECKPOINT_S_MAX", 2.0)
    _, noted = three_sites(rounds=60, checkpoint="auto", disk_s=60.0)
    began_s = next(at_s for at_s, note in noted["a"] if note.unsaved)
    assert {note.unsaved for at_s, note in noted["a"] if note.round and at_s < began_s + 2.0} == {True}
    assert not any(note.unsaved for at_s, note in noted["a"] if at_s > began_s + 2.0)


@pytest.mark.parametrize("alive", [True, False])
def test_a_worker_that_outlived_its_daemon_says_that_it_trained_to_the_end(alive: bool) -> None:
    world, _ = three_sites()
    node = world.node("b")
    if not alive:
        node.kill_worker()
        world.run(world.now_s + 0.5)
        node.start_worker()
        world.run(world.now_s + 0.01)
    round_number = node.worker.round if node.worker is not None else 0
    for one in world.nodes.values():
        one.kill(worker_too=False)
    node.start()
    assert node.machine is not None
    reached = node.machine.participation.reached
    roster = node.machine.replica.last_known
    assert reached.of(roster) > 0
    assert reached.outlived_training(roster, round_number) is alive
    assert not reached.outlived_training(roster, 0)


def test_a_worker_that_was_given_a_state_since_is_not_the_one_that_outlived_the_daemon() -> None:
    """Others may have done rounds while it fetched that, and its part counts from a later one on."""
    world, _ = three_sites()
    node = world.node("b")
    for one in world.nodes.values():
        one.kill(worker_too=False)
    node.start()
    assert node.machine is not None and node.worker is not None
    reached, roster = node.machine.participation.reached, node.machine.replica.last_known
    assert reached.outlived_training(roster, node.worker.round)
    reached.holds(roster.restore_epoch, node.worker.round + 5, roster)
    assert not reached.outlived_training(roster, node.worker.round + 5)
    assert not reached.noted.active, "nor will the next daemon say so"
