"""What is logged of those who are refused: the same once a minute, all of it within bounds."""

from __future__ import annotations

import pytest

from chaosd.transport import refusals
from chaosd.transport.refusals import RefusalLog


def test_a_site_that_knocks_twice_a_second_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    log = RefusalLog()
    for half_seconds in range(240):
        log.tell("10.0.0.1", "site c428fe34: not trusted by this site", now_s=half_seconds / 2)
    log.tell("10.0.0.1", "a stranger", now_s=119.5)
    log.tell("10.0.0.2", "a stranger", now_s=119.6)
    assert [record.getMessage() for record in caplog.records] == [
        "refused a connection from 10.0.0.1: site c428fe34: not trusted by this site",
        "refused a connection from 10.0.0.1: site c428fe34: not trusted by this site",
        "refused a connection from 10.0.0.1: a stranger",
        "refused a connection from 10.0.0.2: a stranger",
    ]


def test_one_that_is_refused_in_another_way_each_time_fills_neither_the_log_nor_the_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = RefusalLog()
    for number in range(10_000):
        log.tell("10.0.0.1", f"a stranger: {number}" + "x" * 1000, now_s=number / 100)
    lines = [record.getMessage() for record in caplog.records]
    windows = 10_000 / 100 / refusals.REFUSAL_WINDOW_S
    assert len(lines) <= windows * (refusals.REFUSALS_LOGGED_PER_WINDOW + 1)
    assert "refused 980 more connections in the 10 s before" in lines
    assert max(map(len, lines)) < 600 and len(log._told_at_s) <= refusals.REMEMBERED_MAX
