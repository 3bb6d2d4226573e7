"""Modes with local steps together with what trainings do besides: optimizers in turn, averaged weights,
`torch.compile`, numbers that are none under an encoding. Two sites each time, and the same bits at both."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="trainings of torch")

from chaos import ChangedOutside, Coordinator, DiLoCo, EveryStep, LocalSGD  # noqa: E402
from chaos.sync import SyncMode  # noqa: E402
from chaos.testing import LocalRun  # noqa: E402

MODES: dict[str, SyncMode] = {
    "every step": EveryStep(),
    "LocalSGD": LocalSGD(every=4),
    "DiLoCo": DiLoCo(every=4),
    "in parts": DiLoCo(every=4, fragments=2),
    "in parts, later": DiLoCo(every=4, fragments=2, delay=1),
}
LOCAL = {name: mode for name, mode in MODES.items() if name != "every step"}


@contextmanager
def coordinator_of(socket: Path | None, **more: Any) -> Iterator[Coordinator]:
    settings = {"verbose": False, "handle_signals": False, "reconnect_s": 0, **more}
    with Coordinator(socket, standalone=socket is None, **settings) as coordinator:
        yield coordinator


def net(inner: int, out: int, seed: int) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(inner, 5), torch.nn.Tanh(), torch.nn.Linear(5, out))


def drawn(*shape: int, seed: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def values(module: Any) -> list[list[float]]:
    return [p.detach().ravel().tolist() for p in module.parameters()]


class Gan:
    """A discriminator and a generator, whose optimizers step in turn."""

    def __init__(self, seed: int) -> None:
        self.nets = {"D": net(2, 1, 1), "G": net(3, 2, 2)}
        self.optimizers = {
            "D": torch.optim.SGD(self.nets["D"].parameters(), lr=0.05),
            "G": torch.optim.Adam(self.nets["G"].parameters(), lr=0.01),
        }
        self.seed = seed

    def loss(self, phase: str, number: int) -> Any:
        real, noise = (drawn(8, width, seed=self.seed + 10 * number + width) for width in (2, 3))
        fake = self.nets["G"](noise)
        if phase == "G":
            return -self.nets["D"](fake).mean()
        return self.nets["D"](fake.detach()).mean() - self.nets["D"](real).mean()

    def backward(self, phase: str, number: int) -> None:
        """Only this phase's gradients, as a loop for two networks makes them."""
        for each in self.nets.values():
            each.zero_grad()
        self.loss(phase, number).backward()


@pytest.mark.parametrize("mode", [EveryStep(notes=True), *LOCAL.values()], ids=MODES)
def test_optimizers_in_turn_leave_the_same_networks_at_all_sites(mode: SyncMode) -> None:
    gans = [Gan(seed) for seed in (100, 200)]  # here: threads share the generator that draws them

    def script(gan: Gan) -> Any:
        def train(socket: Path) -> Any:
            with coordinator_of(socket, sync=mode) as coordinator:
                coordinator.register(model=gan.nets, optimizer=gan.optimizers)
                before = {name: values(each) for name, each in gan.nets.items()}
                while coordinator.steps < 16:
                    phase = "DG"[coordinator.steps % 2]
                    gan.backward(phase, coordinator.steps)
                    assert coordinator.step(optimizers=(phase,), samples=8)
                with coordinator.common_model():
                    after = {name: values(each) for name, each in gan.nets.items()}
                assert all(after[name] != before[name] for name in gan.nets), "both have learnt"
                return after, coordinator.state_digest()

        return train

    with LocalRun(sites=2) as run:
        first, second = run.together(*map(script, gans))
    assert first == second


@pytest.mark.parametrize("mode", [LocalSGD(every=4), DiLoCo(every=4)], ids=["LocalSGD", "DiLoCo"])
def test_a_phase_in_turn_is_that_of_the_loop_without_chaos(mode: SyncMode) -> None:
    gan, plain = Gan(100), Gan(100)
    with coordinator_of(None, sync=mode) as coordinator:
        coordinator.register(model=gan.nets, optimizer=gan.optimizers)
        for number in range(3):
            phase = "DG"[number % 2]
            for each in (gan, plain):
                each.backward(phase, number)
            coordinator.step(optimizers=(phase,))
            plain.optimizers[phase].step()
            assert all(values(gan.nets[name]) == values(plain.nets[name]) for name in "DG")


def test_a_network_whose_optimizer_was_not_stepped_stays_where_the_anchor_is() -> None:
    """Nothing moves it but momentum that it never got."""
    gan = Gan(100)
    with coordinator_of(None, sync=DiLoCo(every=2, warmup_rounds=0)) as coordinator:
        coordinator.register(model=gan.nets, optimizer=gan.optimizers)
        before = values(gan.nets["G"])
        for number in range(4):
            gan.backward("D", number)
            coordinator.step(optimizers=("D",))
        assert coordinator.round == 2 and values(gan.nets["G"]) == before


@pytest.mark.parametrize("mode", [EveryStep(), LocalSGD(every=2), DiLoCo(every=2)], ids=["every", "LocalSGD", "DiLoCo"])
def test_an_average_over_the_rounds_is_the_same_at_both_sites_and_at_a_joiner(mode: SyncMode) -> None:
    began, came = threading.Event(), threading.Event()
    models = [net(3, 1, 5) for _ in range(3)]
    averages = [copy.deepcopy(net(3, 1, 5)) for _ in range(3)]

    def script(number: int, *, joins: bool = False) -> Any:
        model, ema = models[number], averages[number]

        def follow(update: Any) -> None:
            with torch.no_grad():
                for mean, parameter in zip(ema.parameters(), model.parameters(), strict=True):
                    mean.lerp_(parameter, 0.25)

        def train(socket: Path) -> Any:
            if joins:
                assert began.wait(60)
            with coordinator_of(socket, sync=mode) as coordinator:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                coordinator.register({"net": model, "ema": ema}, optimizer, on_update=follow)
                if joins:
                    came.set()
                while coordinator.round < 12:
                    while coordinator.round == 6 and not came.wait(0.01):  # it has its state before they are through
                        coordinator.check_state_replication()
                    x = drawn(4, 3, seed=1000 * number + coordinator.steps)
                    model(x).square().mean().backward()
                    assert coordinator.step(samples=4)
                    if coordinator.round >= 2:
                        began.set()
                return values(ema), values(model), coordinator.state_digest()

        return train

    with LocalRun(sites=2) as run:
        first, second, joiner = run.together(script(0), script(1), script(2, joins=True))
    assert first == second == joiner
    assert first[0] != first[1], "the average lags behind"


IN_PARTS = {
    "in turn": DiLoCo(every=4, fragments=2),
    "later": DiLoCo(every=4, delay=2),
    "in turn, later": DiLoCo(every=4, fragments=2, delay=1),
}


@pytest.mark.parametrize("mode", IN_PARTS.values(), ids=IN_PARTS)
def test_an_average_and_a_bound_see_the_common_model_where_each_site_has_its_own(mode: DiLoCo) -> None:
    """torch's own average: it counts in a buffer, which is averaged as well."""
    models = [net(3, 1, 5) for _ in range(3)]
    averages = [torch.optim.swa_utils.AveragedModel(model) for model in models]
    began, came = threading.Event(), threading.Event()

    def script(number: int, *, joins: bool = False) -> Any:
        model, average = models[number], averages[number]
        seen: dict[int, Any] = {}

        def follow(update: Any) -> None:
            with torch.no_grad():
                model[0].weight.clamp_(-0.375, 0.375)
            average.update_parameters(model)
            seen[update.round] = values(model)

        def train(socket: Path) -> Any:
            if joins:
                assert began.wait(60)
            with coordinator_of(socket, sync=mode) as coordinator:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                coordinator.register({"net": model, "average": average}, optimizer, on_update=follow)
                if joins:
                    came.set()
                while coordinator.steps < 24:
                    while coordinator.steps == 16 and not came.wait(0.01):
                        coordinator.check_state_replication()
                    model(drawn(4, 3, seed=1000 * number + coordinator.steps)).square().mean().backward()
                    assert coordinator.step(samples=4)
                    if coordinator.steps >= 6:
                        began.set()
                coordinator.request_node_exit()
                coordinator.keep_common_model()
                ended = values(average), int(average.n_averaged), values(model), coordinator.state_digest()
                return ended, seen, coordinator.round

        return train

    with LocalRun(sites=2) as run:
        (first, seen, rounds), (second, others, _), (joiner, late, _) = run.together(
            script(0), script(1), script(2, joins=True)
        )
    assert first == second == joiner
    assert seen == others and late.items() <= seen.items() and list(seen) == list(range(1, rounds + 1))
    averaged, count, common, _ = first
    assert count == rounds and common == seen[rounds] != averaged
    assert max(abs(number) for number in common[0]) == 0.375


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_compiled_model_computes_with_what_a_round_has_written(mode: SyncMode) -> None:
    """The graph reads parameters where the anchor was put, and a plain model at the other site has the same state."""
    models = [net(3, 1, 5) for _ in range(2)]
    compiled = torch.compile(models[0], backend="eager")

    def script(model: Any, plain: Any, seed: int) -> Any:
        def train(socket: Path) -> Any:
            with coordinator_of(socket, sync=mode) as coordinator:
                coordinator.register(model, torch.optim.Adam(plain.parameters(), lr=0.05))
                while coordinator.steps < 12:
                    x = drawn(4, 3, seed=seed + coordinator.steps)
                    out = model(x)
                    assert torch.equal(out, plain(x)), "no stale copy of the parameters"
                    out.square().mean().backward()
                    assert coordinator.step(samples=4)
                with coordinator.common_model():
                    return values(plain), coordinator.state_digest()

        return train

    with LocalRun(sites=2) as run:
        first, second = run.together(script(compiled, models[0], 0), script(models[1], models[1], 500))
    assert first == second


@pytest.mark.parametrize("mode", LOCAL.values(), ids=LOCAL)
@pytest.mark.parametrize("encoding", ["bf16", "int8", "int4"])
def test_a_nan_of_one_site_costs_it_a_step_and_nobody_the_state_under_any_encoding(
    mode: SyncMode, encoding: str, capfd: pytest.CaptureFixture[str]
) -> None:
    models = [net(3, 1, 5) for _ in range(2)]

    def script(number: int) -> Any:
        model = models[number]

        def train(socket: Path) -> Any:
            with coordinator_of(socket, sync=mode, encoding=encoding, verbose=True) as coordinator:
                coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.1))
                tries = 0
                while coordinator.steps < 12:
                    tries += 1
                    x = drawn(4, 3, seed=100 * number + tries)
                    model(x if (number, tries) != (1, 3) else x * math.nan).square().mean().backward()
                    assert coordinator.step(samples=4)
                with coordinator.common_model():
                    assert all(torch.isfinite(p).all() for p in model.parameters())
                return coordinator.state_digest()

        return train

    with LocalRun(sites=2) as run:
        first, second = run.together(script(0), script(1))
    assert first == second
    assert "is not finite" in capfd.readouterr().err


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_trained_part_that_changes_is_told_at_that_step_in_every_mode(mode: SyncMode) -> None:
    model = net(3, 1, 5)
    with coordinator_of(None, sync=mode) as coordinator:
        coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model(drawn(4, 3, seed=1)).mean().backward()
        coordinator.step()
        model[2].bias.requires_grad_(False)
        model(drawn(4, 3, seed=2)).mean().backward()
        with pytest.raises(ChangedOutside, match=r"'model\.2\.bias' was trained and wants no gradients"):
            coordinator.step()


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("samples", [0, -1, 1e30, math.nan, math.inf, 1e-30])
def test_samples_that_are_no_weight_are_refused_in_every_mode_and_nothing_is_done(
    mode: SyncMode, samples: float
) -> None:
    model = net(3, 1, 5)
    with coordinator_of(None, sync=mode) as coordinator:
        coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.1))
        before = values(model)
        model(drawn(4, 3, seed=1)).mean().backward()
        with pytest.raises(ValueError, match="samples must be a number from"):
            coordinator.step(samples=samples)  # type: ignore[arg-type]
        assert values(model) == before and coordinator.steps == 0


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("encoding", ["bf16", "fp16", "int8"])
def test_an_encoding_that_a_model_cannot_take_is_refused_when_it_is_registered_also_alone(
    mode: SyncMode, encoding: str
) -> None:
    model = net(3, 1, 5).double()
    with coordinator_of(None, sync=mode, encoding=encoding) as coordinator:
        with pytest.raises(ValueError, match="all that is averaged here is float64, which is never encoded"):
            coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_complex_parameters_are_refused_by_name() -> None:
    model = torch.nn.Linear(2, 2, dtype=torch.complex64)
    with coordinator_of(None, sync=DiLoCo(every=4)) as coordinator:
        with pytest.raises(ValueError, match=r"'model\.weight' is complex; only real parameters"):
            coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.long
def test_a_model_that_was_compiled_to_machine_code_trains_with_diloco() -> None:
    """The kernels of torch's own compiler, which a compiler of C++ makes."""
    plain = net(3, 1, 5)
    compiled = torch.compile(plain)
    with coordinator_of(None, sync=DiLoCo(every=3, fragments=3)) as coordinator:
        coordinator.register(compiled, torch.optim.Adam(plain.parameters(), lr=0.05))
        for number in range(12):
            x = drawn(4, 3, seed=number)
            out = compiled(x)
            torch.testing.assert_close(out, plain(x))
            out.square().mean().backward()
            assert coordinator.step()
        assert coordinator.round == 12


def test_the_common_model_is_kept_at_the_end_and_not_before() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
    with Coordinator(standalone=True, handle_signals=False, verbose=False) as coordinator:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        coordinator.register(model=model, optimizer=optimizer, sync=LocalSGD(every=2))
        states = []
        for _ in range(3):
            model(torch.randn(4, 2)).square().sum().backward()
            coordinator.step()
            states.append({name: value.clone() for name, value in model.state_dict().items()})
        with pytest.raises(ValueError, match=r"is for the end, after request_node_exit\(\)"):
            coordinator.keep_common_model()
        coordinator.request_node_exit()
        coordinator.keep_common_model()
    assert all(torch.equal(value, states[1][name]) for name, value in model.state_dict().items())
