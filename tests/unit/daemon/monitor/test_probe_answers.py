"""Who is answered when neighbours measure: one that reads no answer takes none of the others'."""

from __future__ import annotations

import asyncio

import pytest

from chaos_protocols.names import SiteId
from chaos_protocols.wire.probe import PROBE_BURST, PROBE_PING, ProbeHeader, encode
from chaosd.conduct import GUESTS_LINKED_MAX
from chaosd.monitor.probe import BURSTS_MAX, FRAMES_MAX, REPLIES_EACH_MAX, LinkProbe
from chaosd.transport.errors import PeerProtocolError

GUEST, MEMBER = SiteId("d" * 32), SiteId("b" * 32)
GUESTS = [SiteId(f"{number:032x}") for number in range(GUESTS_LINKED_MAX)]
"""As many as may be linked at once."""


class Stuck:
    """A transport over which guests read nothing."""

    def __init__(self) -> None:
        self.waiting, self.answered = 0, 0

    async def send_bulk(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> None:
        if site != MEMBER:
            self.waiting += 1
            await asyncio.Event().wait()
        self.answered += 1


async def test_a_neighbour_that_reads_no_answer_takes_none_of_the_others() -> None:
    """A link that comes up is measured, and a join waits for that."""
    links = Stuck()
    probe = LinkProbe(links)
    for number in range(100):
        probe.bulk_received(GUEST, 1, encode(ProbeHeader(kind=PROBE_PING, id=number)))
    await asyncio.sleep(0)
    probe.bulk_received(MEMBER, 1, encode(ProbeHeader(kind=PROBE_PING, id=1)))
    await asyncio.sleep(0)
    assert (links.waiting, links.answered) == (REPLIES_EACH_MAX, 1)
    await probe.close()


async def test_all_guests_together_take_no_answer_of_a_members() -> None:
    links = Stuck()
    probe = LinkProbe(links)
    for guest in GUESTS:
        for number in range(2 * REPLIES_EACH_MAX):
            probe.bulk_received(guest, 1, encode(ProbeHeader(kind=PROBE_PING, id=number)))
    probe.bulk_received(MEMBER, 1, encode(ProbeHeader(kind=PROBE_PING, id=1)))
    await asyncio.sleep(0)
    assert (links.waiting, links.answered) == (REPLIES_EACH_MAX * len(GUESTS), 1)
    await probe.close()


async def test_bursts_that_guests_begin_and_never_end_leave_room_for_a_members() -> None:
    links = Stuck()
    probe = LinkProbe(links)
    for guest in GUESTS:
        probe.bulk_received(guest, 1, encode(ProbeHeader(kind=PROBE_BURST, id=1)))
    probe.bulk_received(MEMBER, 1, encode(ProbeHeader(kind=PROBE_BURST, id=1)))
    probe.bulk_received(MEMBER, 1, encode(ProbeHeader(kind=PROBE_BURST, id=1, last=True)))
    await asyncio.sleep(0)
    assert (links.waiting, links.answered) == (0, 1)
    await probe.close()


async def test_of_bursts_that_never_end_a_bounded_number_is_remembered_and_none_of_a_link_that_is_gone() -> None:
    probe = LinkProbe(Stuck())
    for number in range(BURSTS_MAX + 3):
        probe.bulk_received(SiteId(f"{number:032x}"), 1, encode(ProbeHeader(kind=PROBE_BURST, id=1)))
    assert len(probe._bursts) == BURSTS_MAX
    for number in range(BURSTS_MAX):
        probe.link_lost(SiteId(f"{number:032x}"), "closed")
    assert not probe._bursts


async def test_a_burst_that_does_not_end_breaks_a_rule() -> None:
    """What has arrived of it is remembered until its last frame."""
    probe = LinkProbe(Stuck())
    frame = encode(ProbeHeader(kind=PROBE_BURST, id=1))
    for _ in range(FRAMES_MAX):
        probe.bulk_received(GUEST, 1, frame)
    with pytest.raises(PeerProtocolError, match="a probe of more than"):
        probe.bulk_received(GUEST, 1, frame)
