"""`chaos.testing`: what a user's own tests may rely on."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.rigs.site import wait_for

from chaos import Coordinator, Refused
from chaos.testing import LocalRun


class Script:
    """A training as a user writes it: two weights, a gradient of its own, so many steps."""

    def __init__(self, gradient: float, steps: int, *, start: float = 0.0, samples: int | None = None) -> None:
        self.weights = np.full(2, start)
        self.gradient, self.steps, self.samples = gradient, steps, samples
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()
        self.rounds: list[int] = []
        self.sites: list[int] = []

    def __call__(self, socket: Path) -> list[float]:
        with Coordinator(socket, verbose=False, handle_signals=False, reconnect_s=0) as coordinator:
            coordinator.register(arrays={"w": self.weights}, apply=lambda mean, _: self.weights.__isub__(mean["w"]))
            done = 0
            while done < self.steps or not self.may_end.is_set():
                coordinator.gradients["w"][...] = self.gradient
                assert coordinator.step(self.samples)
                self.rounds.append(coordinator.round)
                self.sites.append(coordinator.status().sites)
                self.began.set()
                done += 1
        return self.weights.tolist()


def test_two_scripts_learn_the_same_from_the_weighted_average() -> None:
    light, heavy = Script(1.0, 3, samples=1), Script(5.0, 3, samples=3)
    with LocalRun(sites=2) as run:
        first, second = run.together(light, heavy)
        assert run.round == 3
    assert first == second == [-12.0, -12.0], "three times (1 * 1 + 3 * 5) / 4"
    assert light.rounds == heavy.rounds == [1, 2, 3] and light.sites == [2, 2, 2]


def test_all_begin_with_the_state_of_the_first_one() -> None:
    with LocalRun(sites=3) as run:
        results = run.together(*(Script(1.0, 2, start=start) for start in (7.0, 7.0, 7.0)))
    assert results == [[5.0, 5.0]] * 3


def test_one_script_alone_trains_on_its_own_gradients() -> None:
    with LocalRun(sites=1) as run:
        assert run.together(Script(2.0, 4)) == [[-8.0, -8.0]]


def test_joiner_gets_the_state_and_both_go_on_alike() -> None:
    member, newcomer = Script(1.0, 1), Script(1.0, 5, start=100.0)
    member.may_end.clear()

    def come_later(socket: Path) -> list[float]:
        assert member.began.wait(60)
        try:
            return newcomer(socket)
        finally:
            member.may_end.set()

    with LocalRun(sites=1) as run:
        run.together(member, come_later)
    assert newcomer.rounds[0] > 1, "it did not begin at the beginning"
    assert newcomer.weights.tolist() == [-float(newcomer.rounds[-1])] * 2
    assert 2 in member.sites


def test_a_joiner_whose_source_leaves_gets_the_state_of_another() -> None:
    """Else all of them waited for a snapshot that nobody took."""
    source, member, joiner = Script(1.0, 1), Script(1.0, 2), Script(1.0, 1, start=9.0)
    with LocalRun(sites=2) as run:

        def leave_when_asked(socket: Path) -> None:
            with Coordinator(socket, verbose=False, handle_signals=False, reconnect_s=0) as coordinator:
                coordinator.register(arrays={"w": source.weights}, apply=lambda *_: None)
                coordinator.gradients["w"][...] = 1.0
                assert coordinator.step()
                wait_for(lambda: len(run._sites) == 3, "the joiner asks for the state")

        def come_second(socket: Path) -> list[float]:
            wait_for(lambda: run._sites, "the first one is there")
            return member(socket)

        def come_later(socket: Path) -> list[float]:
            wait_for(lambda: run.round == 1, "the run has begun")
            return joiner(socket)

        run.together(leave_when_asked, come_second, come_later)
    assert member.weights.tolist() == joiner.weights.tolist() == [-2.0, -2.0]


def test_who_comes_when_all_others_have_left_is_told_that_the_run_is_over() -> None:
    late = np.zeros(2)

    def come_late(socket: Path) -> bool:
        with Coordinator(socket, verbose=False, handle_signals=False, reconnect_s=0) as coordinator:
            coordinator.register(arrays={"w": late}, apply=lambda *_: None)
            return coordinator.left

    with LocalRun(sites=2) as run:
        run.together(Script(1.0, 2), Script(1.0, 2))
        assert run.together(come_late) == [True]


def test_script_that_fails_drops_out_and_the_others_go_on() -> None:
    survivor = Script(1.0, 3)

    def fails(socket: Path) -> list[float]:
        with Coordinator(socket, verbose=False, handle_signals=False) as coordinator:
            coordinator.register(arrays={"w": np.zeros(2)}, apply=lambda mean, _: None)
            raise RuntimeError("out of data")

    with LocalRun(sites=2) as run:
        with pytest.raises(RuntimeError, match="out of data"):
            run.together(fails, survivor)
    assert survivor.rounds == [1, 2, 3]


def test_a_script_that_fails_before_all_are_there_leaves_nobody_waiting() -> None:
    def fails(socket: Path) -> list[float]:
        raise RuntimeError("no data")

    told: list[str] = []

    def waits(socket: Path) -> list[float]:
        try:
            return Script(1.0, 3)(socket)
        except Refused as error:
            told.append(str(error))
            raise

    with LocalRun(sites=2) as run, pytest.raises(RuntimeError, match="no data"):
        run.together(waits, fails)
    assert len(told) == 1 and "failed before 2 sites were here" in told[0]
    enough = Script(1.0, 3)
    with LocalRun(sites=1) as run, pytest.raises(RuntimeError, match="no data"):
        run.together(enough, fails)
    assert enough.rounds == [1, 2, 3]


def test_another_model_is_refused() -> None:
    member = Script(1.0, 1)
    member.may_end.clear()

    def stranger(socket: Path) -> list[float]:
        assert member.began.wait(60)
        try:
            with Coordinator(socket, verbose=False, handle_signals=False) as coordinator:
                coordinator.register(arrays={"other": np.zeros(5)}, apply=lambda mean, _: None)
        finally:
            member.may_end.set()
        return []

    with LocalRun(sites=1) as run:
        with pytest.raises(Refused, match="another model"):
            run.together(member, stranger)


def test_a_run_without_sites_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="sites = 0"):
        LocalRun(sites=0)


def test_a_local_run_whose_folder_is_too_deep_for_a_socket_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("long" * 30)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(OSError, match="set TMPDIR to a short path"):
        LocalRun(1)
    assert list(deep.iterdir()) == []
