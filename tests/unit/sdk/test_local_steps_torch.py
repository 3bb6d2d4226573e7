"""Local steps of torch trainings: several optimizers, schedules, a scaler, clipping, averaged weights, statistics of
batches, and what of all this other sites get to see."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.sdk.fake_daemon import FakeDaemon

torch = pytest.importorskip("torch", reason="trainings of torch")

from chaos import ChangedOutside, Coordinator, DiLoCo, LocalSGD, Update  # noqa: E402
from chaos.frameworks.torch_local import TorchLocalTraining  # noqa: E402
from chaos.state import State  # noqa: E402
from chaos.sync import SyncMode  # noqa: E402
from chaos.testing import LocalRun  # noqa: E402
from chaos_protocols.wire.worker import (  # noqa: E402
    LoadState,
    RoundContributed,
    StateLoaded,
    TrainFrom,
    WorkerWelcome,
)


def new_model(seed: int = 3, dtype: Any = torch.float32) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1)).to(dtype)


def batch(seed: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)).to(dtype)


def loss_of(model: Any, x: Any) -> Any:
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


class Training:
    """A model beside a coordinator; what a user's script is made of."""

    def __init__(self, path: Path | None, sync: SyncMode, *, seed: int = 3, dtype: Any = torch.float32) -> None:
        self.model = new_model(seed, dtype)
        self.coordinator = Coordinator(
            path, standalone=path is None, verbose=False, handle_signals=False, reconnect_s=0, sync=sync
        )

    def register(self, optimizer: Any, scheduler: Any = None, **more: Any) -> Training:
        self.coordinator.register(self.model, optimizer, scheduler, **more)
        return self

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *failure: object) -> None:
        self.coordinator.close(graceful=False)

    @property
    def state(self) -> State:
        assert self.coordinator._session is not None
        return State(self.coordinator._session.items)

    def numbers_of(self, name: str) -> np.ndarray[Any, Any]:
        """Of one array of the shared state."""
        assert self.coordinator._session is not None
        item = next(item for item in self.coordinator._session.items if item.item.name == name)
        return item.get().view(item.item.dtype).copy()


def test_a_phase_is_what_the_optimizers_do_in_a_plain_loop() -> None:
    """AdamW, a schedule, clipping: bit for bit the loop without Chaos, until the first round."""
    with Training(None, DiLoCo(every=6)) as site:
        optimizer = torch.optim.AdamW(site.model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=20)
        plain = copy.deepcopy(site.model)
        site.register(optimizer, scheduler)
        theirs = torch.optim.AdamW(plain.parameters(), lr=0.01)
        their_scheduler = torch.optim.lr_scheduler.LinearLR(theirs, start_factor=0.1, total_iters=20)
        for number in range(5):
            loss_of(site.model, batch(number)).backward()
            torch.nn.utils.clip_grad_norm_(site.model.parameters(), 0.5)
            assert site.coordinator.step()
            loss_of(plain, batch(number)).backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            theirs.step()
            their_scheduler.step()
            theirs.zero_grad()
        assert site.coordinator.round == 0
        assert all(torch.equal(a, b) for a, b in zip(site.model.parameters(), plain.parameters(), strict=True))
        assert optimizer.param_groups[0]["lr"] == theirs.param_groups[0]["lr"]
        assert torch.equal(site.model[1].running_mean, plain[1].running_mean)


def test_what_a_site_keeps_to_itself_is_no_part_of_the_state() -> None:
    with Training(None, DiLoCo(every=2)) as site:
        site.register(torch.optim.Adam(site.model.parameters(), lr=0.01))
        names = [tensor.name for tensor in site.state.spec.tensors]
        assert not [name for name in names if "exp_avg" in name or name.endswith("started")]
        assert {"model.0.weight", "model.0.weight.outer.momentum", "model.1.running_mean", "optimizer.group0.lr"} < {
            *names
        }
        before = site.coordinator.state_digest()
        loss_of(site.model, batch(1)).backward()
        assert site.coordinator.step() and site.coordinator.state_digest() == before, "a local step is nobody's affair"
        loss_of(site.model, batch(2)).backward()
        assert site.coordinator.step() and site.coordinator.state_digest() != before


def test_a_joiner_has_the_run_s_learning_rate_and_moments_of_its_own(socket_file: Path) -> None:
    """The schedule is the run's clock: a joiner that began at the rate of its first step would undo the others."""
    with Training(None, LocalSGD(every=3)) as member:
        optimizer = torch.optim.Adam(member.model.parameters(), lr=1.0)
        member.register(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5))
        for number in range(6 + 1):
            loss_of(member.model, batch(number)).backward()
            member.coordinator.step()
        region = np.zeros(member.state.spec.size_bytes, dtype=np.uint8)
        member.state.write(region)
        assert optimizer.param_groups[0]["lr"] == 0.5**7

    def script(daemon: FakeDaemon) -> None:
        daemon.accept()
        daemon.send(WorkerWelcome(site="here", run="test"))
        daemon.array("state")[...] = region
        daemon.send(LoadState(round=2))
        daemon.expect(StateLoaded)
        daemon.send(TrainFrom(round=3))
        daemon.expect(RoundContributed)
        daemon.array("result")[...] = 0
        daemon.apply(3)

    with FakeDaemon(socket_file, script), Training(socket_file, LocalSGD(every=3), seed=8) as joiner:
        optimizer = torch.optim.Adam(joiner.model.parameters(), lr=1.0)
        joiner.register(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5))
        assert optimizer.param_groups[0]["lr"] == 0.5**6, "that of the end of round 2, not of the middle of a phase"
        assert not optimizer.state, "a fresh one"
        live = torch.cat([p.detach().ravel() for p in joiner.model.parameters()])
        assert live.tolist() == np.concatenate([joiner.numbers_of(n) for n in parameters_of(joiner.model)]).tolist()
        for number in range(3):
            loss_of(joiner.model, batch(number)).backward()
            joiner.coordinator.step(skip=number == 1)
        assert optimizer.param_groups[0]["lr"] == 0.5**9, "a step that was left out counts on the schedule"


def parameters_of(model: Any) -> list[str]:
    return [f"model.{name}" for name, _ in model.named_parameters()]


def test_a_scaler_s_infinities_cost_one_local_step() -> None:
    with Training(None, LocalSGD(every=3)) as site:
        optimizer = torch.optim.SGD(site.model.parameters(), lr=0.1)
        site.register(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
        for number in range(3):
            before = [p.detach().clone() for p in site.model.parameters()]
            scaler.scale(loss_of(site.model, batch(number))).backward()
            if number == 1:
                site.model[2].weight.grad[0, 2] = float("inf")
            scaler.unscale_(optimizer)
            assert site.coordinator.step(samples=8)
            scaler.update()
            changed = any(not torch.equal(a, b) for a, b in zip(before, site.model.parameters(), strict=True))
            assert changed is (number != 1)
        assert scaler.get_scale() == 2.0**3 and site.coordinator.round == 1
        assert all(torch.isfinite(p).all() for p in site.model.parameters())


def test_optimizers_in_turn_step_alone() -> None:
    with Training(None, LocalSGD(every=4)) as site:
        front = torch.optim.SGD(site.model[0].parameters(), lr=0.1)
        back = torch.optim.Adam(site.model[2].parameters(), lr=0.1)
        site.model[1].requires_grad_(False)
        site.register({"front": front, "back": back})
        for number, phase in enumerate(("front", "back", "front")):
            first, last = (site.model[index].weight.detach().clone() for index in (0, 2))
            loss_of(site.model, batch(number)).backward()
            assert site.coordinator.step(optimizers=(phase,))
            assert torch.equal(first, site.model[0].weight) is (phase == "back")
            assert torch.equal(last, site.model[2].weight) is (phase == "front")
        with pytest.raises(ValueError, match="'middle', which is not registered"):
            site.coordinator.step(optimizers=("middle",))


@pytest.mark.parametrize("counted", [True, False])
def test_averaged_weights_and_a_constraint_belong_into_on_update(counted: bool) -> None:
    """What on_update changes of the parameters is the anchor's, too; what it follows with is part of the state. torch
    does not count what is written through `.data`."""
    with Training(None, DiLoCo(every=2)) as site:
        ema = torch.optim.swa_utils.AveragedModel(
            site.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
        )
        rounds: list[int] = []

        def follow(update: Update) -> None:
            rounds.append(update.round)
            with torch.no_grad():
                weight = site.model[0].weight
                (weight if counted else weight.data).clamp_(-0.1, 0.1)
            ema.update_parameters(site.model)

        optimizer = torch.optim.SGD(site.model.parameters(), lr=0.5)
        site.coordinator.register({"net": site.model, "ema": ema}, optimizer, on_update=follow)
        for number in range(4):
            loss_of(site.model, batch(number)).backward()
            assert site.coordinator.step()
        assert rounds == [1, 2]
        anchor = site.numbers_of("model.net.0.weight")
        assert anchor.tolist() == site.model[0].weight.detach().ravel().tolist() and abs(anchor).max() <= np.float32(
            0.1
        )
        mean = [tensor.name for tensor in site.state.spec.tensors if "ema" in tensor.name and "weight" in tensor.name]
        assert mean, "the averaged weights reach a joiner"


@pytest.mark.parametrize("by_nan", [False, True])
def test_a_step_that_is_left_out_moves_the_schedule_and_keeps_the_statistics_of_its_phase(by_nan: bool) -> None:
    """The learning rate of the next step is that of the run's clock, whatever this site did."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    counted, rates = [], []
    with Coordinator(standalone=True, handle_signals=False, verbose=False, sync=LocalSGD(every=4)) as coordinator:
        coordinator.register(model, optimizer, scheduler)
        for step in range(1, 5):
            model(torch.randn(4, 3)).sum().backward()
            if step == 3 and by_nan:
                model[0].bias.grad.fill_(float("nan"))
            assert coordinator.step(skip=step == 3 and not by_nan)
            counted.append(int(model[1].num_batches_tracked))
            rates.append(optimizer.param_groups[0]["lr"])
    assert counted == [1, 2, 3, 4] and rates == [0.5, 0.25, 0.125, 0.0625]


class Counts(torch.optim.SGD):  # type: ignore[misc]
    """Keeps what it has counted among its options, as some optimizers do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.param_groups[0] |= {"made": 0, "estimates": (1e-3, 2.0)}

    def step(self, closure: Any = None) -> None:
        (group,) = self.param_groups
        group["made"] += 1
        group["estimates"] = (float(group["params"][0].grad.abs().sum()), 2.0)
        super().step()


@pytest.mark.parametrize("mode", [LocalSGD(every=2), DiLoCo(every=4, fragments=2, delay=1)], ids=["whole", "in parts"])
def test_what_an_optimizer_counts_among_its_options_is_each_sites_own(mode: SyncMode) -> None:
    made: list[list[int]] = []

    def script(seed: int, socket: Path) -> str:
        torch.manual_seed(seed)
        model = torch.nn.Linear(3, 2)
        optimizer = Counts(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        with Coordinator(socket, handle_signals=False, verbose=False, sync=mode) as coordinator:
            coordinator.register(model, optimizer, scheduler)
            steps = 0
            while coordinator.round < 4:
                steps += 1
                (model(torch.ones(1, 3)) - seed).square().sum().backward()
                assert coordinator.step(skip=seed == 2 and steps == 1)
            made.append([optimizer.param_groups[0]["made"], steps - (seed == 2)])
            return coordinator.state_digest()

    with LocalRun(sites=2) as run:
        first, second = run.together(lambda socket: script(1, socket), lambda socket: script(2, socket))
    assert first == second
    assert all(counted == steps for counted, steps in made)


def test_a_model_of_half_precision_has_an_anchor_of_single_precision() -> None:
    with Training(None, DiLoCo(every=1), dtype=torch.bfloat16) as site:
        site.register(torch.optim.SGD(site.model.parameters(), lr=1e-4))
        before = site.numbers_of("model.0.weight")
        for number in range(20):
            loss_of(site.model, batch(number, torch.bfloat16)).backward()
            assert site.coordinator.step()
        after = site.numbers_of("model.0.weight")
        assert after.dtype == np.float32
        live = site.model[0].weight.detach()
        assert torch.equal(live, torch.from_numpy(after.reshape(live.shape)).to(torch.bfloat16))
        assert len(before) == len(after)


def test_a_hook_for_averaged_gradients_has_nothing_to_see() -> None:
    with Training(None, LocalSGD(every=2)) as site:
        with pytest.raises(ValueError, match="clip in the loop"):
            site.register(torch.optim.SGD(site.model.parameters(), lr=0.1), on_average=lambda update: None)


def test_a_step_in_the_loop_is_told_and_local_steps_are_not_taken_for_one() -> None:
    with Training(None, LocalSGD(every=3)) as site:
        optimizer = torch.optim.SGD(site.model.parameters(), lr=0.1)
        site.register(optimizer)
        for number in range(4):
            loss_of(site.model, batch(number)).backward()
            assert site.coordinator.step()
        loss_of(site.model, batch(9)).backward()
        optimizer.step()
        with pytest.raises(ChangedOutside, match=r"remove optimizer\.step\(\)"):
            site.coordinator.step()


def test_sites_with_schedules_momentum_and_statistics_stay_equal() -> None:
    def script(number: int) -> Callable[[Path], list[str]]:
        def run(socket: Path) -> list[str]:
            digests = []
            with Training(socket, DiLoCo(every=3)) as site:
                optimizer = torch.optim.AdamW(site.model.parameters(), lr=0.01)
                site.register(optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30))
                for step in range(12):
                    loss_of(site.model, batch(100 * number + step)).backward()
                    skip = number == 1 and step == 4
                    assert site.coordinator.step(samples=number + 1, skip=skip)
                    if site.coordinator.round * 3 == step + 1:
                        digests.append(site.coordinator.state_digest())
                site.coordinator.request_node_exit()
            return digests

        return run

    with LocalRun(sites=3) as run:
        one, two, three = run.together(*(script(number) for number in range(3)))
    assert one == two == three and len(set(one)) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_on_update_changes_past_the_counters_is_found_without_a_copy_of_the_parameters(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(3, 2, dtype=dtype)
    changes = iter([False, True])

    def constrain(update: Update) -> None:
        if next(changes):
            model.bias.data.fill_(0.25)

    coordinator = Coordinator(standalone=True, handle_signals=False, sync=LocalSGD(every=1))
    coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.1), on_update=constrain)
    found: list[list[str]] = []
    copies: list[Any] = []
    clone = torch.Tensor.clone
    finish = TorchLocalTraining.finish

    def noted(*arguments: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(torch.Tensor, "clone", lambda tensor: copies.append(tensor.shape) or clone(tensor))
            changed = finish(*arguments)
        found.append([slot.name for slot in changed])
        return changed

    monkeypatch.setattr(TorchLocalTraining, "finish", noted)
    for _ in range(2):
        model(torch.full((1, 3), 0.3, dtype=dtype)).sum().backward()
        coordinator.step()
    coordinator.close()
    assert model.weight.shape not in copies and found == [[], ["model.bias"]]
    assert model.bias.tolist() == [0.25, 0.25]
