"""What a story does to the ways between two sites: its commands `cut`, `heal`, `narrow`, `forget` and the like."""

from __future__ import annotations

from tests.simulator.network import CONTROL
from tests.simulator.outbox import AVERAGING, STATES
from tests.simulator.world import World

from chaos_protocols import events

SLOW_DELAY_S = 0.15
LOAD_STEP_S = 0.2
KINDS = {CONTROL: (CONTROL,), AVERAGING: (AVERAGING,), "states": STATES}
"""Connections of a link, by the word of a story."""


class Paths:
    """Each command is a method of its name; sites by their ids."""

    VERBS = (
        *("cut", "oneway", "heal", "heal-all", "slow", "late", "prompt", "reset", "mute", "unmute", "load"),
        *("narrow", "widen", "forget"),
    )

    def __init__(self, world: World) -> None:
        self.world, self.network = world, world.network

    def cut(self, one: str, other: str) -> None:
        self.network.cut(one, other)
        self.network.cut(other, one)

    def oneway(self, one: str, other: str) -> None:
        self.network.cut(one, other)

    def heal(self, one: str, other: str) -> None:
        self.network.heal(one, other)
        self.network.heal(other, one)

    def heal_all(self) -> None:
        for way in sorted(self.network.cuts):
            self.network.heal(*way)

    def split(self, groups: list[list[str]]) -> None:
        """Nobody of one group reaches anybody of another."""
        for part in groups:
            for other in groups:
                if other is not part:
                    for way in [(one, far) for one in part for far in other]:
                        self.network.cut(*way)

    def narrow(self, one: str, other: str) -> None:
        self.network.narrow(one, other)
        self.network.narrow(other, one)

    def widen(self, one: str, other: str) -> None:
        self.network.widen(one, other)
        self.network.widen(other, one)

    def forget(self, one: str, other: str, kind: str) -> None:
        connection = self.network.between(one, other)
        assert connection is not None, "there is no link"
        for site in connection.ends:
            for stream in KINDS[kind]:
                self.network.forget(connection, site, stream)

    def slow(self, one: str, other: str) -> None:
        self.network.latency_s.update(dict.fromkeys(((one, other), (other, one)), SLOW_DELAY_S))

    def late(self, one: str, other: str, late_s: str) -> None:
        self.network.reorder(one, other, float(late_s))

    def prompt(self, one: str, other: str) -> None:
        self.network.keep_order(one, other)

    def reset(self, one: str, other: str) -> None:
        self.world.reset(one, other)

    def mute(self, site: str) -> None:
        """What this site sends, and has under way, arrives nowhere until it is healed."""
        for far in self.world.nodes:
            if far != site:
                self.network.cut(site, far)

    def unmute(self, site: str) -> None:
        for far in self.world.nodes:
            if far != site:
                self.network.heal(site, far)

    def load(self, one: str, other: str, for_s: str) -> None:
        """Bulk bytes fill the link: they arrive and nothing else does, for so long."""
        world, ends_s = self.world, self.world.now_s + float(for_s)
        ends = ((one, other), (other, one))
        self.cut(one, other)

        def arrived() -> None:
            for here, far in ends:
                world.oracles.delivered(world.nodes[here], far)
                bulk = tuple(
                    events.ConnectionProgress(stream=stream, received=True, acknowledged=True) for stream in range(3)
                )
                world.nodes[here].handle(events.LinkProgressed(site=far, connections=bulk))  # type: ignore[arg-type]
            if world.now_s < ends_s:
                world.schedule(LOAD_STEP_S, arrived)

        arrived()
