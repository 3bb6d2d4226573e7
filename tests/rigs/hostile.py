"""A neighbour that is trusted, not of the run, and forges, replays, floods and lies over a real link."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import msgspec
from tests.rigs.site import Cluster
from tests.rigs.transport import Recorder, until

from chaos_protocols.agreement.raft.messages import AppendRequest, LogEntry, TimeoutNow, VoteRequest
from chaos_protocols.names import CONTROL_FRAME_BYTES_MAX, SiteId
from chaos_protocols.wire import control as messages
from chaos_protocols.wire.versions import NEWEST
from chaosd.transport import DialError, LinkClosed, Transport, TransportSettings

LINK_TRIES_MAX = 10
FAR = (1 << 53) - 1


class Hostile:
    """A trusted site's transport in the hands of somebody who sends what he likes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.victim = cluster.sites[0]
        self.events = Recorder()
        self.events.trusted = {site.identity.site for site in cluster.sites}
        self.sequence = 0
        self._identities = iter([guest.identity for guest in cluster.guests])
        self.identity = next(self._identities)
        self.transport = self._new_transport()

    def _new_transport(self) -> Transport:
        return Transport(
            identity=self.identity,
            run="test",
            incarnation=1,
            events=self.events,
            settings=TransportSettings(listen_host="127.0.0.1"),
        )

    async def as_somebody_else(self) -> None:
        """With the next key that the victim lets connect: who broke a rule has to wait outside."""
        await self.transport.close()
        self.identity = next(self._identities)
        self.transport = self._new_transport()
        await self.transport.start()

    @property
    def target(self) -> SiteId:
        return self.victim.identity.site

    async def link(self) -> None:
        """A link with a key that has broken no rule yet; the victim closes it as soon as one is broken."""
        await self.as_somebody_else()
        for _ in range(50):
            try:
                await self.transport.dial(self.target, self.victim.address, timeout_s=60.0)
                return
            except DialError:
                await asyncio.sleep(0.05)
        raise AssertionError("the victim does not let its trusted neighbour in any more")

    def envelope(self, message: messages.Message, **changes: Any) -> messages.Envelope:
        self.sequence += 1
        flooded = isinstance(message, messages.LinkStateAdvertisement)
        made = messages.Envelope(
            version=NEWEST, source=self.identity.site, destination=messages.EVERYBODY if flooded else self.target,
            incarnation=1, sequence=self.sequence, epoch=0, event_id="", hops=0, public_key=self.identity.public_key,
            signature=b"", message=message,
        )  # fmt: skip
        return msgspec.structs.replace(made, **changes)

    def signed(self, envelope: messages.Envelope) -> messages.Envelope:
        return msgspec.structs.replace(envelope, signature=self.identity.sign(messages.signed_bytes(envelope)))

    def say(self, *envelopes: messages.Envelope) -> None:
        for one in envelopes:
            self.transport.send_control(self.target, messages.encode_envelope(one))

    async def broken(self, act: Callable[[], Any]) -> None:
        """Do something that breaks a rule: the link must end."""
        for _ in range(LINK_TRIES_MAX):
            await self.link()
            if not self.transport.links():
                continue  # both ends dialled, each gave way to the other: the link has come and gone
            lost = len(self.events.losses)
            try:
                acted = act()
                if asyncio.iscoroutine(acted):
                    await acted
            except (LinkClosed, KeyError):
                continue  # the link on which the rule before was broken ends just now
            await until(lambda lost=lost: len(self.events.losses) > lost, "the link is closed")  # type: ignore[misc]
            return
        raise AssertionError("no link stays up for long enough to break a rule on it")


def report_of(neighbour: SiteId, *, up: bool) -> messages.LinkStateAdvertisement:
    return messages.LinkStateAdvertisement(
        neighbour=neighbour, incarnation=FAR, up=up, rtt_s=0.0, rate_bytes_per_s=0.0, reason="a lie"
    )


def lies(hostile: Hostile) -> list[messages.Envelope]:
    """Well-formed, and none of this site's business."""
    one, other = (site.identity.site for site in hostile.cluster.sites[:2])
    append = AppendRequest(
        term=FAR, leader=hostile.identity.site, previous_index=0, previous_term=0,
        entries=(LogEntry(index=1, term=FAR, command=b""),), commit_index=1, tenure=1,
    )  # fmt: skip
    said: list[messages.Message] = [
        messages.Heartbeat(
            sequence=1, echo_sequence=0, echo_delay_s=0.0, round=FAR, phase="compute", epoch=FAR,
            scheduler=hostile.identity.site, knows_you=False,
        ),
        *(report_of(site, up=up) for site in (one, other) for up in (True, False)),
        messages.RaftEnvelope(message=append),
        messages.RaftEnvelope(message=VoteRequest(term=FAR, last_index=FAR, last_term=FAR - 1, transfer=True)),
        messages.RaftEnvelope(message=TimeoutNow(term=1)),
        messages.RoundStatusQuery(epoch=FAR),
        messages.RoundStatusReply(epoch=FAR, done_round=FAR, digest="ee", has_state=True),
        messages.LeaveAnswer(incarnation=1, last_round=0, finished=True),
        messages.JoinAnswer(incarnation=1, accepted=False, final=True, reason="go away"),
        messages.ConnectOrder(negotiation="x", other=other, address="127.0.0.1:1", probe=True),
        messages.SiteStatus(incarnation=1, epoch=FAR, done_round=FAR, active=True, transfer_bytes=0),
        messages.LeaveRequest(incarnation=1, reason="of somebody else"),
        messages.LinkRequest(request="x", other=other, add=False, reason="cut them"),
    ]  # fmt: skip
    return [hostile.signed(hostile.envelope(message)) for message in said]


def unknown(hostile: Hostile, number: int, **changes: Any) -> bytes:
    """A message of a kind that nobody knows."""
    hostile.sequence += 1
    fields = {
        "version": (1 << 31) - 1, "source": hostile.identity.site, "destination": hostile.target, "incarnation": 1,
        "sequence": hostile.sequence, "epoch": 0, "event_id": "", "hops": 0, "public_key": b"", "signature": b"",
        "optional": True, "message": {"type": f"Weather{number}", "rain": "x" * 100},
    }  # fmt: skip
    return msgspec.msgpack.encode({**fields, **changes})


FLOOD = 900
"""Messages of kinds that nobody knows, each another one: so many that all are read at once (GUEST_MESSAGES_AT_ONCE)."""


async def flood(hostile: Hostile) -> None:
    """The mark of what may be skipped on everything: on kinds that nobody knows, thousands of them; on one for somebody
    else, which is relayed; on one for everybody; on bulk frames."""
    await hostile.link()
    other = hostile.cluster.sites[1].identity.site
    for number in range(FLOOD):
        hostile.transport.send_control(hostile.target, unknown(hostile, number))
        if number % 100 == 99:
            await asyncio.sleep(0)  # the victim reads what was sent
    rain, hail = (messages.Unreadable(kind=kind) for kind in ("Rain", "Hail"))
    long = "x" * messages.UNREADABLE_BYTES_MAX
    for message, text, destination in ((rain, "x", other), (hail, long, other), (hail, "x", messages.EVERYBODY)):
        raw = msgspec.msgpack.encode({"type": message.kind, "text": text})
        made = hostile.envelope(message, destination=destination, optional=True, raw=raw)  # type: ignore[arg-type]
        hostile.say(hostile.signed(made))
    for stream in (0, 1):
        header = msgspec.msgpack.encode({"kind": "weather", "optional": True})
        for _ in range(100):
            await hostile.transport.send_bulk(hostile.target, stream, header, b"rain")
    await asyncio.sleep(0.2)
    assert hostile.transport.links(), "whatever may be skipped costs no link"


async def misbehave(hostile: Hostile) -> int:
    """Everything at once, link after link; the number of rules that were broken."""
    forged = messages.Goodbye(reason="forged")
    other = hostile.cluster.sites[1].identity

    def control(data: bytes) -> Callable[[], None]:
        def write() -> None:
            connection = hostile.transport._links[hostile.target].control
            assert connection is not None
            connection.channel.write(data)

        return write

    breaches: list[Callable[[], Any]] = [
        lambda: hostile.transport.send_control(hostile.target, b"\xc1 no envelope"),
        lambda: hostile.say(hostile.envelope(forged, source=other.site)),
        lambda: hostile.say(
            hostile.envelope(forged, source=other.site, public_key=other.public_key, signature=bytes(64))
        ),
        lambda: hostile.transport.send_control(
            hostile.target, msgspec.msgpack.encode(hostile.envelope(forged, version=-9))
        ),
        lambda: hostile.say(hostile.envelope(report_of(other.site, up=False))),  # flooded, and not signed
        lambda: hostile.transport.send_control(hostile.target, unknown(hostile, 0, optional=False)),
        lambda: hostile.transport.send_control(
            hostile.target, unknown(hostile, 0, message={"type": "Goodbye", "reason": 7})
        ),
        lambda: hostile.transport.send_bulk(hostile.target, 1, msgspec.msgpack.encode({"kind": "weather"}), b"x"),
        lambda: hostile.transport.send_bulk(
            hostile.target, 0, msgspec.msgpack.encode({"kind": "chunk.up", "optional": True}), b"x"
        ),
        control(struct.pack("!I", CONTROL_FRAME_BYTES_MAX + 1)),
        lambda: hostile.transport.send_bulk(hostile.target, 1, b"\x80"),
        lambda: hostile.transport.send_bulk(hostile.target, 1, b"\x80", b"payload without a kind"),
        lambda: hostile.transport.send_bulk(hostile.target, 0, msgspec.msgpack.encode({"kind": "chunk.up"}), b"x"),
    ]
    for breach in breaches:
        await hostile.broken(breach)
    await flood(hostile)
    await hostile.link()
    told = lies(hostile)
    hostile.say(*told)
    hostile.say(*reversed(told))  # replayed, and out of order
    await asyncio.sleep(0.5)
    return len(breaches)
