"""The collector of cycles does not go through what stays, neither while it is made nor soon after."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from chaos.collector import MANY, held_back


@pytest.fixture(autouse=True)
def as_in_a_script() -> Iterator[None]:
    gc.unfreeze()  # the tests freeze what they have imported
    yield
    gc.freeze()


@pytest.mark.parametrize("count", [1, MANY + 1000])
def test_what_was_made_is_among_the_oldest_at_once_if_it_is_much(count: int) -> None:
    with held_back():
        assert not gc.isenabled()
        made: list[object] = [[] for _ in range(count)]
    assert gc.isenabled() and gc.get_freeze_count() == 0
    assert any(each is made for each in gc.get_objects(generation=2)) == (count > MANY)


def test_what_a_script_has_frozen_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with held_back():
        made = [[number] for number in range(MANY + 1000)]
    assert made and gc.get_freeze_count() == frozen > 0


def test_a_script_without_collector_stays_without() -> None:
    gc.disable()
    try:
        with held_back():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
