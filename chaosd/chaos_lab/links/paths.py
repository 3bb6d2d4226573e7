"""Which shape holds for which site, and the shaper that outlives the links to it. Driven by the transport and the lab.

A shaper belongs to a site and not to a link: what a closed link still has on its way (and the end of its connections,
behind a cut) must arrive as late as everything else.
"""

from __future__ import annotations

import asyncio
import weakref

from chaos_lab.links.link import LabLink
from chaos_lab.links.shape import UNSHAPED, LinkShape
from chaos_lab.links.shaper import LinkShaper
from chaos_protocols.names import SiteId
from chaos_protocols.wire.handshake import Session
from chaosd.transport.link import LinkReports, SocketLinkPhase
from chaosd.transport.paths import Paths
from chaosd.transport.stream import BulkProgress

CUT_POLL_S = 0.02
"""How often a dial into a cut looks whether it was lifted."""
DIAL_ONE_WAY_DELAYS = 8
"""TCP, TLS, challenge and proof are four round trips; a dial over a shaped link takes that long."""


class LabPaths(Paths):
    """See the module. Sites appear here only when the lab names them."""

    def __init__(self) -> None:
        self._default = UNSHAPED
        self._by_site: dict[SiteId, LinkShape] = {}
        self._shapers: dict[SiteId, LinkShaper] = {}
        self._links: weakref.WeakValueDictionary[SiteId, LabLink] = weakref.WeakValueDictionary()
        """The newest link to each site, for as long as the transport keeps it."""

    # -- for the lab

    def set(self, site: SiteId | None, shape: LinkShape) -> None:
        """A new shape for a site, or (None) for all sites that have none of their own."""
        if site is not None:
            self._by_site[site] = shape
            touched = [site]
        else:
            self._default = shape
            touched = [known for known in {*self._links, *self._shapers} if known not in self._by_site]
        for neighbour in touched:
            self._apply(neighbour)

    def of(self, site: SiteId) -> LinkShape:
        """The shape in force."""
        return self._by_site.get(site, self._default)

    def break_record(self, site: SiteId, stream: int | None) -> bool:
        """See `LabLink.break_record`. False without a link that is up."""
        link = self._links.get(site)
        return link is not None and link.break_record(stream)

    # -- Paths

    def answers(self, site: SiteId) -> bool:
        shape = self.of(site)
        return not (shape.cut_in or shape.cut_out)

    async def before_dial(self, site: SiteId) -> None:
        """What the path does to a dial: it waits behind a cut, and takes its round trips."""
        while not self.answers(site):  # noqa: ASYNC110 - polled: a shape is set rarely, and by nobody who waits
            await asyncio.sleep(CUT_POLL_S)
        if latency_s := self.of(site).latency_s:
            await asyncio.sleep(DIAL_ONE_WAY_DELAYS * latency_s)

    def link(
        self,
        reports: LinkReports,
        site: SiteId,
        incarnation: int,
        session: Session,
        streams: int,
        progress: BulkProgress,
    ) -> LabLink:
        link = LabLink(reports, site, incarnation, session, streams, progress)
        self._links[site] = link
        self._apply(site)
        return link

    def close(self) -> None:
        """Forget what is on its way."""
        for shaper in self._shapers.values():
            shaper.stop()
        self._shapers.clear()

    def _apply(self, site: SiteId) -> None:
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
        link = self._links.get(site)
        if link is not None and link.state is not SocketLinkPhase.CLOSED:
            link.obey(shape, shaper)
