"""Which copy of what an encoding lost counts: over rounds, over one that begins again, over a history given up."""

from __future__ import annotations

from chaos_protocols.rounds.reduce import Residuals


def turn(residuals: Residuals, number: int) -> tuple[int, int]:
    """A round over two chunks that is held. The copies that were read."""
    assert residuals.begin(number)
    read = residuals.side(0), residuals.side(1)
    assert (residuals.write(0), residuals.write(1)) == (1 - read[0], 1 - read[1])
    assert residuals.held(number)
    return read


def test_each_round_reads_what_the_one_before_wrote() -> None:
    residuals = Residuals(2)
    assert [turn(residuals, number) for number in (1, 2, 3)] == [(0, 0), (1, 1), (0, 0)]


def test_a_round_that_begins_again_reads_the_same_copies() -> None:
    residuals = Residuals(2)
    turn(residuals, 1)
    for _ in range(3):
        assert residuals.begin(2)
        assert (residuals.side(0), residuals.side(1)) == (1, 1)
        residuals.write(0)
    assert residuals.held(2)
    assert residuals.begin(3)
    assert (residuals.side(0), residuals.side(1)) == (0, 1), "of chunk 1 nothing was sent: its loss waits"


def test_a_round_that_was_held_and_begins_again_goes_back() -> None:
    residuals = Residuals(2)
    turn(residuals, 1)
    turn(residuals, 2)
    assert residuals.begin(3)
    assert residuals.begin(2), "its result did not stand"
    assert (residuals.side(0), residuals.side(1)) == (1, 1)
    assert residuals.valid_round == 1


def test_where_the_former_copy_is_written_over_all_begins_from_nothing() -> None:
    residuals = Residuals(2)
    turn(residuals, 1)
    turn(residuals, 2)
    residuals.begin(3)
    residuals.write(0)
    assert not residuals.begin(2)
    turn(residuals, 2)
    turn(residuals, 3)
    turn(residuals, 4)
    assert not residuals.begin(2), "a history that was given up"


def test_a_site_that_has_missed_a_round_begins_from_nothing() -> None:
    residuals = Residuals(2)
    assert residuals.begin(50), "there was nothing yet"
    turn(residuals, 50)
    assert not residuals.begin(52)
    turn(residuals, 52)
    assert not residuals.held(53), "fetched, though nothing was encoded for it here"
    assert residuals.begin(54)
    assert residuals.side(0) == 0, "what was lost in round 52 waits"


def test_who_only_listens_begins_from_nothing() -> None:
    residuals = Residuals(2)
    turn(residuals, 1)
    assert not residuals.begin(2, member=False)
    assert not residuals.held(3)
    residuals.held(2)
    assert residuals.begin(3)


def test_a_result_that_nobody_applies_leaves_what_was_owed() -> None:
    residuals = Residuals(2)
    turn(residuals, 1)
    residuals.begin(2)
    residuals.write(0)
    assert not residuals.held(2, finite=False)
    assert residuals.begin(3)
    assert (residuals.side(0), residuals.side(1)) == (1, 1)


def test_the_result_of_another_round_changes_nothing() -> None:
    residuals = Residuals(2)
    turn(residuals, 1)
    residuals.begin(2)
    residuals.write(0)
    assert not residuals.held(1) and not residuals.held(3)
    assert residuals.side(0) == 1


def test_what_waits_keeps_its_copy() -> None:
    residuals = Residuals(2)
    residuals.begin(1)
    residuals.write(0)
    residuals.waits(0)
    residuals.write(1)
    residuals.held(1)
    residuals.begin(2)
    assert (residuals.side(0), residuals.side(1)) == (0, 1)


def test_what_was_lost_in_a_void_round_is_owed_no_more() -> None:
    residuals = Residuals(2)
    turn(residuals, 1)
    turn(residuals, 2)
    assert residuals.void_after(2), "nothing after it was held"
    assert (residuals.side(0), residuals.side(1)) == (0, 0)
    assert residuals.void_after(1)
    assert (residuals.side(0), residuals.side(1)) == (1, 1)
    assert not residuals.void_after(0), "of two rounds before no copy is left"
