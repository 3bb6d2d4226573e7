"""The simulated Internet between sites: connections that deliver in order, directed cuts, latency, end-of-file.

A connection is what TLS over TCP gives: ordered and reliable while it lives, stalled by a cut, ended by either side.
Bytes of a cut direction wait and arrive when it heals, unless the connection is closed first. A link has several
streams: one for control, one for averaging, two for states, each a TCP connection in the daemon. So nothing is lost,
doubled or out of order on one stream of a link that lives; streams overtake each other, and end together. A link may
end in the middle of a frame (`tear`), or take long between its first and its last byte (`drag`). A way may swallow
large packets, so that bulk stands still and no new link comes up (`narrow`), or have forgotten one stream of a link
that otherwise lives (`forget`). A way with a rate carries averaging first (`pipes`). What TCP does not
exclude, and what is simulated: words that went through other sites overtake each other on their different ways
(`reorder`), a link takes its bytes slowly (`clog`), a word is delivered once more, also over another way or to a later
life of its reader (`World.replay`, `World.repeat`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from chaos_protocols.wire.control import decode_envelope, encode_envelope
from tests.simulator.outbox import Frame, encoded
from tests.simulator.pipes import Pipes, Waiting

CONTROL = "control"
ARRIVAL = "arrival"
BEGINS = "begins"
"""The kind of a delivery: the first bytes of a frame, whose last ones come later or never."""
RATE_BYTES_PER_S = 1e7
"""What a probe finds where a way has no rate."""
JITTER = 0.5
"""A message takes up to so much longer than the latency."""
TORN_AFTER_S = 0.001
"""Between the first bytes of a frame and the end of its link."""


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
    free_at_s: dict[tuple[str, str], float] = field(default_factory=dict)
    """By sender and stream: when the last frame before arrives."""
    stalled: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)
    queues: dict[tuple[str, str], deque[tuple[str, Frame]]] = field(default_factory=dict)
    """By sender and bulk stream: what is on its way, in the order in which it was sent and will arrive."""
    clogged: dict[str, deque[tuple[Any, float]]] = field(default_factory=dict)
    """By sender: control messages that wait for a clogged way, in order, each with when the one before arrives."""
    sent: dict[tuple[str, str], int] = field(default_factory=dict)
    arrived: dict[tuple[str, str], int] = field(default_factory=dict)
    """Frames by sender and bulk stream: what the kernels of both ends know."""
    pieces: dict[tuple[str, str], int] = field(default_factory=dict)
    """Of frames that are not whole yet, by sender and bulk stream: over a way with a rate one takes long."""
    forgotten: set[tuple[str, str]] = field(default_factory=set)
    """By sender and stream: nothing arrives any more."""
    processes: dict[str, Any] = field(default_factory=dict)
    """By site: the daemon at that end; two may have one key."""
    closed_by: set[str] = field(default_factory=set)
    """They take nothing more from it, not even what they had received."""

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
        self.narrows: set[tuple[str, str]] = set()
        self.rates: dict[tuple[str, str], float] = {}
        """Ways with a rate, in bytes a second; the others are as fast as one likes."""
        self.chunk_bytes = 0
        """Of a part of a round."""
        self._pipes = Pipes(schedule, self._rate_of, self._moved, self._carried, self._is_over)
        self.clogs: dict[tuple[str, str], float] = {}
        self.shuffles: dict[tuple[str, str], float] = {}
        self.drags: dict[tuple[str, str], float] = {}
        self.tears: set[tuple[str, str]] = set()
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
        if kind != CONTROL:
            connection.sent[source, kind] = connection.sent.get((source, kind), 0) + 1
        if self._is_held(connection, (source, destination), kind):
            connection.stalled.setdefault(source, []).append((kind, message))
            return
        if self.encodes:
            message = decode_envelope(encode_envelope(message)) if kind == CONTROL else encoded(message)
        self._carry(connection, source, kind, message)

    def close(self, connection: Connection, site: str) -> None:
        """`site` closes its side (or its process ends): the far side reads end-of-file, after what was sent before."""
        connection.closed_by.add(site)
        if connection.alive[site]:
            self._end_side(connection, site)

    def _end_side(self, connection: Connection, site: str) -> None:
        far = connection.far(site)
        if connection.alive[far]:
            if (site, far) in self.cuts:
                connection.stalled.setdefault(site, []).append(("eof", None))
            else:
                now_s = self._clock.now_s
                arrives_s = max(now_s + self.delay_s(site, far), connection.free_at_s.get((site, CONTROL), 0.0))
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

    def _is_held(self, connection: Connection, way: tuple[str, str], kind: str) -> bool:
        """Whether a frame of this stream does not arrive as things are."""
        if way in self.cuts or (way[0], kind) in connection.forgotten:
            return True
        return kind != CONTROL and way in self.narrows

    def cut(self, source: str, destination: str) -> None:
        self.cuts.add((source, destination))

    def narrow(self, source: str, destination: str) -> None:
        """Large packets vanish on this way: all bulk waits, and no link comes up over it."""
        self.narrows.add((source, destination))

    def widen(self, source: str, destination: str) -> None:
        self.narrows.discard((source, destination))
        self._release(source, destination)

    def rate(self, one: str, other: str) -> float:
        """What a probe of the link finds."""
        return min(self.rates.get(way, RATE_BYTES_PER_S) for way in ((one, other), (other, one)))

    def forget(self, connection: Connection, source: str, kind: str) -> None:
        """A middlebox has lost one connection of the link: what `source` sends on this stream arrives no more."""
        connection.forgotten.add((source, kind))

    def passes(self, source: str, destination: str) -> bool:
        """Whether a new link's first frames, which are of full size, arrive."""
        return (source, destination) not in self.cuts and (source, destination) not in self.narrows

    def clog(self, source: str, destination: str, message_s: float) -> None:
        """Every message takes the link for so long: a queue builds up, heartbeats wait in it."""
        self.clogs[source, destination] = message_s

    def unclog(self, source: str, destination: str) -> None:
        """The control messages that wait in the queue follow each other at once: they are small."""
        if self.clogs.pop((source, destination), None) is None:
            return
        for connection in list(self.connections.values()):
            waiting = connection.clogged.pop(source, None) if set(connection.ends) == {source, destination} else None
            if waiting:
                connection.free_at_s[source, CONTROL] = waiting[0][1]
                for message, _ in waiting:
                    self._carry(connection, source, CONTROL, message)

    def tear(self, source: str, destination: str) -> None:
        """The link ends in the middle of the next chunk or block on this way."""
        self.tears.add((source, destination))

    def drag(self, source: str, destination: str, frame_s: float) -> None:
        """So long passes between the first and the last byte of every chunk and block."""
        self.drags[source, destination] = frame_s

    def undrag(self, source: str, destination: str) -> None:
        self.drags.pop((source, destination), None)

    def reorder(self, source: str, destination: str, late_s: float) -> None:
        """What `source` hands on for others may be late by up to `late_s`: newer words come first by another way."""
        self.shuffles[source, destination] = late_s

    def keep_order(self, source: str, destination: str) -> None:
        self.shuffles.pop((source, destination), None)

    def calm(self) -> None:
        """No link is cut, clogged or out of order any more."""
        for way in sorted(self.clogs):
            self.unclog(*way)
        self.shuffles.clear()
        self.drags.clear()
        self.tears.clear()
        for way in sorted(self.narrows):
            self.widen(*way)
        for way in sorted(self.cuts):
            self.heal(*way)

    def heal(self, source: str, destination: str) -> None:
        if (source, destination) not in self.cuts:
            return
        self.cuts.discard((source, destination))
        self._release(source, destination)

    def _release(self, source: str, destination: str) -> None:
        """What waited on this way goes on; what something else holds waits again."""
        for connection in list(self.connections.values()):
            if set(connection.ends) == {source, destination}:
                waiting = connection.stalled.pop(source, [])
                for kind, message in waiting:
                    if kind == "eof":
                        self._schedule(
                            self.delay_s(source, destination),
                            lambda c=connection: self._eof(c, destination),  # type: ignore[misc]
                        )
                    elif kind == ARRIVAL:
                        delay_s = self.delay_s(source, destination)
                        self._schedule(delay_s, partial(self._next_arrives, connection, (source, destination), message))
                    else:  # sent before its sender may have ended: the bytes were on their way
                        self._carry(connection, source, kind, message)

    def _carry(self, connection: Connection, source: str, kind: str, message: Any) -> None:
        """Deliver in order, after the way's delay; a cut that comes meanwhile holds it."""
        destination = connection.far(source)
        way, now_s = (source, destination), self._clock.now_s
        arrives_s = max(now_s + self.delay_s(source, destination), connection.free_at_s.get((source, kind), 0.0))
        if way in self.clogs:
            arrives_s += self.clogs[way]
        if kind != CONTROL:
            if way in self.rates or self._pipes.is_busy(way):
                size_bytes = 0 if message.payload is None else message.size_bytes or self.chunk_bytes
                self._pipes.put(way, Waiting(connection, kind, message, size_bytes, arrives_s))
            else:
                self._under_way(connection, way, kind, message, arrives_s)
            return
        if way in self.shuffles and message.source != source:
            arrives_s += self.shuffles[way] * 2 * (self._random() * JITTER)
        else:
            before_s = connection.free_at_s.get((source, kind), 0.0)
            connection.free_at_s[source, kind] = arrives_s
            if way in self.clogs:
                connection.clogged.setdefault(source, deque()).append((message, before_s))
                self._schedule(arrives_s - now_s, partial(self._next_passes, connection, way, message))
                return
        self._schedule(arrives_s - now_s, partial(self._arrive, connection, way, kind, message))

    def under_way_s(self, source: str, destination: str) -> float:
        """How long what `source` has sent goes on to arrive, if it says nothing more."""
        return self._pipes.waits_s((source, destination))

    def _rate_of(self, way: tuple[str, str]) -> float | None:
        return self.rates.get(way)

    def _is_over(self, way: tuple[str, str], connection: Connection) -> bool:
        return connection.number not in self.connections or not connection.alive[way[1]]

    def _moved(self, way: tuple[str, str], waiting: Waiting) -> None:
        """A piece of a frame, but not its last, has left a way with a rate."""
        connection, stream = waiting.connection, (way[0], waiting.kind)
        if not self._is_held(connection, way, waiting.kind):
            connection.pieces[stream] = connection.pieces.get(stream, 0) + 1
        if not waiting.message.announced:
            before_s = connection.free_at_s.get(stream, 0.0)
            self._announce(connection, way, waiting.message, max(waiting.arrives_s, self._clock.now_s, before_s))

    def _carried(self, way: tuple[str, str], waiting: Waiting) -> None:
        """The last byte of a frame has left a way with a rate."""
        connection, kind = waiting.connection, waiting.kind
        before_s = connection.free_at_s.get((way[0], kind), 0.0)
        arrives_s = max(waiting.arrives_s, self._clock.now_s, before_s)
        self._under_way(connection, way, kind, waiting.message, arrives_s)

    def _under_way(
        self, connection: Connection, way: tuple[str, str], kind: str, message: Frame, arrives_s: float
    ) -> None:
        """A frame of a bulk stream will arrive then, after those before it."""
        source = way[0]
        queue = connection.queues.setdefault((source, kind), deque())
        if message.payload is not None and (way in self.tears or way in self.drags):
            if not message.announced:
                self._announce(connection, way, message, arrives_s)
            arrives_s = self._in_parts(connection, way, arrives_s)
        queue.append((kind, message))
        connection.free_at_s[source, kind] = arrives_s
        self._schedule(arrives_s - self._clock.now_s, partial(self._next_arrives, connection, way, kind))

    def _next_passes(self, connection: Connection, way: tuple[str, str], message: Any) -> None:
        """The next one of a clogged way, unless they have all gone on since."""
        waiting = connection.clogged.get(way[0])
        if waiting and waiting[0][0] is message:
            waiting.popleft()
            self._arrive(connection, way, CONTROL, message)

    def _announce(self, connection: Connection, way: tuple[str, str], message: Frame, arrives_s: float) -> None:
        """The first bytes of a frame arrive then, after what comes before it."""
        message.announced = True
        stream = (way[0], message.stream)
        connection.queues.setdefault(stream, deque()).append((BEGINS, message))
        connection.free_at_s[stream] = arrives_s
        self._schedule(arrives_s - self._clock.now_s, partial(self._next_arrives, connection, way, message.stream))

    def _in_parts(self, connection: Connection, way: tuple[str, str], arrives_s: float) -> float:
        """The last bytes of a frame arrive when this says, unless the link ends before."""
        now_s, takes_s = self._clock.now_s, self.drags.get(way, 2 * TORN_AFTER_S)
        if way in self.tears:
            self.tears.discard(way)
            self._schedule(arrives_s + TORN_AFTER_S - now_s, partial(self.reset, connection))
        return arrives_s + takes_s

    def _next_arrives(self, connection: Connection, way: tuple[str, str], kind: str) -> None:
        """The next one of a bulk stream, unless the way is cut: then later."""
        source, destination = way
        if self._is_held(connection, way, kind):
            connection.stalled.setdefault(source, []).append((ARRIVAL, kind))
        elif connection.alive[destination] and connection.number in self.connections:
            what, message = connection.queues[source, kind].popleft()
            if what != BEGINS:
                connection.arrived[source, kind] = connection.arrived.get((source, kind), 0) + 1
            self._deliver(connection, destination, what, message)

    def reset(self, connection: Connection) -> None:
        """Both ends lose it (a middlebox forgot it): what was under way is gone."""
        connection.stalled.clear()
        self.connections.pop(connection.number, None)
        for site in connection.ends:
            if connection.alive[site]:
                connection.alive[site] = False
                self._lost(connection, site, "connection reset")

    def _arrive(self, connection: Connection, way: tuple[str, str], kind: str, message: Any) -> None:
        source, destination = way
        if self._is_held(connection, way, kind):
            connection.stalled.setdefault(source, []).append((kind, message))
        elif connection.alive[destination] and connection.number in self.connections:
            self._deliver(connection, destination, kind, message)
