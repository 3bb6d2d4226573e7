"""DiLoCo with fragments and a delay: what its script says to a daemon, and what it makes of the answers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.sdk.fake_daemon import TIMEOUT_S, FakeDaemon
from tests.unit.sdk.test_local_steps import NUMBERS, Descent

from chaos import DiLoCo, OuterSGD
from chaos_protocols.wire.user_words import RunPaused
from chaos_protocols.wire.worker import (
    ApplyResult,
    Dismissed,
    FallenBehind,
    LoadState,
    ResultApplied,
    RoundContributed,
    RoundSkipped,
    SnapshotTaken,
    StateLoaded,
    TakeSnapshot,
    TrainFrom,
    UpdateStarted,
    WorkerPaused,
    WorkerResumed,
    WorkerWelcome,
)

PLAIN = OuterSGD(lr=1.0, momentum=0.0, nesterov=False)


def given(daemon: FakeDaemon) -> Any:
    """The differences in the contribution: behind the notes, of two parts the longer one's length."""
    return daemon.array("contribution", np.float64)[-3:]


def answer(daemon: FakeDaemon, mean: float) -> None:
    daemon.array("result", np.float64)[...] = 0.0
    daemon.array("result", np.float64)[-3:] = mean


def halves(delay: int, own_share: float = 0.5) -> DiLoCo:
    """Of 5 numbers the first 2 in odd rounds, the other 3 in even ones; a round after every third step."""
    return DiLoCo(every=6, outer=PLAIN, fragments=2, delay=delay, own_share=own_share if delay else None)


def test_a_round_carries_a_part_padded_to_the_longest(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        hello = daemon.founder()
        assert hello.contribution.size_bytes == 8 * (1 + 3) and hello.contribution.parts == 2
        assert daemon.expect(RoundContributed).weight == 3 and given(daemon).tolist() == [3.0, 3.0, 0.0]
        answer(daemon, 10.0)
        daemon.apply(1)
        assert daemon.expect(RoundContributed).weight == 6 and given(daemon).tolist() == [6.0] * 3
        answer(daemon, 20.0)
        daemon.apply(2)
        assert daemon.expect(RoundContributed).weight == 6 and given(daemon).tolist() == [6.0, 6.0, 0.0]
        answer(daemon, 0.0)
        daemon.apply(3)

    with FakeDaemon(socket_file, script), Descent(socket_file, halves(0)) as site:
        for steps, weights in (
            (3, [-10.0] * 2 + [-3.0] * 3),
            (3, [-13.0] * 2 + [-20.0] * 3),
            (3, [-10.0] * 2 + [-23.0] * 3),
        ):
            for _ in range(steps):
                assert site.step(1.0)
            assert site.weights.tolist() == weights
        assert site.coordinator.steps == 9


def test_with_a_delay_the_script_goes_on_and_the_result_is_taken_over_later(socket_file: Path) -> None:
    """The result of round 1 is applied between two steps as soon as it is here, and reaches the live parameters two
    steps after it was given; that of round 2 comes late, and is waited for."""
    gone_on, wanted, asked = threading.Event(), threading.Event(), threading.Event()

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(RoundContributed)
        assert given(daemon).tolist() == [3.0, 3.0, 0.0]
        answer(daemon, 10.0)
        daemon.send(ApplyResult(round=1, sites=1, weight=3.0))
        gone_on.set()
        daemon.expect(UpdateStarted)
        assert daemon.expect(ResultApplied).round == 1
        daemon.send(TakeSnapshot(round=1))  # in the middle: the common state is that of round 1
        wanted.set()
        daemon.expect(SnapshotTaken)
        assert daemon.array("state", np.float64)[:NUMBERS].tolist() == [-10.0] * 2 + [0.0] * 3
        assert daemon.expect(RoundContributed).weight == 6 and given(daemon).tolist() == [6.0] * 3
        assert asked.wait(30)
        answer(daemon, 20.0)
        daemon.apply(2)

    with FakeDaemon(socket_file, script), Descent(socket_file, halves(2)) as site:
        for _ in range(3):
            assert site.step(1.0)
        assert site.coordinator.round == 0 and site.coordinator.steps == 3
        assert gone_on.wait(30)
        assert site.step(1.0) and site.coordinator.round == 1, "applied, and not in the live parameters yet"
        assert site.weights.tolist() == [-4.0] * 5 and site.coordinator.steps == 4
        assert wanted.wait(30)
        assert site.step(1.0) and site.weights.tolist() == [-7.5] * 2 + [-5.0] * 3, "half its own, half the common one"
        assert site.step(1.0) and site.step(1.0) and site.coordinator.round == 1 and site.coordinator.steps == 7
        asked.set()
        assert site.step(1.0) and site.coordinator.round == 2
        assert site.weights.tolist() == [-10.5] * 2 + [-14.0] * 3


@pytest.mark.parametrize("waits", [False, True])
def test_who_leaves_takes_the_round_under_way_first_unless_the_run_waits(socket_file: Path, waits: bool) -> None:
    """Before, it asked to leave before the result: so it gave nothing, and ended with another model than the others."""

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(RoundContributed)
        if waits:
            daemon.send(RunPaused(reason="waiting for 2 sites; here: 1"))
        else:
            answer(daemon, 10.0)
            daemon.apply(1)
        daemon.expect_leave()
        daemon.send(Dismissed(last_round=0 if waits else 1, graceful=True, reason="left the run"))

    with FakeDaemon(socket_file, script), Descent(socket_file, halves(delay=2)) as site:
        for _ in range(3):
            site.step(1.0)
        site.coordinator.request_node_exit()
        assert site.coordinator.round == (0 if waits else 1)


def test_who_waits_before_it_leaves_is_told_for_how_long_and_how_to_stop(
    socket_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, said = threading.Event(), list[str]()

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(RoundContributed)
        assert told.wait(TIMEOUT_S)
        answer(daemon, 10.0)
        daemon.apply(1)
        daemon.expect_leave()
        daemon.send(Dismissed(last_round=1, graceful=True, reason="left the run"))

    def say(text: str) -> None:
        said.append(text)
        told.set()

    with FakeDaemon(socket_file, script), Descent(socket_file, halves(delay=2)) as site:
        for _ in range(3):
            site.step(1.0)
        talk = site.coordinator._conversation
        assert talk is not None
        monkeypatch.setattr(talk, "_say", say)
        site.coordinator.request_node_exit()
    assert said[0] == (
        "before it leaves, this site waits for the result of round 1, for a minute at most; a second Ctrl+C stops it "
        "at once"
    )


def test_a_result_that_was_looked_for_between_two_steps_waits_for_the_next_one(socket_file: Path) -> None:
    """Gradients may be half done: `check_state_replication` applies nothing, and no `update()` is wanted for it."""
    there = threading.Event()

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(RoundContributed)
        answer(daemon, 10.0)
        daemon.send(ApplyResult(round=1, sites=1, weight=3.0))
        there.set()
        daemon.expect(UpdateStarted)
        daemon.expect(ResultApplied)

    with FakeDaemon(socket_file, script), Descent(socket_file, halves(2)) as site:
        for _ in range(3):
            assert site.step(1.0)
        assert there.wait(30)
        site.coordinator.check_state_replication()
        assert site.coordinator.round == 0
        site.coordinator.gradients["weights"][...] = 1.0
        assert site.coordinator.average() and site.coordinator.update() and site.coordinator.round == 1
        assert site.weights.tolist() == [-4.0] * 5


def test_a_state_that_is_loaded_while_a_round_is_under_way_ends_all_phases(socket_file: Path) -> None:
    sent = threading.Event()

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(RoundContributed)
        daemon.array("state", np.float64)[...] = 7.0
        daemon.send(LoadState(round=9), TrainFrom(round=10))
        sent.set()
        daemon.expect(StateLoaded)
        assert daemon.expect(RoundContributed).round == 10 and given(daemon).tolist() == [3.0] * 3, "the second part"
        answer(daemon, 1.0)
        daemon.apply(10)

    with FakeDaemon(socket_file, script), Descent(socket_file, halves(2)) as site:
        for _ in range(3):
            assert site.step(1.0)
        assert sent.wait(30) and site.step(1.0)
        assert site.coordinator.round == 9 and site.weights.tolist() == [7.0] * 5
        for _ in range(5):
            assert site.step(1.0)
        assert site.coordinator.round == 10 and site.weights.tolist() == [2.0] * 2 + [4.0] * 3


def test_results_without_this_site_change_their_parts_at_once(socket_file: Path) -> None:
    """It has fallen behind with round 1 under way at others: theirs is applied, and its other part goes on."""

    def script(daemon: FakeDaemon) -> None:
        daemon.accept()
        answer(daemon, 10.0)
        late = FallenBehind(round=1), ApplyResult(round=1, sites=1, weight=1.0)
        daemon.send(WorkerWelcome(site="here", run="test"), TrainFrom(round=1), *late)  # all before the first step
        daemon.expect(WorkerResumed)
        daemon.expect(UpdateStarted)
        daemon.expect(ResultApplied)
        daemon.send(TrainFrom(round=2))
        assert daemon.expect(RoundContributed).weight == 4 and given(daemon).tolist() == [4.0] * 3
        answer(daemon, 4.0)
        daemon.apply(2)

    with FakeDaemon(socket_file, script), Descent(socket_file, halves(1, 0.0)) as site:
        assert site.step(1.0) and site.coordinator.round == 1
        assert site.weights.tolist() == [-10.0] * 2 + [-1.0] * 3
        for _ in range(4):
            assert site.step(1.0)
        assert site.coordinator.round == 2 and site.weights.tolist() == [-14.0] * 2 + [-4.0] * 3


def test_a_daemon_that_comes_back_gets_what_was_given_again(socket_file: Path) -> None:
    came_back = threading.Event()

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(RoundContributed)
        daemon.drop()
        daemon.listen()
        hello = daemon.accept()
        assert hello.round == 0
        daemon.send(WorkerWelcome(site="here", run="test"), TrainFrom(round=1))
        came_back.set()
        assert daemon.expect(RoundContributed).round == 1 and given(daemon).tolist() == [3.0, 3.0, 0.0], "as it was"
        answer(daemon, 10.0)
        daemon.apply(1)

    with FakeDaemon(socket_file, script), Descent(socket_file, halves(2, 0.0), reconnect_s=30) as site:
        for _ in range(5):
            assert site.step(1.0)
        assert came_back.wait(30) and site.coordinator.round == 1
        assert site.weights.tolist() == [-10.0] * 2 + [-5.0] * 3


@pytest.mark.parametrize("delay", [0, 2])
def test_what_is_not_finite_is_gone_from_all_parts(socket_file: Path, delay: int) -> None:
    """A part that holds one is not given, and the site goes back to the common model, or the others would never be rid
    of theirs."""

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        skipped = daemon.expect(RoundSkipped)
        assert skipped.reason == "'weights', after the local steps is not finite"
        answer(daemon, 10.0)
        daemon.apply(1)
        assert daemon.expect(RoundContributed).weight == 3
        answer(daemon, 1.0)
        daemon.apply(2)

    with FakeDaemon(socket_file, script), Descent(socket_file, halves(delay)) as site:
        site.coordinator._conversation._skips.daemon_version = 4  # type: ignore[union-attr]
        for number in range(3):
            site.weights[...] = np.inf if number == 1 else site.weights
            assert site.step(1.0)
        assert np.isfinite(site.weights).all()
        for _ in range(3):
            assert site.step(1.0)
        assert site.coordinator.round == (2 if not delay else 1) and np.isfinite(site.weights).all()
        for _ in range(2):
            assert site.step(1.0)
        assert site.coordinator.round == 2 and np.isfinite(site.weights).all()


def test_a_void_result_leaves_the_common_model_and_the_next_part_is_next(socket_file: Path) -> None:
    sent = threading.Event()

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(RoundContributed)
        daemon.send(ApplyResult(round=1, sites=1, weight=3.0, void=True))
        sent.set()
        daemon.expect(UpdateStarted)
        daemon.expect(ResultApplied)
        assert daemon.expect(RoundContributed).round == 2 and given(daemon).tolist() == [3.0] * 3
        answer(daemon, 5.0)
        daemon.apply(2)

    with FakeDaemon(socket_file, script), Descent(socket_file, halves(2, 0.0)) as site:
        for _ in range(3):
            assert site.step(1.0)
        assert sent.wait(30) and site.step(1.0)
        assert site.coordinator.round == 1 and site.weights.tolist() == [0.0] * 5
        for _ in range(5):
            assert site.step(1.0)
        assert site.coordinator.round == 2 and site.weights.tolist() == [-5.0] * 5, "of one part all, of the other five"


def test_a_pause_comes_after_the_round_under_way(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(RoundContributed)
        answer(daemon, 10.0)
        daemon.apply(1)
        daemon.expect(WorkerPaused)
        daemon.expect(WorkerResumed)
        daemon.send(TrainFrom(round=2))

    with FakeDaemon(socket_file, script), Descent(socket_file, halves(2, 0.0)) as site:
        site.coordinator._conversation._skips.daemon_version = 4  # type: ignore[union-attr]
        for _ in range(3):
            assert site.step(1.0)
        with site.coordinator.evaluating(), site.coordinator.common_model():
            assert site.coordinator.round == 1 and site.weights.tolist() == [-10.0] * 2 + [0.0] * 3
        assert site.weights.tolist() == [-3.0] * 5


def test_a_state_that_comes_while_the_common_model_is_shown_is_the_sites_own_then(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(WorkerPaused)
        daemon.expect(WorkerResumed)
        daemon.array("state", np.float64)[...] = 7.0
        daemon.send(LoadState(round=4), TrainFrom(round=5))
        daemon.expect(StateLoaded)

    with FakeDaemon(socket_file, script), Descent(socket_file, halves(2, 0.0)) as site:
        site.coordinator._conversation._skips.daemon_version = 4  # type: ignore[union-attr]
        assert site.step(1.0)
        with site.coordinator.common_model():
            assert site.weights.tolist() == [0.0] * 5
            with pytest.raises(ValueError, match="make steps after the block"):
                site.step(1.0)
            with site.coordinator.evaluating():
                pass
            assert site.weights.tolist() == [7.0] * 5
            with pytest.raises(ValueError, match="in the parameters already"), site.coordinator.common_model():
                pass
        assert site.weights.tolist() == [7.0] * 5
