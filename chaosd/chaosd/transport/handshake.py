"""Who is at the other end: the handshake inside a fresh TLS 1.3 channel, as two small machines without I/O.

Driven by a connection, which hands in each frame and sends what comes back. What the verdict on a proven peer is
(trusted? same run? which of two simultaneous dials?) is decided in `admission`.

    listener -> dialer   Challenge  nonce, the versions that the listener speaks
    dialer -> listener   Proof      hello (bytes), signature
    listener -> dialer   Verdict    accepted in which version, or why not

Why the channel is mutually authenticated and bound:

1. The dialer knows whom it calls. TLS 1.3 proves that the listener holds the key of its certificate
   (CertificateVerify signs the transcript), and the dialer checks that this key hashes to the expected site id, or
   that a chain of changes in the certificate leads to it from one that does and counts here (spec 20.7). So
   what the dialer sends can be read by that site only, and what it reads comes from that site.
2. The dialer proves its key by signing (label, fingerprint of the listener's certificate, the listener's nonce, the
   hello). The hello contains the dialer's nonce and every field that the listener acts on. The listener's nonce is
   fresh for each connection, so a recorded hello is worth nothing. The certificate's fingerprint binds the signature
   to this listener: a trusted but malicious site that is dialed cannot pass the proof on to another one, since that
   one has another certificate. A third party cannot sit in between, by 1. So the listener's end of the channel is in
   the hands of the key that signed.
3. Nobody can talk the two down to an older version than both know. The hello says which versions the dialer speaks and
   which range it heard of the listener; the signature covers both, and the listener refuses a hello that heard another
   range than it said. The dialer works the version out for itself and takes no other.
4. The label keeps the signature from being taken for a control message, and the reverse.

A peer that is not proven or not trusted gets one fixed refusal, the same for every cause. Python's `ssl` cannot accept
unknown client certificates and leave the judgement to us, which is why the dialer's proof is not a client certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import blake3
import msgspec

from chaos_protocols.names import SiteId
from chaos_protocols.wire.handshake import (
    ACCEPTED,
    FULL_FRAME_BYTES,
    HANDSHAKE_BYTES_MAX,
    REFUSED_VERSION,
    Challenge,
    Hello,
    Proof,
    Verdict,
)
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.versions import BEFORE, SPOKEN, Versions, agreed, refusal
from chaosd.identity import CHECKS, Identity, chain_of_certificate, site_of_chain, verify
from chaosd.transport.errors import PeerProtocolError

LABEL = b"chaos transport hello, protocol version 1\x00"
"""Separates these signatures from all others. The number in it is no version: it stays, so that a daemon of any
version is proven first, and then told why it is refused."""

NO_SITE = "it is another server, or a firewall or proxy that opens TLS"
"""Who answers with a certificate that no daemon makes."""

PADDING_HEAD_BYTES = 1
"""The length of 256 bytes and more takes a byte more than that of none (msgpack's bin 16 and bin 8)."""

_Message = TypeVar("_Message", Challenge, Hello, Proof, Verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """What one end of a connection speaks; `software`: its release, for people."""

    versions: Versions = SPOKEN
    software: str = ""
    chain: KeyChain | None = None
    """How its key has come to be its site's, as it has shown; None: it has shown nothing yet."""


class ListenerHandshake:
    """The listening end: makes the challenge, checks the proof."""

    def __init__(self, identity: Identity, nonce: bytes, own: Speaker) -> None:
        self._certificate_der = identity.certificate_der
        self._nonce = nonce
        self._own = own

    def challenge(self) -> bytes:
        """The first frame to send."""
        versions = self._own.versions
        return filled(Challenge(version=versions.newest, oldest=versions.oldest, nonce=self._nonce))

    def prove(self, frame: bytes) -> tuple[SiteId, Hello]:
        """The site that the dialer has proven to be, and its hello. Raises PeerProtocolError (for our log)."""
        proof = decode(frame, Proof)
        hello = decode(proof.hello, Hello)
        chain = chain_of(hello)
        site = SiteId(CHECKS.owner(chain.first))
        if not site or hello.site != site or chain.key != hello.public_key:
            raise PeerProtocolError(f"the hello names site {hello.site}, its key is that of {site or 'no site'}")
        if not chain.is_sound(CHECKS):
            raise PeerProtocolError(f"what the hello of {site} says of the changes of its key is not signed")
        signed = signed_bytes(self._certificate_der, self._nonce, proof.hello)
        if not verify(hello.public_key, proof.signature, signed):
            raise PeerProtocolError(f"the signature of the hello of {site} is wrong")
        if hello.heard != self._own.versions and hello.versions != BEFORE:
            raise PeerProtocolError(
                f"the hello of {site} heard that this site speaks protocol {hello.heard}, not {self._own.versions}"
            )
        return site, hello


class DialerHandshake:
    """The dialing end: checks who answers, proves who calls."""

    def __init__(
        self,
        identity: Identity,
        expected: SiteId,
        hello: Hello,
        accepts: Callable[[SiteId, KeyChain], bool] = lambda _, __: True,
    ) -> None:
        """`accepts`: whether that chain leads to a key that counts for the site, as far as is known here."""
        self._identity, self._accepts = identity, accepts
        self._expected = expected
        self._hello = hello
        self._certificate_der = b""
        self.listener = Speaker(versions=BEFORE)
        """What the other end speaks, as its challenge says, and its verdict of its release."""
        self.version: int | None = None
        """The version that both use; None: they share none, or the challenge has not come yet."""

    def check_certificate(self, certificate_der: bytes | None) -> None:
        """Raises PeerProtocolError when another site answered than the one that was dialed, or with a key that counts
        for it no more."""
        chain = chain_of_certificate(certificate_der) if certificate_der else None
        site = site_of_chain(chain) if chain is not None else None
        if chain is None or site is None:
            raise PeerProtocolError(f"its certificate is that of no site: {NO_SITE}")
        if site == self._identity.site != self._expected:
            raise PeerProtocolError("it is this site itself, whose own address that is")
        if site != self._expected:
            raise PeerProtocolError(f"it is not site {self._expected} that answers there, but {site}")
        if not self._accepts(self._expected, chain):
            raise PeerProtocolError(
                f"site {self._expected} has changed its key, and who answers there has a former one"
            )
        self._certificate_der = certificate_der or b""
        self.listener = Speaker(versions=BEFORE, chain=chain)

    def answer(self, frame: bytes) -> bytes:
        """The proof that answers a challenge. Only after `check_certificate`."""
        assert self._certificate_der, "the certificate is checked first"
        challenge = decode(frame, Challenge)
        self.listener = replace(self.listener, versions=challenge.versions)
        self.version = agreed(self._hello.versions, challenge.versions)
        hello = encode(msgspec.structs.replace(self._hello, heard=challenge.versions))
        signature = self._identity.sign(signed_bytes(self._certificate_der, challenge.nonce, hello))
        return filled(Proof(hello=hello, signature=signature))

    def verdict(self, frame: bytes) -> Verdict:
        """What the listener decided. Raises PeerProtocolError if it takes another version than the highest of both.
        A refusal for the versions is told in this end's own words, which know what both speak."""
        verdict = decode(frame, Verdict)
        self.listener = replace(self.listener, software=verdict.software)
        if verdict.code == ACCEPTED and verdict.version != self.version:
            raise PeerProtocolError(f"it takes protocol {verdict.version}, where {self.version} was to be taken")
        if verdict.code == REFUSED_VERSION:
            told = refusal(
                self._hello.versions,
                self.listener.versions,
                software_here=self._hello.software,
                software_there=self.listener.software,
            )
            return msgspec.structs.replace(verdict, reason=told)
        return verdict


def chain_of(hello: Hello) -> KeyChain:
    """What the dialer shows of its key."""
    return hello.keys if hello.keys is not None else KeyChain(first=hello.public_key)


def signed_bytes(listener_certificate_der: bytes, listener_nonce: bytes, hello: bytes) -> bytes:
    """What the dialer signs: every part but the last has a fixed length, so no two inputs give the same bytes."""
    return LABEL + blake3.blake3(listener_certificate_der).digest() + listener_nonce + hello


def encode(message: Challenge | Hello | Proof | Verdict) -> bytes:
    """To msgpack; stays below HANDSHAKE_BYTES_MAX, since every field is bounded."""
    data = msgspec.msgpack.encode(message)
    assert len(data) <= HANDSHAKE_BYTES_MAX
    return data


def filled(message: Challenge | Proof) -> bytes:
    """Encoded, with padding up to FULL_FRAME_BYTES (a few less: the padding's length takes bytes itself)."""
    missing = FULL_FRAME_BYTES - len(encode(message))
    return encode(msgspec.structs.replace(message, padding=bytes(max(0, missing - PADDING_HEAD_BYTES))))


def decode(data: bytes, kind: type[_Message]) -> _Message:
    """From msgpack, checked. Raises PeerProtocolError."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerProtocolError(f"not a {kind.__name__}: {error}") from None
