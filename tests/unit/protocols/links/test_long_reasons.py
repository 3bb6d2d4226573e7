"""A reason as long as may be said, repeated in a message of this site's own: others can read it all the same."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.protocols.one_site import A, B, Bench, C, D, leader_of, roster_of, sent
from tests.unit.protocols.scheduler.scheduler_kit import line

from chaos_protocols import events
from chaos_protocols.effects import SendEnvelope
from chaos_protocols.links.link_state import OUTSIDE_REASON_MAX
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import (
    ConnectOrder,
    Goodbye,
    LinkAnswer,
    LinkReady,
    LinkRequest,
    LinkStateAdvertisement,
    Unreadable,
    decode_envelope,
    encode_envelope,
)

LONGEST = "x" * 4096


def all_can_be_read(out: list[Any]) -> bool:
    """By whom they go to."""
    said = [decode_envelope(encode_envelope(one.envelope)) for one in out if isinstance(one, SendEnvelope)]
    return not any(isinstance(one.message, Unreadable) for one in said)


@pytest.mark.parametrize("far", [C, D], ids=["member", "guest"])
def test_that_a_link_is_down_is_told_whatever_its_end_said_when_it_went(far: SiteId) -> None:
    """Nobody could read it: to all others the link was up for good, and messages were sent that way."""
    bench = Bench(A, roster_of(A, B, C)).up(B, far)
    bench.hear(far, Goodbye(reason=LONGEST))
    out = bench.handle(events.LinkLost(site=far, incarnation=1, reason="end of file"))
    told = [one for _, one in sent(out, LinkStateAdvertisement)]
    assert told and not told[0].up and len(told[0].reason) <= OUTSIDE_REASON_MAX
    assert all_can_be_read(out)


def test_who_asks_for_a_link_can_read_why_the_other_end_has_none() -> None:
    """It would end its link with the scheduler for the answer, and ask again."""
    bench = leader_of(roster=line(B, C))
    out = bench.hear(B, LinkRequest(request="r", other=C, add=True, reason="asked for"))
    (_, order), *_ = sent(out, ConnectOrder)
    refused = LinkReady(
        negotiation=order.negotiation, other=B, ready=False, rtt_s=0.0, rate_bytes_per_s=0.0, reason=LONGEST
    )
    out = bench.hear(C, refused)
    assert [one.done for _, one in sent(out, LinkAnswer)] == [False]
    assert all_can_be_read(out)
