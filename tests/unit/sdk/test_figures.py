"""What a script logs is told by one worker of its site, at the right step, also when that one changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chaos import Coordinator
from chaos.figures import FigureLog


class Writer:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.told.append((name, value, step))

    def flush(self) -> None:
        self.told.append("flush")


class Tracker:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def log_metrics(self, figures: dict[str, float], step: int) -> None:
        self.told.append((figures, step))


def test_another_worker_that_takes_over_tells_the_step_that_may_not_have_been_told() -> None:
    log = FigureLog()
    assert log.due(1, {"loss": 3.0}, tells=False) == []
    assert log.due(2, {"loss": 2.0}, tells=False) == []
    assert log.due(2, {"norm": 1.0}, tells=False) == []
    assert log.due(3, {"loss": 1.0}, tells=True) == [(2, {"loss": 2.0}), (2, {"norm": 1.0}), (3, {"loss": 1.0})]
    assert log.due(4, {"loss": 0.5}, tells=True) == [(4, {"loss": 0.5})]


def test_what_was_kept_of_a_step_that_is_done_again_is_not_told() -> None:
    log = FigureLog()
    log.due(2, {"loss": 2.0}, tells=False)
    assert log.due(2, {"loss": 2.5}, tells=True) == [(2, {"loss": 2.5})]


def test_a_function_makes_the_logger_when_there_is_something_to_write_and_once() -> None:
    made: list[Writer] = []

    def make() -> Writer:
        made.append(Writer())
        return made[-1]

    log, tracker = FigureLog(), Tracker()
    log.add(make)
    log.add(tracker)
    assert not made
    log.write(1, {"loss": 3.0}, flush=False)
    log.write(2, {"loss": 2.0}, flush=True)
    (writer,) = made
    assert writer.told == [("loss", 3.0, 1), ("loss", 2.0, 2), "flush"]
    assert tracker.told == [({"loss": 3.0}, 1), ({"loss": 2.0}, 2)]


def test_what_writes_nothing_is_refused_at_once_and_what_a_function_makes_when_it_has() -> None:
    log = FigureLog()
    with pytest.raises(ValueError, match="SummaryWriter"):
        log.add("runs/a")
    log.add(lambda: "runs/a")
    with pytest.raises(ValueError, match="it made a str"):
        log.write(1, {"loss": 3.0}, flush=False)


@pytest.mark.parametrize("kind", ["parallelize", "replicate"])
def test_a_model_of_workers_logs_at_its_own_steps_and_alone_too(kind: str, tmp_path: Path) -> None:
    from tests.integration import replica_training, site_training

    path = tmp_path / "logged"
    if kind == "parallelize":
        site_training.train(lambda model, report: None, steps=3, logged=str(path))
        wanted = [1, 2, 3]
    else:
        replica_training.train(lambda step, where: None, lambda coordinator: None, steps=2, logged=str(path))
        wanted = [1, 2]
    (_, word), *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert word == "made" and [step for _, _, _, step in lines] == wanted


def test_steps_are_those_of_the_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_WORKER_GROUP", "/nowhere")
    monkeypatch.setenv("CHAOS_WORKER", "1")
    with Coordinator(standalone=True, handle_signals=False, verbose=False) as second:
        writer = Writer()
        second.log_to(writer)
        assert not second._tells, "before they train together the first worker logs"
        monkeypatch.setenv("CHAOS_WORKER", "0")
        assert second._tells
        monkeypatch.setenv("CHAOS_LANE", "1")
        assert not second._tells
