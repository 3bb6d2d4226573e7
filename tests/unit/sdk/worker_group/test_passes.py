"""Passes of a step on a device that is given work ahead."""

from __future__ import annotations

import pytest
import torch

from chaos.worker_group.compute.passes import Passes, numbers
from chaos.worker_group.exchange.devices import PASSES_AHEAD, Processor
from chaos.worker_group.exchange.spans import SpanLog
from chaos_protocols.worker_group.suspicion import Work


class Slow(Processor):
    """A device of which each mark is a second after the one before, and reached when somebody waits for it."""

    passes_ahead = PASSES_AHEAD

    def __init__(self) -> None:
        super().__init__()
        self.marks, self.waited_for = 0, 0

    def mark(self) -> float:
        self.marks += 1
        return float(self.marks)

    def seconds_between(self, first: float, last: float) -> float:
        self.waited_for = max(self.waited_for, int(last))
        return last - first


def compute(passes: Passes, count: int) -> None:
    for g in range(count):
        for work in (Work.FORWARD, Work.BACKWARD):
            passes.add(work, g, passes.mark())


def test_a_device_has_work_before_it_and_a_worker_is_not_far_ahead() -> None:
    device = Slow()
    passes = Passes(device, None)
    compute(passes, 1)
    assert device.waited_for == 0, "two passes may be under way"
    compute(passes, 2)
    assert device.marks == 12 and device.waited_for == 12 - 2 * PASSES_AHEAD
    passes.wait()
    assert device.waited_for == 12
    assert passes.seconds == {Work.FORWARD: 3.0, Work.BACKWARD: 3.0}


@pytest.mark.parametrize("wanted", [True, False])
def test_a_picture_of_a_step_shows_each_pass_after_the_one_before(wanted: bool) -> None:
    device, spans = Slow(), SpanLog()
    spans.begin(wanted=wanted)
    passes = Passes(device, spans)
    compute(passes, 2)
    assert (device.waited_for == device.marks) is wanted
    passes.wait()
    told = spans.taken()
    assert [(each.work, each.micro_batch) for each in told] == (
        [(Work.FORWARD, 0), (Work.BACKWARD, 0), (Work.FORWARD, 1), (Work.BACKWARD, 1)] if wanted else []
    )
    assert all(each.end_s - each.start_s == pytest.approx(1.0) for each in told)


def test_a_processor_has_computed_what_was_begun() -> None:
    passes = Passes(Processor(), None)
    compute(passes, 1)
    before = dict(passes.seconds)
    assert all(before.values())
    passes.wait()
    assert passes.seconds == before


def test_numbers_are_read_at_once_whatever_their_types() -> None:
    values = [torch.tensor(0.1), torch.tensor(0.5, dtype=torch.bfloat16), torch.tensor(2.0**-60, dtype=torch.float64)]
    assert numbers(values) == [float(each) for each in values] and numbers([]) == []
