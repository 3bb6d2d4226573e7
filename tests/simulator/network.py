"""The simulated Internet between sites: connections that deliver in order, directed cuts, latency, end-of-file.

A connection is what TLS over TCP gives: ordered and reliable while it lives, stalled by a cut, ended by either side.
Bytes of a cut direction wait and arrive when it heals, unless the connection is closed first. So nothing is lost,
doubled or out of order on one connection that lives. What TCP does not exclude, and what is simulated: words that went
through other sites overtake each other on their different ways (`reorder`), a link takes its bytes slowly (`clog`), a
word is delivered once more, also over another way or to a later life of its reader (`World.replay`, `World.repeat`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from chaos_protocols.messages import decode_envelope, encode_envelope

JITTER = 0.5
"""A message takes up to so much longer than the latency."""


class Clock(Protocol):
    now_s: float


@dataclass(slots=True)
class Connection:
    """Between `one` and `other`, each with the incarnation of its daemon. `alive[site]`: that side still has its
    socket."""

    number: int
    ends: tuple[str, str]
    incarnations: dict[str, int]
    alive: dict[str, bool]
    free_at_s: dict[str, float] = field(default_factory=dict)
    stalled: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)

    def far(self, site: str) -> str:
        return self.ends[1] if site == self.ends[0] else self.ends[0]


class Network:
    """`schedule(delay_s, function)`, the clock and `random()` are the world's; `deliver` and `lost` go to its sites."""

    def __init__(
        self,
        schedule: Callable[[float, Callable[[], None]], None],
        clock: Clock,
        random: Callable[[], float],
        deliver: Callable[[Connection, str, str, Any], None],
        lost: Callable[[Connection, str, str], None],
    ) -> None:
        self._schedule, self._clock, self._random = schedule, clock, random
        self._deliver, self._lost = deliver, lost
        self.latency_s: dict[tuple[str, str], float] = {}
        self.slowed: dict[tuple[str, str], float] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.clogs: dict[tuple[str, str], float] = {}
        self.shuffles: dict[tuple[str, str], float] = {}
        self.encodes = False
        self.connections: dict[int, Connection] = {}
        self._counter = 0

    def delay_s(self, source: str, destination: str) -> float:
        return self.latency_s.get((source, destination), 0.005) * (1.0 + self._random() * JITTER)

    def connect(self, one: str, other: str, incarnations: dict[str, int]) -> Connection:
        self._counter += 1
        connection = Connection(self._counter, (one, other), incarnations, {one: True, other: True})
        self.connections[connection.number] = connection
        return connection

    def between(self, one: str, other: str) -> Connection | None:
        """The connection that both ends have now."""
        for connection in reversed(self.connections.values()):
            if set(connection.ends) == {one, other} and all(connection.alive.values()):
                return connection
        return None

    def send(self, connection: Connection, source: str, kind: str, message: Any) -> None:
        destination = connection.far(source)
        if not connection.alive[source]:
            return
        if (source, destination) in self.cuts:
            connection.stalled.setdefault(source, []).append((kind, message))
            return
        if self.encodes and kind == "control":
            message = decode_envelope(encode_envelope(message))
        self._carry(connection, source, kind, message)

    def close(self, connection: Connection, site: str) -> None:
        """`site` closes its side (or its process ends): the far side reads end-of-file, after what was sent before."""
        if not connection.alive[site]:
            return
        self._end_side(connection, site)

    def _end_side(self, connection: Connection, site: str) -> None:
        far = connection.far(site)
        if connection.alive[far]:
            if (site, far) in self.cuts:
                connection.stalled.setdefault(site, []).append(("eof", None))
            else:
                now_s = self._clock.now_s
                arrives_s = max(now_s + self.delay_s(site, far), connection.free_at_s.get(site, 0.0))
                self._schedule(arrives_s - now_s, lambda: self._eof(connection, far))
        connection.alive[site] = False
        if not any(connection.alive.values()):
            self.connections.pop(connection.number, None)

    def _eof(self, connection: Connection, site: str) -> None:
        if (connection.far(site), site) in self.cuts:
            connection.stalled.setdefault(connection.far(site), []).append(("eof", None))
            return
        if connection.alive[site]:
            connection.alive[site] = False
            self.connections.pop(connection.number, None)
            self._lost(connection, site, "end of file")

    def cut(self, source: str, destination: str) -> None:
        self.cuts.add((source, destination))

    def clog(self, source: str, destination: str, message_s: float) -> None:
        """Every message takes the link for so long: a queue builds up, heartbeats wait in it."""
        self.clogs[source, destination] = message_s

    def unclog(self, source: str, destination: str) -> None:
        self.clogs.pop((source, destination), None)

    def reorder(self, source: str, destination: str, late_s: float) -> None:
        """What `source` hands on for others may be late by up to `late_s`: newer words come first by another way."""
        self.shuffles[source, destination] = late_s

    def keep_order(self, source: str, destination: str) -> None:
        self.shuffles.pop((source, destination), None)

    def calm(self) -> None:
        """No link is cut, clogged or out of order any more."""
        self.clogs.clear()
        self.shuffles.clear()
        for way in sorted(self.cuts):
            self.heal(*way)

    def heal(self, source: str, destination: str) -> None:
        if (source, destination) not in self.cuts:
            return
        self.cuts.discard((source, destination))
        for connection in list(self.connections.values()):
            if set(connection.ends) == {source, destination}:
                waiting = connection.stalled.pop(source, [])
                for kind, message in waiting:
                    if kind == "eof":
                        self._schedule(
                            self.delay_s(source, destination),
                            lambda c=connection: self._eof(c, destination),  # type: ignore[misc]
                        )
                    else:  # sent before its sender may have ended: the bytes were on their way
                        self._carry(connection, source, kind, message)

    def _carry(self, connection: Connection, source: str, kind: str, message: Any) -> None:
        """Deliver in order, after the way's delay; a cut that comes meanwhile holds it."""
        destination = connection.far(source)
        way, now_s = (source, destination), self._clock.now_s
        arrives_s = max(now_s + self.delay_s(source, destination), connection.free_at_s.get(source, 0.0))
        if way in self.clogs:
            arrives_s += self.clogs[way]
        if way in self.shuffles and kind == "control" and message.source != source:
            arrives_s += self.shuffles[way] * 2 * (self._random() * JITTER)
        else:
            connection.free_at_s[source] = arrives_s
        self._schedule(arrives_s - now_s, partial(self._arrive, connection, way, kind, message))

    def _arrive(self, connection: Connection, way: tuple[str, str], kind: str, message: Any) -> None:
        source, destination = way
        if way in self.cuts:
            connection.stalled.setdefault(source, []).append((kind, message))
        elif connection.alive[destination] and connection.number in self.connections:
            self._deliver(connection, destination, kind, message)
