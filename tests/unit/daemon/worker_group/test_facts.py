"""What steps take goes back to the planner: layers that take longer, workers that are slower, and nothing for noise."""

from __future__ import annotations

import pytest
from tests.unit.protocols.worker_group.group_bench import hello

from chaos_protocols.streams import BackwardPass, ForwardPass, Share
from chaos_protocols.worker_group.events import AskPlanner
from chaosd.worker_group.facts import STEPS_KEPT, STEPS_MIN, MeasuredFactors, StepFacts
from chaosd.worker_group.planning import SitePlanner

HELLO = hello(0)  # two layers of 1 ms forward and 2 ms backward


def share(layer: int, *micro_batches: int) -> Share:
    passes = [each(g, layer, layer + 1) for g in micro_batches for each in (ForwardPass, BackwardPass)]
    return Share(first_layer=layer, last_layer=layer + 1, stream=tuple(passes))


SHARES = {0: share(0, 0, 1), 1: share(1, 0, 1), 2: share(0, 2, 3), 3: share(1, 2, 3), 4: Share()}


def fed(**milliseconds: tuple[float, float]) -> MeasuredFactors | None:
    """Each worker's seconds of a step by its name; two micro-batches of (1, 2) ms are what is expected."""
    facts = StepFacts()
    facts.begin(HELLO, SHARES)
    found = None
    for _ in range(STEPS_MIN):
        for worker in range(4):
            forward_ms, backward_ms = milliseconds.get(f"w{worker}", (2.0, 4.0))
            found = facts.take(worker, {"forward": forward_ms / 1e3, "backward": backward_ms / 1e3}) or found
    return found


def test_steps_as_expected_change_nothing() -> None:
    assert fed() is None and fed(w0=(2.1, 4.1), w2=(2.1, 4.1)) is None


def test_a_layer_that_takes_longer_everywhere_is_a_slower_layer() -> None:
    found = fed(w1=(4.0, 4.0), w3=(4.0, 4.0))
    assert found is not None
    assert (found.forward, found.backward) == (pytest.approx((1.0, 2.0)), pytest.approx((1.0, 1.0)))
    assert found.speeds == {}


def test_a_worker_that_takes_longer_than_its_peers_is_a_slower_device() -> None:
    facts = StepFacts()
    shares = {w: share(0, 2 * w, 2 * w + 1) for w in range(3)} | {3: share(1, *range(6))}
    facts.begin(HELLO, shares)
    found = None
    for _ in range(STEPS_MIN):
        for worker in range(4):
            seconds = {"forward": 0.006, "backward": 0.012} if worker == 3 else {"forward": 0.002, "backward": 0.004}
            slow = 2.0 if worker == 1 else 1.0
            found = facts.take(worker, {kind: slow * each for kind, each in seconds.items()}) or found
    assert found is not None and found.speeds == {1: pytest.approx(0.5)}
    assert found.forward == pytest.approx((1.0, 1.0))


def test_of_two_holders_the_slower_one_is_slow_and_the_layer_what_it_was() -> None:
    found = fed(w2=(3.2, 6.4))
    assert found is not None and found.speeds == {2: pytest.approx(1 / 1.6)}
    assert (found.forward, found.backward) == (pytest.approx((1.0, 1.0)), pytest.approx((1.0, 1.0)))


def test_what_is_settled_is_that_of_many_steps_of_one_plan() -> None:
    facts = StepFacts()
    facts.begin(HELLO, SHARES)
    for number in range(STEPS_KEPT):
        assert facts.settled() is None, number
        for worker in range(4):
            slow = 2.0 if worker == 3 else 1.0
            facts.take(worker, {"forward": slow * 0.002, "backward": slow * 0.004})
    settled = facts.settled()
    assert settled is not None and settled.speeds == {3: pytest.approx(0.5)}
    facts.begin(HELLO, SHARES)
    assert facts.settled() is None


def after_another_plan(shares: dict[int, Share]) -> tuple[StepFacts, MeasuredFactors]:
    """Worker 3 was found to have half its speed; then `shares` came into force, under which all layers take as long as
    they did first."""
    facts = StepFacts()
    facts.begin(HELLO, SHARES)
    for _ in range(STEPS_KEPT):
        for worker in range(4):
            slow = 2.0 if worker == 3 else 1.0
            facts.take(worker, {"forward": slow * 0.002, "backward": slow * 0.004})
    facts.begin(HELLO, shares)
    for _ in range(STEPS_KEPT):
        for worker, each in shares.items():
            milliseconds = len(each.stream) / 2
            slow = 2.0 if worker == 3 else 1.0
            facts.take(worker, {"forward": slow * 1e-3 * milliseconds, "backward": slow * 2e-3 * milliseconds})
    settled = facts.settled()
    assert settled is not None
    return facts, settled


NOTHING_TO_DO = {0: share(0, 0, 1), 1: share(1, *range(4)), 2: share(0, 2, 3), 3: share(1)}
ALONE = {0: share(0, 0, 1), 2: share(0, 2, 3), 3: share(1, *range(4))}
LEFT_OUT = {0: share(0, 0, 1), 1: share(1, 0, 1), 2: share(0, 2, 3), 3: Share()}


@pytest.mark.parametrize("shares", [NOTHING_TO_DO, ALONE, LEFT_OUT], ids=("nothing-to-do", "alone", "left-out"))
def test_who_shows_no_speed_keeps_the_one_it_had_and_layers_are_what_they_were(shares: dict[int, Share]) -> None:
    facts, settled = after_another_plan(shares)
    assert settled.speeds == {3: pytest.approx(0.5)} and settled.before == {3}
    assert (settled.forward, settled.backward) == (pytest.approx((1.0, 1.0)), pytest.approx((1.0, 1.0)))
    facts.forget(frozenset({3}))
    forgotten = facts.settled()
    assert forgotten is not None and forgotten.speeds == {} and forgotten.before == frozenset()


def test_nothing_is_told_twice_and_another_plan_begins_anew() -> None:
    facts = StepFacts()
    facts.begin(HELLO, SHARES)
    told = 0
    for _ in range(3 * STEPS_MIN):
        for worker in range(4):
            told += facts.take(worker, {"forward": 0.004, "backward": 0.008}) is not None
    assert told == 1
    facts.begin(HELLO, SHARES)
    assert facts.take(0, {"forward": 1.0, "backward": 1.0}) is None
    assert facts.take(4, {"forward": 1.0, "backward": 1.0}) is None and facts.take(0, {}) is None


def test_the_planner_expects_what_was_measured_and_plans_by_it() -> None:
    planner = SitePlanner(workers=4)
    present = frozenset(range(4))
    first = planner.make(AskPlanner(asked=1, lost=frozenset(), idle=frozenset()), HELLO, present)
    planner.put_in_force(1)
    twice = MeasuredFactors(forward=(2.0, 2.0), backward=(2.0, 2.0))
    assert planner.learn(twice, HELLO, present) == pytest.approx(2 * first.step_s, rel=1e-3)
    again = planner.make(AskPlanner(asked=2, lost=frozenset({3}), idle=frozenset()), HELLO, present - {3})
    assert again.step_s > 1.9 * first.step_s


def test_steps_are_judged_once_a_step_however_many_workers_tell_of_them() -> None:
    facts = StepFacts()
    facts.begin(HELLO, SHARES)
    slow, told_by = {"forward": 0.02, "backward": 0.04}, []
    for _ in range(STEPS_MIN):
        told_by += [worker for worker in range(4) if facts.take(worker, slow) is not None]
    assert told_by == [3], "the last one of the first step that can be judged"
