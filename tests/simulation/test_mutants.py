"""The planted bugs themselves: every patch still applies, is taken back afterwards, and a few are caught here, the
others by `make mutants`."""

from __future__ import annotations

import pytest
from tests.simulation.mutants.__main__ import hunt
from tests.simulation.mutants.bugs import BUGS
from tests.simulation.mutants.planting import Bug, DoesNotApply, Patch, changed, owner_of, planted

QUICK = {
    "log entries are not persisted": (1, 7),
    "committed by one voter": (1,),
    "a site contributes twice": (3,),
    "replays are let through": (6,),
}
NAMED_BY_THE_PLAN = (
    "a vote is not persisted",
    "the epoch of a result is not checked",
    "a learner counts in the quorum",
    "results are kept one round too short",
    "the contribution of a removed site is accepted",
    "the resolve rule is skipped after a failure",
    "a snapshot is taken in the update phase",
    "a removed leader keeps leading",
    "two membership changes at once",
    "the hash of what came is not compared",
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_patch_still_applies(bug: Bug) -> None:
    made = changed(bug.patches)
    assert {patch.target for patch in bug.patches} == set(made)
    for _, owner, name, new in made.values():
        assert vars(owner)[name] is not new


def test_names_are_unique_and_the_ten_of_the_plan_are_among_them() -> None:
    names = [bug.name for bug in BUGS]
    assert len(set(names)) == len(names) >= 40
    assert set(NAMED_BY_THE_PLAN) <= set(names)


def test_bug_is_gone_after_it_was_planted() -> None:
    bug = next(one for one in BUGS if one.name == "committed by one voter")
    _, owner, name = owner_of(bug.patches[0].target)
    before = vars(owner)[name]
    with planted(bug):
        assert vars(owner)[name] is not before
    assert vars(owner)[name] is before


def test_patch_of_a_line_that_has_changed_is_noticed() -> None:
    for gone in ("raft.replication:commit", "raft.replication:NoSuchClass.commit", "no_such_module:commit"):
        patch = Patch(f"chaos_protocols.agreement.{gone}", "no such line", "")
        with pytest.raises(DoesNotApply):
            changed((patch,))


@pytest.mark.parametrize("name", QUICK)
def test_oracle_catches_the_planted_bug(name: str) -> None:
    finding = hunt(next(bug for bug in BUGS if bug.name == name))
    assert finding.invariant in QUICK[name], finding.text
    assert finding.seed < 5
