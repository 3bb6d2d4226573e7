"""The fixes of docs/found-by-simulation.md taken back, one at a time, and what notices: a story's claims, or a test."""

from __future__ import annotations

from tests.simulation.undone_decided import DECIDED
from tests.simulation.undone_early import EARLY
from tests.simulation.undone_late import LATE
from tests.simulation.undone_latest import LATEST
from tests.simulation.undone_newest import NEWEST
from tests.simulation.undone_present import PRESENT
from tests.simulation.undone_steady import STEADY
from tests.simulation.undone_thought import THOUGHT

UNDONE = (*EARLY, *LATE, *LATEST, *NEWEST, *PRESENT, *THOUGHT, *DECIDED, *STEADY)
