"""How a fix of docs/found-by-simulation.md is taken back.

`row` is the number in its table. A patch is that of the planted bugs, see `mutants.planting`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.mutants.planting import Bug, Patch


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """`stories`: numbers of stories; the claims of at least one of them fail. `test`: `module:function`, below
    tests/unit/protocols, that fails."""

    row: int
    patches: tuple[Patch, ...]
    stories: tuple[str, ...] = ()
    test: str = ""

    @property
    def bug(self) -> Bug:
        return Bug(name=f"row {self.row} undone", patches=self.patches, breaks=())


LEAVING = "chaos_protocols.membership.leaving:Leaving"
PARTICIPATION = "chaos_protocols.membership.participation:Participation"
WAITS_ALONE = Patch(
    "chaos_protocols.scheduler.round_resolution:RoundResolution._resolve",
    "if outcome.pending and others:",
    "if outcome.pending and not others:\n        return Decision(reason='')\n    if outcome.pending and others:",
)
"""Row 46: pending members that nobody can let go."""
WAITS_FOR_EVER = Patch(
    f"{LEAVING}._nothing_is_agreed", "waited = now_s - agreed_s > 2 * self._patience_s", "waited = False"
)
"""Row 53: a leaver for which nothing is agreed. It ends what rows 10 and 35 end sooner."""
WITHOUT_MIRRORS = Patch(
    "chaos_protocols.scheduler.restore_point:RestorePoint._nobody_trains", "return not in_memory or", "return True or"
)
"""Row 50: who is taken over while a mirror may bring a worker back. It hides row 43."""
ASKS_FOR_EVER = Patch(
    "chaos_protocols.scheduler.round_resolution:RoundResolution.step",
    "if self._repeated[site] > REPEATED_MAX",
    "if False",
)
"""Spec 10.4: a site that never says how far it is. Its removal hides rows 18, 38 and 49."""
