"""Scale-out delay against the size of the overlay: the real machines of up to 2,000 sites under virtual time.

A running cluster of N sites is set up as it would stand after N joins (roster, links, level workers), then a newcomer
joins at four neighbours. Virtual time knows delays, link rates and the pace of the rounds, not the time that Python
takes; that is told beside it: core-seconds of the busiest site, the scheduler, for each second of the run.

Source: Chaos VI-B and figure 8 (the delay is flat, and falls beyond ten sites).
"""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec
from tests.simulator.contents import Region
from tests.simulator.node import Node
from tests.simulator.worker import MODEL, Worker
from tests.simulator.world import World

from benchmarks.measure import Figures, spread
from chaos_protocols import effects, events
from chaos_protocols.agreement.commands import encode_roster
from chaos_protocols.agreement.raft import Configuration, HardState, Snapshot
from chaos_protocols.agreement.roster import LinkRecord, Roster, SiteRecord
from chaos_protocols.agreement.views import make_view
from chaos_protocols.membership.facts import empty_roster
from chaos_protocols.names import SiteId, link_key
from chaos_protocols.scheduler.voters import voters_wanted
from chaos_protocols.wire.control import LinkStateAdvertisement

SIZES = (6, 12, 25, 50, 100, 250, 500, 1000, 2000)
SIZES_SHORT = (6, 12, 25, 50, 100)
DEGREE = 2
"""Links that each site brought when it joined: a mean degree of four."""

NEIGHBOURS = 4
RATES_BYTES_PER_S = (12.5e6, 125e6)
"""100 to 1000 Mbit/s, as in Chaos VI-A."""

LATENCIES_S = (0.010, 0.020)
ROUND_S = (0.5, 0.6)
STATE = msgspec.structs.replace(MODEL, state_bytes=178 << 20, shard_bytes=1 << 20)
"""ResNet101."""

GPT2_BYTES = {"gpt2_468_mib": 468 << 20, "gpt2_medium_1354_mib": 1354 << 20, "gpt2_large_2953_mib": 2953 << 20}
"""fp32 weights of 124, 355 and 774 million parameters (figure 10)."""

GPT2_SIZES = 4
"""On the smallest overlays only."""

QUIET_S = 3.0
JOIN_LIMIT_S = 120.0
SETTLE_LIMIT_S = 60.0


def run(*, short: bool, seed: int) -> Figures:
    """For each size: `delay_s`, from the newcomer's start to its promotion; `state_s`, to the state's last byte;
    `over_transfer`, that over the transfer alone at the links' rates; what the scheduler takes in."""
    figures: Figures = {}
    delays: list[float] = []
    for size in SIZES_SHORT if short else SIZES:
        found = join_one(size, seed)
        figures |= {f"{name}_{size}": value for name, value in found.items()}
        print(
            f"{size:5} sites: state after {found['state_s']:.2f} s ({found['over_transfer']:.2f} of the transfer), "
            f"promoted after {found['delay_s']:.2f} s; scheduler: "
            f"{found['scheduler_messages_per_s']:.0f} messages/s, {found['scheduler_core_s_per_s']:.2f} core-s/s; "
            f"simulated in {found['real_s']:.0f} s",
            flush=True,
        )
        delays.append(found["delay_s"])
    for name, state_bytes in GPT2_BYTES.items():
        for size in (SIZES_SHORT if short else SIZES)[:GPT2_SIZES]:
            figures[f"{name}_s_{size}"] = join_one(size, seed, state_bytes)["state_s"]
    figures["delay_over_smallest"] = spread([one / delays[0] for one in delays])
    return figures


def join_one(size: int, seed: int, state_bytes: int = STATE.state_bytes) -> dict[str, float]:
    """One newcomer at a running cluster of `size` sites; the same links for the newcomer at every size."""
    began = time.perf_counter()
    world = running_cluster(size, seed, state_bytes)
    meter = Meter(next(node for node in world.nodes.values() if leads(node)))
    world.run(world.now_s + QUIET_S)
    messages, busy_s = meter.messages / QUIET_S, meter.seconds / QUIET_S
    rng = random.Random(f"newcomer/{seed}")
    links = [(rng.uniform(*LATENCIES_S), rng.uniform(*RATES_BYTES_PER_S)) for _ in range(NEIGHBOURS)]
    chosen = rng.sample([node.name for node in world.nodes.values()], NEIGHBOURS)
    newcomer = world.add("newcomer", peers=tuple(chosen))
    for name, (latency_s, rate) in zip(chosen, links, strict=True):
        world.link(newcomer.site, world.site(name), latency_s, rate)
    begun_s = world.now_s
    newcomer.start()
    newcomer.start_worker()
    if not world.run_until(lambda: trains(newcomer), limit_s=JOIN_LIMIT_S):
        story = "\n".join(world.story[-20:])
        raise RuntimeError(f"the newcomer of {size} sites is not in after {JOIN_LIMIT_S:g} s\n{story}")
    real_s = time.perf_counter() - began
    link_s = connect_link(world)
    alone_s = max(latency_s for latency_s, _ in links) + state_bytes / sum(rate for _, rate in links)
    return {
        "delay_s": world.now_s - begun_s,
        "state_s": newcomer.state_at_s - begun_s,
        "over_transfer": (newcomer.state_at_s - begun_s) / alone_s,
        "scheduler_messages_per_s": messages,
        "scheduler_core_s_per_s": busy_s,
        "connect_link_ms": 1000 * link_s,
        "real_s": real_s,
    }


def connect_link(world: WanWorld) -> float:
    """Virtual seconds from a user's request for a link between two members to its answer (Chaos figure 11)."""
    nodes = list(world.nodes.values())
    roster = nodes[0].machine.roster  # type: ignore[union-attr]
    one = nodes[1]
    other = next(node for node in nodes[2:] if roster.link(one.site, node.site) is None)  # type: ignore[arg-type]
    world.link(one.site, other.site, LATENCIES_S[0], RATES_BYTES_PER_S[0])
    begun_s = world.now_s
    one.handle(events.LinkChangeRequested(request="scale", other=other.site, add=True))  # type: ignore[arg-type]
    if not world.run_until(lambda: "scale" in one.answers, limit_s=JOIN_LIMIT_S) or not one.answers["scale"][0]:
        raise RuntimeError(f"the link was not made: {one.answers}")
    return world.now_s - begun_s


def leads(node: Node) -> bool:
    return node.machine is not None and node.machine.scheduler.leading


def trains(node: Node) -> bool:
    return node.machine is not None and node.machine.rounds.active


class Meter:
    """What a site's machine takes in, and how long Python needs for it."""

    def __init__(self, node: Node) -> None:
        self.messages, self.seconds = 0, 0.0
        assert node.machine is not None
        handle = node.machine.handle

        def metered(event: events.Event, *, now_s: float) -> list[effects.Effect]:
            self.messages += isinstance(event, events.EnvelopeReceived)
            began = time.perf_counter()
            try:
                return handle(event, now_s=now_s)
            finally:
                self.seconds += time.perf_counter() - began

        node.machine.handle = metered  # type: ignore[method-assign]


class Unwatched:
    """In the place of the oracles: they follow a run from its first round on, and this one begins in the middle."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class WanWorld(World):
    """The simulated world, with link rates: a state takes its time, and a probe finds the rate."""

    def __init__(self, seed: int, state_bytes: int) -> None:
        super().__init__(seed)
        self.oracles = Unwatched()  # type: ignore[assignment]
        self.model = msgspec.structs.replace(STATE, state_bytes=state_bytes)
        self.compute_range_s = ROUND_S
        self.chunk_count = 1
        self.rate_bytes_per_s: dict[tuple[str, str], float] = {}

    def add(self, name: str, *, founder: bool = False, peers: tuple[str, ...] = (), min_sites: int = 1) -> WanNode:
        site = f"{len(self.nodes) + 1:05d}{name}"
        node = WanNode(self, site, name, founder=founder, peers=tuple(self.site(peer) for peer in peers))
        node.min_sites = min_sites
        self.nodes[site] = node
        return node

    def link(self, one: str, other: str, latency_s: float, rate_bytes_per_s: float) -> None:
        for way in ((one, other), (other, one)):
            self.network.latency_s[way] = latency_s
            self.rate_bytes_per_s[way] = rate_bytes_per_s


class WanNode(Node):
    """`state_at_s`: when its last transfer was complete."""

    world: WanWorld
    state_at_s = 0.0

    def handle(self, event: Any) -> None:
        if isinstance(event, events.TransferFinished):
            self.state_at_s = self.world.now_s
        super().handle(event)

    def _hello(self, worker: Worker) -> None:
        worker.training, self.knocking, worker.model = False, worker, self.world.model
        worker.region = Region(self.world.model.state_bytes)
        self.handle(events.WorkerReady(model=worker.model, round=worker.round))

    def block_s(self, joiner: str, size_bytes: int) -> float:
        return size_bytes / self.world.rate_bytes_per_s[self.site, joiner]

    def _execute(self, effect: Any) -> None:
        if not isinstance(effect, effects.ProbeLink):
            super()._execute(effect)
            return
        rate = self.world.rate_bytes_per_s[self.site, effect.site]
        probed = events.LinkProbed(site=effect.site, rate_bytes_per_s=rate, reason="")
        self.world.schedule(0.1, lambda: self.handle(probed))


def running_cluster(size: int, seed: int, state_bytes: int) -> WanWorld:
    """`size` sites as they stand in a run: all members, level, linked; the first rounds have been made."""
    world = WanWorld(seed, state_bytes)
    rng = random.Random(f"overlay/{seed}/{size}")
    sites = [world.add(f"s{number}").site for number in range(size)]
    roster = standing_roster(world, sites, rng)
    voters = sites[: voters_wanted(size)]
    configuration = Configuration(voters=tuple(voters), learners=tuple(sites[len(voters) :]))  # type: ignore[arg-type]
    snapshot = Snapshot(index=1, term=1, configuration=configuration, state=encode_roster(roster))
    for node in world.nodes.values():
        node.disk.hard_state, node.disk.snapshot = HardState(1, None), snapshot
        node.start()
    for known in roster.links:
        connect(world, world.nodes[known.one], world.nodes[known.other])
    inform(world, roster)
    for node in world.nodes.values():
        stand(node, roster)

    def begun() -> bool:
        done = max(node.machine.rounds.completed_round for node in world.nodes.values() if node.machine is not None)
        return done >= 3 and any(map(leads, world.nodes.values()))

    if not world.run_until(begun, limit_s=SETTLE_LIMIT_S) or not all(map(trains, world.nodes.values())):
        story = "\n".join(world.story[-20:])
        raise RuntimeError(f"{size} sites did not begin\n{story}")
    return world


def standing_roster(world: WanWorld, sites: list[str], rng: random.Random) -> Roster:
    """Each site was linked with `DEGREE` of those before it."""
    links = []
    for number, site in enumerate(sites):
        for other in rng.sample(sites[:number], min(number, DEGREE)):
            rate, latency_s = rng.uniform(*RATES_BYTES_PER_S), rng.uniform(*LATENCIES_S)
            world.link(site, other, latency_s, rate)
            one, far = link_key(site, other)  # type: ignore[arg-type]
            links.append(LinkRecord(one=one, other=far, rate_bytes_per_s=rate, rtt_s=2 * latency_s))
    records = tuple(
        SiteRecord(site=SiteId(site), name=site, address=site, public_key=b"", incarnation=1, state="member")
        for site in sites
    )
    links.sort(key=lambda known: known.key)
    view = make_view(world.planner, first_round=1, members=sites, listeners=(), links=links)  # type: ignore[arg-type]
    return msgspec.structs.replace(
        empty_roster("simulated"),
        epoch=1,
        started=True,
        model=world.model,
        sites=records,
        links=tuple(links),
        views=(msgspec.structs.replace(view, epoch=1),),
    )


def connect(world: WanWorld, one: Node, other: Node) -> None:
    """A link that came up long ago: both ends have it, and everybody has heard of it."""
    connection = world.network.connect(one.site, other.site, {one.site: 1, other.site: 1})
    connection.processes = {one.site: one, other.site: other}
    for node, far in ((one, other), (other, one)):
        node.connections[far.site] = connection
        assert node.machine is not None and node.bulk is not None
        node.machine.links.link_up(far.site, 1, far.site, now_s=world.now_s)  # type: ignore[arg-type]
        node.machine.links.notices.clear()
        node.machine.links.neighbours[far.site].wanted = True  # type: ignore[index]
        node.machine.network.incarnations[far.site] = 1  # type: ignore[index]
        node.bulk.link_up(SiteId(far.site))


def inform(world: WanWorld, roster: Roster) -> None:
    """Everybody has heard of all links, as they came up one by one."""
    told = []
    for known in roster.links:
        for one, other in (known.key, known.key[::-1]):
            reporter = world.nodes[one].machine
            assert reporter is not None
            up = LinkStateAdvertisement(
                neighbour=other,
                incarnation=1,
                up=True,
                rtt_s=known.rtt_s,
                rate_bytes_per_s=known.rate_bytes_per_s,
                reason="",
            )
            sent = reporter.network.router.flood(up, roster=roster, own_up=(other,), event_id="set-up")
            told += [effect.envelope for effect in sent if isinstance(effect, effects.SendEnvelope)]
    for node in world.nodes.values():
        assert node.machine is not None
        for envelope in told:
            node.machine.network.router.overlay.learn(envelope)


def stand(node: Node, roster: Roster) -> None:
    """Its worker is level with the run, which is at its first round."""
    node.start_worker()
    machine = node.machine
    assert machine is not None
    machine.membership.begin()
    machine.rounds.learn(roster)
    for effect in [*machine.rounds.begin_from_worker(0), *machine.rounds.install(roster)]:
        node._execute(effect)
