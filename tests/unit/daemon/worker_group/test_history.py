"""The times of a recovery are those between its entries, whatever else happens meanwhile."""

from __future__ import annotations

import pytest

from chaosd.worker_group.history import Happened, RecoveryTimes


def told(*entries: tuple[float, str]) -> list[Happened]:
    times = RecoveryTimes()
    found = [times.take(Happened(at_s=at_s, kind=kind, reason=f"because {kind}")) for at_s, kind in entries]
    return [entry for entry in found if entry is not None]


def test_each_part_of_a_recovery_has_its_seconds() -> None:
    start = [(1.0, "plan"), (2.0, "training"), (5.0, "step")]
    loss = [(6.0, "worker-lost"), (6.1, "stop"), (6.3, "stopped"), (6.6, "plan"), (7.0, "training"), (8.0, "step")]
    (recovered,) = told(*start, *loss)
    assert recovered.fields["total_s"] == pytest.approx(1.0) and recovered.at_s == 7.0
    expected = {"noticing": 0.1, "stopping": 0.2, "deciding": 0.3, "building": 0.4}
    assert recovered.fields["seconds"] == pytest.approx(expected)
    assert recovered.reason.startswith("because stop; ready again after 1000 ms")


def test_a_second_loss_in_a_recovery_is_counted_into_it() -> None:
    first = [(1.0, "worker-lost"), (1.0, "stop"), (1.1, "stopped"), (1.2, "plan"), (1.3, "worker-lost"), (1.3, "stop")]
    (recovered,) = told(*first, (1.5, "stopped"), (1.6, "plan"), (1.9, "training"))
    assert recovered.fields["total_s"] == pytest.approx(0.9)
    assert sum(recovered.fields["seconds"].values()) == pytest.approx(0.9)  # type: ignore[attr-defined]


def test_a_spare_that_was_lost_before_has_no_part_in_a_recovery() -> None:
    spare = [(1.0, "worker-lost"), (2.0, "step")]
    (recovered,) = told(*spare, (4.0, "worker-lost"), (4.1, "stop"), (4.2, "stopped"), (4.3, "plan"), (4.4, "training"))
    assert recovered.fields["total_s"] == pytest.approx(0.4)
    (drained,) = told(*spare, (4.1, "stop"), (4.2, "stopped"), (4.3, "plan"), (4.4, "training"))
    assert drained.fields["total_s"] == pytest.approx(0.3)


def test_the_first_plan_is_no_recovery() -> None:
    assert told((0.0, "plan"), (1.0, "training"), (2.0, "step")) == []
