"""What two daemons say inside a fresh TLS channel before the first frame: challenge, proof, verdict.

    listener -> dialer   Challenge  nonce, the versions that the listener speaks
    dialer -> listener   Proof      hello (bytes), signature
    listener -> dialer   Verdict    accepted in which version, or why not

Fields may be added with defaults; whoever does not know them ignores them. Every field that was there in version 1
stays as it is for good: only so can a daemon of any version be told in words why it is refused. Why the channel is
bound to both keys, and the versions to the signature, stands in `chaosd.transport.handshake`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from chaos_protocols.names import RUN_ID_PATTERN, SITE_ID_CHARACTERS
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.recovered import RunRecovered
from chaos_protocols.wire.versions import Software, Version, Versions

NONCE_BYTES = 32
PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
"""RFC 8032, section 5.1."""

COUNTER_MAX = (1 << 63) - 1
NAME_CHARACTERS_MAX = 256
REASON_CHARACTERS_MAX = 512

STREAMS_FIRST = 2
"""A link is up with these: one for averaging, one for states."""

STREAMS_MAX = 16
"""Bulk connections of one link. Sixteen are what long fat pipes were ever seen to profit from."""

HANDSHAKE_BYTES_MAX = 4096
"""One handshake message. A hello takes about 400 bytes, the longest chain of keys 1,400; the longest reason and address
fit."""

FULL_FRAME_BYTES = 1600
"""Challenge and proof are filled up to it, so that each takes a packet of full size and some more: where such packets
are swallowed on the way no link comes up, instead of one that carries heartbeats and nothing else."""

Padding = Annotated[bytes, msgspec.Meta(max_length=HANDSHAKE_BYTES_MAX)]
Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Counter = Annotated[int, msgspec.Meta(ge=0, le=COUNTER_MAX)]
Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)]
RunId = Annotated[str, msgspec.Meta(pattern=RUN_ID_PATTERN)]
StartSignature = Annotated[bytes, msgspec.Meta(max_length=SIGNATURE_BYTES)]
SiteText = Annotated[str, msgspec.Meta(min_length=SITE_ID_CHARACTERS, max_length=SITE_ID_CHARACTERS)]

REFUSED = "refused"
"""The fixed answer to whoever is not proven or not trusted."""
REFUSED_VERSION = "version"
REFUSED_RUN = "run"
REFUSED_SIMULTANEOUS = "simultaneous"
REFUSED_STALE = "stale"
ACCEPTED = "accepted"

PURPOSE_CONTROL = "control"
PURPOSE_BULK = "bulk"


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """First message, listener to dialer."""

    version: Version
    """The newest version that the listener speaks."""
    nonce: Nonce
    oldest: Version = 0
    """The oldest one; 0: from before versions were negotiated, it speaks `version` alone."""
    padding: Padding = b""
    """Nothing; see FULL_FRAME_BYTES."""

    @property
    def versions(self) -> Versions:
        """The range that the listener speaks."""
        return Versions(oldest=self.oldest or self.version, newest=self.version)


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Names one attempt to bring up a link: who dials and the how-manieth time (since its daemon started)."""

    dialer: SiteText
    attempt: Counter


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What the dialer states and signs."""

    version: Version
    """The newest version that the dialer speaks."""
    run: Name
    site: SiteText
    public_key: Annotated[bytes, msgspec.Meta(min_length=PUBLIC_KEY_BYTES, max_length=PUBLIC_KEY_BYTES)]
    incarnation: Counter
    """Which start of the dialing daemon this is."""
    purpose: Name
    """PURPOSE_CONTROL or PURPOSE_BULK."""
    stream: Annotated[int, msgspec.Meta(ge=0, lt=STREAMS_MAX)]
    """Which bulk stream this connection is to be; 0 for a control connection."""
    streams: Annotated[int, msgspec.Meta(ge=STREAMS_FIRST, le=STREAMS_MAX)]
    """Bulk connections that the link will have."""
    session: Session
    known: Session | None
    """The last session with this listener that the dialer saw accepted: tells a redial from a simultaneous dial."""
    address: Name
    """Where the dialer listens; empty = not reachable."""
    nonce: Nonce
    oldest: Version = 0
    """The oldest version that the dialer speaks; 0: from before versions were negotiated."""
    software: Software = ""
    """The dialer's release, for people."""
    heard: Versions | None = None
    """The listener's range as the challenge brought it. The listener compares it with what it said: the signature
    over this hello covers both ranges, so nobody in between can talk the two down to an older version."""
    run_id: RunId = ""
    """Which run the dialer is or was in, as its roster says; empty: in none, or its release does not say."""
    start: StartSignature = b""
    """The dialer's signature of its start number (`chaosd.transport.starts`); empty: its release gives none, or its run
    has agreed to be named in it."""
    run_start: StartSignature = b""
    """The same with the name of the run `run_id` (since version 9); empty: it is in none, or its release gives none."""
    keys: KeyChain | None = None
    """How `public_key` has come to be that of `site` (since version 10); None: it is the first."""
    recovered: RunRecovered | None = None
    """Of which recovery the dialer's run is; None: of none, or its release does not say."""

    @property
    def versions(self) -> Versions:
        """The range that the dialer speaks."""
        return Versions(oldest=self.oldest or self.version, newest=self.version)


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Second message: the hello as it was signed, byte for byte."""

    hello: bytes
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
    padding: Padding = b""
    """Nothing; see FULL_FRAME_BYTES."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Third message, listener to dialer."""

    code: Name
    """ACCEPTED, or one of REFUSED..."""
    reason: Annotated[str, msgspec.Meta(max_length=REASON_CHARACTERS_MAX)] = ""
    incarnation: Counter = 0
    """Which start of the listening daemon this is."""
    address: Name = ""
    """Where the listener can be dialled."""
    version: Version = 0
    """The version that both use from now on; the dialer knows which one it must be."""
    software: Software = ""
    """The listener's release, for people; told to whom it trusts."""
    run_id: RunId = ""
    """Which run the listener is or was in; told to whom it trusts."""
    start: StartSignature = b""
    """The listener's signature of its start number; `run_start`: the same with the name of the run `run_id`."""
    run_start: StartSignature = b""
    newest: Counter = 0
    """The newest start of the dialer that the listener knows, where that is why it refuses; 0: it is not."""
    newest_start: StartSignature = b""
    """The dialer's own signature of it, and the one that names the run; empty: the listener has it from others."""
    newest_run_start: StartSignature = b""
    recovered: RunRecovered | None = None
    """Of which recovery the listener's run is, told where that is why it refuses; None: of none."""


FIXED_REFUSAL = Verdict(code=REFUSED)
