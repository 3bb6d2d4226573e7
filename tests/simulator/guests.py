"""A hostile guest: a site that one or two sites of the run let connect, and that was never admitted. It keeps its
links, as any daemon does, and says to anybody whatever can be said (`lies`), from the first trouble to the end.

Invariant 11 is judged here: after each of its words every site is as it was before, and keeps a bounded number of them.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from chaos_protocols.links.link_state import OUTSIDERS_MAX, REPORTS_EACH_MAX
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import EVERYBODY, LinkStateAdvertisement, RaftEnvelope
from tests.simulator.lies import BROUGHT, CLAIM, LIE, MADE_UP, Liar
from tests.simulator.node import Node
from tests.simulator.oracles_boundary import NEGOTIATIONS, PENDING, fingerprint
from tests.simulator.replaying import at_rest

if TYPE_CHECKING:
    from tests.simulator.world import World

SEEDS_APART = 8
GUEST = 1
"""Of eight seeds one has a guest; with `Trial.guest` all have."""
STRAY = "guest"
MEANS_S = (0.005, 0.05, 0.3)
"""Between two of its words, by the seed: a flood, and words that are few enough to come at any moment."""
ARRIVES_S = (0.5, 4.0)


def visit(world: World, *, always: bool = False) -> None:
    """By the seed: a guest comes, or none."""
    if not always and world.seed % SEEDS_APART != GUEST:
        return
    rng = random.Random(f"guest/{world.seed}")
    world.schedule(rng.uniform(*ARRIVES_S), lambda: _arrive(world, rng))


def _arrive(world: World, rng: random.Random) -> None:
    names = [node.name for node in world.nodes.values()]
    hosts = tuple(rng.sample(names, min(len(names), rng.choice((1, 2)))))
    number = rng.choice(("00", "99"))  # the lowest id and the highest: ties go by id
    guest = Node(world, f"{number}guest", "guest", founder=False, peers=tuple(world.site(host) for host in hosts))
    guest.stray = STRAY
    world.guests.add(guest.site)
    world.hear_guest = hear
    world.tell(f"!! a hostile guest is let in by {' '.join(hosts)}")
    guest.start()
    _speak(world, guest, rng, rng.choice(MEANS_S))


def _speak(world: World, guest: Node, rng: random.Random, mean_s: float) -> None:
    world.schedule(rng.expovariate(1 / mean_s), lambda: _speak(world, guest, rng, mean_s))
    near = sorted(guest.connections)
    victims = [node for node in world.nodes.values() if node.machine is not None]
    if not near or guest.machine is None or not victims:
        return
    victim = rng.choice(victims)
    assert victim.machine is not None
    message = Liar(world, guest.site, rng, victim.machine).lie()
    flooded = isinstance(message, LinkStateAdvertisement)
    to = EVERYBODY if flooded else victim.site
    neighbour = to if to in near and rng.random() < 0.7 else rng.choice(near)
    router, run = guest.machine.network.router, victim.machine.roster.run_id  # which run it is, anybody can know
    envelope = router._envelope(to, message, guest.machine.roster, LIE, run=run)  # type: ignore[arg-type]
    world.network.send(guest.connections[neighbour], guest.site, "control", envelope)


def hear(node: Node, event: Any) -> None:
    """A word of a guest, or a member's that only a scheduler may say, or one of another run arrives: the site is
    afterwards as it was. What either says as any daemon does is no lie."""
    if event.envelope.event_id not in MADE_UP or node.machine is None:
        node.handle(event)
        return
    if node.stopped:
        node.mailbox.append(lambda: hear(node, event))  # judged when it is read
        return
    generation, guest = node._generation, event.envelope.source
    if event.envelope.event_id == BROUGHT:
        if not node.machine.network.naming.required:
            return  # it could not tell; lost on its way
        guest = SiteId("")  # the site that it names as its source is none
    if event.envelope.event_id == CLAIM:
        if not _knows_better(node, event):
            node.world.never_came(event.envelope)
            return  # lost on its way
        # Who is of the run says itself when it was started, and with which key.
        with_key = node.machine.link_keys.said_with(event.neighbour, event.envelope)
        node.machine.network.saw_incarnation(guest, event.envelope.incarnation, with_key)
    before = at_rest(node, lambda one: believed(one, guest))
    if before is None:
        return
    about_links = isinstance(event.envelope.message, LinkStateAdvertisement)
    ways = _outside_in_reach(node, "joiner") if about_links else {}
    leavers = _outside_in_reach(node, "site") if about_links else {}
    node.handle(event)
    if generation != node._generation or node.machine is None:
        return
    if any(leaver not in node.machine.reachable() for leaver in leavers.values()):
        return  # it is released now, which is agreed like any change
    over = {name for name, joiner in ways.items() if joiner not in node.machine.reachable()}
    before, after = _without(before, over), _without(believed(node, guest), over)
    if after != before:
        changed = [(one, other) for one, other in zip(before, after, strict=True) if one != other]
        node.world.oracles.fail(
            11, f"{node.name} believes {guest}'s {type(event.envelope.message).__name__}: {changed}"
        )
    if event.envelope.event_id == LIE:
        _is_bounded(node, guest)


def _knows_better(node: Node, event: Any) -> bool:
    """It knows that a scheduler shows its votes, and that one vote elects nobody; and, for what only a scheduler says,
    another one. Who was just started again may not know yet that the founder votes no more alone (spec 5.21)."""
    assert node.machine is not None
    machine = node.machine
    if isinstance(event.envelope.message, RaftEnvelope):
        core = machine.raft._core
        alone = any(one.voters == (event.envelope.source,) for _, one in core.log.in_force(core.commit_index))
        return bool(core.proof_needed) and not alone
    return machine.membership.in_roster and machine.scheduler_site() not in (None, event.envelope.source)


def _outside_in_reach(node: Node, role: str) -> dict[str, SiteId]:
    """By negotiation, who would join, or has left and has yet to hear it. The only way there may lead over a link of
    the guest's own, which is the guest's to give and to take: that what went this way ends, when it says that the link
    is down, is no belief in a lie."""
    assert node.machine is not None
    machine = node.machine
    named = {name: getattr(one, role, None) for name, one in machine.scheduler.negotiations.items()}
    there = machine.reachable()
    return {name: site for name, site in named.items() if site in there and machine.roster.record(site) is None}


def _without(belief: tuple[Any, ...], over: set[str]) -> tuple[Any, ...]:
    """All but those negotiations, and what of them waits for its turn."""
    left = list(belief)
    if over:
        left[NEGOTIATIONS] = {name: state for name, state in belief[NEGOTIATIONS].items() if name not in over}
        names, idle = belief[PENDING]
        left[PENDING] = (names - over, idle)
    return tuple(left)


def believed(node: Node, guest: str) -> tuple[Any, ...]:
    """All that decides what a site does next, but for the guest's own link."""
    assert node.machine is not None
    machine = node.machine
    *rest, links, incarnations = fingerprint(node)
    others = {site: link for site, link in links.items() if site != guest}
    named = (machine.scheduler_site(), machine.is_trusted(guest))  # type: ignore[arg-type]
    orders = (len(machine.orders._orders), len(machine.orders._until_s))
    roster = machine.roster
    inside = roster.record(machine.site) is not None  # who is in no roster cannot know whose links these are
    ways = machine.reachable().intersection(roster.site_ids()) if inside else frozenset()
    heard = {one: start for one, start in guard_of(node).items() if one != guest and roster.record(one)}
    return (*rest, others, incarnations, named, orders, ways, heard)


def guard_of(node: Node) -> dict[SiteId, int]:
    """The newest start of each site of which a word was taken: older ones are not, from then on."""
    assert node.machine is not None
    return node.machine.network.router._guard.incarnations()


def _is_bounded(node: Node, guest: str) -> None:
    assert node.machine is not None
    machine = node.machine
    overlay = machine.network.router.overlay
    kept = len(overlay._told.get(SiteId(guest), ()))
    if overlay._inside is not None and kept > REPORTS_EACH_MAX:
        node.world.oracles.fail(11, f"{node.name} keeps {kept} reports of a guest")
    outsiders = [one for one in overlay._told if overlay.is_outside(one)]
    if len(outsiders) > OUTSIDERS_MAX:
        node.world.oracles.fail(11, f"{node.name} keeps the reports of {len(outsiders)} outsiders")
