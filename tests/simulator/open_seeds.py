"""Seeds that break an invariant and are not mended yet (docs/found-by-simulation.md, "Open"). They are played, counted
and told like all others; alone they do not fail a batch, so that a new one is seen at once."""

from __future__ import annotations

from collections.abc import Mapping

OPEN: Mapping[str, int] = {
    "python -m tests.simulator 533 --sites 7 --operators": 3,
    "python -m tests.simulator 529 --sites 3 --operators": 8,
    "python -m tests.simulator 785 --sites 7 --operators": 8,
    "python -m tests.simulator 984 --sites 2 --operators": 10,
    "python -m tests.simulator 1297 --sites 3 --operators": 10,
    "python -m tests.simulator 1473 --sites 5 --operators": 10,
    "python -m tests.simulator 1721 --sites 7 --operators": 10,
    "python -m tests.simulator 1737 --sites 5 --operators": 10,
}
"""The command that plays it to the invariant that is known to break."""
