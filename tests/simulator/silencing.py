"""In the calm a site falls silent, and must be out of the roster in bounded time (invariant 8)."""

from __future__ import annotations

import random

from chaos_protocols.agreement.raft.config import majority
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.agreement.views import connects
from chaos_protocols.names import SiteId
from chaos_protocols.site import SiteMachine
from tests.simulator.node import Node
from tests.simulator.world import World

NOTICED_TIMEOUTS = 2.0
"""A silent site is out of the roster within so many failure timeouts: the silence itself (1, or what its neighbours'
links have shown), a beat until it is
noticed (0.25), the grace (0.15), the report's way and a decision."""


def one_falls_silent(world: World) -> None:
    """In the calm a site stops that the scheduler has no link to: it must hear of it from the others, in bounded time,
    though nobody else fails and the silent one does not come back. Where there is no such site, without which the
    others hold together, nothing happens."""
    scheduler = next((one for one in map(_scheduler_of, world.nodes.values()) if one is not None), None)
    if scheduler is None:
        return
    roster = scheduler.roster
    near = {scheduler.site, *roster.neighbours(scheduler.site)}
    far = [one for one in roster.member_ids() if one not in near and _holds_together_without(roster, one)]
    if not far:
        return
    silent, oracles = world.nodes[random.Random(f"silent/{world.seed}").choice(far)], world.oracles
    world.tell(f"!! {silent.name} falls silent")
    patience_s = max(_patience_s(world, one, silent) for one in roster.neighbours(SiteId(silent.site)))
    silent.stop(for_good=True)
    limit_s = patience_s + (NOTICED_TIMEOUTS - 1.0) * world.settings.failure_timeout_s
    if scheduler.reachable(sound=True) != scheduler.reachable():  # no vote of theirs counts for so long (spec 7.4)
        limit_s += 2 * world.settings.cut_off_s
    gone = world.run_until(lambda: not _in_roster(world, silent), limit_s=limit_s)
    if not gone and scheduler is not _scheduler_of(world.nodes[scheduler.site]):
        # Its words to a majority went by way of the silent one for too long (spec 5.10): another one decides.
        more_s = NOTICED_TIMEOUTS * world.settings.failure_timeout_s
        limit_s += more_s
        gone = world.run_until(lambda: not _in_roster(world, silent), limit_s=more_s)
    if not gone and _needs(world, silent):
        return
    if not gone:
        oracles.fail(8, f"{silent.name} fell silent {limit_s:g} s ago, and is still in the roster")
    before = oracles.rounds_done
    if not world.run_until(lambda: oracles.rounds_done > before, limit_s=world.settings.failure_timeout_s * 60):
        oracles.fail(8, f"no round is done without {silent.name}")


def _needs(world: World, silent: Node) -> bool:
    """Its voters were extended by the silent one, or by one to which only that leads, while nobody had noticed yet:
    without it there is no majority, and it stands, as is said (spec 5.12)."""
    machines = [one.machine for one in world.nodes.values() if one.machine is not None and one is not silent]
    voters = [one.replica.configuration.voters for one in machines]
    led = [one for one in machines if one.scheduler.leading]
    left = {site for one in led for site in (one.site, *one.network.reachable())} or {one.site for one in machines}
    return any(silent.site in one and len(left.intersection(one)) < majority(len(one)) for one in voters)


def _patience_s(world: World, site: SiteId, silent: Node) -> float:
    """How long a neighbour waits for a word, by what its link has shown in the trouble before; what the silent one had
    sent is a word too, and may take a narrow way for a while yet."""
    machine = world.nodes[site].machine
    if machine is None:
        return 0.0
    limit_s = machine.links.silence_limit_s(silent.site)  # type: ignore[arg-type]
    return limit_s + world.network.under_way_s(silent.site, site)


def _holds_together_without(roster: Roster, site: SiteId) -> bool:
    """Where the others fall apart there may be no majority that hears of anything."""
    others = [one for one in roster.member_ids() if one != site]
    return connects(others, (), [link for link in roster.links if site not in link.key])


def _scheduler_of(node: Node) -> SiteMachine | None:
    machine = node.machine
    return machine if machine is not None and machine.scheduler.leading and machine.scheduler.taken_over else None


def _in_roster(world: World, node: Node) -> bool:
    roster = world.oracles.newest
    return roster is not None and any(record.site == node.site for record in roster.sites)
