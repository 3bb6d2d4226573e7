"""Rules on what a site gives, says, dials and believes: with each taken away a named test fails. That every patch still
applies, and that the test is there, is seen by every `make test`, the rest by `make mutants`."""

from __future__ import annotations

import functools
import importlib

import pytest
from tests.simulation.mutants.planting import changed, planted
from tests.simulation.rules_bounds import BOUNDS
from tests.simulation.rules_dials import DIALS
from tests.simulation.rules_links import LINKS
from tests.simulation.rules_offers import OFFERED
from tests.simulation.rules_rates import RATES
from tests.simulation.rules_states import STATES
from tests.simulation.undoing_rules import TESTS, Rule, outcomes

RULES = (*BOUNDS, *RATES, *DIALS, *LINKS, *STATES, *OFFERED)


def name_of(rule: Rule) -> str:
    return f"{rule.spec} {rule.without}"


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_the_patch_of_the_rule_still_applies_and_its_test_is_there(rule: Rule) -> None:
    assert set(changed(rule.patches)) == {rule.where}
    path, _, function = rule.test.partition("::")
    assert f"def {function}(" in (TESTS / path).read_text("utf-8")


@functools.cache
def holds(test: str) -> None:
    """It passes as long as the rule is there: several rules share a test."""
    told = outcomes(test)
    assert told.passed and not told.failed, f"{test} fails with the rule"


def test_rules_are_named_once() -> None:
    names = [name_of(rule) for rule in RULES]
    assert len(set(names)) == len(names)


@pytest.mark.mutants
@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_named_test_fails_without_the_rule(rule: Rule) -> None:
    importlib.import_module(rule.module)  # before it is planted, else the module would keep it
    holds(rule.test)
    with planted(rule.bug):
        told = outcomes(rule.test)
    assert told.failed, f"without the rule {rule.test} passes ({told.passed} cases)"
