"""What a site said long ago is shown with its age, so that it is not taken for where the site stands now."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console
from tests.unit.daemon.api.local_api import sample_status

from chaosd.cli.render import render_status


@pytest.mark.parametrize(
    ("age_s", "shown", "hidden"),
    [(0.3, "compute", "ago"), (2.0, "compute", "ago"), (75.0, "compute, 0:01:15 ago", "-"), (None, "compute", "ago")],
)
def test_the_phase_of_a_site_carries_its_age_when_it_is_old(age_s: float | None, shown: str, hidden: str) -> None:
    status = sample_status()
    here, there = status.sites
    there = msgspec.structs.replace(there, round=7, phase="compute", age_s=age_s)
    console = Console(file=io.StringIO(), width=200)
    console.print(render_status(msgspec.structs.replace(status, sites=(here, there))))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    (line,) = [line for line in text.splitlines() if "beta" in line and "learner" in line]
    assert shown in line and hidden not in line
