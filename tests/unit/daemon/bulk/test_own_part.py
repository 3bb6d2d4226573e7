"""Whose contribution lies in the arena, across workers that come and go."""

from __future__ import annotations

import numpy as np
import pytest

from chaos_protocols.errors import LocalProtocolError
from chaosd.bulk.reduce.own_part import OwnPart


def region(value: int) -> memoryview:
    return memoryview(bytearray([value] * 4))


def test_part_of_a_worker_that_died_outlives_it_and_the_next_ones_older_part() -> None:
    own, arena = OwnPart(), region(1)
    own.attach(arena)
    own.keep(5)
    own.detach()
    arena[:] = bytes(4)  # the arena is taken by something else
    own.attach(region(2))
    own.keep(4)
    assert own.of(5).tolist() == [1] * 4, "what it gave to round 5 was copied, and round 4 is older"


def test_newer_part_of_the_next_worker_takes_the_place() -> None:
    own = OwnPart()
    own.attach(region(1))
    own.keep(5)
    own.detach()
    own.attach(region(2))
    own.keep(6)
    assert own.of(6).tolist() == [2] * 4


def test_part_of_a_round_that_is_over_is_not_copied() -> None:
    own = OwnPart()
    own.attach(region(1))
    own.done(5)
    own.keep(5)
    gone, kept = own.detach()
    assert gone is not None and kept is None


def test_parts_of_rounds_that_are_over_are_forgotten_and_without_a_worker_there_is_none() -> None:
    own = OwnPart()
    own.attach(region(1))
    own.keep(5)
    own.detach()
    own.done(5)
    with pytest.raises(LocalProtocolError, match="no worker's contribution to round 5"):
        own.of(5)


def test_region_is_that_of_whatever_round_asks_while_the_worker_lives() -> None:
    own = OwnPart()
    own.attach(region(3))
    assert np.array_equal(own.of(1), own.of(2))
