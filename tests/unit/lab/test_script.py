"""When actions begin: at a round, at a second of training, so long after the one before; never two at a time."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from chaos_lab import actions, watching
from chaos_lab.actions import Script, Steps
from chaos_lab.processes import Processes
from chaos_lab.scenario import ActionSpec, Scenario
from chaos_lab.watching import Incident, Watch


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0


class ShortScript(Script):
    """Every action shows its effect at the second look."""

    def _perform(self, action: ActionSpec, incident: Incident) -> Steps:
        yield
        return "seen"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    told = SimpleNamespace(monotonic=lambda: clock.now_s, time=lambda: clock.now_s)
    monkeypatch.setattr(actions, "time", told)
    monkeypatch.setattr(watching, "time", told)
    return clock


def scenario_of(*steps: dict[str, Any]) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "timed",
            "worker": {"script": "train.py"},
            "sites": [{"name": "a"}, {"name": "b"}],
            "actions": [{"do": "kill", "site": "b", **step} for step in steps],
        }
    )


@pytest.fixture
def rig(clock: Clock, request: pytest.FixtureRequest) -> Iterator[tuple[Script, Watch]]:
    with Processes(scenario_of(*request.param), keep=False) as processes:
        watch = Watch(processes, begun_s=clock.now_s)
        script = ShortScript(processes, watch)
        yield script, watch
        script.close()


@pytest.mark.parametrize("rig", [[{"at_round": 20}]], indirect=True)
def test_an_action_at_a_round_waits_for_the_round(rig: tuple[Script, Watch], clock: Clock) -> None:
    script, watch = rig
    watch.training_since_s, watch.round = clock.now_s, 19
    script.step()
    assert watch.incidents == []
    watch.round = 20
    script.step()
    assert [one.text for one in watch.incidents] == ["kill b"]


@pytest.mark.parametrize("rig", [[{"at_s": 5}]], indirect=True)
def test_seconds_count_from_the_first_round_on(rig: tuple[Script, Watch], clock: Clock) -> None:
    script, watch = rig
    clock.now_s += 60
    script.step()
    assert watch.incidents == []
    watch.training_since_s, watch.round = clock.now_s, 1
    clock.now_s += 4.9
    script.step()
    assert watch.incidents == []
    clock.now_s += 0.2
    script.step()
    assert len(watch.incidents) == 1


@pytest.mark.parametrize("rig", [[{}, {"after_s": 3}]], indirect=True)
def test_an_action_begins_so_long_after_the_effect_of_the_one_before(rig: tuple[Script, Watch], clock: Clock) -> None:
    script, watch = rig
    watch.training_since_s, watch.round = clock.now_s, 1
    script.step()
    clock.now_s += 10
    script.step()  # its effect is not seen yet
    clock.now_s += 1
    script.step()  # now it is
    assert [(one.outcome, one.duration_s) for one in watch.incidents] == [("seen", 11.0)]
    clock.now_s += 2.9
    script.step()
    assert len(watch.incidents) == 1
    clock.now_s += 0.2
    script.step()
    assert len(watch.incidents) == 2 and watch.incidents[1].outcome == ""


@pytest.mark.parametrize("rig", [[{}]], indirect=True)
def test_the_script_is_not_done_before_everybody_expected_trains(rig: tuple[Script, Watch], clock: Clock) -> None:
    script, watch = rig
    watch.training_since_s, watch.round = clock.now_s, 1
    for site in watch.processes.sites.values():
        site.expected = True
    for _ in range(5):
        script.step()
    assert watch.incidents[0].outcome == "seen" and not script.done


@pytest.mark.parametrize("rig", [[{"after_s": 60}]], indirect=True)
def test_what_is_asked_for_comes_before_the_rest_of_the_script_and_is_marked(
    rig: tuple[Script, Watch], clock: Clock
) -> None:
    script, watch = rig
    watch.training_since_s, watch.round = clock.now_s, 1
    script.ask(ActionSpec(do="join", site="b", say="started by the viewer"))
    script.step()
    script.step()
    script.step()
    (one,) = watch.incidents
    assert (one.text, one.outcome, one.asked) == ("started by the viewer", "seen", "b") and not script.over


@pytest.mark.parametrize("rig", [[{}]], indirect=True)
def test_an_action_whose_site_was_killed_by_somebody_is_left_out(rig: tuple[Script, Watch], clock: Clock) -> None:
    script, watch = rig
    watch.training_since_s, watch.round = clock.now_s, 1
    script.ask(ActionSpec(do="join", site="a"))
    for _ in range(4):
        script.step()
    asked, left_out = watch.incidents
    assert asked.outcome == "seen" and left_out.outcome == "not done: b does not run" and script.over
