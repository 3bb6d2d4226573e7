"""Every fix of docs/found-by-simulation.md that is named in `undone` is held: with it taken back, its story or its test
fails. A story's trace does not count, since it may be written anew; its claims do. That every patch still applies is
seen by every `make test`, the rest by `make mutants`."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from tests.simulation.mutants.planting import changed, planted
from tests.simulation.play import why_not
from tests.simulation.stage import SEED
from tests.simulation.undoing import Undone
from tests.simulation.undone import UNDONE

SCENARIOS = Path(__file__).parent / "scenarios"
ROOT = Path(__file__).parents[2]
UNIT_TESTS = ROOT / "tests" / "unit" / "protocols"
TABLE = ROOT / "docs" / "found-by-simulation.md"
HELD_BY_STORIES = [one for one in UNDONE if one.stories]
HELD_BY_A_TEST = [one for one in UNDONE if one.test]


def name_of(one: Undone) -> str:
    return f"row-{one.row}"


@pytest.mark.parametrize("one", UNDONE, ids=name_of)
def test_patches_of_the_fix_still_apply(one: Undone) -> None:
    assert {patch.target for patch in one.patches} == set(changed(one.patches))


@pytest.mark.mutants
@pytest.mark.parametrize("one", HELD_BY_STORIES, ids=name_of)
def test_claims_of_a_story_fail_without_the_fix(one: Undone) -> None:
    told = []
    with planted(one.bug):
        for number in one.stories:
            (path,) = SCENARIOS.glob(f"{number}-*.txt")
            told.append(why_not(path, SEED))
    assert any(told), f"the fix of row {one.row} is undone, and none of the stories {one.stories} notices"


@pytest.mark.mutants
@pytest.mark.parametrize("one", HELD_BY_A_TEST, ids=name_of)
def test_named_test_fails_without_the_fix(one: Undone) -> None:
    module_name, _, name = one.test.partition(":")
    (path,) = UNIT_TESTS.rglob(f"{module_name}.py")
    test = getattr(importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)), name)
    test()
    with planted(one.bug), pytest.raises((Exception, pytest.fail.Exception)):
        test()


def test_table_names_what_holds_each_row() -> None:
    rows = {int(found[1]): found[0] for found in re.finditer(r"^\| (\d+) \|.*$", TABLE.read_text("utf-8"), re.M)}
    assert sorted(rows) == list(range(1, len(rows) + 1))
    for one in UNDONE:
        held_by = rows[one.row].rsplit("|", 2)[1]
        for number in one.stories:
            assert re.search(rf"\b{number}\b", held_by), f"row {one.row} does not name story {number}"
        assert one.test.partition(":")[2] in held_by, f"row {one.row} does not name {one.test}"
