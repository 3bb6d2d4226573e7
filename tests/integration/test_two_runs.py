"""A site with one real key takes part in two runs; somebody who is in both brings what it has said in one into the
other, over a real link: there it counts for nothing."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.rigs.transport import LOOPS, Site, link, run, until
from tests.unit.protocols.one_site import EPOCH, Bench, roster_of, sent
from tests.unit.protocols.one_site import link as link_of

from chaos_protocols import events
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import SendEnvelope
from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import RoundStatusQuery, RoundStatusReply, decode_envelope, encode_envelope
from chaos_protocols.wire.versions import NAMES_SINCE, PROOFS_SINCE
from chaosd.message_auth import MessageAuth

HERE, OTHER = "ab" * 16, "cd" * 16


def run_of(run_id: str, rules: int, *line: SiteId) -> Roster:
    """The sites of a run, each with a link to the next; a round is in doubt, so who is asked how far it is answers."""
    links = tuple(link_of(one, other) for one, other in pairwise(line))
    return msgspec.structs.replace(
        roster_of(*line, links=links), run_id=run_id, rules=rules, needs=rules, resolving=True
    )


def said(author: Site, roster: Roster, to: SiteId, way: SiteId) -> bytes:
    """What the daemon of `author` in that run hands to a neighbour for another site, signed with its key."""
    bench = Bench(author.id, roster).up(way)
    bench.machine.tell(to, RoundStatusQuery(epoch=EPOCH))
    (envelope,) = (
        one.envelope
        for one in bench.handle(events.TimerFired())
        if isinstance(one, SendEnvelope) and isinstance(one.envelope.message, RoundStatusQuery)
    )
    keyed = msgspec.structs.replace(envelope, public_key=author.identity.public_key)
    return MessageAuth(author.identity).encode(way, keyed)


@pytest.mark.parametrize("loop_kind", LOOPS)
def test_what_a_site_said_in_another_run_counts_for_nothing(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        here, bringer, author = (Site(tmp_path, name) for name in ("here", "bringer", "author"))
        await link(bringer, here)
        line = (here.id, bringer.id, author.id)
        victim = Bench(here.id, run_of(HERE, NAMES_SINCE, *line)).up(bringer.id)
        auth = MessageAuth(here.identity)

        async def brought(frame: bytes) -> list[Any]:
            here.events.frames.clear()
            bringer.transport.send_control(here.id, frame)
            await until(lambda: here.events.frames, "it has come")
            envelope = auth.decode(bringer.id, here.events.frames[0])
            event = events.EnvelopeReceived(neighbour=bringer.id, envelope=envelope)
            return sent(victim.handle(event), RoundStatusReply)

        for rules in (PROOFS_SINCE, NAMES_SINCE):  # the other run may have agreed to name itself, or not
            assert not await brought(said(author, run_of(OTHER, rules, *line), here.id, bringer.id))
        true = said(author, run_of(HERE, NAMES_SINCE, *line), here.id, bringer.id)
        assert await brought(true), "the test can see"
        other = decode_envelope(said(author, run_of(OTHER, NAMES_SINCE, *line), here.id, bringer.id))
        with pytest.raises(RemoteProtocolError, match="wrong signature"):
            await brought(encode_envelope(msgspec.structs.replace(other, run=HERE)))

    run(loop_kind, main)
