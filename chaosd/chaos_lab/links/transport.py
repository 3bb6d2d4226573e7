"""The daemon's transport over paths that the lab rules. Decides nothing: it hands the lab's words to its paths."""

from __future__ import annotations

from chaos_lab.links.paths import LabPaths
from chaos_lab.links.shape import LinkShape
from chaos_protocols.names import SiteId
from chaosd.identity import Identity
from chaosd.transport import Transport, TransportEvents, TransportSettings


class LabTransport(Transport):
    """A transport whose links can be shaped, cut and broken. Methods must be called on its loop."""

    def __init__(
        self, *, identity: Identity, run: str, incarnation: int, events: TransportEvents, settings: TransportSettings
    ) -> None:
        self._lab = LabPaths()
        super().__init__(
            identity=identity, run=run, incarnation=incarnation, events=events, settings=settings, paths=self._lab
        )

    def shape(self, site: SiteId | None, shape: LinkShape) -> None:
        """How the link to `site` behaves from now on; None = every site without a shape of its own."""
        self._lab.set(site, shape)

    def break_record(self, site: SiteId, stream: int | None) -> bool:
        """Break the TLS stream of one connection to a site (None: control). False without one."""
        return self._lab.break_record(site, stream)
