"""The simulated world: virtual time, the network, the sites, and what must always hold (spec 18).

One seed, one run, event for event. `oracles` checks the invariants after every step of every machine.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from chaos_protocols import effects, events
from chaos_protocols.causes import Cause, Why
from chaos_protocols.rounds.reduce import RESULTS_KEPT
from chaos_protocols.settings import SiteSettings
from chaos_protocols.wire.bounds import UNBOUNDED, Bounds
from chaos_protocols.wire.control import EVERYBODY, Envelope
from chaos_protocols.wire.versions import SPOKEN
from chaos_protocols.wishes import BoundsWanted
from tests.simulator.bans import Bans
from tests.simulator.lies import BROUGHT, CLAIM, MADE_UP
from tests.simulator.muteness import Muteness
from tests.simulator.network import BEGINS, CONTROL, Connection, Network
from tests.simulator.node import Node
from tests.simulator.oracles import Oracles
from tests.simulator.outbox import Frame
from tests.simulator.planner import SimulatedPlanner
from tests.simulator.replaying import is_refused_each_time, replay, replay_bulk, shuts_out, was_taken
from tests.simulator.runs import Runs
from tests.simulator.strays import Doors

if TYPE_CHECKING:
    from tests.simulator.check_lies import CheckLies
    from tests.simulator.gone_lies import GoneLies
    from tests.simulator.rekeying import Rotation

DELIVERED_KEPT = 400
TRAIL_KEPT = 40
"""Events remembered for the story of a violation."""


class Delivered(NamedTuple):
    """A word, or a frame of the bulk path, that has reached its reader. `incarnation`: of the reader; `key`: the one
    that a word's maker had."""

    site: str
    source: str
    kind: str
    message: Any
    incarnation: int
    key: bytes


class World:
    """See the module. `story` is what happened, for people; `run(until_s)` goes on with it."""

    def __init__(self, seed: int, *, settings: SiteSettings | None = None, verbose: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.settings = settings or SiteSettings(replan_every_s=1.0)
        self.planner = SimulatedPlanner(seed)
        self.now_s = 0.0
        self.steps = 0
        self.verbose = verbose
        self.story: list[str] = []
        self.nodes: dict[str, Node] = {}
        self.guests: set[str] = set()
        """Sites that are not of the run, and lie (`guests`)."""
        self.liar = ""
        """The member that lies, if one does (`liars`)."""
        self.check_lies: CheckLies | None = None
        """What it makes of what others say of their states."""
        self.gone_lies: GoneLies | None = None
        self.drifted = False
        """Something has changed a state outside of a round (`drifting`)."""
        self.compute_range_s = (0.02, 0.05)
        self.drift: dict[str, float] = {}
        self.lost_state = False
        self.hand_over_s = 0.0
        self.chunk_count, self.chunks_in_flight, self.results_kept = 2, 2, RESULTS_KEPT
        """Of the vector that is averaged; under way from a child at a time; results that stay for those who lag."""
        self.bounds = UNBOUNDED
        """Of the run that is founded."""
        self.wished: dict[Bounds, set[str]] = {}
        """Which bounds the operators of which sites have wanted since."""
        self.former: set[str] = set()
        """Sites whose next daemon is one of the release before (`releases`)."""
        self.rotation: Rotation | None = None
        """A site changes its key (`rekeying`)."""
        self.lossy = False
        """The rounds travel in an encoding that loses something."""
        self.piecewise = False
        """Workers give their parts in pieces."""
        self.floor_sites = 1
        """Rounds of the run that is founded wait while fewer members count."""
        self.spares_last_holder = False
        self.bans = Bans(self)
        self.trail: deque[tuple[float, str, int, Any]] = deque(maxlen=TRAIL_KEPT)
        self.delivered: deque[Delivered] = deque(maxlen=DELIVERED_KEPT)
        self.oracles, self.doors, self.runs = Oracles(self), Doors(), Runs(self)
        self.muteness = Muteness(self)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self.hear_guest: Callable[[Node, Any], None] = lambda node, event: node.handle(event)
        self.network = Network(self.schedule, self, self.rng.random, self._deliver, self._lost)

    # -- time

    def schedule(self, delay_s: float, action: Callable[[], None]) -> None:
        self._order += 1
        at_s = self.now_s + delay_s if delay_s > 0.0 else self.now_s
        heapq.heappush(self._heap, (at_s, self._order, action))

    def run(self, until_s: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            at_s, _, action = heapq.heappop(heap)
            if at_s > self.now_s:
                self.now_s = at_s
            action()
        self.now_s = until_s

    def run_until(self, condition: Callable[[], bool], *, limit_s: float) -> bool:
        """Go on until the condition holds; False if it does not within `limit_s` more seconds."""
        end_s = self.now_s + limit_s
        while not condition():
            if not self._heap or self._heap[0][0] > end_s:
                return False
            self.run(self._heap[0][0])
        return True

    def drift_s(self, site: str) -> float:
        """A site's clock against true time."""
        return self.drift.get(site, 0.0) * self.now_s

    def compute_s(self, site: str) -> float:
        return self.rng.uniform(*self.compute_range_s)

    # -- sites

    def want_bounds(self, site: str, bounds: Bounds) -> None:
        """A site's operator wants the run to have these."""
        self.wished.setdefault(bounds, set()).add(site)
        self.nodes[site].handle(BoundsWanted(bounds=bounds))

    def add(self, name: str, *, founder: bool = False, peers: tuple[str, ...] = (), min_sites: int = 1) -> Node:
        site = f"{len(self.nodes) + 1:02d}{name}"
        node = Node(self, site, name, founder=founder, peers=tuple(self.site(peer) for peer in peers))
        node.min_sites = min_sites
        self.nodes[site] = node
        return node

    def site(self, name: str) -> str:
        return next(site for site, node in self.nodes.items() if name in (site, node.name))

    def node(self, name: str) -> Node:
        return self.nodes[self.site(name)]

    def dial(self, node: Node, target: str, timeout_s: float) -> None:
        other = self.nodes.get(target)
        generation = node._generation
        there, back = (node.site, target), (target, node.site)
        rtt_s = self.network.delay_s(*there) + self.network.delay_s(*back) if other else 0.01

        def answered() -> None:
            if generation != node._generation:
                return
            cut = not self.network.passes(*there) or not self.network.passes(*back)
            if other is None or not other.alive:
                why = Cause.NOT_RUNNING.told(site=target, address=target)
                self._failed(node, target, "connection refused", why)
            elif cut or other.stopped:
                self.schedule(max(0.0, timeout_s - rtt_s), lambda: timed_out())
            elif self.doors.refuse(node, other):
                pass
            elif node.connections.get(target) is not None and all(node.connections[target].alive.values()):
                pass  # the other side's dial was first
            else:
                self._connect(node, other)

        def timed_out() -> None:
            if generation == node._generation and target not in node.connections:
                why = Cause.UNREACHABLE.told(site=target, address=target, reason="timed out")
                self._failed(node, target, "timed out", why)

        self.schedule(rtt_s, answered)

    def _failed(self, node: Node, target: str, reason: str, why: Why) -> None:
        node.handle(events.DialFailed(site=target, reason=reason, why=why))  # type: ignore[arg-type]

    def _connect(self, node: Node, other: Node) -> None:
        for one, far in ((node, other), (other, node)):
            old = one.connections.pop(far.site, None)
            if old is not None:
                self.network.close(old, one.site)
        incarnations = {node.site: node.disk.incarnation, other.site: other.disk.incarnation}
        connection = self.network.connect(node.site, other.site, incarnations)
        connection.processes = {node.site: node, other.site: other}
        self.doors.saw(node, other)
        self.oracles.connected(node.site, other.site)
        node.connections[other.site] = other.connections[node.site] = connection
        for one, far in ((node, other), (other, node)):
            number = far.disk.incarnation
            spoken = far.machine.facts.versions if far.machine is not None else SPOKEN
            address: Any = far.site
            chain = far.machine.keys.own if far.machine is not None else None
            one.handle(events.LinkUp(site=address, incarnation=number, address=address, versions=spoken, chain=chain))
            one.to_bulk(lambda bulk, site=far.site: bulk.link_up(site))

    def says(self, node: Node, neighbour: str, envelope: Envelope) -> None:
        """A daemon sends a word. What it says itself is no lie, though a lie was the cause: it names another one."""
        if envelope.event_id in MADE_UP and envelope.source == node.site:
            envelope = msgspec.structs.replace(envelope, event_id="what was said about a lie")
        if neighbour in node.connections:
            self.network.send(node.connections[neighbour], node.site, CONTROL, envelope)

    def _deliver(self, connection: Connection, site: str, kind: str, message: Any) -> None:
        node, source = connection.processes[site], connection.far(site)
        if not node.alive or node.connections.get(source) is not connection:
            return
        if kind == CONTROL and self.muteness.swallows(message):
            return
        brought = kind == CONTROL and message.event_id == BROUGHT  # `hear` may lose it
        if kind != BEGINS and site not in self.guests and not brought:
            far = connection.processes[source].machine if kind == CONTROL else None
            key = far.keys.public_key if far is not None else b""
            self.delivered.append(Delivered(site, source, kind, message, node.disk.incarnation, key))
        self.oracles.delivered(node, source)
        if kind == CONTROL:
            if not self.doors.reads(node, source, message):
                return
            event = events.EnvelopeReceived(neighbour=source, envelope=message)  # type: ignore[arg-type]
            lies = message.source in self.guests or message.event_id in (CLAIM, BROUGHT)
            if lies and node.site not in self.guests:
                self.hear_guest(node, event)
            else:
                node.handle(event)
        elif kind == BEGINS:
            node.to_bulk(lambda bulk: None if site in connection.closed_by else bulk.begins(source, message))
        else:
            node.to_bulk(lambda bulk: self._read(connection, node, source, message))

    def never_came(self, message: Any) -> None:
        """It was lost on its way after all, so that it is not an old one when it comes (seed 9459973, 3 sites)."""
        kept = (one for one in self.delivered if one.message is not message)
        self.delivered = deque(kept, maxlen=DELIVERED_KEPT)

    def _read(self, connection: Connection, node: Node, source: str, frame: Frame) -> None:
        """An engine reads a frame, so that its sender has room for another one."""
        if node.bulk is None or node.site in connection.closed_by:
            return
        node.bulk.received(source, frame)  # type: ignore[arg-type]
        sender = connection.processes[source]
        if sender.connections.get(node.site) is connection:
            sender.to_bulk(lambda bulk: bulk.taken(node.site, frame.stream))

    def hang_up(self, node: Node, connection: Connection) -> None:
        """A site ends a link itself; both ends are told."""
        self.network.close(connection, node.site)
        self._lost(connection, node.site, "closed by this site")

    def _lost(self, connection: Connection, site: str, reason: str) -> None:
        node, far = connection.processes[site], connection.far(site)
        if not node.alive or node.connections.get(far) is not connection:
            return
        del node.connections[far]
        node.to_bulk(lambda bulk: bulk.link_lost(far))
        incarnation = connection.incarnations[far]
        lost = events.LinkLost(
            site=far,  # type: ignore[arg-type]
            incarnation=incarnation,
            reason=reason,
            broke_a_rule=node.hanging_up is connection,
        )
        node.handle(lost)

    def reset(self, one: str, other: str) -> None:
        """Both ends lose their connection (a middlebox forgot it): what was under way is gone."""
        connection = self.nodes[one].connections.get(other)
        if connection is not None:
            self.network.reset(connection)

    def replay(self, rng: random.Random) -> None:
        """Something that was delivered lately is delivered once more."""
        if not self.delivered:
            return
        one = rng.choice(list(self.delivered))
        source, message, node = one.source, one.message, self.nodes[one.site]
        if source not in node.connections or node.disk.incarnation != one.incarnation or node.machine is None:
            return
        if one.kind != CONTROL:
            replay_bulk(node, source, message)
        elif source != message.source and (
            shuts_out(node, message) or is_refused_each_time(node, source, message)  # type: ignore[arg-type]
        ):
            return
        elif message.destination == one.site or (message.destination == EVERYBODY and was_taken(node, message)):
            # others it would hand on once more, to be stopped there
            replay(node, events.EnvelopeReceived(neighbour=source, envelope=message))  # type: ignore[arg-type]

    def repeat(self, rng: random.Random) -> None:
        """Something delivered lately comes again as if it were new: handed on by any neighbour, perhaps to a later life
        of its reader or from a former life of its sender. It may be answered, but must harm nothing."""
        words = [one for one in self.delivered if one.kind == CONTROL and one.message.destination == one.site]
        if not words:
            return
        word = rng.choice(words)
        node = self.nodes[word.site]
        ways = sorted(node.connections)
        if ways:
            run = node.machine.roster.run_id if node.machine is not None else ""  # as who signs it for others says it
            way, message = rng.choice(ways), msgspec.structs.replace(word.message, run=run)
            if way != message.source:
                message = msgspec.structs.replace(message, public_key=message.public_key or word.key)
            if self.doors.reads(node, way, message):
                node.handle(events.EnvelopeReceived(neighbour=way, envelope=message))  # type: ignore[arg-type]

    def state_is_lost(self) -> bool:
        """No worker alive has the state that the run would have to go on from."""
        return self.oracles.recovery.state_is_lost()

    def holders(self) -> list[Node]:
        """Sites whose worker has the state that the run goes on from, and will still be there after a leave."""
        newest = self.oracles.recovery.newest_round()
        return [
            node
            for node in self.nodes.values()
            if node.worker is not None
            and node.worker.round >= newest - 1
            and not (node.machine is not None and node.machine.leaving)
        ]

    def must_live(self, node: Node) -> bool:
        """Without this site's worker the newest state would be lost, and this run is one where it must not be."""
        return self.spares_last_holder and all(one is node for one in self.holders())

    # -- what is watched

    def tell(self, text: str) -> None:
        line = f"{self.now_s:9.3f} {text}"
        self.story.append(line)
        if self.verbose:
            print(line)

    def dismissed(self, node: Node, message: Any) -> None:
        self.tell(f"{node.name}: worker dismissed: {message.reason}")

    def recorded(self, node: Node, effect: effects.Record) -> None:
        took = f" in {effect.duration_s * 1000:.0f} ms" if effect.duration_s is not None else ""
        outcome = f" {effect.outcome}{took}" if effect.outcome else ""
        self.tell(f"{node.name}: {effect.kind} {effect.subject}:{outcome} ({effect.cause}) {effect.reason}")
