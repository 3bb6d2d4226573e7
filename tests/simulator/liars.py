"""A member that lies about the starts of others: it advertises its own links as they are, but with numbers of its
neighbours' daemons that there never were. And it says what only a scheduler may say, and that it is one, to those who
know that a scheduler shows its votes. And it lies about keys (`key_lies`): to neighbours, in its reports, and, while it
schedules, in the log; about what others say of their states (`check_lies`); and that it keeps the result of the running
round no more (`gone_lies`). One of eight runs has one.

Judged here (invariant 11, for what is promised of a member): nobody ever believes in a start that a site has not made.
In `guests`: after each of its claims a site is as it was before.
That all are members in the end is not judged where one lies: what it says of its own links can keep others out (seed
1557 with five sites), and that is not promised (docs/security.md).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from chaos_protocols.agreement.commands import encode_command
from chaos_protocols.agreement.key_commands import KeyCommand
from chaos_protocols.agreement.raft import Role
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import EVERYBODY, LinkStateAdvertisement, Message
from chaos_protocols.wire.versions import KEYS_SINCE, SPOKEN
from tests.simulator.check_lies import CheckLies
from tests.simulator.gone_lies import GoneLies
from tests.simulator.guests import SEEDS_APART, hear
from tests.simulator.key_lies import KeyLies
from tests.simulator.key_lies import judge as judge_keys
from tests.simulator.lies import AHEAD, CLAIM, Liar

if TYPE_CHECKING:
    from tests.simulator.node import Node
    from tests.simulator.world import World

LIAR = 5
"""Of eight seeds this one has a lying member."""
MEANS_S = (0.1, 0.5, 2.0)
BEGINS_S = (1.0, 4.0)
KEYS_SHARE, CLAIMS_SHARE = 0.25, 0.6


def turn(world: World, *, always: bool = False) -> None:
    """By the seed: one of the sites turns, or none."""
    if not always and world.seed % SEEDS_APART != LIAR:
        return
    rng = random.Random(f"liar/{world.seed}")
    liar = rng.choice(list(world.nodes.values()))
    world.liar = liar.name
    world.hear_guest = hear
    world.check_lies, world.gone_lies = CheckLies(world, liar), GoneLies(world, liar)
    world.schedule(rng.uniform(*BEGINS_S), lambda: _speak(world, liar, rng, rng.choice(MEANS_S)))


def _speak(world: World, liar: Node, rng: random.Random, mean_s: float) -> None:
    world.schedule(rng.expovariate(1 / mean_s), lambda: _speak(world, liar, rng, mean_s))
    _judge(world)
    judge_keys(world, liar.site)
    if liar.machine is not None and not liar.stopped and rng.random() < KEYS_SHARE:
        _lie_about_keys(world, liar, rng)
        return
    if liar.machine is not None and not liar.stopped and rng.random() < CLAIMS_SHARE:
        _claim(world, liar, rng)
        return
    near = sorted(site for site in liar.connections if site in {one.site for one in world.nodes.values()})
    if not near or liar.machine is None or liar.stopped:
        return
    about = rng.choice(near)
    there = next(one for one in world.nodes.values() if one.site == about)
    lie = LinkStateAdvertisement(
        neighbour=SiteId(about),
        incarnation=min((1 << 53) - 1, there.disk.incarnation + rng.choice(AHEAD)),
        up=True,
        rtt_s=0.0,
        rate_bytes_per_s=0.0,
        reason="connected",
        versions=SPOKEN,
    )
    machine = liar.machine
    run = machine.network.naming.of_word_to(EVERYBODY)
    envelope = machine.network.router._envelope(EVERYBODY, lie, machine.roster, "a lie", run=run)
    for neighbour in near:
        world.network.send(liar.connections[neighbour], liar.site, "control", envelope)


def _lie_about_keys(world: World, liar: Node, rng: random.Random) -> None:
    """To a neighbour, to the scheduler, or, where it is that itself, into the log: there only what all sites can
    read."""
    machine = liar.machine
    assert machine is not None
    roster, scheduler = machine.roster, machine.scheduler_site()
    lies = KeyLies(SiteId(liar.site), rng, roster, [SiteId(one) for one in world.nodes])
    if machine.raft.role is Role.LEADER:
        if max(roster.version(), roster.needs) >= KEYS_SINCE:
            _propose(world, liar, lies.command())
        return
    message: Message = lies.told()
    to = SiteId(rng.choice(sorted(liar.connections) or [""]))
    if rng.random() < 0.5 and scheduler is not None and machine.membership.in_roster:
        to, message = scheduler, msgspec.structs.replace(machine.own_report(), keys=lies.news())
    way = to if to in liar.connections else SiteId(rng.choice(sorted(liar.connections) or [""]))
    if way:
        run = machine.network.naming.of_word_to(to)
        envelope = machine.network.router._envelope(to, message, roster, "a lie", run=run)
        world.network.send(liar.connections[way], liar.site, "control", envelope)


def _propose(world: World, liar: Node, command: KeyCommand) -> None:
    """It schedules, and gives the agreement a command by none of the ways that lead there."""
    machine, generation = liar.machine, liar._generation
    assert machine is not None
    now_s = world.now_s + world.drift_s(liar.site)
    machine.outbox.begin(now_s=now_s)
    _, asked = machine.raft.propose(encode_command(command), now_s=now_s)
    machine._carry_out(asked)
    machine._drain()
    for effect in machine.outbox.take():
        if generation == liar._generation:  # it may end over its disk
            liar._execute(effect)
    world.oracles.after_step(liar, None)


def _claim(world: World, liar: Node, rng: random.Random) -> None:
    """To a neighbour, or to another site by way of one: not while it schedules, and not of a term in which it did."""
    victims = [
        one
        for one in world.nodes.values()
        if one is not liar and one.machine is not None and one.machine.raft._core.proof_needed
    ]
    near = sorted(liar.connections)
    assert liar.machine is not None
    if not victims or not near or liar.machine.raft.role is not Role.FOLLOWER:
        return
    victim = rng.choice(victims)
    assert victim.machine is not None
    tells = Liar(world, liar.site, rng, victim.machine)
    claim = tells.claim()
    term = getattr(getattr(claim, "message", None), "term", 0)
    if world.oracles.agreement.leader_of_term.get(term) == liar.site:
        return
    machine = liar.machine
    neighbour = victim.site if victim.site in near else rng.choice(near)
    run = machine.network.naming.of_word_to(SiteId(victim.site))
    for one in (claim, tells.goes_on(claim)):
        if one is not None:
            envelope = machine.network.router._envelope(SiteId(victim.site), one, machine.roster, CLAIM, run=run)
            world.network.send(liar.connections[neighbour], liar.site, "control", envelope)


def _judge(world: World) -> None:
    """Nobody was made to believe in a start that never was."""
    begun, rotation = {one.site: one.disk.incarnation for one in world.nodes.values()}, world.rotation
    for node in world.nodes.values():
        if node.machine is None:
            continue
        for site, incarnation in node.machine.network.incarnations.items():
            if rotation is not None and rotation.may_believe(node, SiteId(site), incarnation):
                continue
            if incarnation > begun.get(site, incarnation):
                world.oracles.fail(11, f"{node.name} believes in start {incarnation} of {site}, which never was")
