"""What a run has shown, from recorded reports and logs: gaps after a fault, and each check that can fail."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from chaos_lab.processes import Processes
from chaos_lab.report import RunVerdict, judge, show
from chaos_lab.scenario import Scenario, SiteSpec
from chaos_lab.site import LabSite
from chaos_lab.table import render
from chaos_lab.watching import Incident, Watch
from chaosd.api.status import EventRecord, LinkStatus, SiteSummary, Status, WorkerStatus

CHECKS = {"rounds_at_least": 3, "survivors_go_on_within_s": 1.0, "mean_auc_at_least_alone_minus": 0.05}


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Two sites of which nothing runs; both have reported the same three rounds."""
    scenario = Scenario.model_validate(
        {
            "name": "recorded",
            "worker": {"script": "train.py"},
            "sites": [{"name": "a", "label": "Alpha"}, {"name": "b"}],
            "links": [{"between": ["a", "b"], "rate_mbit": 10}],
            "actions": [{"do": "leave", "site": "b"}],
            "checks": {**CHECKS, "elections_at_most": 1},
        }
    )
    with Processes(scenario, keep=False) as processes:
        for site in processes.sites.values():
            site.started_once = True
            write_report(site)
            write_rounds(site, [10.0, 10.1, 10.2])
        yield Watch(processes)


def write_report(site: LabSite, **changes: Any) -> None:
    report = {
        "hospital": site.name,
        "rounds": 3,
        "parameters_digest": "p3",
        "state_digests": {"1": "s1", "2": "s2", "3": "s3"},
        "auc_common": 0.9,
        "auc_alone": 0.9,
    }
    site.report_path.write_text(json.dumps(report | changes), encoding="utf-8")


def write_rounds(site: LabSite, times_s: list[float], digest: str = "d") -> None:
    lines = [
        json.dumps({"at_unix_s": at_s, "round": number, "epoch": 1, "digest": f"{digest}{number}", "weights": {"x": 1}})
        for number, at_s in enumerate(times_s, start=1)
    ]
    (site.folder / "rounds.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def event(**changes: Any) -> EventRecord:
    plain: dict[str, Any] = {
        "id": 1, "at_unix_s": 10.0, "kind": "scale-in", "subject": "b", "cause": "", "outcome": "done",
        "duration_s": 0.05, "epoch": 2, "round": 2, "reason": "", "event_id": "",
    }  # fmt: skip
    return EventRecord(**plain | changes)


def test_equal_reports_and_logs_hold(watch: Watch) -> None:
    verdict = judge(watch)
    assert verdict.failures == []
    assert verdict.figures["rounds_compared"] == 3 and verdict.figures["results_compared"] == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state_digests": {"1": "s1", "2": "other", "3": "s3"}}, "states differ at the end of round 2"),
        ({"state_digests": {}}, "nothing was compared"),
        ({"parameters_digest": "other"}, "final parameters differ"),
        ({"auc_common": 0.7}, "mean AUC is 0.800"),
        ({"auc_common": float("nan")}, "mean AUC is nan"),
        ({"rounds": "many"}, "the report that b has written cannot be used: Expected `int`, got `str`"),
        ({"parameters_digest": None}, "the report that b has written cannot be used"),
        ({"state_digests": {"first": "s1"}}, "the report that b has written cannot be used"),
        ({"auc_alone": None}, "cannot be used: auc_common without auc_alone"),
    ],
)
def test_a_report_that_differs_fails_the_run(watch: Watch, changes: dict[str, Any], words: str) -> None:
    write_report(watch.processes.sites["b"], **changes)
    assert any(words in failure for failure in judge(watch).failures)


@pytest.mark.parametrize("text", ["{}", "[]", '{"loss": 0.5}'])
def test_a_report_of_another_form_fails_the_run_with_what_it_lacks(watch: Watch, text: str) -> None:
    watch.processes.sites["b"].report_path.write_text(text, encoding="utf-8")
    assert any("the report that b has written cannot be used: " in failure for failure in judge(watch).failures)


def test_models_that_nobody_reports_are_not_taken_for_good_ones(watch: Watch) -> None:
    for site in watch.processes.sites.values():
        write_report(site, auc_common=None, auc_alone=None)
    verdict = judge(watch)
    assert verdict.failures == ["no report has auc_common and auc_alone: no models were compared"]
    assert "ROC curve" not in text_of_end(watch, verdict)


def test_too_few_rounds_fail_the_run(watch: Watch) -> None:
    for site in watch.processes.sites.values():
        write_report(site, rounds=2)
    assert judge(watch).failures == ["2 rounds were trained; at least 3 are wanted"]


def test_a_missing_report_fails_the_run(watch: Watch) -> None:
    watch.processes.sites["b"].report_path.unlink()
    assert "b has written no report" in judge(watch).failures


def test_another_result_of_the_same_round_fails_the_run(watch: Watch) -> None:
    write_rounds(watch.processes.sites["b"], [10.0, 10.1], digest="other")
    assert any("b has another result of round 1" in failure for failure in judge(watch).failures)


def test_survivors_that_waited_too_long_fail_the_run(watch: Watch) -> None:
    watch.incidents.append(
        Incident(at_s=1, text="b is killed", duration_s=1.5, outcome="the others completed their next round")
    )
    assert judge(watch).failures == ["b is killed: the others went on after 1.50 s, not 1 s"]


def test_a_graceful_leave_recorded_as_a_failure_fails_the_run(watch: Watch) -> None:
    leaver = watch.processes.sites["b"].identity.site[:8]
    watch.events.append(("a", event(subject=leaver, cause="all its links are down")))
    assert "the graceful leave of b was recorded as a failure" in judge(watch).failures


def test_more_elections_than_allowed_fail_the_run(watch: Watch) -> None:
    for term in (2, 3):
        watch.events.append(("a", event(kind="election", reason=f"scheduler of term {term}")))
    assert judge(watch).failures == ["2 elections were won; at most 1 are allowed"]


def test_the_hand_over_at_the_end_of_the_run_is_no_election_too_many(watch: Watch) -> None:
    for term, number in ((2, 0), (3, 3)):
        watch.events.append(("a", event(kind="election", round=number, reason=f"scheduler of term {term}")))
    assert judge(watch).failures == []


def test_the_time_to_the_next_round_is_the_end_of_the_longest_gap_of_the_slowest_survivor(watch: Watch) -> None:
    one, other = watch.processes.sites.values()
    write_rounds(one, [10.0, 10.1, 10.35, 10.4, 10.45])
    write_rounds(other, [10.0, 10.1, 10.6, 10.65, 10.7])
    assert watch.next_round_after(10.1, [one, other]) == pytest.approx(0.5)


def test_the_time_to_the_next_round_is_unknown_until_every_survivor_goes_on(watch: Watch) -> None:
    one, other = watch.processes.sites.values()
    write_rounds(one, [10.0, 10.1, 10.35, 10.4, 10.45])
    write_rounds(other, [10.0, 10.1, 10.6])
    assert watch.next_round_after(10.1, [one, other]) is None


def text_of(thing: Any) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(thing)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_shows_sites_links_and_events(watch: Watch) -> None:
    a, b = watch.processes.sites.values()
    ids = (a.identity.site, b.identity.site)
    a.status = Status(
        version="1", run="recorded", site=ids[0], name="a", address="h:1", pid=1, incarnation=1, state="member",
        paused="", epoch=7, term=2, scheduler=ids[0], round=42, round_s=0.1, result_digest="", transfer=None,
        uptime_s=1.0, worker=WorkerStatus(connected=True, pid=2, round=42, phase="computing"),
        sites=(SiteSummary(site=ids[0], name="a", address="h:1", state="member", voter=True, round=42, phase=None),),
        links=(LinkStatus(one=ids[0], other=ids[1], rate_bytes_per_s=1_250_000, rtt_s=0.004, up=True),),
    )  # fmt: skip
    watch.events.append(("a", event(kind="scale-out", subject="b")))
    shown = text_of(render(watch))
    for word in ("Alpha", "member", "42", "7", "a - b", "10.0 Mbit/s", "4.0 ms", "up", "scale-out", "0.050 s"):
        assert word in shown, word


def text_of_end(watch: Watch, verdict: RunVerdict) -> str:
    console = Console(file=io.StringIO(), width=160)
    show(watch, verdict, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_stands_in_brackets_is_shown_and_obeyed_by_no_table(watch: Watch) -> None:
    """A scenario's words, and those of a script: `[north]` was left out, `[/bold]` ended the lab."""
    a = watch.processes.sites["a"]
    a.spec = SiteSpec(name="a", label="St. Mary [north]")
    write_report(a, hospital="St. Mary [north]")
    watch.incidents.append(Incident(at_s=1.0, text="kill [/bold]", outcome="back [bold]"))
    for shown in (text_of(render(watch)), text_of_end(watch, judge(watch))):
        assert "St. Mary [north]" in shown and "kill [/bold]" in shown and "back [bold]" in shown


def test_the_end_says_what_failed(watch: Watch) -> None:
    write_report(watch.processes.sites["b"], parameters_digest="other")
    shown = text_of_end(watch, judge(watch))
    assert "FAILED: the final parameters differ" in shown and "Everything held" not in shown


def test_nothing_is_left_of_a_lab_whose_sites_cannot_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scenario = Scenario.model_validate(
        {"name": "x", "worker": {"script": "t.py"}, "sites": [{"name": "a"}, {"name": "b"}]}
    )
    processes = Processes(scenario, keep=False)
    (processes.folder / "b").write_text("in the way", encoding="utf-8")
    with pytest.raises(FileExistsError), processes:
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_long_path_for_temporary_files_does_not_make_sockets_impossible(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import shutil
    import tempfile

    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    scenario = Scenario.model_validate({"name": "x", "worker": {"script": "t.py"}, "sites": [{"name": "a"}]})
    processes = Processes(scenario, keep=False)
    try:
        assert len(str(processes.folder / "a" / "worker.sock")) <= 103
    finally:
        shutil.rmtree(processes.folder)


def test_a_site_that_stays_killed_owes_no_report_and_what_a_viewer_did_is_not_judged_by_the_clock(watch: Watch) -> None:
    gone = watch.processes.sites["b"]
    gone.report_path.unlink()
    assert any("b has written no report" in failure for failure in judge(watch).failures)
    watch.processes.kill(gone, "both")
    slow = Incident(at_s=1.0, text="b killed", duration_s=9.0, outcome="their next round 9000 ms after it", asked="b")
    watch.incidents.append(slow)
    watch.events.append(("a", event(cause="all its links are down")))
    assert judge(watch).failures == []
    slow.asked = ""
    assert any("went on after 9.00 s" in failure for failure in judge(watch).failures)
