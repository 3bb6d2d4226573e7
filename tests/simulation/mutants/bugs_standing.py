"""Planted in what keeps a run from standing, and in what is said while it stands: silence, reasons, who is named."""

from __future__ import annotations

from tests.simulation.mutants.planting import Bug, Patch

WATCH = "chaos_protocols.scheduler.waits"

STANDING = (
    Bug(
        name="nobody is told whom a round waits for",
        patches=(Patch("chaos_protocols.membership.waits:Waits.reason", "waits = self.waited_for", "waits = ()"),),
        breaks=(8,),
        first=120,
        seeds=160,
    ),
    Bug(
        name="who has given its part is named all the same",
        patches=(
            Patch(
                f"{WATCH}:_is_missing",
                " and not (report.open == tag and report.gave)",
                "",
            ),
        ),
        breaks=(8,),
        first=120,
        seeds=160,
    ),
    Bug(
        name="bytes that a stopped daemon's system acknowledges excuse its silence",
        patches=(
            Patch(
                "chaos_protocols.links.silence:LinkWatch.silence",
                "min(silent_s, now_s - self.received_s)",
                "min(silent_s, now_s - self.bulk_s)",
            ),
        ),
        breaks=(8,),
        first=1136,
        seeds=1137,
        sites=5,
    ),
)
