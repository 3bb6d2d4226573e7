"""What an operator decides in a story.

recover SITE OTHER NAME          its request NAME at SITE: the run goes on from OTHER's newest checkpoint; or, where
                                 OTHER is `anew`, it begins anew
recover SITE OTHER NAME ROUND    from OTHER's state of that round
"""

from __future__ import annotations

from tests.simulator.world import World

from chaos_protocols.events import RecoverRequested


def recover(world: World, site: str, origin: str, request: str, round_number: str = "") -> None:
    """See the module."""
    newest = 0 if origin == "anew" else max((one.round for one in world.node(origin).keeper.files), default=0)
    origin = "" if origin == "anew" else origin
    asked = RecoverRequested(request=request, origin=origin, round=int(round_number or newest))
    world.node(site).handle(asked)
