"""Phases of the same time at sites of different speed: how many steps each makes, and where the schedules stand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chaos import DiLoCo, LocalSGD
from chaos.frameworks import NumpyFramework
from chaos.state import State
from chaos.sync import Due, LocalStepsSession, Part
from chaos.sync.pace import SECONDS_MAX, SECONDS_MIN, LocalPace

EVERY = 12


class Site:
    """A session with a clock of its own, whose steps take `seconds`."""

    def __init__(self, seconds: float, mode: DiLoCo) -> None:
        self.seconds, self.now_s = seconds, 100.0
        self.weights = np.zeros(4)
        self.numbers: list[int] = []
        self.session: LocalStepsSession = mode.start(NumpyFramework({"w": self.weights}, self.apply, None))
        self.framework: Any = self.session._framework
        self.session._pace.clock = lambda: self.now_s
        self.session._pace.begin()

    def apply(self, gradients: Any, number: int) -> None:
        self.numbers.append(number)
        self.weights -= gradients["w"]

    def step(self) -> Due:
        self.now_s += self.seconds
        self.framework.gradients["w"][...] = 1.0
        return self.session.stepped(Part(samples=2.0))

    def phase(self) -> int:
        """Up to the next round. How many steps."""
        steps = 1
        while self.step() is Due.NOTHING:
            steps += 1
        return steps


def average(sites: list[Site], round: int) -> None:
    """A round, which nobody waits long for: all clocks then stand where the last one does."""
    size = sites[0].session.contribution.size_bytes
    parts = [np.zeros(size, dtype=np.uint8) for _ in sites]
    weights = [site.session.contribute(part, round) for site, part in zip(sites, parts, strict=True)]
    mean = sum(w * part.view(np.float64) for w, part in zip(weights, parts, strict=True)) / sum(weights)
    now_s = max(site.now_s for site in sites)
    for site in sites:
        site.now_s = now_s
        site.session.apply(mean.view(np.uint8), round)


def test_a_slower_site_makes_fewer_steps_and_the_phases_are_as_long() -> None:
    fast, slow = (Site(seconds, LocalSGD(every=EVERY, pace="time")) for seconds in (1.0, 3.0))
    assert (fast.phase(), slow.phase()) == (EVERY, EVERY), "nobody has measured anything"
    for round in range(1, 6):
        average([fast, slow], round)
        began_s = fast.now_s
        # steps a second: 1 and 1/3, so 12 take 18 s on average
        assert (fast.phase(), slow.phase()) == (18, 6)
        assert fast.now_s - began_s == slow.now_s - began_s == 18.0
        assert fast.session.steps == slow.session.steps == EVERY * (round + 1)
    assert State(fast.session.items).digest() == State(slow.session.items).digest()
    assert slow.numbers == sorted(slow.numbers) and slow.numbers[-1] <= EVERY * 6
    assert fast.numbers == sorted(fast.numbers)


def test_a_site_whose_speed_changes_is_followed_and_a_long_step_is_not_made_up_for() -> None:
    one, other = (Site(1.0, DiLoCo(every=EVERY, pace="time")) for _ in range(2))
    one.phase(), other.phase()
    average([one, other], 1)
    for _ in range(3):
        assert other.step() is Due.NOTHING
    other.now_s += 4.0  # an evaluation
    assert one.phase() == EVERY and other.phase() == EVERY - 3 - 4
    average([one, other], 2)
    assert (one.phase(), other.phase()) == (EVERY, EVERY), "the median of its steps has not changed"
    other.seconds = 2.0
    average([one, other], 3)
    assert (one.phase(), other.phase()) == (12, 6)
    average([one, other], 4)
    assert (one.phase(), other.phase()) == (16, 8)


def test_a_site_that_is_slower_than_a_phase_makes_one_step() -> None:
    now_s = 0.0
    pace = LocalPace(4, by_time=True, clock=lambda: now_s)
    pace.seconds = 2.0
    pace.begin()
    now_s = 50.0
    assert pace.stepped() == 4 and pace.is_over


def test_a_joiner_has_the_seconds_of_a_phase_before_it_has_measured_anything() -> None:
    member = Site(1.0, LocalSGD(every=EVERY, pace="time"))
    member.phase()
    average([member], 1)
    joiner = Site(4.0, LocalSGD(every=EVERY, pace="time"))
    for mine, theirs in zip(joiner.session.items, member.session.items, strict=True):
        assert mine.item == theirs.item
        if theirs.get().size:
            mine.put(theirs.get().copy())
    joiner.session.reset(1)
    assert joiner.phase() == 3 and joiner.session.steps == 2 * EVERY


def test_parts_in_turn_have_phases_of_the_same_time() -> None:
    fast, slow = (Site(seconds, DiLoCo(every=2 * EVERY, fragments=2, pace="time")) for seconds in (1.0, 3.0))
    fast.phase(), slow.phase()
    for round in (1, 2, 3):
        average([fast, slow], round)
        assert (fast.phase(), slow.phase()) == (18, 6)


def test_schedules_go_by_the_clock_of_the_run() -> None:
    torch = pytest.importorskip("torch")
    from chaos.frameworks import framework_of

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    framework = framework_of(model, optimizer, schedule, arrays=None, apply=None, gradients=None, set_to_none=True)
    session = LocalSGD(every=8, pace="time").start(framework)
    now_s = 0.0
    session._pace.clock = lambda: now_s
    session._pace.seconds = 8.0
    session._pace.begin()
    for clock in (2, 4, 6, 8):  # a site of two seconds a step; half a step more would begin the next one
        now_s += 2.0
        model(torch.ones(1, 2)).sum().backward()
        session.stepped(Part())
        assert clock <= session.steps <= clock + 1
        assert optimizer.param_groups[0]["lr"] == 1.0 / (1 + session.steps)


def test_numbers_that_make_no_sense_change_nothing() -> None:
    pace = LocalPace(10, by_time=True)
    for numbers in ((0.0, 0.0), (np.nan, 1.0), (np.inf, 1.0), (-1.0, 1.0), (1.0, np.nan), (1.0, -2.0), (1e308, 1e-308)):
        pace.read(np.array(numbers))
        assert pace.seconds == 0.0
    pace.read(np.array([1e30, 1.0]))
    assert pace.seconds == SECONDS_MIN
    pace.read(np.array([1.0, 1e30]))
    assert pace.seconds == SECONDS_MAX


def test_what_makes_no_sense_is_refused_and_another_pace_is_another_mode() -> None:
    with pytest.raises(ValueError, match='pace = "fast"'.replace('"', "'")):
        DiLoCo(every=5, pace="fast")
    with pytest.raises(ValueError, match='pace="time" goes with delay=0'):
        DiLoCo(every=5, delay=2, pace="time")
    assert DiLoCo(every=5, pace="time").facts() != DiLoCo(every=5).facts()
    assert LocalSGD(every=5, pace="time").facts() == ("sync: LocalSGD every=5 pace=time",)
