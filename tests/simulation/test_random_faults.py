"""Faults drawn from a seed: which ones, which tests look for each, and what counts as noticed."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.simulation.mutants import random_faults
from tests.simulation.mutants.random_faults import (
    NOT_CAUGHT,
    NOT_JUDGED,
    SEED_RUNS,
    STORY_TESTS,
    UNIT_TESTS,
    Job,
    Results,
    Verdict,
    judge,
    stages,
    summary,
    wanted,
)
from tests.simulation.mutants.reach import PROTOCOLS, ROOT, UNIT, FailsAnyway, Reach, folders_shared
from tests.simulation.mutants.small_faults import decision_modules, drawn, faults_in

RETENTION = PROTOCOLS / "rounds" / "reduce" / "retention.py"
TESTS_OF_IT = UNIT / "rounds" / "reduce" / "test_retention.py"
SOURCE = """class Door:
    def shut(self, now_s):
        if self.open and now_s > self.since_s:
            self.open = False
        self.bell.ring()

    def lock(self, now_s):
        return self.key if now_s > self.since_s else None
"""


def names(path: Path) -> set[str]:
    return {fault.name(path.parent) for fault in faults_in(path)}


def test_every_place_has_its_own_name_and_keeps_it_when_code_around_it_changes(tmp_path: Path) -> None:
    places = [fault for path in decision_modules(PROTOCOLS) for fault in faults_in(path)]
    assert len({fault.name(PROTOCOLS) for fault in places}) == len(places) > 3000
    path = tmp_path / "door.py"
    path.write_text(SOURCE)
    before = names(path)
    assert len(before) == 7
    path.write_text(f"ROOM = 1\n\n\ndef knock(door):\n    door.hear()\n\n\n{SOURCE}")
    assert before < names(path)
    path.write_text(SOURCE.replace("self.bell.ring()", "self.bell.ring(1)"))
    assert len(before & names(path)) == len(before) - 1


def test_a_seed_draws_the_same_places_until_they_change_and_another_one_others(tmp_path: Path) -> None:
    (tmp_path / "door.py").write_text(SOURCE)
    first = [fault.name(tmp_path) for fault in drawn(tmp_path, 1, 4)]
    assert first == [fault.name(tmp_path) for fault in drawn(tmp_path, 1, 7)][:4]
    assert {tuple(fault.name(tmp_path) for fault in drawn(tmp_path, seed, 4)) for seed in range(9)} > {tuple(first)}


def test_every_fault_of_a_seed_can_be_read_by_python() -> None:
    for fault in drawn(PROTOCOLS, 1, 200):
        compile(fault.source(), str(fault.path), "exec")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reach") / "reach.json"


@pytest.fixture(scope="module")
def reach(known: Path) -> Reach:
    made = Reach(known)
    assert made.learn([TESTS_OF_IT]) == 1
    return made


def test_only_tests_that_run_the_line_look_for_its_fault_and_what_is_known_is_not_run_again(
    reach: Reach, known: Path
) -> None:
    again = Reach(known)
    assert again.learn([TESTS_OF_IT]) == 0
    module, lines = RETENTION.relative_to(PROTOCOLS), range(1, 1000)
    everything = set(again.tests(module, lines, UNIT))
    assert everything and everything == set(reach.tests(module, lines, UNIT))
    assert all(test.startswith(str(TESTS_OF_IT.relative_to(ROOT))) for test in everything)
    assert not again.tests(Path("site.py"), lines, UNIT) and not again.tests(module, range(0), UNIT)
    assert any(set(again.tests(module, fault.lines, UNIT)) < everything for fault in faults_in(RETENTION))


def test_tests_that_fail_without_a_fault_are_no_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    with pytest.raises(FailsAnyway):
        Reach(tmp_path / "reach.json").learn([TESTS_OF_IT])


def test_tests_beside_the_module_come_first() -> None:
    module = Path("rounds", "reduce", "tree.py")
    assert folders_shared(module, TESTS_OF_IT) == 2
    assert folders_shared(module, UNIT / "rounds" / "test_round_status.py") == 1
    assert folders_shared(module, UNIT / "wire" / "test_wire.py") == 0
    assert folders_shared(module, ROOT / "tests" / "simulation" / "test_scenarios.py") == 0


def test_stages_are_units_then_stories_then_seeds_without_those_that_do_not_run_the_line() -> None:
    class Known(Reach):
        def tests(self, module: Path, lines: range, below: Path) -> list[str]:
            return ["one"] if below == UNIT or lines.start < 40 else []

    fault = faults_in(RETENTION)[0]
    told = [stage for stage, _ in stages(replace(fault, lines=range(39, 40)), Known())]
    assert told == [UNIT_TESTS, STORY_TESTS, SEED_RUNS]
    assert [stage for stage, _ in stages(replace(fault, lines=range(40, 41)), Known())] == [UNIT_TESTS, SEED_RUNS]


def test_a_fault_that_a_test_runs_into_is_caught_and_the_test_is_named(reach: Reach) -> None:
    module = RETENTION.relative_to(PROTOCOLS)
    fault = next(one for one in faults_in(RETENTION) if "dropped" in one.what and reach.tests(module, one.lines, UNIT))
    verdict = judge(Job(name="x", fault=fault, stages=stages(fault, reach)[:1]))
    assert verdict.by == UNIT_TESTS and verdict.caught and "test_retention.py::" in verdict.how
    assert fault.path.read_bytes() != fault.source(), "the sources themselves stay as they are"


@pytest.mark.parametrize(
    ("script", "by"), [("pass", NOT_CAUGHT), ("raise SystemExit(1)", SEED_RUNS), ("while True: pass", SEED_RUNS)]
)
def test_what_fails_or_does_not_end_is_caught(script: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_faults, "CPU_MAX_S", 1)
    verdict = judge(Job(name="x", fault=faults_in(RETENTION)[0], stages=((SEED_RUNS, ("-c", script)),)))
    assert verdict.by == by and ("does not end" in verdict.how) == script.startswith("while")


def test_what_the_machine_did_not_get_through_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_faults, "WALL_MAX_S", 0.2)
    waits = ("-c", "import time; time.sleep(60)")
    verdict = judge(Job(name="x", fault=faults_in(RETENTION)[0], stages=((SEED_RUNS, waits),)))
    assert verdict.by == NOT_JUDGED and not verdict.caught


def a_verdict(name: str, by: str) -> Verdict:
    return Verdict(name=name, by=by, took_s=3.0, where="door.py:3 Door.shut", what="dropped: ring()", how="a test")


def test_a_run_goes_on_where_it_was_stopped_and_tries_again_what_was_not_judged(tmp_path: Path) -> None:
    faults = {name: faults_in(RETENTION)[0] for name in "abcd"}
    first = Results(tmp_path / "results")
    for name, by in (("a", UNIT_TESTS), ("b", NOT_CAUGHT), ("c", NOT_JUDGED)):
        first.add(a_verdict(name, by))
    known = Results(tmp_path / "results")
    assert known.verdicts == first.verdicts
    assert wanted(faults, known, only=[], again=False) == ["c", "d"]
    assert wanted(faults, known, only=[], again=True) == ["b", "c", "d"]
    assert wanted(faults, known, only=["a"], again=False) == ["a"]
    known.add(a_verdict("b", SEED_RUNS))
    assert wanted(faults, Results(tmp_path / "results"), only=[], again=True) == ["c", "d"]


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ([UNIT_TESTS] * 9 + [NOT_CAUGHT], 0),
        ([UNIT_TESTS] * 8 + [NOT_CAUGHT], 1),
        ([STORY_TESTS] * 9 + [NOT_JUDGED] * 5, 0),
        ([NOT_JUDGED], 1),
    ],
)
def test_nine_in_ten_of_those_judged_are_wanted(told: list[str], status: int) -> None:
    assert summary([a_verdict(str(number), by) for number, by in enumerate(told)], 1.0) == status
