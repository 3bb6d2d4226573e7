"""Which shape holds for which site (lab only), and the shaper that outlives the links to it.

Driven by the transport. A shaper belongs to a site and not to a link: what a closed link still has on its way (and the
end of its connections, behind a cut) must arrive as late as everything else.
"""

from __future__ import annotations

import asyncio

from chaos_protocols.names import SiteId
from chaosd.transport.link import Link
from chaosd.transport.settings import UNSHAPED, LinkShape
from chaosd.transport.shaper import LinkShaper

CUT_POLL_S = 0.02
"""How often a dial into a cut looks whether it was lifted."""
DIAL_ONE_WAY_DELAYS = 8
"""TCP, TLS, challenge and proof are four round trips; a dial over a shaped link takes that long."""


class Shapes:
    """See the module. Sites appear here only when the lab names them."""

    def __init__(self) -> None:
        self._default = UNSHAPED
        self._by_site: dict[SiteId, LinkShape] = {}
        self._shapers: dict[SiteId, LinkShaper] = {}

    def set(self, site: SiteId | None, shape: LinkShape, links: dict[SiteId, Link]) -> None:
        """A new shape for a site, or (None) for all sites that have none of their own."""
        if site is not None:
            self._by_site[site] = shape
            touched = [site]
        else:
            self._default = shape
            touched = [one for one in {*links, *self._shapers} if one not in self._by_site]
        for neighbour in touched:
            self.apply(neighbour, links.get(neighbour))

    def of(self, site: SiteId) -> LinkShape:
        """The shape in force."""
        return self._by_site.get(site, self._default)

    def apply(self, site: SiteId, link: Link | None) -> None:
        """Let shaper and link follow the shape in force."""
        shape = self.of(site)
        shaper = self._shapers.get(site)
        if shaper is not None:
            shaper.change(shape)
            if not shape.shapes_sending and shaper.is_empty:
                del self._shapers[site]
                shaper = None
        elif shape.shapes_sending:
            shaper = self._shapers[site] = LinkShaper(shape)
        if link is not None:
            link.shape(shape, shaper)

    async def pass_dial(self, site: SiteId) -> None:
        """What the link does to a dial: it waits behind a cut, and takes its round trips."""
        shape = self.of(site)
        while shape.cut_in or shape.cut_out:
            await asyncio.sleep(CUT_POLL_S)
            shape = self.of(site)
        if shape.latency_s:
            await asyncio.sleep(DIAL_ONE_WAY_DELAYS * shape.latency_s)

    def stop(self) -> None:
        """Forget what is on its way."""
        for shaper in self._shapers.values():
            shaper.stop()
        self._shapers.clear()
