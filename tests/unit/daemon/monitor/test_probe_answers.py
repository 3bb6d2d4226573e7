"""Who is answered when neighbours measure: one that reads no answer takes none of the others'."""

from __future__ import annotations

import asyncio

from chaos_protocols.names import SiteId
from chaos_protocols.wire.probe import PROBE_PING, ProbeHeader, encode
from chaosd.monitor.probe import BURSTS_MAX, REPLIES_EACH_MAX, LinkProbe

GUEST, MEMBER = SiteId("d" * 32), SiteId("b" * 32)


class Stuck:
    """A transport over which the guest reads nothing."""

    def __init__(self) -> None:
        self.waiting, self.answered = 0, 0

    async def send_bulk(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> None:
        if site == GUEST:
            self.waiting += 1
            await asyncio.Event().wait()
        self.answered += 1


async def test_a_neighbour_that_reads_no_answer_takes_none_of_the_others() -> None:
    """A link that comes up is measured, and a join waits for that."""
    links = Stuck()
    probe = LinkProbe(links)
    for number in range(2 * BURSTS_MAX):
        probe.bulk_received(GUEST, 1, encode(ProbeHeader(kind=PROBE_PING, id=number)))
    await asyncio.sleep(0)
    probe.bulk_received(MEMBER, 1, encode(ProbeHeader(kind=PROBE_PING, id=1)))
    await asyncio.sleep(0)
    assert (links.waiting, links.answered) == (REPLIES_EACH_MAX, 1)
    await probe.close()
