"""Peers that misbehave at a real port: they get nothing and harm nothing, and two sites that train do not even pause.

Strangers (no trust), and a neighbour that is trusted, not of the run, and forges, replays, floods and lies.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
from tests.integration.small_training import train
from tests.integration.test_transport_hostile import port_of, read_frame, still_serves, tls_stranger
from tests.rigs import transport as transport_rig
from tests.rigs.hostile import Hostile, misbehave
from tests.rigs.site import cluster_of, wait_for
from tests.rigs.transport import LOOPS, close, run, start, until

from chaos_protocols.links.router import UNREADABLE_KINDS_TOLD_MAX
from chaos_protocols.wire.handshake import (
    ACCEPTED,
    FIXED_REFUSAL,
    REFUSED_RUN,
    REFUSED_VERSION,
    Challenge,
    Hello,
    Session,
    Verdict,
)
from chaos_protocols.wire.versions import NEWEST, OLDEST
from chaosd.conduct import Conduct
from chaosd.config.model import SiteConfig
from chaosd.identity import Identity
from chaosd.neighbours import Neighbours
from chaosd.transport.handshake import DialerHandshake, encode
from chaosd.transport.settings import HANDSHAKES_MAX
from chaosd.transport.tls import client_context
from chaosd.trust import TrustList

HALF_OPEN = 1000
PATIENT_S = 4.0
"""Of the failure timeout: who only lacks a processor for a while is neither removed nor waited for in so many words."""
ROUNDS_MEANWHILE = 3
GROWTH_BYTES_MAX = 64 << 20
KEYS = 60
"""Of the hostile neighbour: each rule is broken with another one."""
LOG_BYTES_MAX = 1 << 20

# ---- at the door


def hello_of(identity: Identity, **changes: Any) -> Hello:
    right = Hello(
        version=NEWEST, oldest=OLDEST, run=transport_rig.RUN, site=identity.site, public_key=identity.public_key,
        incarnation=1,
        purpose="control", stream=0, streams=2, session=Session(dialer=identity.site, attempt=1), known=None,
        address="", nonce=bytes(32),
    )  # fmt: skip
    return msgspec.structs.replace(right, **changes)


async def knock(site: transport_rig.Site, proof: Callable[[bytes], bytes]) -> Verdict | None:
    """Dial by hand and send what `proof` makes of the challenge; the verdict, None if the door was shut without one."""
    reader, writer = await tls_stranger(site)
    try:
        challenge = await read_frame(reader)
        body = proof(challenge)
        writer.write(struct.pack("!I", len(body)) + body)
        return msgspec.msgpack.decode(await asyncio.wait_for(read_frame(reader), 60.0), type=Verdict)
    except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
        return None
    finally:
        writer.close()


def caller(listener: transport_rig.Site, identity: Identity, **changes: Any) -> Callable[[bytes], bytes]:
    """Answers a challenge as `identity`, with a hello that says what it should not."""
    handshake = DialerHandshake(identity, listener.id, hello_of(identity, **changes))
    handshake.check_certificate(listener.identity.certificate_der)
    return handshake.answer


@pytest.mark.parametrize("loop_kind", LOOPS)
def test_a_recorded_proof_opens_no_second_door(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        b, friend = transport_rig.Site(tmp_path, "b"), transport_rig.identity(tmp_path, "friend")
        await start(b)
        b.events.trusted.add(friend.site)
        kept: list[bytes] = []

        def recorded(challenge: bytes) -> bytes:
            kept.append(caller(b, friend)(challenge))
            return kept[0]

        first = await knock(b, recorded)
        assert first is not None and first.code == "accepted"
        assert await knock(b, lambda _: kept[0]) == FIXED_REFUSAL
        await close(b)

    run(loop_kind, main)


@pytest.mark.parametrize("loop_kind", LOOPS)
def test_guests_that_never_complete_their_links_take_no_more_room_than_others(
    loop_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every proven site may connect, keys cost nothing."""
    monkeypatch.setattr("chaosd.conduct.GUESTS_LINKED_MAX", 3)

    async def main() -> None:
        b = transport_rig.Site(tmp_path, "b")
        machine = SimpleNamespace(
            roster=SimpleNamespace(banned=(), site_ids=tuple), facts=SimpleNamespace(origin=None),
            link_keys=SimpleNamespace(accepts=b.events.accepts), links=SimpleNamespace(up_sites=tuple),
        )  # fmt: skip
        driver: Any = SimpleNamespace(transport=b.transport, conduct=Conduct(lambda _: False), machine=machine)
        lists = TrustList(SiteConfig(name="b", data_dir=tmp_path, admission="open"), driver)
        monkeypatch.setattr(b.events, "keeps_out", Neighbours(driver, lists).keeps_out)
        await start(b)
        codes, writers = [], []
        for number in range(5):
            reader, writer = await tls_stranger(b)
            body = caller(b, transport_rig.identity(tmp_path, f"guest {number}"))(await read_frame(reader))
            writer.write(struct.pack("!I", len(body)) + body)
            codes.append(msgspec.msgpack.decode(await read_frame(reader), type=Verdict).code)
            writers.append(writer)
        assert codes == [ACCEPTED] * 3 + [FIXED_REFUSAL.code] * 2
        for writer in writers:
            writer.close()
        await close(b)

    run(loop_kind, main)


@pytest.mark.parametrize("loop_kind", LOOPS)
def test_wrong_run_and_version_are_told_to_a_trusted_site_and_nothing_to_a_stranger(
    loop_kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        b, friend = transport_rig.Site(tmp_path, "b"), transport_rig.identity(tmp_path, "friend")
        stranger = transport_rig.identity(tmp_path, "stranger")
        await start(b)
        b.events.trusted.add(friend.site)
        newer = {"version": NEWEST + 2, "oldest": NEWEST + 1}
        for changes, code in (({"run": "lungs"}, REFUSED_RUN), (newer, REFUSED_VERSION)):
            told = await knock(b, caller(b, friend, **changes))
            assert told is not None and told.code == code and told.reason
            assert await knock(b, caller(b, stranger, **changes)) == FIXED_REFUSAL
        for changes in (
            {"public_key": stranger.public_key},
            {"site": stranger.site},
            {"purpose": "both"},
            {"session": Session(dialer=stranger.site, attempt=1)},
        ):
            assert await knock(b, caller(b, friend, **changes)) == FIXED_REFUSAL, changes
        assert not b.events.ups
        await close(b)

    run(loop_kind, main)


VERSION_MAX = (1 << 31) - 1


@pytest.mark.parametrize("loop_kind", LOOPS)
def test_lies_about_versions_get_a_refusal_and_nothing_else(loop_kind: str, tmp_path: Path) -> None:
    """A range that is reversed, huge, empty or from before; too large a number; a range heard that was not said."""

    async def main() -> None:
        b, friend = transport_rig.Site(tmp_path, "b"), transport_rig.identity(tmp_path, "friend")
        await start(b)
        b.events.trusted.add(friend.site)
        for version, oldest in ((OLDEST - 1, NEWEST + 1), (VERSION_MAX, VERSION_MAX), (0, 0), (1, 0), (0, VERSION_MAX)):
            told = await knock(b, caller(b, friend, version=version, oldest=oldest))
            assert told is not None and told.code == REFUSED_VERSION and told.reason, (version, oldest)
        for lie in ({"version": VERSION_MAX + 1}, {"oldest": -1}, {"software": "s" * 65}):
            assert await knock(b, caller(b, friend, **lie)) == FIXED_REFUSAL, lie
        everything = await knock(b, caller(b, friend, version=VERSION_MAX, oldest=1))
        assert everything is not None and (everything.code, everything.version) == (ACCEPTED, NEWEST)
        older = encode(Challenge(version=OLDEST - 1, oldest=OLDEST - 1, nonce=bytes(32)))
        challenge = msgspec.msgpack.decode(older, type=Challenge)

        def talked_down(frame: bytes) -> bytes:
            nonce = msgspec.msgpack.decode(frame, type=Challenge).nonce
            return caller(b, friend)(encode(msgspec.structs.replace(challenge, nonce=nonce)))

        assert await knock(b, talked_down) == FIXED_REFUSAL, "somebody in between changed the range"
        await close(b)

    run(loop_kind, main)


@pytest.mark.parametrize("loop_kind", LOOPS)
def test_a_proof_for_another_listener_or_challenge_is_worth_nothing(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        b, c = transport_rig.Site(tmp_path, "b"), transport_rig.Site(tmp_path, "c")
        friend = transport_rig.identity(tmp_path, "friend")
        await start(b, c)
        b.events.trusted.add(friend.site)
        other = encode(Challenge(version=NEWEST, oldest=OLDEST, nonce=bytes(32)))
        assert await knock(b, lambda _: caller(b, friend)(other)) == FIXED_REFUSAL
        assert await knock(b, caller(c, friend)) == FIXED_REFUSAL, "c passes on what it was shown"
        await close(b, c)

    run(loop_kind, main)


def stages() -> dict[str, Callable[[transport_rig.Site], Awaitable[Any]]]:
    """Where a slow stranger can stand still: each leaves an open connection behind."""

    async def silent(site: transport_rig.Site) -> Any:
        return await asyncio.open_connection("127.0.0.1", port_of(site))

    async def in_tls(site: transport_rig.Site) -> Any:
        reader, writer = await silent(site)
        outgoing = ssl.MemoryBIO()
        engine = client_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=None)
        with contextlib.suppress(ssl.SSLWantReadError):
            engine.do_handshake()
        writer.write(outgoing.read()[:60])
        return reader, writer

    async def sent(site: transport_rig.Site, data: bytes) -> Any:
        reader, writer = await tls_stranger(site)
        await read_frame(reader)
        writer.write(data)
        return reader, writer

    return {
        "before TLS": silent,
        "inside TLS": in_tls,
        "before the proof": lambda site: sent(site, b""),
        "inside the length": lambda site: sent(site, b"\0\0"),
        "inside the proof": lambda site: sent(site, struct.pack("!I", 400) + bytes(100)),
    }


@pytest.mark.parametrize("loop_kind", LOOPS)
def test_a_slow_stranger_is_cut_off_at_whatever_stage_it_stands_still(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        b = transport_rig.Site(tmp_path, "b", handshake_timeout_s=2.0)
        await start(b)
        open_ones = [await stand(b) for stand in stages().values()]
        assert b.transport._listener.visitors == len(open_ones)
        for reader, _ in open_ones:  # each ends by itself: nobody here closes anything
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await asyncio.wait_for(reader.read(), 60.0)
        await until(lambda: b.transport._listener.visitors == 0)
        for _, writer in open_ones:
            writer.close()
        await still_serves(b, tmp_path)
        await close(b)

    run(loop_kind, main)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Both ends of a thousand connections lie in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * HALF_OPEN + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"only {hard} file descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize("loop_kind", LOOPS)
def test_a_thousand_half_open_connections_are_held_to_a_few_and_a_neighbour_gets_in(
    loop_kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        b = transport_rig.Site(tmp_path, "b")
        await start(b)
        crowd = []
        most = 0
        for number in range(HALF_OPEN):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port_of(b)))
            crowd.append(one)
            if number % 20 == 19:  # both ends share this loop: let it accept
                await asyncio.sleep(0.001)
                most = max(most, b.transport._listener.visitors)
        await until(lambda: b.transport._listener.visitors == HANDSHAKES_MAX)
        assert most <= HANDSHAKES_MAX
        await still_serves(b, tmp_path)
        for one in crowd:
            one.close()
        await until(lambda: b.transport._listener.visitors == 0)
        await close(b)

    run(loop_kind, main)


# ---- a neighbour that is trusted and not of the run


def test_two_sites_train_on_while_a_trusted_neighbour_forges_replays_and_lies(tmp_path: Path) -> None:
    names = {"cleveland": "Cleveland", "hungary": "Hungary"}
    with cluster_of(tmp_path, names, min_sites=2, guests=KEYS, failure_timeout_s=PATIENT_S) as cluster:
        honest = cluster.sites
        for number, site in enumerate(honest, start=1):
            site.start()
            train(site, number)
        wait_for(lambda: all(site.is_member() and site.round() > 5 for site in honest), "two sites train")
        daemons = [psutil.Process(site.daemon.pid) for site in honest if site.daemon is not None]
        before = [(site.round(), daemon.memory_info().rss) for site, daemon in zip(honest, daemons, strict=True)]
        hostile = Hostile(cluster)

        async def attack() -> int:
            await hostile.transport.start()
            try:
                return await misbehave(hostile)
            finally:
                await hostile.transport.close()

        breaches = asyncio.run(attack())
        reached = [site.round() for site in honest]
        wait_for(
            lambda: all(site.round() > one + ROUNDS_MEANWHILE for site, one in zip(honest, reached, strict=True)),
            "rounds go on",
        )
        for site, daemon, (round_before, bytes_before) in zip(honest, daemons, before, strict=True):
            status = site.client.status()
            assert status.state == "member" and {one.state for one in status.sites} == {"member"}
            assert len(status.sites) == 2 and status.round > round_before
            assert daemon.memory_info().rss - bytes_before < GROWTH_BYTES_MAX
            bad = [
                event for event in site.events() if event.kind in ("scale-in", "resolve", "pause", "disconnect-link")
            ]
            assert [event for event in bad if event.round > round_before] == [], "nobody was removed, nothing paused"
        refused = honest[0].events("refused")
        assert len(refused) >= breaches // 2, "a connection that ends takes the breaches after it along"
        skipped = [event for event in refused if "Weather" in event.cause]
        assert 1 <= len(skipped) <= UNREADABLE_KINDS_TOLD_MAX, "thousands of unknown kinds fill no history"
        relayed = [event.cause for event in honest[1].events("refused")]
        assert relayed == ["its message Rain is unknown"], "handed on up to its size; floods of unknown kinds are not"
        assert honest[0].daemon_log.stat().st_size < LOG_BYTES_MAX
        for site in honest:
            assert "Traceback" not in site.daemon_log.read_text()


def test_a_member_that_the_others_ban_is_out_for_good_and_they_train_on(tmp_path: Path) -> None:
    names = {"cleveland": "Cleveland", "hungary": "Hungary", "swiss": "Switzerland"}
    with cluster_of(tmp_path, names, min_sites=3) as cluster:
        for number, site in enumerate(cluster.sites, start=1):
            site.start()
            train(site, number)
        wait_for(lambda: all(site.is_member() and site.round() > 5 for site in cluster.sites), "three sites train")
        *others, banned = cluster.sites
        name = banned.identity.site
        assert others[0].client.block(name, ban=True, reason="key stolen").done
        assert all(len(site.client.status().sites) == 3 for site in others), "one of two is not more than half"
        assert others[1].client.block(name, ban=True, reason="key stolen").done
        wait_for(lambda: all(len(site.client.status().sites) == 2 for site in others), "it is out")

        def told() -> list[str]:
            return [event.cause for site in others for event in site.events("scale-in")]

        wait_for(told, "the scheduler's history has it")
        reached = [site.round() for site in others]
        wait_for(
            lambda: all(site.round() > one + ROUNDS_MEANWHILE for site, one in zip(others, reached, strict=True)),
            "rounds go on",
        )
        assert told() == ["banned by most of the other members"], "removed once, by the scheduler, and not as failed"
        own = [one for one in banned.client.status().links if name in (one.one, one.other)]
        assert not [one for one in own if one.up], "nobody lets it connect"
