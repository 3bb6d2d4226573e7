"""A site that lives, with links that are up, and is cut off all the same: it does not say how far it is, or hears
nothing of what is agreed. Whatever the cause, it must not hold up the others for ever (spec 9.22, 10.4)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from chaos_protocols.agreement.raft.messages import AppendRequest, SnapshotRequest
from chaos_protocols.wire.control import Envelope, RaftEnvelope, RoundStatusReply

if TYPE_CHECKING:
    from tests.simulator.world import World

SHARE = 1 / 16
"""Of the seeds."""
LASTS_S = 12.0
"""Beyond the trouble: for as long as the others wait for such a site, and longer."""


class Muteness:
    """`site`: some words of which, or for which, are lost; empty: there is none. `deaf`: what is agreed does not come
    there, as long as it has no vote: an agreement needs its voters. Otherwise its answers how far it is are lost."""

    def __init__(self, world: World) -> None:
        self.site, self.deaf = "", False
        self._world = world

    def begins(self, site: str, *, deaf: bool) -> None:
        self.site, self.deaf = site, deaf

    def ends(self) -> None:
        self.site = ""

    def swallows(self, envelope: Envelope) -> bool:
        """Whether this word is lost."""
        message = envelope.message
        if not self.site or not self.deaf:
            return envelope.source == self.site and isinstance(message, RoundStatusReply)
        if envelope.destination != self.site or not isinstance(message, RaftEnvelope):
            return False
        leader = self._world.nodes.get(envelope.source)
        if leader is None or leader.machine is None or not isinstance(message.message, AppendRequest | SnapshotRequest):
            return False
        return self.site not in leader.machine.replica.configuration.voters


def muteness(world: World, until_s: float) -> None:
    """By the seed, one site, from some moment on."""
    rng = random.Random(f"muteness/{world.seed}")
    if rng.random() >= SHARE:
        return
    site, deaf = rng.choice(list(world.nodes)), rng.random() < 0.5
    world.schedule(rng.uniform(0.0, until_s), lambda: world.muteness.begins(site, deaf=deaf))
    world.schedule(until_s + LASTS_S, world.muteness.ends)
