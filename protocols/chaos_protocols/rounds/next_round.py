"""What the roster says of the round that a site would open next: its tag, its trees, and whether the site gives to it.

Pure: `RoundMachine` asks with where it stands, and acts on the answer. Source: spec 9.1 to 9.4.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.agreement.roster import Roster, View
from chaos_protocols.effects import OpenRound
from chaos_protocols.names import SiteId
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.plans import Tag


@dataclass(slots=True, kw_only=True)
class NextRound:
    """The round after the last one that a site has, under the view that covers it. (Not frozen: it is made several
    times a round, and that costs two and a half times as much; nobody changes it.)"""

    tag: Tag
    view: View
    bounds: Bounds
    member: bool
    """The site contributes to it."""
    listener: bool
    """It gets the result only."""
    enough: bool
    """As many members count in it as the run wants at least."""
    centred: bool
    """Parts are clipped around the result of the round before: all sites of the view have that one."""

    def opened(self) -> OpenRound:
        """As the engine hears of it."""
        return OpenRound(
            tag=self.tag,
            plan=self.view.plan,
            listeners=self.view.listeners,
            member=self.member,
            bounds=self.bounds,
            centred=self.centred,
        )


def next_round(roster: Roster, site: SiteId, completed_round: int) -> NextRound | None:
    """None: no view covers it, since the roster is resolving, or none begins so early."""
    number = completed_round + 1
    view = roster.view_of(number)
    if view is None:
        return None
    bounds = roster.bounds_of(number)
    return NextRound(
        tag=Tag(epoch=view.epoch, round=number),
        view=view,
        bounds=bounds,
        member=site in view.members,
        listener=site in view.listeners,
        enough=not roster.is_short(view),
        centred=bool(bounds.clip_radius) and view.first_round <= completed_round,
    )


def first_round_of(roster: Roster, site: SiteId) -> int | None:
    """The first round that the site contributes to since it came, in a view that the roster still has; None: there is
    none. Who was in the run before, and left, stands in older views as well."""
    first = None
    for view in reversed(roster.views):
        if site in view.members:
            first = view.first_round
        elif first is not None:
            break
    return first
