"""What workers did when: kept for the last steps and the last loss, and drawn so that it can be read."""

from __future__ import annotations

import itertools
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.unit.daemon.worker_group.test_planning import ask, greeting

from chaos_protocols.worker_group.messages import SPANS_MAX, DoneSpan, Stepped, Stopped
from chaos_protocols.worker_group.suspicion import Work
from chaos_protocols.worker_group.tags import StepPhase, StepTag
from chaosd.worker_group.history import Happened
from chaosd.worker_group.planning import SitePlanner
from chaosd.worker_group.timed_steps import MARKS_MAX, STEPS_KEPT, TimedSteps
from chaosd.worker_group.timeline_file import TimelineFile, UnusableFile, check_file
from chaosd.worker_group.timeline_picture import ROWS_MAX, Bar, Panel, Row, picture

SVG = "{http://www.w3.org/2000/svg}"


def entry(at_s: float, kind: str, **fields: object) -> Happened:
    return Happened(at_s=at_s, kind=kind, reason=f"because <{kind}> & so", fields=fields)


class Trained:
    """Four workers, two pipelines of two stages; a step takes a second."""

    def __init__(self) -> None:
        self.timed, self.planner, self.hello = TimedSteps(), SitePlanner(workers=4, pipelines=2, stages=2), greeting()
        self.at_s, self.done, self.generation, self.workers = 100.0, 0, 0, [0, 1, 2, 3]
        self.plan(ask(1))

    def plan(self, asked: object) -> None:
        plan = self.planner.make(asked, self.hello, frozenset(self.workers))  # type: ignore[arg-type]
        self.planner.put_in_force(asked.asked)  # type: ignore[attr-defined]
        self.generation += 1
        planned = self.planner.in_force
        assert planned is not None
        self.timed.take(entry(self.at_s, "plan", generation=self.generation, policy=plan.policy))
        self.timed.begin(self.generation, plan, planned, self.hello)
        self.timed.take(entry(self.at_s, "training"))

    def spans(self, until: float = 1.0) -> tuple[DoneSpan, ...]:
        return (
            DoneSpan(Work.FORWARD, self.at_s, self.at_s + 0.4 * until, 3),
            DoneSpan(Work.WAITING, self.at_s + 0.4 * until, self.at_s + 0.9 * until),
            DoneSpan(Work.UPDATE, self.at_s + 0.9 * until, self.at_s + until),
        )

    def step(self, silent: int = -1, *, computes: bool = True) -> None:
        self.done += 1
        for worker in self.workers:
            spans = () if worker == silent else self.spans() if computes else self.spans()[2:]
            self.timed.hear(worker, Stepped(generation=self.generation, step=self.done, spans=spans))
        self.at_s += 1.0
        self.timed.take(entry(self.at_s, "step", step=self.done))

    def lose(self, worker: int) -> None:
        self.timed.take(entry(self.at_s + 0.3, "worker-lost", worker=worker))
        self.timed.take(entry(self.at_s + 0.3, "stop"))
        self.workers.remove(worker)
        for each in self.workers:
            tag = StepTag(generation=self.generation, step=self.done, phase=StepPhase.COMPUTE)
            self.timed.hear(each, Stopped(generation=self.generation, tag=tag, spans=self.spans(0.3)))
        self.at_s += 0.5
        self.timed.take(entry(self.at_s, "stopped"))
        self.plan(ask(self.generation + 1, lost={worker}))


def test_the_last_step_of_the_last_plan_is_kept_and_no_more_than_some() -> None:
    trained = Trained()
    for _ in range(3 * STEPS_KEPT):
        trained.step()
    found = trained.timed.undisturbed()
    assert found is not None and found.step == 3 * STEPS_KEPT and found.spans.keys() == {0, 1, 2, 3}
    assert trained.timed.recovery is None
    assert all(len(told) == STEPS_KEPT for told in trained.timed._told.values())


def test_a_worker_that_tells_nothing_is_left_out() -> None:
    trained = Trained()
    trained.step(silent=2)
    found = trained.timed.undisturbed()
    assert found is not None and found.spans.keys() == {0, 1, 3}


def test_the_step_of_a_round_between_local_steps_is_not_the_one_that_is_shown() -> None:
    trained = Trained()
    trained.step(computes=False)
    assert trained.timed.undisturbed() is None
    trained.step()
    trained.step(computes=False)
    found = trained.timed.undisturbed()
    assert found is not None and found.step == 2


def test_a_recovery_is_kept_from_the_step_of_the_loss_to_the_next_one_done_whatever_follows() -> None:
    trained = Trained()
    for _ in range(4):
        trained.step()
    trained.timed.struck(trained.at_s + 0.2, "worker 1 is killed")
    trained.lose(1)
    assert trained.timed.recovery is None, "the first step after it is not done"
    for _ in range(2 * STEPS_KEPT):
        trained.step()
    found = trained.timed.recovery
    assert found is not None and found.step == 5 and found.start_s == 104.0 and found.end_s == 105.5
    kinds = [mark.kind for mark in found.marks]
    assert kinds == ["struck", "worker-lost", "stop", "stopped", "plan", "training", "step"]
    assert [mark.at_s for mark in found.marks] == sorted(mark.at_s for mark in found.marks)
    assert found.spans[1] == () and {len(found.spans[worker]) for worker in (0, 2, 3)} == {6}
    assert (found.before.generation, found.after.generation) == (1, 2)


def test_a_recovery_that_does_not_end_keeps_some_marks_only() -> None:
    trained = Trained()
    trained.step()
    trained.lose(1)
    for _ in range(100):
        trained.timed.take(entry(trained.at_s, "worker-lost", worker=0))
    trained.step()
    assert trained.timed.recovery is not None and len(trained.timed.recovery.marks) == MARKS_MAX + 1


def test_a_worker_outside_of_the_plan_that_dies_is_no_recovery() -> None:
    trained = Trained()
    trained.timed.take(entry(100.5, "worker-lost", worker=7))
    trained.step()
    assert trained.timed.recovery is None


async def test_the_picture_has_both_with_what_was_expected_and_is_replaced_as_a_whole(tmp_path: Path) -> None:
    trained, path = Trained(), tmp_path / "steps.svg"
    drawing = TimelineFile(path, trained.timed, trained.planner, "train.py")
    await drawing.close()
    assert not path.exists() and "no step was done" in drawing.outcome
    trained.step()
    trained.lose(1)
    trained.step()
    drawing.take(entry(trained.at_s, "step", step=trained.done))
    assert drawing._drawing is not None
    await drawing._drawing
    first = path.read_text()
    trained.step()
    await drawing.close()
    assert [each.name for each in tmp_path.iterdir()] == [path.name] and path.read_text() != first
    texts = [each.text or "" for each in ElementTree.parse(path).iter(f"{SVG}text")]
    assert "Step 3, undisturbed" in texts and any("worker 1 is lost: because <worker-lost> & so" in t for t in texts)
    assert "seconds" in texts and texts.count("worker 1") == 1 and texts.count("worker 0") == 2
    assert any(text.startswith("done in 1000 ms, expected ") for text in texts)


def marks_of(svg: str) -> list[tuple[float, float, float]]:
    """(left, right, y) of the moments' texts, generously wide."""
    found = []
    for each in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        kind = (each.get("class") or "").split()
        if "mt" in kind:
            x, wide = float(each.get("x", "")), 6.2 * len(each.text or "")
            found.append(
                (x - wide, x, float(each.get("y", ""))) if "e" in kind else (x, x + wide, float(each.get("y", "")))
            )
    return found


def test_texts_of_moments_that_lie_together_are_read_as_well_and_stay_in_the_picture() -> None:
    marks = [
        (at_s, f"{at_s:.3f} s  something that happened, {'at length ' * 9}") for at_s in (0, 0.1, 0.1, 0.1, 0.5, 1)
    ]
    row = Row(name="worker 0", layers="layer 0", expected=(), done=(Bar("forward", 0.0, 1.0, "0"),))
    found = marks_of(picture("t", [Panel(title="p", lines=(), length_s=1.0, rows=[row], marks=marks)]))
    assert len(found) == len(marks)
    assert all(abs(one[2] - other[2]) >= 12 for one, other in itertools.combinations(found, 2))
    assert all(left >= 0 and right <= 1000 for left, right, _ in found)


def test_many_workers_and_many_passes_make_a_small_picture() -> None:
    bars = [Bar("forward", at / SPANS_MAX, (at + 0.5) / SPANS_MAX, str(at)) for at in range(SPANS_MAX)]
    rows = [Row(name=f"worker {number}", layers="layer 0", expected=(), done=bars) for number in range(3 * ROWS_MAX)]
    svg = picture("t", [Panel(title="p", lines=(), length_s=1.0, rows=rows)])
    assert len(svg) < 100_000 and f"and {2 * ROWS_MAX} workers more" in svg


def test_words_from_elsewhere_break_no_picture() -> None:
    row = Row(name="</svg><script>\x00\ud800", layers='"&', expected=(), done=())
    svg = picture('a "title" <b>', [Panel(title="\x1b[0m", lines=("&",), length_s=0.0, rows=[row], marks=[(0, "<x>")])])
    assert ElementTree.fromstring(svg).find(f"{SVG}script") is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("steps.png", "the timeline is an SVG picture; name the file"),
        ("steps", "steps.svg"),
        ("missing/steps.svg", "cannot be written: No such file or directory"),
        ("folder.svg", "is a folder; name a file in it"),
    ],
)
def test_a_file_that_cannot_be_drawn_is_refused_and_nothing_is_left(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(UnusableFile, match=said):
        check_file(tmp_path / name)
    assert [each.name for each in tmp_path.iterdir()] == ["folder.svg"]


def test_a_file_that_can_be_drawn_is_not_touched_before(tmp_path: Path) -> None:
    (tmp_path / "old.svg").write_text("former")
    check_file(tmp_path / "old.svg")
    check_file(tmp_path / "new.SVG")
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"old.svg": "former"}
