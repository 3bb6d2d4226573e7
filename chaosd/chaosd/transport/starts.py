"""Start numbers with proof: which start of a site's daemon is the newest, in words that only its key can have said.

Two daemons with one key (a copied machine, a restored backup) must not both go on. A site hands its neighbours its
start number, signed; whoever knows a newer start of a dialer shows it that signature, and the dialer, who can check it
with its own key, ends. A neighbour's bare word ends nobody. Driven by the transport.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.names import SITES_MAX, SiteId
from chaosd.identity import Identity, verify

LABEL = b"chaos start 1\x00"
"""Separates these signatures from all others. They name no run: a start is one of the key, in whichever run."""

STARTS_KEPT_MAX = SITES_MAX
"""Sites whose newest start is remembered; the one that was seen longest ago is forgotten first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a daemon. `signature`: of its site's key; empty where a former release gave none."""

    incarnation: int
    signature: bytes = b""


UNKNOWN = Start(incarnation=0)
"""No start of that site is known."""


class Starts:
    """See the module."""

    def __init__(self, identity: Identity, incarnation: int) -> None:
        self.own = Start(incarnation=incarnation, signature=identity.sign(_signed(identity.site, incarnation)))
        self._identity = identity
        self._newest: dict[SiteId, Start] = {}

    def newest(self, site: SiteId, agreed_on: int = 0) -> Start:
        """The newest start of a site: the one that it has proven, or a newer one that others have `agreed_on`, for
        which there is no proof here; number 0 where none is known."""
        proven = self._newest.get(site, UNKNOWN)
        return proven if proven.incarnation >= agreed_on else Start(incarnation=agreed_on)

    def saw(self, site: SiteId, public_key: bytes, start: Start) -> None:
        """A connection to it stands. What is older, or is not proven, counts for nothing."""
        if start.incarnation <= self.newest(site).incarnation or not start.signature:
            return
        if not verify(public_key, start.signature, _signed(site, start.incarnation)):
            return
        self._newest.pop(site, None)
        self._newest[site] = start
        while len(self._newest) > STARTS_KEPT_MAX:
            del self._newest[next(iter(self._newest))]

    def is_replaced(self, start: Start) -> bool:
        """Whether this proves that a daemon with this very key was started after this one."""
        own = self._identity
        newer = start.incarnation > self.own.incarnation and bool(start.signature)
        return newer and verify(own.public_key, start.signature, _signed(own.site, start.incarnation))


def _signed(site: SiteId, incarnation: int) -> bytes:
    """Every part but the last has a fixed length, so no two inputs give the same bytes."""
    return LABEL + site.encode() + incarnation.to_bytes(8, "big")
