"""What a viewer of the demo may have done: never what would leave the run without a majority or without its state."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from tests.unit.daemon.api.local_api import sample_status

from chaos_lab.actions import Script
from chaos_lab.demo_page.visit import AWAY_S, HOLD_MAX_S, Visit, Wish, why_not
from chaos_lab.processes import Processes
from chaos_lab.scenario import Scenario
from chaos_lab.watching import Watch
from chaosd.api.status import SiteSummary


class Running:
    """In place of a process that runs."""

    def poll(self) -> None:
        return None


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Four sites, of which the last was not started; all that run are members that train."""
    scenario = Scenario.model_validate(
        {"name": "seen", "worker": {"script": "train.py"}, "sites": [{"name": name} for name in "abcd"]}
    )
    with Processes(scenario, keep=False) as processes:
        watch = Watch(processes, training_since_s=0.0)
        for site in list(processes.sites.values())[:3]:
            site.daemon = site.worker = Running()  # type: ignore[assignment]
        votes(watch, "abc")
        yield watch
        for site in processes.sites.values():
            site.daemon = site.worker = None


def votes(watch: Watch, voters: str) -> None:
    sites = watch.processes.sites
    roster = tuple(
        SiteSummary(
            site=sites[name].identity.site,
            name=name,
            address="",
            state="member",
            voter=name in voters,
            round=5,
            phase="compute",
        )
        for name in "abc"
    )
    said = sample_status()
    worker = msgspec.structs.replace(said.worker, connected=True, phase="compute")
    for name in "abc":
        sites[name].status = msgspec.structs.replace(said, state="member", worker=worker, sites=roster)


def test_one_of_three_voters_may_be_killed_and_the_second_only_when_the_others_vote_without_it(watch: Watch) -> None:
    sites = watch.processes.sites
    assert why_not("kill", sites["b"], watch) == ""
    sites["b"].daemon, sites["b"].status = None, None
    assert why_not("kill", sites["c"], watch) == "of 3 votes 1 would be left, no majority"
    votes(watch, "a")
    sites["b"].status = None
    assert why_not("kill", sites["c"], watch) == ""
    assert why_not("kill", sites["a"], watch) == "of 1 vote 0 would be left, no majority"


def test_the_last_that_trains_one_that_is_away_and_one_that_runs_are_refused_with_the_reason(watch: Watch) -> None:
    sites = watch.processes.sites
    assert why_not("kill", sites["d"], watch) == "d does not train"
    assert why_not("join", sites["d"], watch) == "" and why_not("join", sites["a"], watch) == "a runs already"
    sites["b"].status = sites["c"].status = None
    assert why_not("kill", sites["b"], watch) == "b is on its way in, or out"
    assert why_not("kill", sites["a"], watch) == "no other site trains: the state would be lost"
    watch.training_since_s = None
    assert why_not("join", sites["d"], watch) == "training has not begun"


def test_the_sites_train_on_while_somebody_looks_and_until_he_has_had_enough(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    script, visit = Script(watch.processes, watch), Visit()
    script.done = True
    assert not visit.stays(now_s), "nobody has opened the page"
    visit.step(watch, script, viewers=1)
    assert visit.stays(now_s + AWAY_S / 2) and not visit.stays(now_s + 2 * AWAY_S)
    now_s += 60.0
    view = visit.step(watch, script, viewers=1)
    assert watch.held_s == 60.0 and view.may_finish and not visit.stays(now_s + HOLD_MAX_S)
    strange, enough = Wish("kill", "nobody"), Wish("finish", "")
    visit.wishes.put(strange)
    visit.wishes.put(enough)
    view = visit.step(watch, script, viewers=1)
    assert strange.answer.result(0).reason == "there is no site 'nobody'" and not strange.answer.result(0).done
    assert enough.answer.result(0).done and not view.may_finish and not visit.stays(now_s)
    script.close()


def test_a_wish_that_nobody_waits_for_any_more_is_answered_to_nobody(watch: Watch) -> None:
    visit, given_up = Visit(), Wish("kill", "a")
    given_up.answer.cancel()
    visit.wishes.put(given_up)
    visit.refuse_all("the demo has ended")
    assert visit.wishes.empty()


def test_of_kills_that_were_asked_for_at_once_none_takes_the_majority(watch: Watch) -> None:
    """Each of them was possible when it was asked for."""
    script, visit, sites = Script(watch.processes, watch), Visit(), watch.processes.sites
    wishes = [Wish("kill", name) for name in "ab"]
    for wish in wishes:
        visit.wishes.put(wish)
    visit.step(watch, script, viewers=1)
    assert all(wish.answer.result(0).done for wish in wishes)
    sites["a"].daemon = sites["a"].status = None
    script.step()
    script.step()
    script.close()
    assert [one.outcome for one in watch.incidents] == [
        "not done: a does not run",
        "not done: of 3 votes 1 would be left, no majority",
    ]
