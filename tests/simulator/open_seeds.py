"""Seeds that break an invariant and are not mended yet (docs/found-by-simulation.md, "Open"). They are played, counted
and told like all others; alone they do not fail a batch, so that a new one is seen at once."""

from __future__ import annotations

from collections.abc import Mapping

OPEN: Mapping[str, int] = {
    "python -m tests.simulator 6159872 --sites 4 --guest": 10,
    "python -m tests.simulator 6159918 --sites 2 --guest": 10,
}
"""The command that plays it to the invariant that is known to break."""
