"""Faults drawn from a seed: which ones, which tests look for each, and what counts as noticed."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
from tests.simulation.mutants import random_faults, trying
from tests.simulation.mutants.random_faults import (
    NOT_CAUGHT,
    NOT_JUDGED,
    OPEN,
    SEED_RUNS,
    STORY_TESTS,
    UNIT_TESTS,
    Job,
    Results,
    Verdict,
    judge,
    summary,
    undecided,
)
from tests.simulation.mutants.reach import PROTOCOLS, ROOT, UNIT, FailsAnyway, Reach, folders_shared
from tests.simulation.mutants.small_faults import SmallFault, decision_modules, drawn, faults_in
from tests.simulation.mutants.trying import Bench, CannotPatch, in_child

from chaos_protocols.rounds.reduce.retention import RetainedRounds

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


def a_fault_that_is_run(reach: Reach) -> tuple[SmallFault, tuple[str, ...]]:
    module = RETENTION.relative_to(PROTOCOLS)
    found = ((fault, tuple(reach.tests(module, fault.lines, UNIT))) for fault in faults_in(RETENTION))
    return next(one for one in found if one[1] and "dropped" in one[0].what)


@pytest.mark.parametrize("on_a_copy", [False, True])
def test_a_fault_that_a_test_runs_into_is_caught_and_the_test_is_named(
    reach: Reach, on_a_copy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a child of this process, and in a new one."""
    fault, tests = a_fault_that_is_run(reach)
    if not on_a_copy:
        bench = object.__new__(Bench)  # this process has imported the tests as a bench would
        bench._functions = trying._functions()
        monkeypatch.setattr(random_faults, "_bench", bench)
    verdict = judge(Job(name="x", fault=fault, stage=UNIT_TESTS, tests=tests))
    assert verdict.by == UNIT_TESTS and verdict.caught and "test_retention.py::" in verdict.how
    assert fault.path.read_bytes() != fault.source(), "the sources themselves stay as they are"
    assert RetainedRounds(kept_min=1, count_max=1).add(4) == [], "and so does what runs here"


def test_a_function_that_is_not_there_cannot_be_changed_in_a_process_that_runs() -> None:
    bench = object.__new__(Bench)
    bench._functions = {}
    with pytest.raises(CannotPatch):
        bench.try_out(faults_in(RETENTION)[0], [])


def test_every_fault_of_a_seed_can_be_made_in_its_function() -> None:
    for fault in drawn(PROTOCOLS, 1, 30):
        code = trying._code_of(fault)
        assert code.co_qualname == fault.function and code.co_firstlineno <= fault.lines.start


@pytest.mark.parametrize(
    ("script", "by"), [("pass", NOT_CAUGHT), ("raise SystemExit(1)", SEED_RUNS), ("while True: pass", SEED_RUNS)]
)
def test_what_fails_or_does_not_end_is_caught(script: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "CPU_MAX_S", 1)
    monkeypatch.setattr(random_faults, "SEEDS", ("-c", script))
    verdict = judge(Job(name="x", fault=faults_in(RETENTION)[0], stage=SEED_RUNS))
    assert verdict.by == by and ("does not end" in verdict.how) == script.startswith("while")


@pytest.mark.parametrize("forked", [False, True])
def test_what_the_machine_did_not_get_through_is_not_judged(forked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "WALL_MAX_S", 0.2)
    monkeypatch.setattr(random_faults, "SEEDS", ("-c", "import time; time.sleep(60)"))
    if forked:
        assert in_child(lambda: time.sleep(60) or 0).status is None
    else:
        verdict = judge(Job(name="x", fault=faults_in(RETENTION)[0], stage=SEED_RUNS))
        assert (verdict.by, verdict.passed) == (NOT_JUDGED, STORY_TESTS)


def test_a_test_that_does_not_end_ends_its_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "TEST_CPU_MAX_S", 0.5)
    (tmp_path / "test_endless.py").write_text("def test_it():\n    while True:\n        pass\n")
    ended = in_child(lambda: trying._pytest([str(tmp_path)]))
    assert ended.status in trying.ENDLESS


def test_a_stage_of_which_nothing_reaches_the_line_leaves_the_fault_to_the_next() -> None:
    verdict = judge(Job(name="x", fault=faults_in(RETENTION)[0], stage=UNIT_TESTS))
    assert (verdict.by, verdict.passed) == (OPEN, UNIT_TESTS)


def a_verdict(name: str, by: str, passed: str = "") -> Verdict:
    where, what = "door.py:3 Door.shut", "dropped: ring()"
    return Verdict(name=name, by=by, passed=passed, took_s=3.0, where=where, what=what, how="a test")


def test_a_run_goes_on_where_it_was_stopped_and_tries_again_what_was_not_judged(tmp_path: Path) -> None:
    first = Results(tmp_path / "results")
    for one in (
        a_verdict("caught", UNIT_TESTS),
        a_verdict("left", OPEN, UNIT_TESTS),
        a_verdict("survived", NOT_CAUGHT, SEED_RUNS),
        a_verdict("interrupted", NOT_JUDGED, UNIT_TESTS),
    ):
        first.add(one)
    known = Results(tmp_path / "results")
    assert known.verdicts == first.verdicts
    names = [*known.verdicts, "new"]
    assert undecided(known, names, UNIT_TESTS) == ["new"]
    assert undecided(known, names, STORY_TESTS) == ["left", "interrupted"]
    assert undecided(known, names, SEED_RUNS) == []
    known.add(a_verdict("left", STORY_TESTS, UNIT_TESTS))
    assert undecided(Results(tmp_path / "results"), names, STORY_TESTS) == ["interrupted"]


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ([UNIT_TESTS] * 9 + [NOT_CAUGHT], 0),
        ([UNIT_TESTS] * 8 + [NOT_CAUGHT], 1),
        ([STORY_TESTS] * 9 + [NOT_JUDGED] * 5 + [OPEN], 0),
        ([NOT_JUDGED], 1),
    ],
)
def test_nine_in_ten_of_those_judged_are_wanted(told: list[str], status: int) -> None:
    assert summary([a_verdict(str(number), by) for number, by in enumerate(told)], 1.0) == status


def test_a_fault_that_the_page_calls_harmless_can_still_be_made() -> None:
    """A name goes with its place: where that reads differently, somebody has to look again."""
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| ([0-9a-f]{8}) \| `([\w.]+)` \|", page, re.MULTILINE))
    there = {(one.name(PROTOCOLS), one.function) for path in decision_modules(PROTOCOLS) for one in faults_in(path)}
    assert told and told - there == set()
