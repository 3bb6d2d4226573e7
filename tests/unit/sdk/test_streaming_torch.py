"""Streaming DiLoCo of torch trainings: tensors that are cut, schedules, statistics of batches, other types."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="trainings of torch")

from tests.unit.sdk.test_local_steps_torch import Training, batch, loss_of  # noqa: E402

from chaos import Coordinator, DiLoCo, OuterSGD  # noqa: E402
from chaos.testing import LocalRun  # noqa: E402


def flat(model: Any) -> np.ndarray[Any, Any]:
    """All parameters and buffers."""
    with torch.no_grad():
        return np.concatenate([tensor.double().numpy().ravel() for tensor in model.state_dict().values()])


@pytest.mark.parametrize("delay", [0, 3])
def test_sites_with_schedules_momentum_and_statistics_stay_equal(delay: int) -> None:
    """37 parameters in 3 parts: the first matrix is cut."""
    steps = 24

    def script(number: int) -> Callable[[Path], tuple[list[str], Any, float]]:
        def run(socket: Path) -> tuple[list[str], Any, float]:
            digests, seen = [], 0
            with Training(socket, DiLoCo(every=12, fragments=3, delay=delay)) as site:
                optimizer = torch.optim.AdamW(site.model.parameters(), lr=0.01)
                site.register(optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60))
                for step in range(steps + delay):
                    loss_of(site.model, batch(100 * number + step)).backward()
                    assert site.coordinator.step(samples=number + 1, skip=number == 1 and step == 4)
                    if site.coordinator.round > seen:
                        seen = site.coordinator.round
                        digests.append(site.coordinator.state_digest())
                with site.coordinator.common_model():
                    common = flat(site.model)
                rate = float(optimizer.param_groups[0]["lr"])
                site.coordinator.request_node_exit()
            return digests, common, rate

        return run

    with LocalRun(sites=3) as run:
        results = run.together(*(script(number) for number in range(3)))
    assert len(set(results[0][0])) == 6
    for digests, common, rate in results:
        assert digests == results[0][0], "the shared state of each round, bit for bit"
        assert np.array_equal(common, results[0][1]), "parameters and statistics of the common model"
        assert rate == pytest.approx(0.01 * (1 + np.cos(np.pi * (steps + delay) / 60)) / 2), "its schedule's own steps"


def test_the_common_schedule_is_that_of_the_border_of_the_round() -> None:
    """Steps that follow while the round is under way belong to the next one: a joiner gets the rate as of the round."""
    with Training(None, DiLoCo(every=4, fragments=2, delay=1)) as site:
        optimizer = torch.optim.SGD(site.model.parameters(), lr=1.0)
        site.register(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5))
        for number in range(3):
            loss_of(site.model, batch(number)).backward()
            assert site.coordinator.step()
        assert optimizer.param_groups[0]["lr"] == 0.125 and site.coordinator.round == 1
        assert site.numbers_of("optimizer.group0.lr").tolist() == [0.25]


def test_a_cut_tensor_of_half_precision_keeps_what_is_in_other_parts() -> None:
    """Of one site the mean is its own: it comes to what a plain loop does."""
    outer = OuterSGD(lr=1.0, momentum=0.0, nesterov=False)
    with Training(None, DiLoCo(every=2, outer=outer, fragments=2), dtype=torch.bfloat16) as site:
        plain = copy.deepcopy(site.model)
        descent = torch.optim.SGD(plain.parameters(), lr=0.1)
        site.register(torch.optim.SGD(site.model.parameters(), lr=0.1))
        for number in range(6):
            for model in (site.model, plain):
                loss_of(model, batch(number, torch.bfloat16)).backward()
            descent.step()
            descent.zero_grad()
            assert site.coordinator.step() and site.coordinator.round == number + 1
            np.testing.assert_array_equal(
                np.concatenate([p.detach().float().numpy().ravel() for p in site.model.parameters()]),
                np.concatenate([p.detach().float().numpy().ravel() for p in plain.parameters()]),
            )


def test_statistics_of_the_common_model_are_shown_and_the_sites_own_come_back() -> None:
    with Training(None, DiLoCo(every=4, fragments=2, delay=1)) as site:
        site.register(torch.optim.SGD(site.model.parameters(), lr=0.1))
        started = flat(site.model)
        loss_of(site.model, batch(1)).backward()
        assert site.coordinator.step()
        own = flat(site.model)
        with site.coordinator.common_model():
            assert np.array_equal(flat(site.model), started)
        assert np.array_equal(flat(site.model), own) and not np.array_equal(own, started)


class Counting(torch.nn.Module):
    """A statistic of the batches that it has seen, as a norm layer keeps it, with their number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4))
        self.seen: Any
        self.mean: Any
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, number: float) -> Any:
        self.seen += 1
        self.mean += (number - self.mean) / self.seen
        return self.weight.sum()


@pytest.mark.parametrize(("every", "fragments", "delay"), [(4, 1, 3), (6, 2, 2), (6, 2, 0)])
def test_what_batches_leave_in_buffers_counts_while_a_round_is_under_way(
    every: int, fragments: int, delay: int
) -> None:
    """Both sites see the same batches, so each buffer, in the rounds too, is that of a plain loop."""
    steps, between = 3 * every + delay, every // fragments

    def script(socket: Path) -> tuple[list[float], list[float]]:
        model = Counting()
        common: list[float] = []
        coordinator = Coordinator(socket, sync=DiLoCo(every=every, fragments=fragments, delay=delay), verbose=False)
        with coordinator:
            coordinator.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
            for step in range(steps):
                model(float(step)).backward()
                assert coordinator.step()
                if (step + 1) % between == delay and step + 1 >= between + delay:
                    with coordinator.common_model():
                        common += [float(model.seen), float(model.mean)]
            return common, [float(model.seen), float(model.mean)]

    with LocalRun(sites=2) as run:
        results = run.together(script, script)
    wanted = [number for seen in range(between, steps + 1, between) for number in (float(seen), (seen - 1) / 2)]
    for common, own in results:
        assert common == pytest.approx(wanted)
        assert own == pytest.approx([float(steps), (steps - 1) / 2])
