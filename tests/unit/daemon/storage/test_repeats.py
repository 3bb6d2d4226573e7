"""A story that repeats itself neither fills the history nor is lost: told a few times, then by the minute, counted."""

from __future__ import annotations

from chaosd.api.daemon_status import event_record
from chaosd.storage.history import HistoryRecord
from chaosd.storage.repeats import BEGUN_MAX, STORIES_KEPT, TOLD_EACH, WINDOW_S, Repeats


def record(subject: str = "round 1", reason: str = "every contribution has weight 0", **more: object) -> HistoryRecord:
    given = {"at_unix_s": 1.0, "event_id": "e", "kind": "pause", "subject": subject, "reason": reason, **more}
    return HistoryRecord(**given)  # type: ignore[arg-type]


def test_a_story_is_told_a_few_times_then_once_a_minute_with_how_often() -> None:
    repeats = Repeats()
    told = [repeats.is_told(record(f"round {second}"), float(second)) for second in range(60)]
    assert told == [True] * TOLD_EACH + [False] * (60 - TOLD_EACH)
    assert repeats.due(WINDOW_S - 1.0) == [] and repeats.counted
    (summary,) = repeats.due(WINDOW_S)
    assert summary.reason == f"every contribution has weight 0 ({60 - TOLD_EACH} times more in 60 s)"
    assert (summary.subject, event_record(summary).times) == ("round 59", 60 - TOLD_EACH)
    assert not repeats.counted and repeats.due(WINDOW_S) == []
    assert not repeats.is_told(record(), WINDOW_S + 1.0), "it goes on: no entry of its own"
    (summary,) = repeats.due(2 * WINDOW_S)
    assert "(once more in 60 s)" in summary.reason


def test_a_story_that_has_been_over_for_a_window_is_news_again() -> None:
    repeats = Repeats()
    for _ in range(TOLD_EACH + 1):
        repeats.is_told(record(), 0.0)
    repeats.due(WINDOW_S)
    assert repeats.is_told(record(), 2 * WINDOW_S)


def test_other_sites_and_other_outcomes_are_other_stories_though_ids_hold_digits() -> None:
    repeats = Repeats()
    for _ in range(TOLD_EACH):
        assert repeats.is_told(record("1611766a"), 0.0)
        assert repeats.is_told(record("2797749a"), 0.0)
        assert repeats.is_told(record("16117660"), 0.0) and repeats.is_told(record("27977490"), 0.0)
        assert repeats.is_told(record("1611766a", outcome="failed"), 0.0)
    assert not repeats.is_told(record("1611766a"), 0.0)


def test_every_change_of_who_takes_part_is_told_and_refused_ones_are_counted() -> None:
    repeats = Repeats()
    joins = [record("b", kind="scale-out", outcome="done") for _ in range(2 * TOLD_EACH)]
    assert all(repeats.is_told(one, 0.0) for one in joins)
    refused = [record("b", kind="scale-out", outcome="refused") for _ in range(2 * TOLD_EACH)]
    assert sum(repeats.is_told(one, 0.0) for one in refused) == TOLD_EACH


def test_requests_to_join_in_made_up_names_are_told_up_to_a_number_and_counted_beyond() -> None:
    """Whoever hands them on would fill the history with them, and write a line of the log for each."""
    repeats, told, by_second = Repeats(), 0, []
    for second in range(300):
        for number in range(50):
            name = "".join(chr(0x4E00 + digit) for digit in divmod(50 * second + number, 1000))
            told += repeats.is_told(record(name, kind="scale-out", outcome="failed"), float(second))
        by_second += repeats.due(float(second))
    by_second += repeats.due(300.0, everything=True)
    assert told <= 5 * (BEGUN_MAX + TOLD_EACH)
    assert told + sum(event_record(one).times for one in by_second) == 300 * 50, "none is lost"
    assert all(repeats.is_told(record("d", kind="scale-out", outcome="done"), 300.0) for _ in range(2 * BEGUN_MAX))


def test_what_was_counted_is_told_when_the_story_is_forgotten_and_when_the_daemon_ends() -> None:
    repeats = Repeats()
    for _ in range(TOLD_EACH + 2):
        repeats.is_told(record("first"), 0.0)
    for number in range(STORIES_KEPT):
        repeats.is_told(record(chr(0x4E00 + number)), 1.0)
    (summary,) = repeats.due(2.0)
    assert summary.subject == "first" and "(2 times more in 2 s)" in summary.reason
    for _ in range(TOLD_EACH + 1):
        repeats.is_told(record("last"), 3.0)
    assert repeats.due(4.0) == []
    (summary,) = repeats.due(4.0, everything=True)
    assert summary.subject == "last"


def test_a_detail_that_was_changed_by_hand_is_shown_all_the_same() -> None:
    assert event_record(record(detail="no JSON")).times == 1
