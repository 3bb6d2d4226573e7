"""Headers of the small conversations on bulk stream 1: link probes, iperf3, a model described, how a site is seen.

Each is a msgpack map with the key `kind`, as the headers of `wire/bulk.py` are, and changes by the same rule: fields
may be added with defaults, a kind that the other end may leave unread is marked `optional`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

PROBE_PING, PROBE_PONG = "probe.ping", "probe.pong"
PROBE_BURST, PROBE_REPORT = "probe.burst", "probe.report"
PROBE_KINDS = frozenset((PROBE_PING, PROBE_PONG, PROBE_BURST, PROBE_REPORT))

IPERF_WANT, IPERF_READY = "iperf.want", "iperf.ready"
IPERF_KINDS = frozenset((IPERF_WANT, IPERF_READY))

MODEL_ASK, MODEL_TELL = "model?", "model!"
MODEL_KINDS = frozenset((MODEL_ASK, MODEL_TELL))

SEEN_ASK, SEEN_TELL = "seen?", "seen!"
SEEN_KINDS = frozenset((SEEN_ASK, SEEN_TELL))

REASON_CHARACTERS_MAX = 200
"""Why a site does not let another one measure."""

Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class ProbeHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Header of every frame of a probe (`chaosd.monitor.probe`)."""

    kind: Annotated[str, msgspec.Meta(max_length=16)]
    """One of PROBE_KINDS."""
    id: Number
    """Which probe of the asking end this belongs to."""
    last: bool = False
    """The last frame of a burst: the receiver reports."""
    bytes: Number = 0
    """Report: how many arrived after the first frame."""
    seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    """Report: in what time."""
    rate_bytes_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e15)] = 0.0
    """Report: the rate of the second half; 0 where it took no time."""


class IperfHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An iperf3 measurement beside the link (`chaosd.monitor.link_meter`)."""

    kind: Annotated[str, msgspec.Meta(max_length=16)]
    """IPERF_WANT: let me measure. IPERF_READY: come."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """Ready: where to; 0: not here."""
    reason: Annotated[str, msgspec.Meta(max_length=REASON_CHARACTERS_MAX)] = ""
    """Ready: why not."""


class ModelHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What does the state of your run consist of? (`chaosd.model_check`)"""

    kind: Annotated[str, msgspec.Meta(max_length=16)]
    """MODEL_ASK, without payload; MODEL_TELL, whose payload is a `StateSpec` as msgpack."""


class SeenHeader(msgspec.Struct, frozen=True, kw_only=True):
    """How do you see my site? (`chaosd.peer_view`)"""

    kind: Annotated[str, msgspec.Meta(max_length=16)]
    """SEEN_ASK, without payload; SEEN_TELL, whose payload is a `SeenSite` as msgpack."""
    optional: bool = True
    """A release that does not know the question forgets it."""


class SeenSite(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a site sees the neighbour that asks: for people, nothing follows from it."""

    software: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Its own release."""
    round: Number = 0
    """The last round whose result it has."""
    state: Annotated[str, msgspec.Meta(max_length=16)] = ""
    """Of the asker in the roster: learner, member, leaving; empty: it is outside."""
    trusted_by: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """What lets the asker connect there: command, configuration, peer, site of the run; empty: anyone may."""
    address: Annotated[str, msgspec.Meta(max_length=256)] = ""
    """Where it would dial the asker."""
    reaches: bool = False
    """It has just dialled that address, and the asker has answered."""
    rtt_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    """Of heartbeats over the link, as it measures; 0: not yet."""


def encode(header: ProbeHeader | IperfHeader | ModelHeader | SeenHeader) -> bytes:
    """A msgpack map with the key `kind`."""
    return msgspec.msgpack.encode(header)
