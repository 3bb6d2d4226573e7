"""What an operator decides in a story.

recover SITE OTHER NAME          its request NAME at SITE: the run goes on from OTHER's newest checkpoint; or, where
                                 OTHER is `anew`, it begins anew
recover SITE OTHER NAME ROUND    from OTHER's state of that round
give-up SITE OTHER,...           at SITE: a new run without these sites (spec 21); answered as `give-up`
follow SITE OTHER                SITE goes over to the run that OTHER has recovered; answered as `follow`
rotate SITE OTHER                SITE is to have another key, which OTHER's operator approves; its next start takes it
"""

from __future__ import annotations

import random

from tests.rigs.keys import RigKeys
from tests.simulator.world import World

from chaos_protocols.events import RecoverRequested
from chaos_protocols.names import SiteId
from chaos_protocols.wire.keys import with_change
from chaos_protocols.wire.recovered import NUMBER_BYTES
from chaos_protocols.wishes import FollowWanted, KeyApproved, KeyOffered, RecoverWithout


def recover(world: World, site: str, origin: str, request: str, round_number: str = "") -> None:
    """See the module."""
    newest = 0 if origin == "anew" else max((one.round for one in world.node(origin).keeper.files), default=0)
    origin = "" if origin == "anew" else origin
    asked = RecoverRequested(request=request, origin=origin, round=int(round_number or newest))
    world.node(site).handle(asked)


def give_up(world: World, site: str, others: str) -> None:
    """See the module."""
    node, without = world.node(site), tuple(SiteId(world.site(one)) for one in others.split(","))
    number = random.Random(f"recovery/{world.seed}/{node.site}/{node.disk.incarnation}").randbytes(NUMBER_BYTES)
    world.runs.says(node, RecoverWithout(request="give-up", without=without, number=number))


def follow(world: World, site: str, other: str) -> None:
    """See the module."""
    world.runs.says(world.node(site), FollowWanted(request="follow", by=SiteId(world.site(other))))


def rotate(world: World, site: str, approver: str) -> None:
    """See the module."""
    node = world.node(site)
    assert node.machine is not None
    node.disk.next_number = node.disk.key_number + 1
    old, new = (RigKeys(node.site, number) for number in (node.disk.key_number, node.disk.next_number))
    node.handle(KeyOffered(chain=with_change(node.machine.keys.own, node.machine.roster.run_id, old, new)))
    key_id = SiteId(old.owner(new.public_key))
    world.node(approver).handle(KeyApproved(site=SiteId(node.site), key_id=key_id))
