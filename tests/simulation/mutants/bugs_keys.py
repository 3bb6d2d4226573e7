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
    Bug(
        name="a scheduler's word alone changes a key",
        patches=(
            Patch("chaos_protocols.agreement.commands:apply_proven", "why_not(roster, checker, command)", "False"),
        ),
        breaks=(1, 5, 7, 11),
        seeds=60,
    ),
    Bug(
        name="a journal's made-up key counts after a restart",
        patches=(
            Patch(
                "chaos_protocols.membership.facts:last_known_roster",
                "apply_proven(roster, decode_command(entry.command), entry.index, checker)",
                "__import__('chaos_protocols.agreement.commands', fromlist=['x']).apply_command(\n"
                "                roster, decode_command(entry.command), entry.index\n            )",
            ),
            Patch(
                "chaos_protocols.agreement.key_ring:KeyRing.follow",
                "self._signer.owner(one.chain.first) == one.site and self._is_sound(one.chain)",
                "True",
            ),
        ),
        breaks=(11,),
        first=21,
        seeds=30,
        sites=5,
    ),
    Bug(
        name="a former key is taken though its site has shown a later one",
        patches=(
            Patch(
                "chaos_protocols.links.keys:LinkKeys._is_former",
                "known is not None and known.replaces(key)",
                "False",
            ),
        ),
        breaks=(8, 11),
        first=104,
        seeds=105,
        sites=3,
    ),
)
