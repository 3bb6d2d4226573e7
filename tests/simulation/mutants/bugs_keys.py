"""Planted in the change of a site's key: what a thief of the former one could use, and what would never end."""

from __future__ import annotations

from tests.simulation.mutants.planting import Bug, Patch

KEYS = (
    Bug(
        name="a former key counts for ever",
        patches=(
            Patch(
                "chaos_protocols.agreement.key_ring:KeyRing._counting",
                "return known.counting",
                "return known.chain.keys",
            ),
        ),
        breaks=(1, 2, 5, 6, 7, 8, 11),
    ),
    Bug(
        name="a site does not say that it uses its new key",
        patches=(Patch("chaos_protocols.membership.own_keys:OwnKeys._use", "or agreed.is_settled or", "or True or"),),
        breaks=(8,),
    ),
)
