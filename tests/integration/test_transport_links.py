"""Links over real sockets and real TLS: who gets in, which connection stays, what is left behind (nothing)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest
from tests.rigs.transport import LOOPS, Site, close, linked, run, start, until

from chaos_protocols.wire.versions import NEWEST, Versions
from chaosd.transport import DialError, LinkClosed, ListenError
from chaosd.transport import handshake as handshake_module

pytestmark = pytest.mark.parametrize("loop_kind", LOOPS)


def test_a_dial_brings_up_control_and_all_bulk_streams_at_both_ends(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = Site(tmp_path, "a", bulk_streams=3), Site(tmp_path, "b")
        await start(a, b)
        await a.dial(b)
        await until(lambda: b.events.ups)
        assert a.events.ups == [(b.id, 1, b.transport.address)]
        assert b.events.ups == [(a.id, 1, a.transport.address)]
        assert [link.streams for link in (*a.transport.links(), *b.transport.links())] == [(0, 1, 2)] * 2
        assert a.transport.send_control(b.id, b"from a")
        assert b.transport.send_control(a.id, b"from b")
        await until(lambda: a.events.frames and b.events.frames)
        assert (a.events.frames, b.events.frames) == ([b"from b"], [b"from a"])
        assert set(b.events.asked) == {(a.id, "control"), (a.id, "bulk")}
        await close(a, b)

    run(loop_kind, main)


def test_a_guest_is_not_dialled_at_another_host_than_the_one_that_it_calls_from(loop_kind: str, tmp_path: Path) -> None:
    """Its broken link is redialled: nobody explores a site's own network so (spec 2.17)."""

    async def main() -> None:
        guest, member = (Site(tmp_path, name, advertise_address="10.0.0.5:22") for name in ("guest", "member"))
        b = Site(tmp_path, "b")
        b.events.of_the_run = {member.id}
        await start(guest, member, b)
        for site in (guest, member):
            await site.dial(b)
        await until(lambda: len(b.events.ups) == 2)
        assert b.events.ups == [(guest.id, 1, ""), (member.id, 1, "10.0.0.5:22")]
        await close(guest, member, b)

    run(loop_kind, main)


def test_an_unknown_site_is_refused_and_told_nothing(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        stranger, b = Site(tmp_path, "stranger", run="other run"), Site(tmp_path, "b")
        await start(stranger, b, trusting=False)
        with pytest.raises(DialError, match="waiting for the operator of") as caught:
            await stranger.dial(b)
        told = str(caught.value).partition("words of its id")[0]
        assert "run" not in told and "roster" not in told
        assert not b.events.ups and not stranger.events.ups
        await close(stranger, b)

    run(loop_kind, main)


def test_a_dialer_that_cannot_sign_for_its_key_is_refused(
    loop_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        thief, a, b = Site(tmp_path, "thief"), Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(thief, a, b)
        # the thief claims to be `a`, with a's public key, but can sign with its own key only
        monkeypatch.setattr(thief.identity, "public_key", a.identity.public_key)
        monkeypatch.setattr(thief.identity, "site", a.id)
        with pytest.raises(DialError, match="waiting for the operator of"):
            await thief.dial(b)
        assert not b.events.asked, "trust is asked for proven sites only"
        await close(thief, a, b)

    run(loop_kind, main)


def test_a_dialer_finds_out_that_another_site_answers(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b, c = Site(tmp_path, "a"), Site(tmp_path, "b"), Site(tmp_path, "c")
        await start(a, b, c)
        with pytest.raises(DialError, match="it is not site"):
            await a.transport.dial(b.id, c.transport.address, timeout_s=60)
        assert not c.events.asked, "nothing was said to the wrong site"
        await close(a, b, c)

    run(loop_kind, main)


def test_trusted_sites_are_told_of_wrong_run_and_wrong_version(
    loop_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        a, b = Site(tmp_path, "a", run="lungs"), Site(tmp_path, "b")
        await start(a, b)
        with pytest.raises(DialError, match="'hearts', not in 'lungs'"):
            await a.dial(b)
        await close(a, b)
        c, d = Site(tmp_path, "c"), Site(tmp_path, "d")
        await start(c, d)
        e = Site(tmp_path, "e", versions=Versions(oldest=NEWEST + 1, newest=NEWEST + 3), software="9.9.9")
        await start(c, d, e)
        for one, other in ((e, d), (d, e)):
            with pytest.raises(DialError, match=r"speaks protocol .*they share none\. Install a chaos-train") as caught:
                await one.dial(other)
            assert f"{NEWEST + 1} to {NEWEST + 3}" in str(caught.value) and "9.9.9" in str(caught.value)
        await close(c, d, e)

    run(loop_kind, main)


def test_a_recorded_hello_is_worth_nothing_on_another_connection(
    loop_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b)
        proofs: list[bytes] = []
        original = handshake_module.DialerHandshake.answer
        monkeypatch.setattr(
            handshake_module.DialerHandshake,
            "answer",
            lambda machine, frame: proofs.append(original(machine, frame)) or proofs[-1],
        )
        await a.dial(b)
        recorded = proofs[0]
        a.transport.close_link(b.id, "done")
        await until(lambda: b.events.losses)
        monkeypatch.setattr(handshake_module.DialerHandshake, "answer", lambda machine, frame: recorded)
        with pytest.raises(DialError, match="does not let it in now"):
            await a.dial(b)
        assert len(b.events.ups) == 1
        await close(a, b)

    run(loop_kind, main)


def test_simultaneous_dials_leave_one_and_the_same_link(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        for attempt in range(8):
            a, b = Site(tmp_path, f"a{attempt}"), Site(tmp_path, f"b{attempt}")
            await start(a, b)

            async def later(site: Site, other: Site, turns: int) -> None:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await site.dial(other)

            await asyncio.gather(later(a, b, attempt % 4), later(b, a, (attempt * 5) % 7))
            await until(lambda a=a, b=b: a.neighbours and b.neighbours)  # type: ignore[misc]
            (one,), (other,) = a.transport.links(), b.transport.links()
            assert one.dialed_by_us != other.dialed_by_us, "both ends keep the same connections"
            assert a.transport.send_control(b.id, b"x") and b.transport.send_control(a.id, b"y")
            await until(lambda a=a, b=b: a.events.frames and b.events.frames)  # type: ignore[misc]
            await close(a, b)
            assert len(a.events.ups) == len(b.events.ups) == 1

    run(loop_kind, main)


def test_a_new_start_of_a_neighbour_replaces_its_old_link(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        old, b = Site(tmp_path, "a", incarnation=1), Site(tmp_path, "b")
        await start(old, b)
        await old.dial(b)
        await until(lambda: b.events.ups)
        new = Site(tmp_path, "a", incarnation=2)
        await start(new, b)
        await new.dial(b)
        await until(lambda: len(b.events.ups) == 2)
        assert [(up[0], up[1]) for up in b.events.ups] == [(old.id, 1), (old.id, 2)]
        assert b.events.losses == [(old.id, 1, "replaced by start 2 of that daemon", False)]
        await until(lambda: old.events.losses)
        with pytest.raises(DialError, match="started later"):
            await old.dial(b)
        assert [link.incarnation for link in b.transport.links()] == [2]
        await close(old, new, b)

    run(loop_kind, main)


def test_a_peer_that_lost_the_link_first_may_redial_at_once(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b)
        for dialer, other in ((a, b), (b, a)):
            await dialer.dial(other)
            await until(lambda: a.neighbours and b.neighbours)
            other.transport.close_link(dialer.id, "closed by the test")
            await other.dial(dialer)  # the dialer may not have noticed yet
            await until(lambda: a.neighbours and b.neighbours)
            other.transport.close_link(dialer.id, "closed by the test")
            await until(lambda: not a.neighbours and not b.neighbours)
        await close(a, b)

    run(loop_kind, main)


def test_every_link_up_is_followed_by_one_link_lost_that_says_why(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = await linked(tmp_path)
        a.transport.send_control(b.id, b"last words")
        a.transport.close_link(b.id, "the operator said so")
        assert not a.events.losses, "never from inside a method of the transport"
        await until(lambda: a.events.losses and b.events.losses)
        assert a.events.losses == [(b.id, 1, "the operator said so", False)]
        assert [(loss[0], loss[3]) for loss in b.events.losses] == [(a.id, True)]
        assert b.events.frames == [b"last words"], "what was sent before the close arrives"
        assert not a.transport.send_control(b.id, b"too late")
        with pytest.raises(LinkClosed):
            await a.transport.send_bulk(b.id, 0, b"too late")
        await close(a, b)

    run(loop_kind, main)


def test_dials_that_cannot_succeed_say_why(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b)
        address = b.transport.address
        await b.transport.close()
        with pytest.raises(DialError, match="does not run"):
            await a.transport.dial(b.id, address, timeout_s=60)
        for host in ("a..b", "x" * 64 + ".test", "ü" * 64):
            with pytest.raises(DialError, match="1 to 63 letters"):
                await a.transport.dial(b.id, f"{host}:7700", timeout_s=60)
        assert not a.transport._connections
        with pytest.raises(DialError, match="must be host:port"):
            await a.transport.dial(b.id, "nowhere", timeout_s=60)
        with pytest.raises(DialError, match="this site itself"):
            await a.transport.dial(a.id, a.transport.address, timeout_s=60)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            with pytest.raises(DialError, match="in time"):
                await a.transport.dial(b.id, f"127.0.0.1:{port}", timeout_s=0.1)
        await close(a)

    run(loop_kind, main)


def test_a_used_port_is_named_with_the_remedy(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a = Site(tmp_path, "a")
        await start(a)
        port = int(a.transport.address.rpartition(":")[2])
        second = Site(tmp_path, "b", listen_port=port)
        with pytest.raises(ListenError, match=rf"{port}.*another program.*choose another port"):
            await second.transport.start()
        await close(a, second)

    run(loop_kind, main)


def test_close_during_dials_leaves_nothing(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        for turns in range(0, 40, 3):
            a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
            await start(a, b)
            dial = asyncio.ensure_future(a.dial(b))
            for _ in range(turns):
                await asyncio.sleep(0)
            await close(a)
            with contextlib.suppress(DialError, asyncio.CancelledError):
                await dial
            await close(b)

    run(loop_kind, main)
