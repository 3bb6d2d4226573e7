"""What a script of one process asks the Coordinator, asked where workers train one model: it has a meaning, or is
refused with what to write instead."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.integration.site_training import Points, make_model, make_optimizer

from chaos import Coordinator, EveryStep, LearningRateRule
from chaos.sync import LocalSGD
from chaos.worker_group.exchange.notes import SiteNotes
from chaos_protocols.wire.worker import FIGURES_MAX, FiguresLogged, encode
from chaos_protocols.worker_group.messages import CommitStep, Reduced, from_controller, from_worker
from chaos_protocols.worker_group.messages import encode as encode_group
from chaos_protocols.worker_group.said import LOGGED_MAX, Said, together


@contextlib.contextmanager
def closed_if_refused(coordinator: Coordinator) -> Iterator[None]:
    try:
        yield
    except ValueError:
        coordinator.close()
        raise


def stages(**registered: Any) -> Coordinator:
    coordinator = Coordinator(standalone=True, handle_signals=False)
    with closed_if_refused(coordinator):
        model = coordinator.parallelize(make_model(), loss=torch.nn.functional.cross_entropy)
        coordinator.register(model=model, optimizer=make_optimizer, **registered)
    return coordinator


def replicas(**registered: Any) -> Coordinator:
    coordinator = Coordinator(standalone=True, handle_signals=False)
    with closed_if_refused(coordinator):
        model = coordinator.replicate(make_model())
        coordinator.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **registered)
    return coordinator


each_kind = pytest.mark.parametrize("make", [stages, replicas])
each_question = pytest.mark.parametrize(
    "ask", [lambda c: c.report(loss=1.0), lambda c: c.should_stop(), lambda c: c.metrics], ids=("tell", "stop", "read")
)


@each_kind
@each_question
def test_what_needs_notes_is_refused_without_them(
    make: Callable[[], Coordinator], ask: Callable[[Coordinator], object]
) -> None:
    with make() as coordinator, pytest.raises(ValueError, match=r"needs notes in the rounds; register.*notes=True"):
        ask(coordinator)


@each_kind
@each_question
def test_local_steps_have_notes(make: Callable[..., Coordinator], ask: Callable[[Coordinator], object]) -> None:
    with make(sync=LocalSGD(every=4, metrics=("loss",))) as coordinator:
        assert not ask(coordinator)


@each_kind
def test_a_figure_that_was_not_announced_is_refused(make: Callable[..., Coordinator]) -> None:
    with make(sync=EveryStep(notes=True, metrics=("loss",))) as coordinator:
        with pytest.raises(ValueError, match="'accuracy' was not announced"):
            coordinator.report(accuracy=1.0)
        with pytest.raises(ValueError, match="is nan; report finite numbers only"):
            coordinator.report(loss=float("nan"))
        assert coordinator.metrics == {} and not coordinator.should_stop()


@each_kind
def test_an_epoch_is_counted_in_rounds(make: Callable[..., Coordinator]) -> None:
    with make(rounds_per_epoch=2) as coordinator:
        assert coordinator.epoch == 0
    with make() as coordinator, pytest.raises(ValueError, match="what an epoch is was not said"):
        _ = coordinator.epoch


@each_kind
def test_gradients_of_workers_are_averaged_when_all_are_there(make: Callable[..., Coordinator]) -> None:
    with pytest.raises(ValueError, match="leave out overlap="):
        make(sync=EveryStep(overlap=True))


@pytest.mark.parametrize(
    "given",
    [{"on_average": print}, {"on_update": print}, {"apply": print}, {"arrays": {}}, {"frozen": "compare"}],
    ids=lambda given: next(iter(given)),
)
def test_what_stages_have_not_is_refused_and_not_passed_over(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is not there for a model of parallelize\(\).*keep the model whole"):
        stages(**given)


@each_kind
def test_learning_rates_follow_a_rule(make: Callable[..., Coordinator]) -> None:
    with make(sync=EveryStep(lr_rule=LearningRateRule(kind="linear", reference=16))) as coordinator:
        assert coordinator.lr_factor == 1.0 and coordinator.metrics == {}


@pytest.mark.parametrize("make", [stages, replicas])
def test_a_model_that_is_averaged_at_every_step_is_the_common_one(make: Callable[[], Coordinator]) -> None:
    with make() as coordinator:
        with coordinator.common_model():
            assert coordinator.lr_factor == 1.0
        coordinator.keep_common_model()


def test_a_model_of_stages_with_local_steps_says_when_it_is_the_common_one() -> None:
    with stages(sync=LocalSGD(every=4)) as coordinator:
        with pytest.raises(ValueError, match=r"one of 4\) the model is what all sites have in common"):
            with coordinator.common_model():
                pass


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "not a NoneType"), ("much", "not a str"), (torch.ones(3), r"not a Tensor of shape \(3,\)")],
    ids=("none", "text", "several"),
)
def test_what_is_logged_and_is_no_number_is_refused_with_its_name(value: Any, text: str) -> None:
    with stages() as coordinator, pytest.raises(ValueError, match=rf"log\(loss=\.\.\.\) takes a number.*{text}"):
        coordinator.log(loss=value)


@pytest.mark.parametrize("given", [Points()[0][0].mean(), 3, True], ids=("tensor", "int", "bool"))
def test_numbers_of_any_kind_are_logged(given: Any) -> None:
    with stages() as coordinator:
        coordinator.log(loss=given)


def test_figures_of_several_calls_are_told_in_messages_that_the_controller_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One with too many was taken for nonsense, and its worker for dead; so was the next one."""
    frames, there = list[bytes](), [False]

    def tell(figures: dict[str, float | None]) -> bool:
        if there[0]:
            frames.append(encode(FiguresLogged(round=0, figures=dict(figures)))[4:])
        return there[0]

    with stages() as coordinator:
        monkeypatch.setattr(coordinator, "_tell_group", tell)
        coordinator.log(**{f"before{at}": 1.0 for at in range(FIGURES_MAX)})
        there[0] = True
        coordinator.log(**{f"now{at}": 2.0 for at in range(FIGURES_MAX)})
        coordinator._log_at(1, {f"step{at}": 3.0 for at in range(2 * FIGURES_MAX + 1)})
    told = [message.figures for message in map(from_worker, frames) if isinstance(message, FiguresLogged)]
    assert [len(each) for each in told] == [FIGURES_MAX] * 4 + [1]
    assert {name for each in told for name in each} == {
        *(f"{when}{at}" for when in ("before", "now") for at in range(FIGURES_MAX)),
        *(f"step{at}" for at in range(2 * FIGURES_MAX + 1)),
    }


def test_of_too_many_figures_of_one_micro_batch_the_newest_are_told() -> None:
    notes = SiteNotes()
    notes.dealt()
    for at in range(LOGGED_MAX + 40):
        notes.log({f"layer{at}": float(at)})
    said = notes.given()
    told = Reduced(generation=1, step=0, said=((0, said), (1, Said(None, {}, {"other": 1.0}))))
    heard = from_worker(encode_group(told)[4:])
    assert (
        heard == told and len(said.logged) == LOGGED_MAX and "layer40" in said.logged and "layer39" not in said.logged
    )
    commit = CommitStep(step=0, divisor=1.0, factor=1.0, loss=0.0, norm=0.0, said=together(dict(told.said)))
    assert from_controller(encode_group(commit)[4:]) == commit and "other" in commit.said.logged


def test_what_a_loss_says_of_the_micro_batch_that_is_tried_first_counts_in_no_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It went with the first step as one micro-batch more, so that the figure depended on the number of workers."""
    logged: list[tuple[int, float]] = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        found = torch.nn.functional.cross_entropy(output, target)
        coordinator.report(inner=found.item())
        coordinator.log(inner=found.item())
        return found

    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(make_model(), loss=loss)
        mode = EveryStep(notes=True, metrics=("inner", "before"))
        coordinator.register(model=model, optimizer=make_optimizer, sync=mode)
        monkeypatch.setattr(model, "logs", lambda step, figures: logged.append((step, figures["inner"])))
        monkeypatch.setattr(coordinator, "_log_at", lambda step, figures: logged.append((step, figures["inner"])))
        coordinator.report(before=3.0)
        for batch in coordinator.loader(Points(), global_batch=16, micro_batch=4, seed=1, steps=2):
            report = model.step(batch)
            assert coordinator.metrics["inner"] == pytest.approx(report.loss, rel=1e-12)
            assert logged[-1] == (report.step, pytest.approx(report.loss, rel=1e-12))
            if report.step == 1:
                assert coordinator.metrics["before"] == 3.0, "what the script says before its first step goes with it"
    assert len(logged) == 2
