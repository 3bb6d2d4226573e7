"""Which part of a model is trained: frozen parameters that are compared, settings that are, and a set that changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chaos import ChangedOutside, Coordinator, DiLoCo, EveryStep, LocalSGD, Refused
from chaos.testing import LocalRun

torch = pytest.importorskip("torch", reason="models of torch")


def model_of(base: float = 1.0) -> Any:
    """A base of two frozen layers, and a trained one."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    for layer in model[:2]:
        layer.requires_grad_(False)
    with torch.no_grad():
        model[1].weight[0, 0] = base
    return model


def optimizer_of(model: Any) -> Any:
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.1)


@contextmanager
def alone(model: Any, **more: Any) -> Iterator[Coordinator]:
    with Coordinator(standalone=True, verbose=False) as coordinator:
        coordinator.register(model=model, optimizer=optimizer_of(model), **more)
        yield coordinator


def trained(
    socket: Path,
    model: Any,
    steps: int = 3,
    founded: threading.Event | None = None,
    gate: threading.Event | None = None,
    **more: Any,
) -> Any:
    """State digest, bytes of state. `founded` is set when it trains; it goes on until `gate` is."""
    with Coordinator(socket, verbose=False, handle_signals=False, reconnect_s=0) as coordinator:
        coordinator.register(model=model, optimizer=optimizer_of(model), **more)
        if founded is not None:
            founded.set()
        while coordinator.steps < steps or (gate is not None and not gate.is_set()):
            model(torch.ones(1, 4)).sum().backward()
            coordinator.step()
        assert coordinator._session is not None
        size = sum(item.get().size for item in coordinator._session.items)
        return coordinator.state_digest(), size, model[2].weight.detach().tolist()


@pytest.mark.parametrize("sync", [EveryStep(), DiLoCo(every=2)], ids=["every step", "local steps"])
def test_a_base_that_all_have_is_compared_and_no_byte_of_it_is_sent(sync: Any) -> None:
    models = [model_of() for _ in range(2)]  # here: threads share the generator that draws them
    with LocalRun(sites=2) as run:
        first, second = run.together(
            *(lambda socket, model=model: trained(socket, model, frozen="compare", sync=sync) for model in models)
        )
    assert first == second
    with LocalRun(sites=1) as run:
        (whole,) = run.together(lambda socket: trained(socket, model_of(), sync=sync))
    base = 4 * (4 * 8 + 8 + 8 * 8 + 8)
    assert whole[1] == first[1] + base


def test_a_site_with_another_base_is_refused_with_the_first_tensor_that_differs() -> None:
    founded, gate = threading.Event(), threading.Event()

    def second(socket: Path) -> None:
        try:
            assert founded.wait(60)
            for base, more, told in (
                (
                    2.0,
                    {"frozen": "compare"},
                    r"'model\.1\.weight is frozen, float32\[8, 8\] with the digest \w+' is part of the state there",
                ),
                (1.0, {}, r"frozen parameters are compared, not sent"),
                (1.0, {"frozen": "compare", "alike": {"scale": 2}}, r"'setting scale = 2' is part of the state here"),
            ):
                with pytest.raises(Refused, match=told):
                    trained(socket, model_of(base), **more)
        finally:
            gate.set()

    with LocalRun(sites=1) as run:
        run.together(lambda socket: trained(socket, model_of(), founded=founded, gate=gate, frozen="compare"), second)


def test_what_is_no_choice_is_refused_with_what_is() -> None:
    for more, told in (
        ({"frozen": "copy"}, "'replicate', 'compare'"),
        ({"alike": {"layers": [1, 2]}}, "'layers': ...} is a list"),
    ):
        with pytest.raises(ValueError, match=told), alone(model_of(), **more):
            pass


@pytest.mark.parametrize("sync", [EveryStep(), DiLoCo(every=3)], ids=["every step", "local steps"])
def test_a_trained_part_that_changes_is_told_at_that_step_with_the_names(sync: Any) -> None:
    def thaws(model: Any, optimizer: Any) -> None:
        model[1].requires_grad_(True)

    def freezes(model: Any, optimizer: Any) -> None:
        model[2].bias.requires_grad_(False)

    def adds(model: Any, optimizer: Any) -> None:
        optimizer.add_param_group({"params": [model[0].bias]})

    def adds_a_layer(model: Any, optimizer: Any) -> None:
        model.append(torch.nn.Linear(model[2].out_features, 1))
        optimizer.add_param_group({"params": model[3].parameters()})

    def adds_what_is_in_no_model(model: Any, optimizer: Any) -> None:
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})

    def takes_out(model: Any, optimizer: Any) -> None:
        optimizer.param_groups[0]["params"].pop()

    def replaces(model: Any, optimizer: Any) -> None:
        optimizer.param_groups[0]["params"][0] = torch.nn.Parameter(torch.zeros(2))

    def regroups(model: Any, optimizer: Any) -> None:
        group = optimizer.param_groups[0]
        optimizer.param_groups.append({**group, "params": [group["params"].pop()]})

    for change, told in (
        (thaws, r"'model\.1\.weight' and 1 more were frozen when it was registered and wants gradients after round 0"),
        (freezes, r"'model\.2\.bias' was trained and wants no gradients"),
        (adds, r"'model\.0\.bias' was added to a registered optimizer \(add_param_group\) .*by round 0"),
        (adds_a_layer, r"'model\.3\.weight' and 1 more were added to a registered optimizer"),
        (adds_what_is_in_no_model, r"'optimizer\.group1\.parameter0' was added to a registered optimizer"),
        (takes_out, r"'model\.2\.bias' was taken out of a registered optimizer"),
        (replaces, r"'optimizer\.group0\.parameter0' was added to a registered optimizer"),
        (regroups, r"were put into other groups"),
    ):
        model = model_of()
        optimizer = optimizer_of(model)
        with Coordinator(standalone=True, verbose=False) as coordinator:
            coordinator.register(model=model, optimizer=optimizer, sync=sync)
            model(torch.ones(1, 4)).sum().backward()
            coordinator.step()
            change(model, optimizer)
            model(torch.ones(1, 4)).sum().backward()
            round = coordinator.round
            with pytest.raises(ChangedOutside, match=told.replace("round 0", f"round {round}")):
                coordinator.step()


def test_a_phase_may_freeze_what_its_step_is_not_for() -> None:
    nets = {name: torch.nn.Linear(2, 2) for name in ("D", "G")}
    optimizers = {name: torch.optim.SGD(net.parameters(), lr=0.1) for name, net in nets.items()}
    with Coordinator(standalone=True, verbose=False) as coordinator:
        coordinator.register(model=nets, optimizer=optimizers, sync=EveryStep(notes=True))
        for phase, other in (("D", "G"), ("G", "D")):
            nets[other].requires_grad_(False)
            nets["D"](nets["G"](torch.ones(1, 2))).sum().backward()
            coordinator.step(optimizers=(phase,))
            nets[other].requires_grad_(True)
        nets["D"].requires_grad_(False)
        with pytest.raises(ChangedOutside, match=r"'model\.D\.weight' and 1 more"):
            coordinator.step(optimizers=("D",))


def test_figures_go_to_the_logger_of_the_script_at_the_steps_of_the_run(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is one of the loggers")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Mlflow:
        told: list[Any] = []  # noqa: RUF012

        def log_metrics(self, figures: dict[str, float], step: int) -> None:
            self.told.append((figures, step))

    writer = tensorboard.SummaryWriter(str(tmp_path))
    model = model_of()
    with alone(model, sync=DiLoCo(every=4)) as coordinator:
        coordinator.log_to(writer)
        coordinator.log_to(Mlflow())
        for step in range(1, 7):
            model(torch.ones(1, 4)).sum().backward()
            coordinator.step()
            coordinator.log(loss=1 / step)
        with pytest.raises(ValueError, match=r"log_to\(list\): give a SummaryWriter"):
            coordinator.log_to([])
    writer.close()
    assert Mlflow.told == [({"loss": 1 / step}, step) for step in range(1, 7)]
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(one.step, pytest.approx(1 / one.step)) for one in events.Scalars("loss")] == [
        (one.step, one.value) for one in events.Scalars("loss")
    ]
    assert [one.step for one in events.Scalars("loss")] == list(range(1, 7))


@pytest.mark.parametrize("sync", [EveryStep(), LocalSGD(every=1)], ids=["every step", "local steps"])
def test_what_on_update_changes_is_not_compared_alone(sync: Any) -> None:
    """An average over the rounds: a joiner that is not sent it would begin it anew, and nobody would be told."""
    model, mean = model_of(), model_of().requires_grad_(False)

    def follow(update: Any) -> None:
        with torch.no_grad():
            mean[2].weight.lerp_(model[2].weight, 0.1)

    for frozen in ("replicate", "compare"):
        with Coordinator(standalone=True, verbose=False) as coordinator:
            more = {"optimizer": optimizer_of(model), "on_update": follow, "frozen": frozen, "sync": sync}
            coordinator.register(model={"net": model, "mean": mean}, **more)

            def step(coordinator: Coordinator = coordinator) -> None:
                model(torch.ones(1, 4)).sum().backward()
                coordinator.step()

            step()
            if frozen == "replicate":
                step()
                continue
            with pytest.raises(ChangedOutside, match=r"on_update= has changed .*mean\.2\.weight.*frozen='replicate'"):
                step()
