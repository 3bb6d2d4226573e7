"""What lies between this site and the others, as the transport sees it: nothing. Decides nothing.

The transport's one seam. Whoever must put something else under the same transport (slow links to experiment with, a
test) hands in a subclass; the product hands in none.
"""

from __future__ import annotations

from chaos_protocols.names import SiteId
from chaos_protocols.wire.handshake import Session
from chaosd.transport.link import Link, LinkReports
from chaosd.transport.stream import BulkProgress


class Paths:
    """Open to everybody. Called by the transport, on its loop."""

    def answers(self, site: SiteId) -> bool:
        """Whether a dial of this site, which has proven itself, is answered at all."""
        return True

    async def before_dial(self, site: SiteId) -> None:
        """Awaited before the connections of a dial are made; its time counts as the dial's."""

    def link(
        self,
        reports: LinkReports,
        site: SiteId,
        incarnation: int,
        session: Session,
        streams: int,
        progress: BulkProgress,
    ) -> Link:
        """A link that begins to come up."""
        return Link(reports, site, incarnation, session, streams, progress)

    def close(self) -> None:
        """The transport is closing: what is still on its way is lost."""
