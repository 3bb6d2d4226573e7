"""What the soak's nemesis draws: replayable, of every kind, and often enough."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.soak.nemesis import LAB, NEED_NAMESPACES, PACKETS, SCHEDULER, Fault, Ground, Kind, draw_faults
from tests.soak.sites import LINKS, NAMES, SPARE_LINKS

GROUND = Ground(
    sites=NAMES,
    links=tuple((one, other) for one, other, _, _ in LINKS),
    spare_links=SPARE_LINKS,
    timeout_s=1.0,
    namespaces=True,
    full_disks=True,
)


def drawn(seed: int, *, ground: Ground = GROUND, seconds: float = 600.0) -> list[Fault]:
    return draw_faults(random.Random(seed), ground, seconds=seconds)


def test_a_seed_draws_the_same_faults_again() -> None:
    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


@pytest.mark.parametrize("seed", range(20))
def test_ten_minutes_hold_more_than_a_hundred_faults_of_every_kind(seed: int) -> None:
    faults = drawn(seed)
    assert len(faults) > 300
    assert {fault.kind for fault in faults} == set(Kind)
    assert {fault.kind for fault in faults[: len(Kind)]} == set(Kind), "every kind comes once before any comes twice"
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)


@pytest.mark.parametrize("seed", range(20))
def test_what_needs_namespaces_or_full_disks_is_not_drawn_without(seed: int) -> None:
    faults = drawn(seed, ground=replace(GROUND, namespaces=False, full_disks=False))
    kinds = {fault.kind for fault in faults}
    assert kinds == set(Kind) - NEED_NAMESPACES - {Kind.DISK}
    assert PACKETS not in {fault.what for fault in faults}
    assert LAB in {fault.what for fault in faults}


@pytest.mark.parametrize("seed", range(20))
def test_links_and_spare_links_are_disjoint_and_every_end_is_a_site(seed: int) -> None:
    pairs = {frozenset(pair) for pair in GROUND.links}
    assert not pairs & {frozenset(pair) for pair in SPARE_LINKS}
    for fault in drawn(seed):
        assert set(fault.sites) <= {*NAMES, SCHEDULER}
        if fault.kind is Kind.UNLINK:
            assert frozenset(fault.sites) in pairs
        if fault.kind is Kind.LINK:
            assert frozenset(fault.sites) not in pairs
