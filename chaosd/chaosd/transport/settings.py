"""The words between the transport and its driver: settings, limits, events, facts about links.

Decides nothing; every limit of the transport stands here or in `chaos_protocols.names`, with where it comes from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from chaos_protocols.causes import Why
from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.handshake import STREAMS_FIRST, STREAMS_MAX
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.recovered import RunRecovered
from chaos_protocols.wire.versions import SPOKEN, Versions
from chaosd.addresses import split_address
from chaosd.proxy import Proxy
from chaosd.transport.handshake import Speaker
from chaosd.transport.sockets import SocketOptions

STREAMS_AUTO = 4
"""At most, where nobody says how many: three windows of 4 MiB fill 1 Gbit/s over 80 ms."""

CONGESTION_NAME_MAX = 15
"""TCP_CA_NAME_MAX of Linux, without the closing zero."""

HANDSHAKES_MAX = 64
"""Connections that may be unauthenticated at once; the oldest one of the busiest address gives way."""

CONTROL_QUEUE_BYTES_MAX = 16 << 20
"""Control bytes waiting for one neighbour: four of the longest frames. Beyond it, it is not reading."""

PIECE_BYTES = 512 << 10
"""Bulk payload goes out in pieces of this size, so that heartbeats and other streams get their turn in between.
Measured: 64 KiB to 1 MiB are equally fast on loopback, and 512 KiB cost 0.15 to 0.3 ms of encryption."""

WRITE_BUFFER_BYTES_MAX = 1 << 20
"""Encrypted bytes waiting for the kernel, per connection; a sender waits above it."""

CLOSE_FLUSH_TIMEOUT_S = 1.0
"""How long a closing connection may take to hand over what was sent before; then it is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings:
    """Checked when made: raises ValueError that names field, value and what is allowed."""

    listen_host: str = "0.0.0.0"  # noqa: S104 - a daemon serves its neighbours on every interface unless told otherwise
    listen_port: int = 0
    """0 = any free port; `Transport.address` tells which."""
    advertise_address: str | None = None
    """`host:port` that neighbours are told. None = listening host and port; "" = not reachable from outside (NAT)."""
    bulk_streams: int = 0
    """Bulk connections of the links that this site dials. 0 = two, and up to STREAMS_AUTO where the round trip is long
    enough for one window to be too small."""
    congestion: str = "auto"
    """Congestion control of bulk connections, by the name that the kernel has for it. auto = BBR where it is to be had
    (not on loopback), else the system's."""
    unacknowledged_max_s: float = 0.0
    """TCP_USER_TIMEOUT of every connection, where the system has it; 0 = the system's own limit."""
    proxy: Proxy | None = None
    """The way out, where the site's network lets nothing else out."""
    software: str = ""
    """This daemon's release, as neighbours are told it."""
    versions: Versions = SPOKEN
    """Protocol versions that this daemon speaks: all that it knows, but in tests."""
    handshake_timeout_s: float = 5.0
    """Accepted connection to proven identity, and first connection to complete link. TLS over a slow path takes 1 s."""

    name_of: Callable[[SiteId], str] = short
    """What a site is called before people."""

    def __post_init__(self) -> None:
        if not 0 <= self.listen_port <= 65535:
            raise ValueError(f"listen_port = {self.listen_port}: must be 0 to 65535 (0 = any free port)")
        if self.bulk_streams and not STREAMS_FIRST <= self.bulk_streams <= STREAMS_MAX:
            raise ValueError(
                f"bulk_streams = {self.bulk_streams}: must be {STREAMS_FIRST} to {STREAMS_MAX} (0 = automatic)"
            )
        if not self.congestion.isascii() or not 1 <= len(self.congestion) <= CONGESTION_NAME_MAX:
            raise ValueError(f"congestion = {self.congestion!r}: must be auto or a name as the kernel has it")
        if not 0 < self.handshake_timeout_s <= 60:
            raise ValueError(
                f"handshake_timeout_s = {self.handshake_timeout_s}: must be above 0 and at most 60 seconds"
            )
        if self.advertise_address:
            try:
                split_address(self.advertise_address)
            except ValueError as error:
                raise ValueError(f"advertise_address = {self.advertise_address!r}: {error}") from None

    @property
    def socket_options(self) -> SocketOptions:
        """Of every connection."""
        return SocketOptions(congestion=self.congestion, unacknowledged_max_s=self.unacknowledged_max_s)

    @property
    def streams_wanted(self) -> int:
        """Of a link that this site dials."""
        return self.bulk_streams or STREAMS_AUTO

    @property
    def streams_at_once(self) -> int:
        """Of these, those that are brought up with the link."""
        return self.bulk_streams or STREAMS_FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionCounters:
    """What one connection of a link has carried since it stands, encrypted. `stream`: None for the control connection;
    `waiting_bytes`: handed over by this site and not acknowledged by the far end's system; `queued_bytes`: those among
    them that not even this system has taken. `path_bytes_per_s`: what the path takes, as the system has measured it
    last, of the connection of averaging; 0: there was too little to send; None: not measured."""

    stream: int | None
    received_bytes: int
    acknowledged_bytes: int
    waiting_bytes: int
    queued_bytes: int = 0
    path_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkInfo:
    """A link that is up, for status pages."""

    site: SiteId
    incarnation: int
    address: str
    dialed_by_us: bool
    version: int
    """Protocol version that both ends use."""
    versions: Versions
    """What the neighbour speaks."""
    software: str
    """The neighbour's release, for people; "" where it does not say."""
    streams: tuple[int, ...]
    """Bulk streams that stand at the moment."""
    congestion: str
    """Congestion control of the bulk streams; "" where the system does not tell."""
    bulk_bytes_received: int
    bulk_bytes_sent: int
    chain: KeyChain | None = None
    """What the neighbour has shown of its key."""
    queued_bytes: int = 0
    """Handed over and not taken by the kernel yet, on all connections."""
    retransmitted_segments: int = 0
    """By the connections that stand."""


@dataclass(frozen=True, slots=True)
class KeptOut:
    """Why a proven site is not let in. `stranger`: nobody here has let it in yet, which an operator may; else it is
    shut out, for what it did or by somebody's word."""

    reason: str
    stranger: bool = False


class TransportEvents(Protocol):
    """What a daemon implements (`neighbours.py`). Everything is called on the loop, in order, and must not block.

    Each `link_up` is followed by exactly one `link_lost` (also when we close the link ourselves), except that nothing
    is reported once `Transport.close` was called. No call happens from inside a method of Transport.
    """

    def keeps_out(self, site: SiteId, purpose: str, chain: KeyChain, host: str) -> KeptOut | None:
        """May this proven site connect, with the key that this chain leads to? None = yes; otherwise why not, for this
        end only. `host`: it calls from there."""

    def let_in(self, site: SiteId) -> None:
        """Its control connection was accepted."""

    def accepts(self, site: SiteId, chain: KeyChain) -> bool:
        """Whether a key to which this chain leads counts for that site, as far as is known here."""

    def run_id(self) -> str:
        """Which run this site is or was in; "" = none that has an id."""

    def run_rules(self) -> int:
        """The version whose rules that run has agreed on, as far as this site has ever known; 0 = none."""

    def recovered(self) -> RunRecovered | None:
        """Of which recovery that run is; None = of none."""

    def heard_recovered(self, site: SiteId, address: str, statement: RunRecovered) -> None:
        """A handshake with this site, which is in another run, says of which recovery that one is. Not checked.
        `address`: where it can be dialled; "" = not known."""

    def may_name_hosts(self, site: SiteId) -> bool:
        """Whether this site is dialled where it says that it listens, whatever host that is."""

    def both_in_run(self, site: SiteId) -> bool:
        """Whether this site and that one are of one run, as far as is known here."""

    def newest_start(self, site: SiteId) -> int:
        """The newest start of that site's daemon that the run has agreed on; 0 = none."""

    def refused(self, site: SiteId, why: Why) -> None:
        """This proven site was not let in, for a cause that somebody has to take away."""

    def link_up(self, site: SiteId, incarnation: int, address: str, speaker: Speaker) -> None:
        """Control connection and all bulk streams are ready. `address` is where the site listens ("" = unknown)."""

    def link_lost(self, site: SiteId, incarnation: int, reason: str, end_of_file: bool) -> None:
        """The control connection is gone. `end_of_file`: the other end (or its host) closed it."""

    def control_received(self, site: SiteId, frame: bytes) -> float | None:
        """One control frame of a neighbour, whole, not interpreted. For how many seconds no other one of it is to be
        read; None or 0: read on."""

    def bulk_buffer(self, site: SiteId, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        """Where the payload goes: writable, exactly `size_bytes` long. None = read and discard it.

        Raising RemoteProtocolError closes that bulk connection. Not called for a frame without payload. The memory is
        written until `bulk_received`, `bulk_lost` or `link_lost` for that stream.
        """

    def bulk_received(self, site: SiteId, stream: int, header: bytes, payload: memoryview | None) -> None:
        """A bulk frame is complete; payload is the buffer given, or None when discarded or empty."""

    def bulk_lost(self, site: SiteId, stream: int, reason: str) -> None:
        """One bulk connection is gone while the link stands; `Transport.dial` by the dialing end restores it."""
