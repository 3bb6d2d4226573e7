"""All planted bugs: those of the agreement and of its promises, of rounds and states, of the roster and of leaves,
of the bulk path, of what is said while a run stands, of whose word and whose key counts."""

from __future__ import annotations

from tests.simulation.mutants.bugs_agreement import AGREEMENT
from tests.simulation.mutants.bugs_bulk import BULK
from tests.simulation.mutants.bugs_guests import GUESTS
from tests.simulation.mutants.bugs_keys import KEYS
from tests.simulation.mutants.bugs_rosters import ROSTERS
from tests.simulation.mutants.bugs_rounds import ROUNDS
from tests.simulation.mutants.bugs_standing import STANDING

BUGS = (*AGREEMENT, *ROUNDS, *ROSTERS, *BULK, *STANDING, *GUESTS, *KEYS)
