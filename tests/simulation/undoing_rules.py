"""How a rule that no run of the simulator ever lacked is taken away, and which test has to fail then.

The planted bugs (`mutants.bugs`) are looked for by oracles, the fixes of docs/found-by-simulation.md by what held them
from then on (`undone`). Here are rules of the spec that were there from the beginning: what a site may give, how much
may be said, whom a daemon dials. Some live in `chaosd`, and their tests have parameters and fixtures, or wait for
bytes: so pytest itself says what fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.simulation.mutants.planting import Bug, Patch

TESTS = Path(__file__).parents[1]
WITHOUT = ("cacheprovider", "faulthandler", "xdist", "terminal")
"""Plugins of the run around this one that cannot be there twice, or would tell it twice."""
TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Rule:
    """`where`, `old`, `new`: as a `Patch` has them. `test`: `path::function` below tests/, which fails without it, in
    one of its cases at least."""

    spec: str
    without: str
    """What a site does then."""
    where: str
    old: str
    new: str
    test: str

    @property
    def patches(self) -> tuple[Patch, ...]:
        return (Patch(self.where, self.old, self.new),)

    @property
    def bug(self) -> Bug:
        return Bug(name=self.without, patches=self.patches, breaks=())

    @property
    def module(self) -> str:
        """Of the test."""
        return ".".join(("tests", *Path(self.test.partition("::")[0]).with_suffix("").parts))


@dataclass(eq=False, slots=True)
class Outcomes:
    """A plugin of pytest that counts."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        self.passed += report.passed and report.when == "call"


def outcomes(test: str) -> Outcomes:
    """What becomes of it now."""
    told = Outcomes()
    without = [word for name in WITHOUT for word in ("-p", f"no:{name}")]
    settings = {"addopts": "--import-mode=importlib", "timeout": TIMEOUT_S, "timeout_method": "signal"}
    overrides = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    pytest.main([*without, *overrides, "-s", "-x", str(TESTS / test)], plugins=[told])
    return told
