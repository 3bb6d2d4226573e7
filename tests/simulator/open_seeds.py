"""Seeds that break an invariant and are not mended yet (docs/found-by-simulation.md, "Open"). They are played, counted
and told like all others; alone they do not fail a batch, so that a new one is seen at once."""

from __future__ import annotations

from collections.abc import Mapping

OPEN: Mapping[str, int] = {}
"""The command that plays it to the invariant that is known to break."""
