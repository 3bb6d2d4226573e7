"""Which protocol versions the sites speak, as far as one site has heard; and what must wait for the slowest of them.

Driven by `SiteMachine`. What is agreed stands in the roster; this is what goes there with a site's next start.
"""

from __future__ import annotations

from collections.abc import Callable

from chaos_protocols.agreement.commands import Command, version_needed
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import Effect, Record
from chaos_protocols.names import SITES_MAX, SiteId
from chaos_protocols.wire.versions import BEFORE, OLDEST, Versions

KNOWN_MAX = 2 * SITES_MAX
"""Sites of which something is known, before those are forgotten that only others have named."""


class SiteVersions:
    """See the module."""

    def __init__(self, site: SiteId, incarnation: int, own: Versions) -> None:
        self._site = site
        self._spoken: dict[SiteId, tuple[int, Versions]] = {site: (incarnation, own)}
        """What each site's newest incarnation speaks: as its handshake with this site said, or a neighbour's report."""
        self._met: dict[SiteId, tuple[int, Versions]] = {}
        """Of those whose handshake this site has seen: their start, and what it said. No report changes that."""
        self._said: dict[SiteId, tuple[int, int]] = {}
        """Of those whose own envelopes were heard: their newest start, and the newest version that it speaks."""
        self._software: dict[SiteId, str] = {}
        """Its release, for people; empty: not told."""
        self._held_back: set[str] = set()
        """Kinds of commands that were told to wait."""

    def met(self, site: SiteId, incarnation: int, versions: Versions, software: str) -> None:
        """A link to this start of a neighbour's daemon has come up: its own handshake said so."""
        self._met[site] = (incarnation, versions)
        self.heard(site, incarnation, versions, software)

    def said(self, site: SiteId, incarnation: int, newest: int) -> None:
        """An envelope that this start of a site has made names the newest version that it speaks."""
        if incarnation >= self._said.get(site, (0, 0))[0]:
            self._said[site] = (incarnation, newest)

    def heard(self, site: SiteId, incarnation: int, versions: Versions | None, software: str) -> None:
        """This start of a site's daemon speaks `versions`; None: nothing was said of it. `software`: its release, empty
        where the reporter is of version 2 and does not say."""
        known, _ = self._spoken.get(site, (0, BEFORE))
        if versions is None or incarnation < known or site == self._site:
            return
        if (met := self._met.get(site)) is not None and met[0] == incarnation:
            versions = met[1]
        self._spoken[site] = (incarnation, versions)
        if software or incarnation > known:
            self._software[site] = software

    def forget(self, site: SiteId) -> None:
        """Whoever has said all this was not the site, or it is gone."""
        self._spoken.pop(site, None)
        self._met.pop(site, None)
        self._said.pop(site, None)
        self._software.pop(site, None)

    @property
    def is_full(self) -> bool:
        """It is time for `forget_all_but`."""
        return len(self._spoken) >= KNOWN_MAX

    def forget_all_but(self, is_kept: Callable[[SiteId], bool]) -> None:
        """Anybody may be named in a report, and one that was true is over for most."""
        for site in [one for one in self._spoken if one != self._site and not is_kept(one)]:
            self.forget(site)

    def of(self, site: SiteId) -> Versions:
        """What the newest incarnation of a site speaks; if nobody said, the least that it may be."""
        return self._spoken.get(site, (0, BEFORE))[1]

    def of_start(self, site: SiteId, incarnation: int, former: Versions) -> Versions:
        """What this start of a site speaks, by its own word: its handshake with this site, or the newest version that
        its envelopes name. The oldest, which those do not name, is as others report it where they report the same
        newest, else that of its `former` start."""
        met = self._met.get(site)
        if met is not None and met[0] == incarnation:
            return met[1]
        start, told = self._spoken.get(site, (0, BEFORE))
        reported = told if start == incarnation else former
        said, newest = self._said.get(site, (0, 0))
        if said != incarnation or reported.newest == newest:
            return reported
        return Versions(oldest=min(max(former.oldest, OLDEST), newest), newest=newest)

    def speaks(self, site: SiteId, version: int) -> bool:
        """Whether the newest start that was heard of a site speaks it, by its own word alone."""
        start, versions = self._met.get(site, (0, BEFORE))
        return max((start, versions.newest), self._said.get(site, (0, 0)))[1] >= version

    def lacks(self, site: SiteId, version: int) -> bool:
        """Whether somebody said that a site's newest incarnation does not speak it."""
        known = self._spoken.get(site)
        return known is not None and known[1].newest < version

    def neighbour_lacks(self, neighbour: SiteId, version: int) -> bool:
        """Whether a neighbour does not speak it, by the handshake of its newest link; reports of others may be lies,
        also on starts that never were."""
        met = self._met.get(neighbour)
        return met is not None and met[1].newest < version

    def software_of(self, site: SiteId) -> str:
        """The release of a site's newest incarnation, for people; empty: not told."""
        return self._software.get(site, "")

    def holds_back(self, command: Command, roster: Roster, emit: Callable[[list[Effect]], None]) -> bool:
        """Whether some site of the roster could not apply this command, so that it must not be proposed. What the run
        has used before every site of it speaks, whatever the roster says. Told once for each kind of command."""
        needed = version_needed(command)
        if needed <= max(roster.version(), roster.needs):
            return False
        kind = type(command).__name__
        if kind not in self._held_back:
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
            emit([told])
        return True
