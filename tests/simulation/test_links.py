"""What holds of links and of what is heard over them, in a simulated run."""

from __future__ import annotations

from functools import partial

from tests.simulator.faults import all_are_members, begin
from tests.simulator.network import BEGINS, Connection, Network
from tests.simulator.node import Node
from tests.simulator.outbox import AVERAGING, STATES, Frame
from tests.simulator.thinning import thin_links
from tests.simulator.world import World

from chaos_protocols.settings import SiteSettings

HEARD_S = 2.0
"""As old as what a site says of any other may be, up to four links away (spec 3.15)."""


def line_of(count: int) -> World:
    """A run of so many sites, each with a link to the one before."""
    world = World(3)
    for number in range(count):
        world.add("abcdefg"[number], founder=number == 0, peers=("abcdefg"[number - 1],) if number else ())
    for node in world.nodes.values():
        begin(node)
    assert world.run_until(lambda: all_are_members(world), limit_s=60.0)
    return world


def test_every_site_knows_where_every_other_stands_as_of_two_seconds_ago() -> None:
    world = line_of(5)
    world.run(world.now_s + 1.0)
    for _ in range(40):
        world.run(world.now_s + 0.1)
        for node in world.nodes.values():
            machine = node.machine
            assert machine is not None
            for other in world.nodes.values():
                if other is node:
                    continue
                step = machine.network.steps.of(other.site)  # type: ignore[arg-type]
                assert step is not None, f"{node.name} has not heard of {other.name}"
                age_s = world.now_s - step.at_s
                assert age_s <= HEARD_S, f"{node.name} heard of {other.name} {age_s:.2f} s ago"


def test_what_is_known_of_a_silent_site_grows_old_everywhere() -> None:
    world = line_of(4)
    silent = world.node("d")
    silent.stop(for_good=True)
    world.run(world.now_s + 5.0)
    for name in "abc":
        machine = world.node(name).machine
        assert machine is not None
        step = machine.network.steps.of(silent.site)  # type: ignore[arg-type]
        assert step is not None and world.now_s - step.at_s > 4.0


ROUND_BYTES = 1_000_000


def run_of(names: str, *, pace_s: float, hold_s: float = 60.0) -> World:
    """A run of these sites, each linked with all before it, whose rounds average 1 MB each."""
    world = World(5, settings=SiteSettings(join_hold_s=hold_s))
    world.compute_range_s = (pace_s, pace_s)
    world.network.chunk_bytes = ROUND_BYTES // world.chunk_count
    for number, name in enumerate(names):
        world.add(name, founder=number == 0, peers=tuple(names[:number])).contribution_bytes = ROUND_BYTES
    for node in world.nodes.values():
        begin(node)
    assert world.run_until(lambda: all_are_members(world), limit_s=60.0)
    world.run(world.now_s + 2.0)
    return world


def add_slow(world: World, name: str, near: str, rate_bytes_per_s: float) -> Node:
    """A newcomer whose only link has that rate, both ways."""
    node = world.add(name, peers=(near,))
    node.contribution_bytes = ROUND_BYTES
    one, other = node.site, world.site(near)
    world.network.rates |= {(one, other): rate_bytes_per_s, (other, one): rate_bytes_per_s}
    begin(node)
    return node


def test_chunks_of_rounds_go_before_blocks_of_states_on_a_way_with_a_rate_and_leave_them_a_quarter() -> None:
    """Seed 901729, 3 sites: blocks of transfers that were given up took a newcomer's link for seconds, the results of
    the rounds came behind them, too late, and so the state was fetched again, for ever."""
    world, came = World(5), {AVERAGING: 0, STATES[0]: 0}
    way = ("01a", "02b")

    def deliver(connection: Connection, site: str, kind: str, frame: Frame) -> None:
        if kind != BEGINS:
            came[kind] += frame.size_bytes

    network = Network(world.schedule, world, world.rng.random, deliver, lambda *lost: None)
    network.rates[way] = 1e6
    connection = network.connect(*way, {})
    send = partial(network.send, connection, "01a")
    for _ in range(8):
        send(STATES[0], Frame(STATES[0], None, "a block", 500_000))
    world.run(1.0)
    assert came[STATES[0]] == 500_000
    assert 3.0 <= network.under_way_s(*way) <= 3.2 and network.under_way_s("02b", "01a") == 0.0
    for _ in range(20):
        send(AVERAGING, Frame(AVERAGING, None, "a chunk", 50_000))
    world.run(world.now_s + 1.4)
    assert came[AVERAGING] == 1_000_000, "not behind the blocks that wait"
    world.run(world.now_s + 1.5)
    assert came[STATES[0]] >= 1_500_000, "all of the way again, and a quarter of it before"


def test_a_joiner_whose_link_cannot_follow_the_rounds_is_waited_for_and_all_say_so() -> None:
    """A round is 1 MB in 0.1 s, the link carries 0.8 MB/s, the state is 3.2 MB: without waiting it is fetched again and
    again, and the site never joins."""
    world = run_of("abc", pace_s=0.1)
    slow = add_slow(world, "d", "c", 8e5)
    paused: dict[str, str] = {}

    def joined() -> bool:
        for node in world.nodes.values():
            machine = node.machine
            reason = machine.participation.pause.reason() if machine is not None else ""
            if "until d has the state" in reason:
                paused[node.name] = reason
        return all_are_members(world)

    begun_s = world.now_s
    assert world.run_until(joined, limit_s=20.0), "\n".join(world.story[-20:])
    assert world.now_s - begun_s < 8.0, "4 s for the state"
    assert set(paused) >= set("abc")
    assert any("a round moves 1 MB every" in line and "rounds wait for it" in line for line in world.story)
    assert slow.fetched == [False], "the state was fetched once"
    before = world.oracles.rounds_done
    assert world.run_until(lambda: world.oracles.rounds_done > before + 5, limit_s=20.0), "on, at the pace of its link"


def test_a_joiner_that_would_hold_the_rounds_for_too_long_is_refused_with_the_figures() -> None:
    world = run_of("abc", pace_s=0.1, hold_s=5.0)
    slow = add_slow(world, "d", "c", 4e5)
    before = world.oracles.rounds_done
    world.run(world.now_s + 10.0)
    machine = slow.machine
    assert machine is not None
    reason = machine.participation.pause.reason()
    assert reason.startswith("its links are too slow to follow this run: a round moves 1 MB every 0.1")
    assert "2.5 s a round" in reason and "join_hold_s" in reason and "accumulate gradients" in reason
    assert world.oracles.rounds_done > before + 60, "the others train on meanwhile"
    refused = [line for line in world.story if "scale-out d: refused" in line]
    assert len(refused) == 1, "judged once, and again only after a while"
    world.network.rates.clear()
    assert world.run_until(lambda: all_are_members(world), limit_s=40.0), "a faster link: it is let in"


def test_rounds_that_wait_for_a_joiner_go_on_when_it_dies_or_takes_too_long() -> None:
    world = run_of("abc", pace_s=0.1, hold_s=4.0)
    slow = add_slow(world, "d", "c", 2e6)
    waits = lambda: any("rounds wait for it" in line for line in world.story)  # noqa: E731
    assert world.run_until(waits, limit_s=10.0)
    slow.kill()
    before = world.oracles.rounds_done
    assert world.run_until(lambda: world.oracles.rounds_done > before + 5, limit_s=4.0), "it died"
    world.story.clear()
    begin(slow)
    assert world.run_until(waits, limit_s=15.0)
    world.network.rates = dict.fromkeys(world.network.rates, 1e5)  # its link has become slower than it was measured
    before, begun_s = world.oracles.rounds_done, world.now_s
    assert world.run_until(lambda: world.oracles.rounds_done > before + 2, limit_s=20.0)
    assert world.now_s - begun_s > 3.0, "they waited as long as was agreed"


def test_in_some_seeds_links_become_slow_and_fast_again_and_half_stay_as_they_were() -> None:
    slow_in, slow_after = [], []
    for seed in range(80):
        world = World(seed)
        for name in "abcd":
            world.add(name)
        thin_links(world, 8.0)
        world.run(7.99)
        slow = dict(world.network.rates)
        world.run(8.01)
        assert world.network.rates.items() <= slow.items()
        assert bool(slow) == bool(world.network.chunk_bytes), "what is slow has something to carry"
        if slow:
            slow_in.append(len(slow))
            slow_after.append(len(world.network.rates))
    assert 5 <= len(slow_in) <= 20, "one of eight seeds"
    assert 0 < sum(slow_after) <= 0.5 * sum(slow_in), "half of those that are not too slow to stay"
