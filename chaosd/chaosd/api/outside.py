"""What a daemon that is not in the run shows of it: what its journal has, and that this site has left.

Started outside the run, as after its script has left, it has applied no more than the run's first entry: the roster of
that may be as old as the run, and names who has long gone. What its whole journal has is not agreed, but nearer.
"""

from __future__ import annotations

from chaos_protocols.agreement.roster import Departure, Roster
from chaos_protocols.site import SiteMachine

WENT = {"left": "has left the run", "failed": "was removed from the run", "banned": "was banned from the run"}


def shown_roster(machine: SiteMachine) -> Roster:
    """The agreed one of a site that is in it; else the newest that is known here."""
    known = machine.replica.last_known
    return known if not machine.membership.in_roster and known.epoch > machine.roster.epoch else machine.roster


def outside_words(machine: SiteMachine) -> str:
    """That this site is out of a run in which it was; empty: it is in the run, or never was, or was started again and
    may be in it still."""
    roster, site = shown_roster(machine), machine.site
    if machine.membership.in_roster or not roster.sites or roster.record(site) is not None:
        return ""
    gone = roster.gone(site)
    if gone is None:
        return ""
    return f"this site {_went(gone)}; of the others stands here what its journal has, up to epoch {roster.epoch}"


def _went(gone: Departure) -> str:
    why = f" ({gone.reason})" if gone.reason and gone.cause != "left" else ""
    return f"{WENT[gone.cause]} after round {gone.last_round}{why}"
