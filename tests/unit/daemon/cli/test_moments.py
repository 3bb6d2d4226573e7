"""When something was: a time of day alone would be taken for today's, and a run lasts for weeks."""

from __future__ import annotations

import time
from pathlib import Path

from tests.unit.daemon.api.local_api import FakeControl, served
from tests.unit.daemon.cli.invoking import Run, away, run

from chaosd.api.status import EventRecord, LostMajority, PendingSite
from chaosd.cli.recover import _without
from chaosd.cli.render import event_line
from chaosd.cli.trust import _knock

__all__ = ["away", "run"]

DAYS_S = 3 * 86_400.0


def _event(at_unix_s: float) -> EventRecord:
    return EventRecord(
        id=1, at_unix_s=at_unix_s, kind="pause", subject="s", cause="", outcome="", duration_s=None, epoch=1, round=2,
        reason="", event_id="e",
    )  # fmt: skip


def _day(at_unix_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at_unix_s))


def test_an_event_of_another_day_has_its_date_and_one_of_today_has_none() -> None:
    former_s = time.time() - DAYS_S
    assert event_line(_event(former_s)).startswith(time.strftime("%Y-%m-%d %H:%M:%S.", time.localtime(former_s)))
    noon_s = time.mktime((*time.localtime()[:3], 12, 0, 0, 0, 0, -1))
    assert event_line(_event(noon_s)).startswith("12:00:00.000  pause")


def test_events_of_days_ago_are_shown_with_their_day(run: Run, tmp_path: Path) -> None:
    with served(tmp_path / "api.sock", control := FakeControl(records=3)):
        lines = run("events", "--last", 2, "--data-dir", tmp_path).output.splitlines()
    assert len(lines) == 2 and [line[:10] for line in lines] == [_day(one.at_unix_s) for one in control.history[-2:]]


def test_who_knocked_last_week_does_not_seem_to_knock_now() -> None:
    first_s, last_s = time.time() - DAYS_S, time.time() - DAYS_S / 2
    told = _knock(PendingSite(site="c" * 32, first_unix_s=first_s, last_unix_s=last_s, times=3, words="acorn"))
    assert f"first {_day(first_s)} " in told and f"last {_day(last_s)} " in told


def test_since_when_there_is_no_scheduler_names_the_day() -> None:
    lost = LostMajority(
        site="beta", voters=1, missing=("alpha",), in_reach=(), silent_s=DAYS_S, since_start=False, round=0,
        generation=2, problem="", command="chaosd recover --without alpha", heard=(), outside=False,
    )  # fmt: skip
    assert f"since {_day(time.time() - DAYS_S)} " in "\n".join(_without(lost))
