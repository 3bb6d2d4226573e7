"""What a link makes of the connections that it is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from chaos_protocols.names import SiteId
from chaos_protocols.wire.handshake import Session
from chaosd.transport.connection import PeerConnection
from chaosd.transport.link import BulkProgress, Link

A, B = SiteId("aa"), SiteId("bb")


@dataclass
class Established:
    """A bulk connection with its handshake behind it."""

    stream: int
    is_open: bool
    owners: list[Any] = field(default_factory=list)

    def hand_over(self, link: Any) -> None:
        self.owners.append(link)


def link_between() -> Link:
    session = Session(dialer=A, attempt=1)
    return Link(cast(Any, None), B, 1, session, 2, cast(BulkProgress, None))


def test_a_stream_that_ended_before_it_was_added_is_lacking_still() -> None:
    link = link_between()
    lacking = link.missing
    ended, stands = Established(lacking[0], is_open=False), Established(lacking[1], is_open=True)
    for connection in (ended, stands):
        link.add(cast(PeerConnection, connection))
    assert link.missing == [lacking[0]]
    assert (ended.owners, stands.owners) == ([], [link])
