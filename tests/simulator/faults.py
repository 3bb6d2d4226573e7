"""Random trouble from a seed: sites join, leave, die, stop, come back; links are cut, slow, asked for and given up.

The times, kinds and victims of all strikes follow from the seed alone, and each strike has a number: `only` takes some
of them, and these strike as they would have among all.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

from chaos_protocols import events
from chaos_protocols.settings import SiteSettings
from chaos_protocols.wire.bounds import UNBOUNDED, Bounds
from tests.simulator.damaging import trouble as damaging
from tests.simulator.disk import JournalDisk
from tests.simulator.guests import visit
from tests.simulator.hanging import trouble
from tests.simulator.keeping import keep_at_random
from tests.simulator.liars import turn
from tests.simulator.muteness import muteness
from tests.simulator.node import Node
from tests.simulator.odd_workers import trouble as odd_workers
from tests.simulator.operators import act
from tests.simulator.outside import link_who_offers
from tests.simulator.piecewise import SEEDS_WITH as PIECEWISE_SHARE
from tests.simulator.rekeying import must_settle, rotate
from tests.simulator.releases import upgrade_in_turn
from tests.simulator.silencing import one_falls_silent
from tests.simulator.strays import strays
from tests.simulator.strikes import BACK_WITHIN_S, OF_THE_LIVING, PAIRED, STRIKES, Strike, begin
from tests.simulator.thinning import thin_links
from tests.simulator.two_runs import bring
from tests.simulator.violation import NotPromised
from tests.simulator.world import World

__all__ = ["Nemesis", "Trial", "all_are_members", "begin", "build", "revive", "run_seed", "run_trial"]

LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAMES = (*LETTERS, *(one + other for one in "abc" for other in LETTERS))
SITES_MAX = len(NAMES) - 1
"""One more may come late."""

FIRST_STRIKE_S = 2.0
STRIKES_IN_A_RUN = 26
MEANS_S = (0.3, 0.5, 0.7)
"""Between two strikes, by the seed: dense trouble, or some time to recover."""
SLOWER_WITH_OPERATORS = 2.0
"""What they decide takes seconds, in which something else may happen, and not everything."""
COMPUTE_RANGES_S = ((0.02, 0.05), (0.05, 0.15), (0.05, 0.15), (0.1, 0.3), (0.15, 0.4))
RULES_AFTER = (0.5, 3.0, 8.0, 30.0)
"""Failure timeouts until leaders have to show their votes: for most of a run, or not before its last faults."""
FLOOR_SHARE = 0.125
"""Of the seeds with at least three sites: rounds wait while a member is alone (spec 6.11)."""
SLOW_LINKS_SHARE = 0.5
"""Of the runs with a late newcomer."""
SLOW_RATES_BYTES_PER_S = (1e6, 1e7)
ROUND_BYTES = (100_000, 400_000, 1_000_000)
HEAL_S = 60.0
CHUNKS = ((1, 2), (1, 2), (2, 1), (2, 2), (2, 16), (3, 1), (3, 2), (4, 2))
"""Chunks of the vector, and how many of them may be under way from a child: a grant at the end of each, or one for
all."""
WEIGHT_BOUND = Bounds(weight_max=11.5)
CLIPPED = Bounds(clip_radius=1.0)
"""Of a quarter of the runs: the second worker of a site says more."""
DARK_S = max(BACK_WITHIN_S)
ROUNDS_AFTERWARDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run. `trouble_s`: no strike after it (0: by the seed). `only`: the strikes that happen; None: all. `guest`: a
    hostile guest comes, whatever the seed; `liar`: a member lies; `operators`: operators act in the trouble."""

    seed: int
    sites: int
    trouble_s: float = 0.0
    only: frozenset[int] | None = None
    heal_s: float = HEAL_S
    guest: bool = False
    liar: bool = False
    operators: bool = False

    @property
    def mean_s(self) -> float:
        mean_s = random.Random(f"mean/{self.seed}").choice(MEANS_S)
        return mean_s * SLOWER_WITH_OPERATORS if self.operators else mean_s

    @property
    def until_s(self) -> float:
        return self.trouble_s or FIRST_STRIKE_S + STRIKES_IN_A_RUN * self.mean_s

    def command(self) -> str:
        """What replays it."""
        words = ["python -m tests.simulator", str(self.seed), f"--sites {self.sites}"]
        if self.only is not None:
            words.append("--only-faults " + (",".join(map(str, sorted(self.only))) or "none"))
        if self.trouble_s:
            words.append(f"--trouble-s {self.trouble_s:g}")
        if self.guest:
            words.append("--guest")
        if self.liar:
            words.append("--liar")
        if self.operators:
            words.append("--operators")
        return " ".join(words)


def build(seed: int, sites: int, *, verbose: bool = False, late_s: float = 10.0) -> World:
    """A world of `sites` sites: the first founds the run; the others know two or three of those before them. Some begin
    as late as `late_s`."""
    world = World(seed, verbose=verbose, settings=SiteSettings(replan_every_s=1.0, rules_after=RULES_AFTER[seed % 4]))
    rng = random.Random(f"build/{seed}")
    for number in range(sites):
        known = list(range(number))
        rng.shuffle(known)
        peers = tuple(NAMES[one] for one in known[: rng.choice((1, 2, 2, 3))])
        world.add(NAMES[number], founder=number == 0, peers=peers, min_sites=min(3, sites))
    for one in world.nodes:
        for other in world.nodes:
            world.network.latency_s[one, other] = rng.uniform(0.001, 0.02)
        world.drift[one] = rng.uniform(-1e-3, 1e-3)
    nodes = list(world.nodes.values())
    for node in nodes:
        world.schedule(rng.uniform(0, 1.0), lambda node=node: begin(node))  # type: ignore[misc]
    _vary(world, random.Random(f"mix/{seed}"), late_s)
    bounded = random.Random(f"bounds/{seed}").random()
    if bounded < 0.5:
        world.bounds = WEIGHT_BOUND if bounded < 0.25 else CLIPPED
    _wish(world, random.Random(f"wishes/{seed}"), late_s)
    return world


def _wish(world: World, rng: random.Random, late_s: float) -> None:
    """In some runs operators want other bounds, most of them the same, once or twice."""
    for begins_s in (0.2 * late_s, 0.7 * late_s)[: rng.choice((0, 0, 1, 2))]:
        wanted = rng.choice((Bounds(weight_max=7.5), WEIGHT_BOUND, CLIPPED, UNBOUNDED))
        for site in world.nodes:
            if rng.random() < 0.8:
                world.schedule(begins_s + rng.uniform(0, 3.0), partial(world.want_bounds, site, wanted))


def _vary(world: World, rng: random.Random, late_s: float) -> None:
    """What differs from run to run beside the strikes."""
    nodes = list(world.nodes.values())
    world.spares_last_holder = rng.random() < 0.9
    world.network.encodes = rng.random() < 0.125
    world.hand_over_s = 0.003
    world.chunk_count, world.chunks_in_flight = rng.choice(CHUNKS)
    world.results_kept = rng.choice((2, 2, 5))
    world.compute_range_s = rng.choice(COMPUTE_RANGES_S)
    if rng.random() < 0.3:
        rng.choice(nodes).compute_factor = rng.uniform(2.0, 4.0)
    if rng.random() < 0.3:
        for node in nodes:
            node.disk = JournalDisk()
    if rng.random() < 0.3 and len(nodes) > 2:  # it comes when the run is old
        newcomer = world.add(
            NAMES[len(nodes)], peers=tuple(one.name for one in rng.sample(nodes, 2)), min_sites=nodes[0].min_sites
        )
        for one in world.nodes:
            world.network.latency_s[one, newcomer.site] = world.network.latency_s[newcomer.site, one] = 0.01
        world.schedule(rng.uniform(0.5 * late_s, late_s), lambda: begin(newcomer))
        if rng.random() < SLOW_LINKS_SHARE:
            _slow_links(world, newcomer, rng)
    if rng.random() < 0.25:
        keep_at_random(world, rng)
    world.lossy = rng.random() < 0.5
    world.piecewise = random.Random(f"pieces/{world.seed}").random() < PIECEWISE_SHARE
    if len(nodes) > 2 and random.Random(f"floor/{world.seed}").random() < FLOOR_SHARE:
        world.floor_sites = 2


def _slow_links(world: World, newcomer: Node, rng: random.Random) -> None:
    """All ways to and from the newcomer have a rate: from one on which it can follow the rounds to one on which a round
    takes many times its time."""
    round_bytes, rate = rng.choice(ROUND_BYTES), rng.uniform(*SLOW_RATES_BYTES_PER_S)
    world.network.chunk_bytes = round_bytes // world.chunk_count
    for node in world.nodes.values():
        node.contribution_bytes = round_bytes
        if node is not newcomer:
            ways = ((node.site, newcomer.site), (newcomer.site, node.site))
            world.network.rates |= dict.fromkeys(ways, rate)


class Nemesis:
    """`calm()` ends all trouble: everybody who did not leave comes back, every cut heals."""

    def __init__(
        self, world: World, *, until_s: float, mean_s: float = 0.7, only: frozenset[int] | None = None
    ) -> None:
        self.world = world
        self.numbers: list[int] = []
        times = random.Random(f"nemesis/{world.seed}")
        at_s, number = FIRST_STRIKE_S, 0
        while at_s < until_s:
            number += 1
            if only is None or number in only:
                self.numbers.append(number)
                world.schedule(at_s, lambda number=number: self._strike(number))  # type: ignore[misc]
            at_s += times.expovariate(1 / mean_s)
        trouble(world, until_s)
        odd_workers(world, until_s)
        damaging(world, until_s)
        world.schedule(0.0, world.oracles.standing.watch)
        strays(world, until_s)
        muteness(world, until_s)
        thin_links(world, until_s)
        world.schedule(until_s, self.calm)

    def _strike(self, number: int) -> None:
        rng = random.Random(f"strike/{self.world.seed}/{number}")
        nodes = list(self.world.nodes.values())
        kind, node = rng.choice(tuple(STRIKES)), rng.choice(nodes)
        other = rng.choice([one for one in nodes if one is not node] or nodes)
        if kind in OF_THE_LIVING and not node.alive:
            return
        self.world.tell(f"!! {number}: {kind} {node.name} {other.name if kind in PAIRED else ''}".rstrip())
        STRIKES[kind](Strike(world=self.world, rng=rng, number=number, node=node, other=other))

    def calm(self) -> None:
        self.world.tell("!! calm")
        self.world.network.calm()
        for node in self.world.nodes.values():
            node.crash_at = None
            node.disk.calm()
            if node.stopped:
                node.go_on()
        revive(self.world)


def all_are_members(world: World) -> bool:
    """Everybody is a member, trains, and has the newest results but one; but for whom operators wanted out for good."""
    rosters = set()
    expected = [node for node in world.nodes.values() if not world.bans.is_out(node)]
    for node in expected:
        if not node.alive or node.machine is None or not node.machine.rounds.active:
            return False
        rosters.add(node.machine.roster.member_ids())
    return len(rosters) == 1 and len(rosters.pop()) == len(expected)


def revive(world: World) -> None:
    """Whoever has left or lost its worker in the calm comes back (a leave may end after it), if it has power."""
    for node in world.nodes.values():
        if not node.alive:
            if world.now_s >= node.dark_until_s:
                begin(node)
        elif node.worker is None:
            node.start_worker()


def run_trial(trial: Trial, *, verbose: bool = False, world: World | None = None) -> World:
    """Trouble, then calm; safety all the time, liveness within `heal_s` of virtual time afterwards."""
    until_s = trial.until_s
    if world is None:
        world = build(trial.seed, trial.sites, verbose=verbose, late_s=until_s)
    Nemesis(world, until_s=until_s, mean_s=trial.mean_s, only=trial.only)
    visit(world, always=trial.guest)
    turn(world, always=trial.liar)
    if not trial.liar:  # whom words of another run made believe something, a liar's judge would not tell apart
        bring(world)
    upgrade_in_turn(world, until_s, begin)
    rotate(world, until_s, begin)
    if trial.operators:
        act(world, until_s, trial.only)
    try:
        _play(trial, world)
    except NotPromised as end:
        world.tell(f"!! the judgement ends: {end}")
    return world


def _play(trial: Trial, world: World) -> None:
    """The trouble, and what must be well after it."""
    until_s = trial.until_s
    for beat in range(
        int(trial.heal_s + DARK_S) // 2
    ):  # a leave asked for in the trouble may end late: all are willing
        world.schedule(until_s + 1.5 + 2.0 * beat, lambda: revive(world))
    world.run(until_s + 1.5)
    dark_s = max(0.0, *(node.dark_until_s - world.now_s for node in world.nodes.values()))
    if not world.run_until(lambda: all_are_members(world), limit_s=dark_s + trial.heal_s) and not (
        link_who_offers(world) and world.run_until(lambda: all_are_members(world), limit_s=trial.heal_s)
    ):
        if not world.state_is_lost():
            not_live(world, f"not all sites are members {trial.heal_s:g} s after the faults ended")
        world.oracles.recovery.waits_as_it_must()
        world.lost_state = True
        begin_anew(world)
        if not world.run_until(lambda: all_are_members(world), limit_s=trial.heal_s):
            not_live(world, f"not all sites are members {trial.heal_s:g} s after an operator decided")
    before = world.oracles.rounds_done
    world.oracles.counted.begin()
    counted, enough = world.oracles.counted, before + ROUNDS_AFTERWARDS
    if not world.run_until(lambda: world.oracles.rounds_done > enough and not counted.uncounted(), limit_s=60.0):
        if world.oracles.rounds_done <= enough:
            not_live(world, "rounds do not go on after the faults ended")
        # One whose worker still has results to apply counts when it has: not in the very next rounds.
        names = ", ".join(counted.uncounted())
        not_live(world, f"{names} train, and are counted in no round of a minute after the faults ended")
    if not world.liar:
        must_settle(world, trial.heal_s)
    one_falls_silent(world)


def not_live(world: World, what: str) -> None:
    """Invariant 8 is broken, unless a member lies: one that says wrong things of its links can keep others out, and
    stop the rounds; or what all others have of the log is not in the journal of a machine that was copied
    (docs/security.md). Raises Violation or NotPromised."""
    if world.liar:
        raise NotPromised(f"{world.liar} is a member that lies, which can stop the run: {what}")
    if older := world.oracles.agreement.on_older():
        raise NotPromised(f"{older}; the copy, which has it not, may be needed to elect anybody: {what}")
    world.oracles.fail(8, what)


def begin_anew(world: World) -> None:
    """The state is lost with all workers and disks that had it: the run waits until an operator decides."""
    inside = (one for one in world.nodes.values() if one.machine is not None and one.machine.membership.in_roster)
    node = next(inside, None)
    if node is None:
        not_live(world, "no site is in the run after the faults ended: there is no operator to decide")
        return
    world.tell(f"!! an operator at {node.name} has the run begin anew")
    node.handle(events.RecoverRequested(request="operator", origin="", round=0))


def run_seed(
    seed: int,
    *,
    sites: int = 5,
    trouble_s: float = 0.0,
    heal_s: float = HEAL_S,
    verbose: bool = False,
    guest: bool = False,
) -> World:
    """One seed with all its strikes."""
    trial = Trial(seed=seed, sites=sites, trouble_s=trouble_s, heal_s=heal_s, guest=guest)
    return run_trial(trial, verbose=verbose)
