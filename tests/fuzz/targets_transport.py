"""Fuzz targets: what strangers and neighbours send before and below the messages: handshake, frames, small headers."""

from __future__ import annotations

import asyncio
import functools
import struct
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chaos_protocols.errors import RemoteProtocolError as PeerBrokeRules
from chaos_protocols.names import BULK_HEADER_BYTES_MAX, BULK_PAYLOAD_BYTES_MAX, CONTROL_FRAME_BYTES_MAX, SiteId
from chaos_protocols.wire.handshake import (
    ACCEPTED,
    HANDSHAKE_BYTES_MAX,
    REFUSED_VERSION,
    Challenge,
    Hello,
    Proof,
    Session,
    Verdict,
)
from chaos_protocols.wire.keys import CHANGES_MAX, KeyChain, KeyChange
from chaos_protocols.wire.probe import ProbeHeader
from chaos_protocols.wire.state_spec import Item, state_spec
from chaos_protocols.wire.versions import Versions
from chaosd.identity import Identity, chain_of_certificate, site_of_certificate, site_of_chain
from chaosd.metrics import Metrics
from chaosd.model_check import ModelCheck
from chaosd.monitor.link_meter import LinkMeter
from chaosd.monitor.probe import LinkProbe
from chaosd.transport.admission import AdmissionFacts, StandingLink, judge
from chaosd.transport.errors import PeerProtocolError
from chaosd.transport.framing import BULK_PREFIX, CONTROL_PREFIX, FrameMode, FrameReader
from chaosd.transport.handshake import DialerHandshake, ListenerHandshake, Speaker, encode, signed_bytes
from chaosd.transport.settings import KeptOut
from chaosd.transport.starts import Start
from tests.fuzz.engine import Target
from tests.fuzz.mutate import Form

NONCE = bytes(range(32))
SPOKEN = Versions(oldest=2, newest=5)
"""Not what this release speaks: inputs that are kept must mean the same for the next one."""
SPEAKER = Speaker(versions=SPOKEN, software="0.2.0")


@functools.cache
def identities() -> tuple[Identity, Identity]:
    """A dialer and a listener; their keys are made for this process."""
    with tempfile.TemporaryDirectory(prefix="chaos-fuzz-") as folder:
        return Identity.create(Path(folder) / "dialer"), Identity.create(Path(folder) / "listener")


def hello() -> Hello:
    """A right one. The key in it is a word that `_own` replaces: inputs must not depend on one process's keys."""
    return Hello(
        version=SPOKEN.newest,
        oldest=SPOKEN.oldest,
        software="0.2.0",
        heard=SPOKEN,
        run="hearts",
        site="d" * 32,
        public_key=b"d" * 32,
        incarnation=3,
        purpose="control",
        stream=0,
        streams=2,
        session=Session(dialer="d" * 32, attempt=1),
        known=None,
        address="127.0.0.1:7700",
        nonce=bytes(32),
    )


def _own(data: bytes) -> bytes:
    """The dialer's real key and name instead of the words that stand for them."""
    dialer, _ = identities()
    return data.replace(b"\xc4\x20" + b"d" * 32, b"\xc4\x20" + dialer.public_key).replace(
        b"d" * 32, dialer.site.encode()
    )


def _handshake_seeds() -> Iterable[bytes]:
    right = msgspec.structs.replace
    proof = Proof(hello=encode(hello()), signature=bytes(64))
    known = Session(dialer="d" * 32, attempt=1)
    signed = [
        hello(),
        right(hello(), purpose="bulk", stream=1),
        right(hello(), version=SPOKEN.newest + 7),
        right(hello(), version=SPOKEN.newest + 7, oldest=SPOKEN.newest + 1),
        right(hello(), version=1, oldest=0, heard=None),
        right(hello(), oldest=SPOKEN.newest + 3),
        right(hello(), run="lungs"),
        right(hello(), known=known),
        right(hello(), incarnation=2),
        right(hello(), keys=_chain(1)),
        right(hello(), keys=_chain(CHANGES_MAX)),
    ]
    return [
        b"\x00" + encode(proof),
        *(bytes([1 + number]) + encode(one) for number in range(6) for one in signed),
        b"\x07" + encode(Challenge(version=SPOKEN.newest, oldest=SPOKEN.oldest, nonce=NONCE)),
        b"\x07" + encode(Challenge(version=1, nonce=NONCE)),
        b"\x07" + encode(Challenge(version=0, oldest=(1 << 31) - 1, nonce=NONCE)),
        b"\x08" + encode(Verdict(code=ACCEPTED, incarnation=1, address="127.0.0.1:1", version=SPOKEN.newest)),
        b"\x08" + encode(Verdict(code=REFUSED_VERSION, reason="older")),
        b"\x09" + b"0",
        b"\x09" + bytes.fromhex("308201") + b"chaos site",
        *(b"\x09" + _certificate(_chain(changes)) for changes in (0, 1, CHANGES_MAX)),
    ]


def _chain(changes: int) -> KeyChain:
    """Of the dialer, whose changes nobody has signed."""
    made = tuple(KeyChange(bytes([number]) * 32, bytes(64), bytes(64)) for number in range(changes))
    return KeyChain(first=b"d" * 32, run_id="ab" * 16 if made else "", changes=made)


def _certificate(chain: KeyChain) -> bytes:
    """That of a key which nobody uses, as the last one of this chain."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    last = KeyChange(key.public_key().public_bytes_raw(), bytes(64), bytes(64))
    told = msgspec.structs.replace(chain, changes=(*chain.changes[:-1], last)) if chain.changes else None
    return Identity(key, Path("nowhere"), told).certificate_der


def _handshake(data: bytes) -> str:
    """The first byte chooses whose frame it is: a proof as it comes; a hello that the fuzzer signs with the right key,
    judged with six kinds of standing link; a listener's challenge and verdict; a certificate."""
    dialer, listener = identities()
    way, body = data[0] % 10 if data else 0, _own(data[1:])
    machine = ListenerHandshake(listener, NONCE, SPEAKER)
    if way == 0:
        machine.prove(body)
        raise AssertionError("a proof was believed that nobody signed")
    if way <= 6:
        signature = dialer.sign(signed_bytes(listener.certificate_der, NONCE, body))
        try:
            site, said = machine.prove(msgspec.msgpack.encode({"hello": body, "signature": signature}))
        except PeerProtocolError as error:
            raise PeerProtocolError(str(error).partition(" names site ")[0]) from None  # the rest is the input's own
        verdict, reason = judge(site, said, _facts(way, site))
        assert (verdict.code == ACCEPTED) == (reason == "accepted")
        assert len(encode(verdict)) <= HANDSHAKE_BYTES_MAX
        return f"{verdict.code}: {reason}"
    calling = DialerHandshake(dialer, listener.site, hello())
    if way == 9:
        chain = chain_of_certificate(data[1:])
        site = site_of_chain(chain) if chain is not None else None
        assert site == site_of_certificate(data[1:])
        return f"{'no chain' if chain is None else len(chain.changes)}, {'a site' if site else 'no site'}"
    calling.check_certificate(listener.certificate_der)
    if way == 7:
        assert len(calling.answer(body)) <= HANDSHAKE_BYTES_MAX
        return f"answered, {'no version' if calling.version is None else 'a version'}"
    calling.answer(encode(Challenge(version=SPOKEN.newest, oldest=SPOKEN.oldest, nonce=NONCE)))
    told = calling.verdict(body)
    assert told.code != ACCEPTED or told.version == SPOKEN.newest
    return f"a verdict, {'accepted' if told.code == ACCEPTED else 'refused'}"


def _facts(way: int, site: SiteId) -> AdmissionFacts:
    _, listener = identities()
    links = {
        2: StandingLink(incarnation=3, session=Session(dialer=site, attempt=1), streams=2),
        3: StandingLink(incarnation=3, session=Session(dialer=listener.site, attempt=4), streams=2),
        4: StandingLink(incarnation=9, session=Session(dialer=site, attempt=0), streams=2),
    }
    return AdmissionFacts(
        own_site=listener.site,
        own_run="hearts",
        own_start=Start(incarnation=1),
        own_address="127.0.0.1:7701",
        own=SPEAKER,
        kept_out=KeptOut("not in the roster") if way == 5 else None,
        link=links.get(way),
        committed=way == 6,
    )


# ---- frames


class _Sink:
    """Takes what the reader hands over, and switches, holds or stops it on a word."""

    def __init__(self) -> None:
        self.frames: list[tuple[bytes, bytes]] = []
        self.reader: FrameReader

    def frame_received(self, frame: bytes) -> None:
        self.frames.append((b"", frame))
        self._obey(frame)

    def bulk_buffer(self, header: bytes, size_bytes: int) -> memoryview | None:
        assert size_bytes <= BULK_PAYLOAD_BYTES_MAX and len(header) <= BULK_HEADER_BYTES_MAX
        return None if header.startswith(b"drop") else memoryview(bytearray(size_bytes))

    def bulk_received(self, header: bytes, payload: memoryview | None) -> None:
        self.frames.append((header, bytes(payload or b"")))
        self._obey(header)

    def _obey(self, word: bytes) -> None:
        if word == b"to control":
            self.reader.switch(FrameMode.CONTROL)
        elif word == b"to bulk":
            self.reader.switch(FrameMode.BULK)
        elif word == b"hold":
            self.reader.held = True
        elif word == b"stop":
            self.reader.stop()


def _framing_seeds() -> Iterable[bytes]:
    def control(*bodies: bytes) -> bytes:
        return b"".join(CONTROL_PREFIX.pack(len(body)) + body for body in bodies)

    def frame(header: bytes, payload: bytes) -> bytes:
        return BULK_PREFIX.pack(len(header), len(payload)) + header + payload

    stream = frame(b"head", b"payload" * 20) + frame(b"empty", b"") + frame(b"drop", bytes(5000))
    return [
        b"\x00\x01" + control(b"hello", b"again"),
        b"\x00\x07" + control(b"to control", bytes(3000), b"", b"x"),
        b"\x01\x40" + control(b"to bulk") + stream,
        b"\x02\x00" + stream + frame(b"hold", b"") + stream + frame(b"stop", b"") + stream,
        b"\x00\x20" + control(b"to control", b"hold", b"more"),
        b"\x02\x11" + struct.pack("!II", 1 << 17, 5),
        b"\x01\x11" + struct.pack("!I", CONTROL_FRAME_BYTES_MAX + 1),
        b"\x00\x11" + struct.pack("!I", HANDSHAKE_BYTES_MAX + 1),
    ]


def _read(data: bytes, mode: FrameMode, pieces: int) -> tuple[list[tuple[bytes, bytes]], str]:
    sink = _Sink()
    reader = sink.reader = FrameReader(sink)
    if mode is not FrameMode.HANDSHAKE:
        reader.switch(mode)
    rest = memoryview(data)
    try:
        while rest:
            buffer = reader.get_buffer()
            if not len(buffer):
                assert reader.held, "no room although nothing is held"
                reader.release()
                continue
            count = min(len(buffer), len(rest), pieces)
            buffer[:count] = rest[:count]
            rest = rest[count:]
            reader.received(count)
        while reader.held and not reader.stopped:
            reader.release()
    except PeerProtocolError as error:
        return sink.frames, str(error)
    return sink.frames, ""


def _framing(data: bytes) -> str:
    """The same frames come out in whatever pieces the bytes arrive; none is longer than its mode allows."""
    if len(data) < 2:
        return "nothing"
    mode = (FrameMode.HANDSHAKE, FrameMode.CONTROL, FrameMode.BULK)[data[0] % 3]
    found, problem = _read(data[2:], mode, data[1] + 1 + len(data) // 200)
    again, same = _read(data[2:], mode, 1 << 20)
    assert (found, problem) == (again, same), "the pieces change what is read"
    assert all(len(frame) <= CONTROL_FRAME_BYTES_MAX for header, frame in found if not header)
    if problem:
        raise PeerProtocolError(problem)
    return f"frames {min(len(found), 3)}"


# ---- small headers of bulk streams


class _Nowhere:
    async def send_bulk(self, site: SiteId, stream: int, header: bytes, payload: memoryview | bytes = b"") -> None:
        assert len(header) <= BULK_HEADER_BYTES_MAX


def _headers_seeds() -> Iterable[bytes]:
    kinds = ("probe.ping", "probe.pong", "probe.burst", "probe.report", "probe.other")
    probes = [msgspec.msgpack.encode(ProbeHeader(kind=kind, id=1, last=kind == "probe.burst")) for kind in kinds]
    spec = msgspec.msgpack.encode(state_spec([Item("weight", "float32", (8, 2))]))
    return [
        *(b"\x00" + one for one in probes),
        b"\x01" + msgspec.msgpack.encode({"kind": "iperf.ready", "port": 5201}),
        b"\x01" + msgspec.msgpack.encode({"kind": "iperf.ready", "reason": "none here"}),
        b"\x02" + spec,
    ]


def _headers(data: bytes) -> str:
    """A probe's frame twice, a word about iperf3, a description of a model that was asked for."""
    return asyncio.run(_take_header(data[0] % 3 if data else 0, data[1:]))


async def _take_header(way: int, body: bytes) -> str:
    site = SiteId("a" * 32)
    if way == 0:
        probe = LinkProbe(_Nowhere(), clock=lambda: 1.0)
        try:
            for _ in range(2):
                probe.bulk_received(site, 1, body)
        finally:
            await probe.close()
        return "probe"
    if way == 1:
        if b"want" in body:
            return "not played: it would start a child process"
        nowhere: Any = _Nowhere()
        meter = LinkMeter(
            LinkProbe(nowhere),
            nowhere,
            "off",
            Metrics(),
            listen_host="127.0.0.1",
            address_of=lambda _: "",
            is_of_run=lambda _: False,
        )
        meter.bulk_received(site, body)
        return "iperf"
    check = ModelCheck(_Nowhere(), lambda: None, lambda: [site])  # type: ignore[arg-type]
    ours = state_spec([Item("weight", "float32", (8, 2)), Item("bias", "float32", (2,))])
    asked = asyncio.create_task(check.explain("the model differs", ours))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    try:
        check.bulk_received(site, "model!", memoryview(body))
        return await asked
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


TARGETS = (
    Target(
        name="handshake",
        run=_handshake,
        refusals=(PeerProtocolError,),
        seeds=_handshake_seeds,
        form=Form.MSGPACK,
        prefix=1,
        tokens=(b"control", b"bulk", b"hearts", b"d" * 32, b"accepted", b"refused"),
    ),
    Target(
        name="framing",
        run=_framing,
        refusals=(PeerProtocolError,),
        seeds=_framing_seeds,
        prefix=2,
        tokens=(b"\0\0\0\4hold", b"\0\0\0\4stop", b"\0\0\0\nto control", b"\0\0\0\7to bulk", b"\0\0\0\4\0\0\0\0hold"),
    ),
    Target(
        name="headers",
        run=_headers,
        refusals=(PeerProtocolError, PeerBrokeRules),
        seeds=_headers_seeds,
        form=Form.MSGPACK,
        prefix=1,
        tokens=(b"probe.burst", b"iperf.ready", b"float32", b"weight"),
    ),
)
