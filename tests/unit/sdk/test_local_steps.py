"""Local SGD and DiLoCo: what a phase at home gives to a round, and what a round leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.sdk.fake_daemon import FakeDaemon

from chaos import Coordinator, DiLoCo, EveryStep, LearningRateRule, LocalSGD, OuterSGD, Refused
from chaos.sync import SyncMode
from chaos.testing import LocalRun
from chaos_protocols.wire.worker import (
    ApplyResult,
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
    WorkerResumed,
    WorkerWelcome,
)

NUMBERS = 5
HALF: Any = "half"
AT_ONCE = DiLoCo(every=5, outer=OuterSGD(lr=0.5, momentum=0.5), warmup_rounds=0)
"""Its momentum begins with the first round."""


class Descent:
    """float64 weights that go down by their gradient at every local step; `own`: what `apply` keeps beside them."""

    def __init__(self, path: Path | None, sync: SyncMode, *, start: float = 0.0, reconnect_s: float = 0.0) -> None:
        self.weights = np.full(NUMBERS, start)
        self.own = np.zeros(NUMBERS)
        self.numbers: list[int] = []
        self.coordinator = Coordinator(
            path, standalone=path is None, verbose=False, handle_signals=False, reconnect_s=reconnect_s, sync=sync
        )
        try:
            self.coordinator.register(
                arrays={"weights": self.weights, "own": self.own},
                apply=self.apply,
                gradients={"weights": np.zeros(NUMBERS)},
            )
        except Refused:
            self.coordinator.close(graceful=False)
            raise

    def apply(self, gradients: Mapping[str, Any], number: int) -> None:
        self.numbers.append(number)
        self.own += 1.0
        self.weights -= gradients["weights"]

    def step(self, gradient: Any, samples: int | None = None, *, skip: bool = False) -> bool:
        self.coordinator.gradients["weights"][...] = gradient
        return self.coordinator.step(samples, skip=skip)

    def __enter__(self) -> Descent:
        return self

    def __exit__(self, *failure: object) -> None:
        self.coordinator.close(graceful=False)


def mean_of(daemon: FakeDaemon) -> Any:
    """The differences in the contribution: behind the notes."""
    return daemon.array("contribution", np.float64)[-NUMBERS:]


def answer(daemon: FakeDaemon, mean: float, round: int) -> None:
    """The result of a round: this mean difference."""
    daemon.array("result", np.float64)[...] = 0.0
    daemon.array("result", np.float64)[-NUMBERS:] = mean
    daemon.apply(round)


def test_a_phase_gives_its_way_from_the_anchor_weighted_by_its_samples(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        contributed = daemon.expect(RoundContributed)
        assert contributed.weight == 2 + 3 + 4 and mean_of(daemon).tolist() == [3.0] * NUMBERS
        answer(daemon, 5.0, 1)
        assert daemon.expect(RoundContributed).weight == 3.0, "not counted: a step is a sample"
        assert mean_of(daemon).tolist() == [-6.0] * NUMBERS
        answer(daemon, 1.0, 2)

    with FakeDaemon(socket_file, script), Descent(socket_file, LocalSGD(every=3)) as site:
        for samples in (2, 3, 4):
            assert site.coordinator.round == 0 and site.step(1.0, samples)
        assert site.coordinator.round == 1 and site.weights.tolist() == [-5.0] * NUMBERS, "the mean of all sites"
        for _ in range(3):
            assert site.step(-2.0)
        assert site.weights.tolist() == [-6.0] * NUMBERS
        assert site.numbers == [1, 2, 3, 4, 5, 6] and site.own.tolist() == [6.0] * NUMBERS


def test_the_outer_optimizer_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    plain = OuterSGD(lr=1.0, momentum=0.0, nesterov=False)
    for outer in (OuterSGD(), OuterSGD(lr=0.3, momentum=0.5, nesterov=False), plain):
        anchor = np.random.default_rng(1).normal(size=200_001)
        parameter = torch.nn.Parameter(torch.from_numpy(anchor.copy()))
        theirs = torch.optim.SGD([parameter], lr=outer.lr, momentum=outer.momentum, nesterov=outer.nesterov)
        kept = [np.zeros_like(anchor) for _ in outer.kept]
        for number in range(4):
            mean = np.random.default_rng(number).normal(size=anchor.size)
            before = mean.copy()
            outer.step(anchor, kept, mean)
            assert np.array_equal(mean, before), "the result lies in shared memory and stays"
            parameter.grad = torch.from_numpy(mean)
            theirs.step()
        np.testing.assert_allclose(anchor, parameter.detach().numpy(), rtol=1e-13, atol=1e-13)


def trained(mode: SyncMode, sites: int, steps: int, lr: float = 0.1) -> list[tuple[str, np.ndarray[Any, Any]]]:
    """Digest and parameters of `sites` torch scripts after `steps` steps, each with data of its own."""
    torch = pytest.importorskip("torch")

    def script(number: int) -> Callable[[Path], tuple[str, Any]]:
        with torch.random.fork_rng():  # not in the scripts' threads, which share it
            torch.manual_seed(3)
            model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)).double()

        def run(socket: Path) -> tuple[str, Any]:
            generator = torch.Generator().manual_seed(number)
            with Coordinator(socket, verbose=False, handle_signals=False, sync=mode) as coordinator:
                coordinator.register(model, torch.optim.SGD(model.parameters(), lr=lr))
                for _ in range(steps):
                    x = torch.randn(8, 4, generator=generator, dtype=torch.float64)
                    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
                    assert coordinator.step(samples=number + 1)
                digest = coordinator.state_digest()
            return digest, np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])

        return run

    with LocalRun(sites=sites) as run:
        return run.together(*(script(number) for number in range(sites)))


def test_one_local_step_with_plain_descent_is_every_step_to_rounding() -> None:
    every_step = trained(EveryStep(), 2, 12)
    for mode in (LocalSGD(every=1), DiLoCo(every=1, outer=OuterSGD(lr=1.0, momentum=0.0, nesterov=False))):
        local = trained(mode, 2, 12)
        assert local[0][0] == local[1][0], "the states are equal, bit for bit"
        np.testing.assert_allclose(local[0][1], every_step[0][1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", [LocalSGD(every=4), DiLoCo(every=4)])
def test_states_are_equal_after_every_round(mode: SyncMode) -> None:
    results = trained(mode, 3, 20)
    assert len({digest for digest, _ in results}) == 1
    assert all(np.array_equal(results[0][1], parameters) for _, parameters in results)


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_joiner_at_any_local_step_begins_at_the_anchor(after: int) -> None:
    """The member waits in the middle of its phase, `after` steps behind a round: what it has done at home is no part
    of what the joiner gets."""
    came, go_on, digests = threading.Event(), threading.Event(), {}

    def member(socket: Path) -> list[float]:
        with Descent(socket, AT_ONCE) as site:
            for _ in range(5 + after):
                assert site.step(1.0)
            came.set()
            while not go_on.is_set():  # between two steps: serve the joiner
                site.coordinator.check_state_replication()
            for _ in range(5 - after + 5):
                assert site.step(1.0)
            assert site.coordinator.round == 3
            digests["member"] = site.coordinator.state_digest()
            return site.weights.tolist()

    def joiner(socket: Path) -> list[float]:
        assert came.wait(60)
        with Descent(socket, AT_ONCE, start=77.0) as site:
            assert site.coordinator.round == 1
            # one round of 5.0 with lr 0.5, momentum 0.5: v = 5, a = -0.5 * (5 + 0.5 * 5)
            assert site.weights.tolist() == [-3.75] * NUMBERS and site.own.tolist() == [0.0] * NUMBERS
            go_on.set()
            for _ in range(10):
                assert site.step(2.0)
            digests["joiner"] = site.coordinator.state_digest()
            return site.weights.tolist()

    with LocalRun(sites=1) as run:
        one, other = run.together(member, joiner)
    assert one == other and digests["member"] == digests["joiner"]


def test_a_snapshot_in_the_middle_of_a_phase_is_the_state_of_the_last_round(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder(TakeSnapshot(round=0))
        daemon.expect(SnapshotTaken)
        assert daemon.array("state", np.float64)[:NUMBERS].tolist() == [4.0] * NUMBERS
        daemon.expect(RoundContributed)
        answer(daemon, 1.0, 1)

    with FakeDaemon(socket_file, script), Descent(socket_file, LocalSGD(every=3), start=4.0) as site:
        for _ in range(3):
            assert site.step(1.0)
        assert site.weights.tolist() == [3.0] * NUMBERS


def test_a_result_without_this_site_ends_its_phase_between_two_steps(socket_file: Path) -> None:
    """It has fallen behind: the others went on. What it had done at home is dropped, and it goes on from the anchor."""

    def script(daemon: FakeDaemon) -> None:
        daemon.accept()
        daemon.array("result", np.float64)[...] = 0.0
        daemon.array("result", np.float64)[-NUMBERS:] = 10.0
        late = FallenBehind(round=1), ApplyResult(round=1, sites=1, weight=1.0)
        daemon.send(WorkerWelcome(site="here", run="test"), TrainFrom(round=1), *late)  # all before the first step
        daemon.expect(WorkerResumed)
        daemon.expect(UpdateStarted)
        assert daemon.expect(ResultApplied).round == 1
        daemon.send(TrainFrom(round=2))
        daemon.expect(RoundContributed)
        assert mean_of(daemon).tolist() == [3.0] * NUMBERS, "three steps since, none of those before"
        answer(daemon, 3.0, 2)

    with FakeDaemon(socket_file, script), Descent(socket_file, LocalSGD(every=3)) as site:
        assert site.step(100.0) and site.coordinator.round == 1
        assert site.weights.tolist() == [-10.0] * NUMBERS
        for _ in range(3):
            assert site.step(1.0)
        assert site.weights.tolist() == [-13.0] * NUMBERS


def test_a_state_that_is_loaded_drops_the_phase(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.accept()
        daemon.send(WorkerWelcome(site="here", run="test"))
        daemon.array("state", np.float64)[...] = 7.0
        daemon.send(LoadState(round=4))
        daemon.expect(StateLoaded)
        daemon.array("state", np.float64)[...] = -1.0
        daemon.send(TrainFrom(round=5), LoadState(round=9))  # both before the first step
        daemon.expect(StateLoaded)
        daemon.send(TrainFrom(round=10))
        daemon.expect(RoundContributed)
        assert mean_of(daemon).tolist() == [2.0] * NUMBERS
        answer(daemon, 2.0, 10)

    with FakeDaemon(socket_file, script), Descent(socket_file, LocalSGD(every=2)) as site:
        assert site.step(1.0)
        assert site.coordinator.round == 9 and site.weights.tolist() == [-1.0] * NUMBERS
        assert site.step(1.0) and site.step(1.0)
        assert site.coordinator.round == 10 and site.weights.tolist() == [-3.0] * NUMBERS


def test_steps_that_are_not_finite_or_skipped_give_nothing(socket_file: Path) -> None:
    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        contributed = daemon.expect(RoundContributed)
        assert contributed.weight == 5.0 and mean_of(daemon).tolist() == [1.0] * NUMBERS
        answer(daemon, 1.0, 1)
        assert daemon.expect(RoundSkipped).round == 2
        daemon.send(TrainFrom(round=2))  # nobody gave anything: it is done again
        daemon.expect(RoundContributed)
        answer(daemon, 9.0, 2)

    with FakeDaemon(socket_file, script), Descent(socket_file, LocalSGD(every=3)) as site:
        site.coordinator._conversation._skips.daemon_version = 4  # type: ignore[union-attr]
        assert site.step(np.inf, 5) and site.step(1.0, 5) and site.step(1.0, skip=True)
        assert site.own.tolist() == [1.0] * NUMBERS and site.coordinator.round == 1
        assert site.coordinator._session is not None
        assert site.coordinator._session.notice == "2 of 3 local steps of round 1 were left out: the script skips it"
        for _ in range(3):
            assert site.step(np.nan)
        assert site.coordinator.round == 1 and site.weights.tolist() == [-1.0] * NUMBERS
        for _ in range(3):
            assert site.step(3.0)
        assert site.coordinator.round == 2 and site.weights.tolist() == [-10.0] * NUMBERS


def test_alone_it_is_the_same_and_a_phase_without_a_step_is_done_again() -> None:
    with Descent(None, DiLoCo(every=2, outer=OuterSGD(lr=0.5, momentum=0.0, nesterov=False))) as site:
        for _ in range(2):
            assert site.step(4.0)
        assert site.coordinator.round == 1 and site.weights.tolist() == [-4.0] * NUMBERS
        for _ in range(2):
            assert site.step(1.0, skip=True)
        assert site.coordinator.round == 1 and site.weights.tolist() == [-4.0] * NUMBERS
        for _ in range(2):
            assert site.step(1.0)
        assert site.coordinator.round == 2 and site.weights.tolist() == [-5.0] * NUMBERS


def test_figures_and_the_end_are_agreed_on_by_round() -> None:
    def script(loss: float) -> Callable[[Path], tuple[int, dict[str, float]]]:
        def run(socket: Path) -> tuple[int, dict[str, float]]:
            with Descent(socket, LocalSGD(every=3, metrics=("loss",))) as site:
                while not site.coordinator.should_stop(site.coordinator.round >= 2):
                    site.coordinator.report(loss=loss)
                    assert site.step(1.0)
                return site.coordinator.round, site.coordinator.metrics

        return run

    with LocalRun(sites=2) as run:
        assert run.together(script(1.0), script(3.0)) == [(3, {"loss": 2.0})] * 2


def test_another_mode_is_refused_and_both_are_named() -> None:
    def with_mode(*modes: SyncMode) -> str:
        began, done = threading.Event(), threading.Event()

        def first(socket: Path) -> None:
            with Descent(socket, modes[0]):
                began.set()
                assert done.wait(60)

        def second(socket: Path) -> None:
            assert began.wait(60)
            try:
                with Descent(socket, modes[1]):
                    pass
            finally:
                done.set()

        with LocalRun(sites=1) as run, pytest.raises(Refused) as refused:
            run.together(first, second)
        return str(refused.value)

    told = with_mode(DiLoCo(every=50), DiLoCo(every=20))
    assert "'DiLoCo every=20 outer=SGD(lr=0.7, momentum=0.9, nesterov=True) warmup_rounds=10' here" in told
    assert "'DiLoCo every=50 outer=SGD(lr=0.7, momentum=0.9, nesterov=True) warmup_rounds=10' there" in told
    told = with_mode(EveryStep(), LocalSGD(every=20))
    assert "'LocalSGD every=20' here and 'every step' there" in told


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LocalSGD(every=0), "every = 0: the steps between two rounds"),
        (lambda: DiLoCo(every=-1), "every = -1"),
        (lambda: DiLoCo(every=2.5), "every = 2.5"),  # type: ignore[arg-type]
        (lambda: DiLoCo(every=True), "every = True"),
        (lambda: DiLoCo(every=10**7), "from 1 to 1,000,000"),
        (lambda: DiLoCo(every=5, outer=0.7), "outer = 0.7: give chaos.OuterSGD"),  # type: ignore[arg-type]
        (lambda: DiLoCo(every=5, metrics=("a", "a")), "each once"),
        (lambda: DiLoCo(every=5, warmup_rounds=-1), "warmup_rounds = -1: the first rounds of the run"),
        (lambda: DiLoCo(every=5, warmup_rounds=2.5), "from 0 to 1,000,000"),  # type: ignore[arg-type]
        (lambda: DiLoCo(every=5, warmup_rounds=True), "warmup_rounds = True"),
        (lambda: OuterSGD(lr=0.0), "outer lr = 0.0"),
        (lambda: OuterSGD(lr=float("nan")), "outer lr = nan"),
        (lambda: OuterSGD(momentum=1.0), "below 1"),
        (lambda: OuterSGD(lr="0.7"), "outer lr = '0.7': must be a number"),  # type: ignore[arg-type]
        (lambda: OuterSGD(momentum=None), "outer momentum = None: must be a number"),  # type: ignore[arg-type]
        (lambda: DiLoCo(every=5, delay=1, own_share=HALF), "own_share = 'half': must be a number"),
        (lambda: DiLoCo(every=5, metrics="mae"), "metrics='mae': give names in a tuple"),
        (lambda: DiLoCo(every=5, metrics=(1,)), "metrics=(1,): give names"),  # type: ignore[arg-type]
        (lambda: LearningRateRule(kind="sqrt", reference="4"), "reference = '4'"),  # type: ignore[arg-type]
        (lambda: OuterSGD(momentum=0.0), "nesterov=True needs a momentum"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_written(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        make()
    assert words in str(refused.value)


def test_more_samples_than_a_round_can_weigh_are_refused() -> None:
    with Descent(None, LocalSGD(every=3)) as site:
        site.step(1.0, 10**15)
        with pytest.raises(ValueError, match=r"samples of this phase are 2e\+15"):
            site.step(1.0, 10**15)


def test_a_gradient_without_a_value_cannot_be_averaged_so() -> None:
    coordinator = Coordinator(standalone=True, handle_signals=False, sync=LocalSGD(every=2))
    with pytest.raises(ValueError, match="'other' belongs to no registered array"):
        coordinator.register(arrays={"w": np.zeros(2)}, apply=lambda mean, _: None, gradients={"other": np.zeros(2)})
    coordinator.close()
