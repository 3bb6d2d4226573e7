"""Who is at the other end: the handshake inside a fresh TLS 1.3 channel, as two small machines without I/O.

Driven by a connection, which hands in each frame and sends what comes back. What the verdict on a proven peer is
(trusted? same run? which of two simultaneous dials?) is decided in `admission`.

    listener -> dialer   Challenge  nonce
    dialer -> listener   Proof      hello (bytes), signature
    listener -> dialer   Verdict    accepted, or why not

Why the channel is mutually authenticated and bound:

1. The dialer knows whom it calls. TLS 1.3 proves that the listener holds the key of its certificate
   (CertificateVerify signs the transcript), and the dialer checks that this key hashes to the expected site id. So
   what the dialer sends can be read by that site only, and what it reads comes from that site.
2. The dialer proves its key by signing (label, fingerprint of the listener's certificate, the listener's nonce, the
   hello). The hello contains the dialer's nonce and every field that the listener acts on. The listener's nonce is
   fresh for each connection, so a recorded hello is worth nothing. The certificate's fingerprint binds the signature
   to this listener: a trusted but malicious site that is dialed cannot pass the proof on to another one, since that
   one has another certificate. A third party cannot sit in between, by 1. So the listener's end of the channel is in
   the hands of the key that signed.
3. The label keeps the signature from being taken for a control message, and the reverse.

A peer that is not proven or not trusted gets one fixed refusal, the same for every cause. Python's `ssl` cannot accept
unknown client certificates and leave the judgement to us, which is why the dialer's proof is not a client certificate.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import blake3
import msgspec

from chaos_protocols.names import PROTOCOL_VERSION, SITE_ID_CHARACTERS, SiteId
from chaosd.identity import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, Identity, site_of, site_of_certificate, verify
from chaosd.transport.errors import RemoteProtocolError
from chaosd.transport.settings import HANDSHAKE_BYTES_MAX, STREAMS_MAX

LABEL = b"chaos transport hello, protocol version 1\x00"
NONCE_BYTES = 32
COUNTER_MAX = (1 << 63) - 1
NAME_CHARACTERS_MAX = 256
REASON_CHARACTERS_MAX = 512

Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Counter = Annotated[int, msgspec.Meta(ge=0, le=COUNTER_MAX)]
Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)]
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

    version: Counter
    nonce: Nonce


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Names one attempt to bring up a link: who dials and the how-manieth time (since its daemon started)."""

    dialer: SiteText
    attempt: Counter


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What the dialer states and signs."""

    version: Counter
    run: Name
    site: SiteText
    public_key: Annotated[bytes, msgspec.Meta(min_length=PUBLIC_KEY_BYTES, max_length=PUBLIC_KEY_BYTES)]
    incarnation: Counter
    purpose: Name
    stream: Annotated[int, msgspec.Meta(ge=0, lt=STREAMS_MAX)]
    streams: Annotated[int, msgspec.Meta(ge=1, le=STREAMS_MAX)]
    """Bulk connections that the link will have."""
    session: Session
    known: Session | None
    """The last session with this listener that the dialer saw accepted: tells a redial from a simultaneous dial."""
    address: Name
    """Where the dialer listens; empty = not reachable."""
    nonce: Nonce


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Second message: the hello as it was signed, byte for byte."""

    hello: bytes
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Third message, listener to dialer."""

    code: Name
    reason: Annotated[str, msgspec.Meta(max_length=REASON_CHARACTERS_MAX)] = ""
    incarnation: Counter = 0
    address: Name = ""


FIXED_REFUSAL = Verdict(code=REFUSED)

_Message = TypeVar("_Message", Challenge, Hello, Proof, Verdict)


class ListenerHandshake:
    """The listening end: makes the challenge, checks the proof."""

    def __init__(self, identity: Identity, nonce: bytes) -> None:
        self._certificate_der = identity.certificate_der
        self._nonce = nonce

    def challenge(self) -> bytes:
        """The first frame to send."""
        return encode(Challenge(version=PROTOCOL_VERSION, nonce=self._nonce))

    def prove(self, frame: bytes) -> tuple[SiteId, Hello]:
        """The site that the dialer has proven to be, and its hello. Raises RemoteProtocolError (for our log)."""
        proof = decode(frame, Proof)
        hello = decode(proof.hello, Hello)
        site = site_of(hello.public_key)
        if hello.site != site:
            raise RemoteProtocolError(f"the hello names site {hello.site}, its key is that of {site}")
        signed = signed_bytes(self._certificate_der, self._nonce, proof.hello)
        if not verify(hello.public_key, proof.signature, signed):
            raise RemoteProtocolError(f"the signature of the hello of {site} is wrong")
        return site, hello


class DialerHandshake:
    """The dialing end: checks who answers, proves who calls."""

    def __init__(self, identity: Identity, expected: SiteId, hello: Hello) -> None:
        self._identity = identity
        self._expected = expected
        self._hello = hello
        self._certificate_der = b""

    def check_certificate(self, certificate_der: bytes | None) -> None:
        """Raises RemoteProtocolError when another site answered than the one that was dialed."""
        site = site_of_certificate(certificate_der) if certificate_der else None
        if site != self._expected:
            raise RemoteProtocolError(f"it is not site {self._expected} that answers there, but {site or 'no site'}")
        self._certificate_der = certificate_der or b""

    def answer(self, frame: bytes) -> bytes:
        """The proof that answers a challenge. Only after `check_certificate`."""
        assert self._certificate_der, "the certificate is checked first"
        challenge = decode(frame, Challenge)
        hello = encode(self._hello)
        signature = self._identity.sign(signed_bytes(self._certificate_der, challenge.nonce, hello))
        return encode(Proof(hello=hello, signature=signature))

    def verdict(self, frame: bytes) -> Verdict:
        """What the listener decided."""
        return decode(frame, Verdict)


def signed_bytes(listener_certificate_der: bytes, listener_nonce: bytes, hello: bytes) -> bytes:
    """What the dialer signs: every part but the last has a fixed length, so no two inputs give the same bytes."""
    return LABEL + blake3.blake3(listener_certificate_der).digest() + listener_nonce + hello


def encode(message: Challenge | Hello | Proof | Verdict) -> bytes:
    """To msgpack; stays below HANDSHAKE_BYTES_MAX, since every field is bounded."""
    data = msgspec.msgpack.encode(message)
    assert len(data) <= HANDSHAKE_BYTES_MAX
    return data


def decode(data: bytes, kind: type[_Message]) -> _Message:
    """From msgpack, checked. Raises RemoteProtocolError."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"not a {kind.__name__}: {error}") from None
