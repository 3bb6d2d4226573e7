"""What the fire's judge makes of the rosters that sites show."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.soak.oracles import Oracles

A, B = "a" * 32, "b" * 32


def status(site: str, *states: tuple[str, str]) -> Any:
    rows = [SimpleNamespace(site=one, state=state) for one, state in states]
    return SimpleNamespace(site=site, epoch=13, sites=rows, links=())


@pytest.mark.parametrize(
    ("state", "agrees"),
    [
        ("member", True),
        ("learner", False),
        ("starting", True),  # it was killed, and shows what its journal has (seed 4342)
        ("joining", True),
    ],
)
def test_who_is_in_the_run_has_the_roster_of_all(state: str, agrees: bool) -> None:
    sites = {name: SimpleNamespace(identity=SimpleNamespace(site=site)) for name, site in (("a", A), ("b", B))}
    oracles: Any = Oracles.__new__(Oracles)
    oracles._sites, oracles._rosters = sites, {}
    assert oracles._roster("a", status(A, (A, "member"), (B, "member"))) == ""
    assert (oracles._roster("b", status(B, (A, "member"), (B, state))) == "") is agrees
