"""Which protocol versions the sites speak, as far as one site has heard; and what must wait for the slowest of them.

Driven by `SiteMachine`. What is agreed stands in the roster; this is what goes there with a site's next start.
"""

from __future__ import annotations

from chaos_protocols.commands import Command, version_needed
from chaos_protocols.effects import Effect, Record
from chaos_protocols.names import SiteId
from chaos_protocols.roster import Roster
from chaos_protocols.wire.versions import BEFORE, Versions


class SiteVersions:
    """See the module."""

    def __init__(self, site: SiteId, own: Versions) -> None:
        self._newest: dict[SiteId, Versions] = {site: own}
        """What each site's newest incarnation speaks: as its neighbour's report said, or its handshake with us."""
        self._links: dict[SiteId, Versions] = {}
        """What a neighbour said in the last handshake with this site."""
        self._held_back: set[str] = set()
        """Kinds of commands that were told to wait."""

    def link_up(self, site: SiteId, versions: Versions) -> None:
        """A handshake with a neighbour."""
        self._links[site] = versions

    def of_link(self, site: SiteId) -> Versions | None:
        """What the neighbour said last; None: there was no link to it yet."""
        return self._links.get(site)

    def heard(self, site: SiteId, versions: Versions | None) -> None:
        """What the newest incarnation of a site speaks, where that was said."""
        if versions is not None:
            self._newest[site] = versions

    def of(self, site: SiteId) -> Versions:
        """What the newest incarnation of a site speaks; if nobody said, the least that it may be."""
        return self._newest.get(site, BEFORE)

    def hold_back(self, command: Command, roster: Roster) -> tuple[bool, list[Effect]]:
        """Whether some site of the roster could not apply this command, so that it must not be proposed; told once for
        each kind of command."""
        needed = version_needed(command)
        if needed <= roster.version():
            return False, []
        kind = type(command).__name__
        if kind in self._held_back:
            return True, []
        self._held_back.add(kind)
        slowest = min(roster.sites, key=lambda record: record.versions.newest, default=None)
        who = "no site" if slowest is None else f"{slowest.name} speaks protocol {slowest.versions}"
        told = Record(
            kind="refused",
            subject=kind,
            cause=f"needs protocol {needed} at every site",
            outcome="refused",
            duration_s=None,
            reason=f"{who}; install a newer chaos-train there",
        )
        return True, [told]
