"""A NaN of one site is that site's alone: it counts as weight 0 for the round, and no state ever holds it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.sdk.fake_daemon import FakeDaemon
from tests.unit.sdk.line import Line, ShortFolder

from chaos import Coordinator, DiLoCo, EveryStep, LocalSGD, NothingFinite
from chaos.finite import PIECE_BYTES, first_not_finite
from chaos.skipped import BY_THE_SCRIPT, SKIPS_SINCE, TRIES_MAX, SkippedRounds
from chaos.sync import SyncMode
from chaos.testing import LocalRun
from chaos_protocols.wire.state_spec import contribution_spec
from chaos_protocols.wire.worker import (
    ApplyResult,
    Dismissed,
    ResultApplied,
    RoundSkipped,
    TrainFrom,
    UpdateStarted,
    WorkerWelcome,
)

ROUNDS = 4


def steps(gradients: dict[int, float], usual: float) -> Callable[[Path], tuple[list[float], list[int]]]:
    """A script of a few steps; `gradients`: those of some attempts, the others have the usual one. Its weights at the
    end, and its round after each attempt."""

    def script(socket: Path) -> tuple[list[float], list[int]]:
        with Line(socket, verbose=True) as line:
            line.register()
            attempt, rounds = 0, []
            while line.coordinator.round < ROUNDS:
                attempt += 1
                assert line.step(gradients.get(attempt, usual))
                rounds.append(line.coordinator.round)
            line.coordinator.request_node_exit()
            return line.weights.tolist(), rounds

    return script


@pytest.mark.parametrize("samples", [math.inf, math.nan, -1, 0, 1e30, 1e-30])
def test_a_weight_that_is_none_is_refused_in_words_before_anything_is_sent(samples: float) -> None:
    with Line(None) as line:
        line.register()
        with pytest.raises(ValueError, match="samples must be a number from"):
            line.step(samples=samples)  # type: ignore[arg-type]
        assert line.coordinator.round == 0


def test_a_nan_of_one_site_leaves_it_out_of_that_round_and_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with LocalRun(sites=2) as run:
        (first, _), (second, rounds) = run.together(steps({}, 2.0), steps({2: math.nan, 3: math.inf}, 4.0))
    assert first == second == [-(3.0 + 2.0 + 2.0 + 3.0)] * 3, "rounds 2 and 3 are the other's alone"
    assert rounds == [1, 2, 3, 4]
    told = capfd.readouterr().err
    assert told.count("the gradient of 'weights' is not finite; this site counts with weight 0") == 1
    assert "gives again, after 2 contribution(s)" in told


def test_a_round_to_which_nobody_gives_anything_asks_all_for_another_contribution() -> None:
    with LocalRun(sites=2) as run:
        (first, tries), (second, _) = run.together(steps({2: math.nan}, 2.0), steps({2: math.nan}, 4.0))
    assert first == second == [-12.0] * 3
    assert tries == [1, 1, 2, 3, 4], "the second attempt was for round 2, and so was the third"


@pytest.mark.parametrize("kind", ["parallelize", "replicate"])
def test_a_site_whose_samples_follow_from_the_step_tries_the_ones_that_come_next(kind: str) -> None:
    """As one of several workers does. It tried those of the round again, a hundred times, and ended by one bad
    sample."""

    def script(socket: Path) -> tuple[int, bool, list[list[int]]]:
        torch.manual_seed(1)
        module, read = torch.nn.Linear(2, 2), list[int]()
        data = Recorded(read)
        with Coordinator(socket, verbose=False, handle_signals=False) as coordinator:
            if kind == "parallelize":
                model = coordinator.parallelize(torch.nn.Sequential(module), loss=LOSS)
                coordinator.register(model=model, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
            else:
                model = coordinator.replicate(module)
                coordinator.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
            loader = coordinator.loader(data, global_batch=4, micro_batch=2, seed=3, steps=3)
            data.bad = loader.samples(1, 1)[0]
            read.clear()
            if kind == "parallelize":
                reports = [model.step(batch) for batch in loader]
                assert [report.step for report in reports] == [1, 1, 2, 3]
                del read[:2]  # the micro-batch that is tried before the first step
            else:
                for inputs, targets in loader:
                    LOSS(model(inputs), targets).backward()
                    assert coordinator.step()
            finite = bool(torch.isfinite(module.weight).all())
            return coordinator.round, finite, [sorted(read[at : at + 4]) for at in range(0, len(read), 4)]

    with LocalRun(sites=1) as run:
        ((rounds, finite, read),) = run.together(script)
    assert rounds == 3 and finite
    assert len(read) == 4 and len(set(map(tuple, read))) == 4, "round 2 was computed twice, with other samples"


LOSS = torch.nn.functional.cross_entropy


class Recorded(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points; one is `bad`, and `read` has the numbers of all that were asked for."""

    def __init__(self, read: list[int]) -> None:
        self.read, self.bad = read, -1

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.read.append(index)
        return torch.full((2,), math.nan if index == self.bad else index / 64.0), torch.tensor(index % 2)


def test_a_round_that_never_comes_to_anything_finite_ends_the_script_with_the_reason() -> None:
    def script(socket: Path) -> list[float]:
        with Line(socket) as line:
            line.register()
            assert line.step(2.0)
            for _ in range(TRIES_MAX):
                assert line.step(math.nan)
            with pytest.raises(NothingFinite, match="'weights' is not finite, in 100 tries of round 2"):
                line.step(math.nan)
            assert line.coordinator.round == 1
            return line.weights.tolist()

    with LocalRun(sites=2) as run:
        assert run.together(script, script) == [[-2.0] * 3] * 2


def test_alone_a_step_that_is_not_finite_is_left_out_as_well(capfd: pytest.CaptureFixture[str]) -> None:
    with Line(None, verbose=True) as line:
        line.register()
        assert line.step(2.0) and line.step(math.nan) and line.coordinator.round == 1
        assert line.step(3.0) and line.weights.tolist() == [-5.0] * 3
        assert "round 2: the gradient of 'weights' is not finite" in capfd.readouterr().err
        for _ in range(TRIES_MAX):
            assert line.step(math.inf)
        with pytest.raises(NothingFinite, match="'weights' is not finite, in 100 tries of round 3"):
            line.step(math.inf)


def test_alone_a_scaler_that_begins_too_high_finds_its_scale() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with Coordinator(standalone=True, handle_signals=False, verbose=False) as coordinator:
        coordinator.register(model, optimizer)
        while coordinator.round < 2:
            scaler.scale(100 * model(torch.ones(1, 2)).sum()).backward()
            scaler.unscale_(optimizer)
            coordinator.step()
            scaler.update()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("mode", [EveryStep(), EveryStep(notes=True), LocalSGD(every=1)])
def test_alone_a_buffer_or_a_parameter_that_is_not_finite_goes_with_its_step(mode: SyncMode) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2, affine=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Coordinator(standalone=True, handle_signals=False, verbose=False, sync=mode) as coordinator:
        coordinator.register(model, optimizer)
        before = coordinator.state_digest()
        with torch.no_grad():
            model(torch.full((4, 2), math.nan))
        model.eval()(torch.ones(4, 2)).sum().backward()
        optimizer.zero_grad(set_to_none=False)
        coordinator.step()
        assert coordinator.round == 0 and coordinator.state_digest() == before


def test_steps_that_the_script_skips_are_no_vain_tries() -> None:
    """A site that has nothing to give for long, and one that has a NaN now and then, train on."""
    rounds = SkippedRounds(lambda _: None)
    rounds.daemon_version = SKIPS_SINCE
    for number in range(3 * TRIES_MAX):
        rounds.note(RoundSkipped(round=1, reason=BY_THE_SCRIPT))
        rounds.note(RoundSkipped(round=number + 1, reason="a gradient is not finite"))


def test_a_site_that_gives_nothing_finite_for_long_is_told_again_and_what_to_do() -> None:
    """The others train on, so nothing stands, and one line of hundreds of rounds ago is all that it was told."""
    told: list[str] = []
    rounds = SkippedRounds(told.append)
    rounds.daemon_version = SKIPS_SINCE
    for number in range(1, 1_001):
        rounds.note(RoundSkipped(round=number, reason="the gradient of 'weights' is not finite"))
    assert [line.split(":")[0] for line in told] == ["round 1", "round 100", "round 1000"]
    assert "start it again" in told[1] and "'weights' is not finite" in told[1]


def test_steps_that_the_script_skips_are_told_once_however_many() -> None:
    told: list[str] = []
    rounds = SkippedRounds(told.append)
    rounds.daemon_version = SKIPS_SINCE
    for number in range(1, 1_001):
        rounds.note(RoundSkipped(round=number, reason=BY_THE_SCRIPT))
    assert len(told) == 1


def test_an_average_that_is_too_large_is_applied_by_nobody() -> None:
    """Both parts are finite, their sum is not: the round counts, the states stay, and stay equal."""
    huge = 1.7e308
    with LocalRun(sites=2) as run:
        (first, tries), (second, _) = run.together(steps({2: huge}, 2.0), steps({2: huge}, 4.0))
    assert first == second == [-9.0] * 3 and tries == [1, 2, 3, 4]


def test_what_the_forward_pass_left_in_a_buffer_goes_with_the_step_that_is_not_made() -> None:
    """Statistics of BatchNorm that became NaN would be every later contribution's, too."""

    def script(socket: Path) -> str:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        with Coordinator(socket, handle_signals=False, verbose=False) as coordinator:
            coordinator.register(model=model, optimizer=torch.optim.Adam(model.parameters()))
            for attempt in range(1, 5):
                batch = torch.full((4, 2), math.nan) if attempt == 2 else torch.randn(4, 2)
                model(batch).square().sum().backward()
                assert coordinator.step()
            assert coordinator.round == 3, "alone, it computes the second round anew"
            assert all(value.isfinite().all() for value in model.state_dict().values())
            return coordinator.state_digest()

    with LocalRun(sites=1) as run:
        run.together(script)


def test_every_place_is_looked_at_and_a_large_sum_is_no_alarm() -> None:
    spec = contribution_spec(3, PIECE_BYTES // 2)
    vector = np.zeros(spec.size_bytes, dtype=np.uint8)
    wide, narrow = vector[:24].view(np.float64), vector[24:].view(np.float32)
    narrow[...] = 3e38
    wide[...] = -1e308
    assert first_not_finite(vector, spec) is None
    narrow[-1] = -math.inf
    assert first_not_finite(vector, spec) == spec.size_bytes - 4
    narrow[70_000] = math.nan
    assert first_not_finite(vector, spec) == 24 + 4 * 70_000
    wide[1] = math.inf
    assert first_not_finite(vector, spec) == 8


def test_a_daemon_that_cannot_leave_a_site_out_is_given_nothing_and_the_script_is_told() -> None:
    def daemon(daemon: FakeDaemon) -> None:
        daemon.accept()
        daemon.send(WorkerWelcome(site="here", run="test", version=3), TrainFrom(round=1))
        daemon.expect_leave()
        daemon.send(Dismissed(last_round=0, graceful=True, reason="left"))

    with ShortFolder() as folder, FakeDaemon(Path(folder) / "s", daemon):
        with Line(Path(folder) / "s") as line:
            line.register()
            with pytest.raises(ValueError, match="the gradient of 'weights' is not finite before round 1"):
                line.step(math.nan)
            line.coordinator.close()


def test_a_void_result_moves_the_round_and_nothing_else() -> None:
    def daemon(daemon: FakeDaemon) -> None:
        daemon.accept()
        daemon.send(WorkerWelcome(site="here", run="test", version=4), TrainFrom(round=1))
        assert daemon.expect(RoundSkipped).reason == "the gradient of 'weights' is not finite"
        daemon.send(ApplyResult(round=1, sites=2, weight=1.0, void=True))
        daemon.expect(UpdateStarted)
        assert daemon.expect(ResultApplied).round == 1

    with ShortFolder() as folder, FakeDaemon(Path(folder) / "s", daemon):
        with Line(Path(folder) / "s") as line:
            line.register()
            before = line.coordinator.state_digest()
            assert line.step(math.nan)
            assert line.coordinator.round == 1 and line.coordinator.state_digest() == before
            assert line.applied == [] and line.coordinator.gradients["weights"].tolist() == [0.0] * 3


@pytest.mark.parametrize("mode", [LocalSGD(every=4), DiLoCo(every=8, fragments=2, delay=1)], ids=["whole", "in parts"])
def test_a_nan_that_the_forward_pass_left_in_statistics_costs_one_local_step(
    mode: SyncMode, capfd: pytest.CaptureFixture[str]
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    with Coordinator(standalone=True, handle_signals=False, sync=mode) as coordinator:
        coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(8):
            inputs = torch.randn(4, 2, generator=torch.Generator().manual_seed(step))
            model(inputs * (math.nan if step == 1 else 1.0)).square().sum().backward()
            assert coordinator.step()
        assert coordinator.round == 2
    told = capfd.readouterr().err
    assert "1 of 4 local steps of round 1 were left out" in told and "weight 0" not in told
    assert torch.isfinite(model[1].running_mean).all()
