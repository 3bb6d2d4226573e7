"""What comes of a block, for the operator who has asked for it."""

from __future__ import annotations

from chaos_protocols.agreement.raft.config import majority
from chaos_protocols.names import SiteId, short
from chaos_protocols.site import SiteMachine


def told_of_block(machine: SiteMachine, site: SiteId, *, ban: bool) -> str:
    """In words. Whether the run still has a majority of its votes is what this site knows of who is there."""
    told = f"{site} has no link with this site from now on"
    if ban and set(machine.roster.member_ids()) - {site} == {machine.site}:
        told += "; no other member has a say in that, so this word alone puts it out of the run, for good"
    elif ban:
        told += "; it is out of the run for good as soon as more than half of the other members say so, too"
    elif site in machine.roster.site_ids():
        told += "; it stays in the run as long as another site of it has a link with it"
    if is_needed(machine, site):
        told += (
            "; without its vote nothing can be agreed on, its removal neither: this site may stand until `chaosd "
            f"unblock {short(site)}`, or until `chaosd recover` makes a run of its own"
        )
    return told


def is_needed(machine: SiteMachine, site: SiteId) -> bool:
    """Whether those that are there without it are no majority of the voters."""
    voters = machine.configuration.voters
    there = machine.reachable().intersection(voters) - {site}
    return site in voters and len(there) < majority(len(voters))
