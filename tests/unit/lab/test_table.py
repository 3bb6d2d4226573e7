"""What the live table says: names for ids, and each event once."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console
from tests.unit.lab.test_verdict import write_report, write_rounds

from chaos_lab.processes import Processes
from chaos_lab.report import judge
from chaos_lab.scenario import Scenario
from chaos_lab.table import Screen, named, names_of, render
from chaos_lab.watching import Incident, Watch
from chaosd.api.status import EventRecord


@pytest.fixture
def watch() -> Iterator[Watch]:
    sites = [{"name": "north"}, {"name": "south"}]
    scenario = Scenario.model_validate({"name": "shown", "worker": {"script": "train.py"}, "sites": sites})
    with Processes(scenario, keep=False) as processes:
        yield Watch(processes)


def event(number: int, *, at_unix_s: float, subject: str) -> EventRecord:
    return EventRecord(
        id=number, at_unix_s=at_unix_s, kind="scale-in", subject=subject, cause="test", outcome="done",
        duration_s=0.1, epoch=1, round=1, reason="", event_id="",
    )  # fmt: skip


def test_ids_whole_and_short_are_told_as_names(watch: Watch) -> None:
    north, south = (site.identity.site for site in watch.processes.sites.values())
    assert named(f"{north[:8]} - {south[:8]} by {south}", names_of(watch)) == "north - south by south"


def test_plain_lines_tell_every_event_once_however_late_it_arrives(watch: Watch) -> None:
    out = io.StringIO()
    with Screen(watch, Console(file=out, width=200), plain=True) as screen:
        watch.events.append(("north", event(1, at_unix_s=20.0, subject="later")))
        screen.show()
        watch.events.append(("south", event(1, at_unix_s=10.0, subject="sooner")))
        screen.show()
        screen.show()
    lines = out.getvalue().splitlines()
    assert len(lines) == 2 and "later" in lines[0] and "sooner" in lines[1]


@pytest.mark.parametrize("height", [24, 40])
def test_the_live_table_fits_the_terminal_and_shows_the_newest(watch: Watch, height: int) -> None:
    for number in range(30):
        watch.events.append(("north", event(number, at_unix_s=float(number), subject=f"subject-{number}")))
        watch.incidents.append(Incident(at_s=float(number), text=f"action-{number}", outcome="seen"))
    out = io.StringIO()
    Console(file=out, width=160).print(render(watch, height=height))
    shown = out.getvalue()
    assert len(shown.splitlines()) <= height
    assert "subject-29" in shown and "action-29" in shown and "subject-0 " not in shown


def test_a_round_done_again_without_a_stopped_site_is_not_a_common_round(watch: Watch) -> None:
    for site in watch.processes.sites.values():
        site.started_once = True
        write_report(site)
        write_rounds(site, [10.0, 10.1, 10.2])
    south = watch.processes.sites["south"]
    write_report(south, state_digests={"1": "s1", "2": "other", "3": "s3"})
    assert any("differ at the end of round 2" in failure for failure in judge(watch).failures)
    path = south.folder / "rounds.jsonl"
    path.write_text(path.read_text().replace('"round": 2, "epoch": 1', '"round": 2, "epoch": 9'))
    assert judge(watch).failures == []
