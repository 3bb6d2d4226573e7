"""When the controller's process looks for reference cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from chaos_protocols.worker_group.phases import GroupPhase
from chaosd.worker_group.collector import RECOVERING, CyclesLater


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.enable()


def test_nobody_looks_for_cycles_while_a_group_recovers_and_all_do_otherwise() -> None:
    cycles = CyclesLater()
    for phase in (*GroupPhase, *reversed(GroupPhase)):
        cycles.follow(phase)
        assert gc.isenabled() is (phase not in RECOVERING), phase
    cycles.follow(GroupPhase.BUILDING)
    cycles.close()
    assert gc.isenabled()


def test_a_process_that_never_looks_for_cycles_is_left_so() -> None:
    gc.disable()
    cycles = CyclesLater()
    for phase in GroupPhase:
        cycles.follow(phase)
        assert not gc.isenabled()
    cycles.close()
    assert not gc.isenabled()
