"""Why a link does not come about, over real sockets: each end is told the cause (spec 2.6, 2.13, 2.14)."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.transport import LOOPS, Site, close, identity, run, start, until

from chaos_protocols.causes import Cause
from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.keys import with_change
from chaos_protocols.wire.recovered import NUMBER_BYTES, is_true, make_statement
from chaos_protocols.wire.versions import STARTS_SINCE, Versions
from chaosd.addresses import split_address
from chaosd.identity import Identity, verify
from chaosd.transport import DialError
from chaosd.transport.lookups import Lookups
from chaosd.transport.starts import Start

ONE, OTHER = "1" * 32, "2" * 32
STRANGER = SiteId("f" * 32)
SILENT = "192.0.2.1"
"""Nobody has it (RFC 5737)."""


@pytest.fixture(params=LOOPS)
def loop_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def cause_of(dialer: Site, listener: Site) -> Cause:
    with pytest.raises(DialError) as caught:
        await dialer.dial(listener)
    return caught.value.why.cause


async def refused(listener: Site) -> Cause:
    await until(lambda: bool(listener.events.refusals))
    return listener.events.refusals[-1][1].cause


def test_both_ends_are_told_why_a_proven_site_is_not_let_in(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        old = Versions(oldest=90, newest=91)
        b = Site(tmp_path, "b")
        dialers = {
            "stranger": (Site(tmp_path, "stranger"), Cause.DISTRUSTED, Cause.UNTRUSTED),
            "old": (Site(tmp_path, "old", versions=old), Cause.OTHER_VERSION, Cause.REFUSED_VERSION),
            "lungs": (Site(tmp_path, "lungs", run="lungs"), Cause.OTHER_NAME, Cause.REFUSED_NAME),
            "twin": (Site(tmp_path, "twin"), Cause.OTHER_RUN, Cause.REFUSED_RUN),
        }
        b.events.run, dialers["twin"][0].events.run = ONE, OTHER
        await start(b, *(dialer for dialer, _, _ in dialers.values()))
        b.events.trusted.discard(dialers["stranger"][0].id)
        for dialer, there, here in dialers.values():
            b.events.refusals.clear()
            assert (await cause_of(dialer, b), await refused(b)) == (there, here)
        assert not b.events.ups
        await close(b, *(dialer for dialer, _, _ in dialers.values()))

    run(loop_kind, main)


def test_a_site_of_the_run_that_is_kept_out_is_not_told_to_be_accepted(loop_kind: str, tmp_path: Path) -> None:
    """`chaosd accept` over there does nothing for one that is blocked or banned."""

    async def main() -> None:
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b)
        a.events.of_the_run.add(b.id)
        b.events.trusted.discard(a.id)
        with pytest.raises(DialError) as caught:
            await a.dial(b)
        why = caught.value.why
        assert why is not None and why.cause is Cause.KEPT_OUT and "chaosd accept" not in why.text
        await close(a, b)

    run(loop_kind, main)


def test_a_site_that_had_been_let_in_is_not_told_to_be_accepted(loop_kind: str, tmp_path: Path) -> None:
    """A guest whose link came and went too often was sent to an operator who had let it in already."""

    async def main() -> None:
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b)
        b.events.trusted.discard(a.id)
        assert await cause_of(a, b) is Cause.DISTRUSTED
        b.events.trusted.add(a.id)
        await a.dial(b)
        b.events.trusted.discard(a.id)
        b.transport.close_link(a.id, "the test")
        await until(lambda: bool(a.events.losses))
        with pytest.raises(DialError) as caught:
            await a.dial(b)
        why = caught.value.why
        assert why is not None and why.cause is Cause.LET_IN_BEFORE
        assert "chaosd accept" not in why.text and "`chaosd events` there" in why.text
        await close(a, b)

    run(loop_kind, main)


def test_each_end_hears_of_which_recovery_the_other_ones_run_is(loop_kind: str, tmp_path: Path) -> None:
    """Whoever dials; a stranger hears nothing, and sites of one run say nothing."""

    async def main() -> None:
        a, b, stranger = Site(tmp_path, "a"), Site(tmp_path, "b"), Site(tmp_path, "stranger")
        statement = make_statement(None, ONE, a.id, (b.id,) * 3, bytes(NUMBER_BYTES), a.identity)
        assert is_true(statement, lambda site, key, signature, data: verify(key, signature, data))
        a.events.run, a.events.recovery = statement.run_id, statement
        b.events.run = stranger.events.run = ONE
        await start(a, b, stranger)
        a.events.trusted.discard(stranger.id)
        for dialer, listener in ((a, b), (b, a)):
            b.events.recoveries.clear()
            assert await cause_of(dialer, listener) is Cause.OTHER_RUN
            await until(lambda: bool(b.events.recoveries), "it has come")
            assert b.events.recoveries == [(a.id, a.transport.address, statement)]
        assert await cause_of(stranger, a) is Cause.DISTRUSTED
        assert not stranger.events.recoveries and not a.events.recoveries
        b.events.run = statement.run_id
        b.events.recoveries.clear()
        await a.dial(b)
        assert not b.events.recoveries
        await close(a, b, stranger)

    run(loop_kind, main)


def test_sites_that_say_the_same_run_or_none_have_their_link(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        a, b, c = Site(tmp_path, "a"), Site(tmp_path, "b"), Site(tmp_path, "c")
        a.events.run = b.events.run = ONE
        await start(a, b, c)
        await a.dial(b)
        await c.dial(b)
        assert not b.events.refusals
        await close(a, b, c)

    run(loop_kind, main)


def test_a_daemon_whose_key_was_started_elsewhere_later_is_shown_the_proof(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        original, b = Site(tmp_path, "a", incarnation=5), Site(tmp_path, "b")
        copy = Site(tmp_path, "a", incarnation=9)
        await start(original, b, copy)
        await original.dial(b)
        await copy.dial(b)
        await until(lambda: bool(original.events.losses))
        assert await cause_of(original, b) is Cause.KEY_ELSEWHERE
        assert await refused(b) is Cause.REFUSED_START
        copy.transport.close_link(b.id, "the test")
        await until(lambda: bool(copy.events.losses))
        assert await cause_of(original, b) is Cause.KEY_ELSEWHERE, "also when the newer one is not linked any more"
        await close(original, b, copy)

    run(loop_kind, main)


def test_the_proof_is_there_whoever_has_dialled(loop_kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        original, b = Site(tmp_path, "a", incarnation=5), Site(tmp_path, "b")
        copy = Site(tmp_path, "a", incarnation=9)
        await start(original, b, copy)
        await b.transport.dial(copy.id, copy.transport.address, timeout_s=60)
        assert await cause_of(original, b) is Cause.KEY_ELSEWHERE
        await close(original, b, copy)

    run(loop_kind, main)


def test_a_neighbours_bare_word_ends_nobody(loop_kind: str, tmp_path: Path) -> None:
    """It knows a newer start from the roster, or lies: the dialer goes on, and says so."""

    async def main() -> None:
        a, b = Site(tmp_path, "a", incarnation=5), Site(tmp_path, "b")
        await start(a, b)
        b.events.agreed = 9
        assert await cause_of(a, b) is Cause.OLDER_START
        b.events.agreed = 0
        signed = b"chaos start 1\x00" + a.id.encode() + (9).to_bytes(8, "big")
        b.transport._starts._newest[a.id] = Start(incarnation=9, signature=b.identity.sign(signed))
        assert await cause_of(a, b) is Cause.OLDER_START
        await close(a, b)

    run(loop_kind, main)


def test_a_start_that_was_signed_in_another_run_ends_nobody(loop_kind: str, tmp_path: Path) -> None:
    """A key may take part in two runs. Who is in both has the proof of a newer start from the one, and shows it in the
    other: it counts only while this one has not agreed to be named in it, whatever the other one has agreed on."""

    async def main() -> None:
        here, b = Site(tmp_path, "a", incarnation=5), Site(tmp_path, "b")
        there, c = Site(tmp_path, "a", incarnation=9), Site(tmp_path, "c")
        here.events.run = b.events.run = ONE
        there.events.run = c.events.run = OTHER
        await start(here, b, there, c)
        for rules, elsewhere, told in (
            (0, 0, Cause.KEY_ELSEWHERE),
            (STARTS_SINCE, STARTS_SINCE, Cause.OLDER_START),
            (STARTS_SINCE, 0, Cause.OLDER_START),
        ):
            here.events.rules = b.events.rules = rules
            there.events.rules = c.events.rules = elsewhere
            await there.dial(c)
            b.transport._starts._newest[here.id] = c.transport._starts.newest(there.id, there.identity.chain)
            assert await cause_of(here, b) is told, f"rules {rules}, {elsewhere} there"
            there.transport.close_link(c.id, "the test")
            await until(lambda: not there.neighbours and not c.neighbours)
            c.transport._starts._newest.clear()
        await close(here, b, there, c)

    run(loop_kind, main)


def test_a_start_of_this_run_ends_the_older_daemon_when_the_run_is_named_in_it(loop_kind: str, tmp_path: Path) -> None:
    """Whether either knows already that the run has agreed on it, or not: one may have been away."""

    async def main() -> None:
        original, b = Site(tmp_path, "a", incarnation=5), Site(tmp_path, "b")
        copy = Site(tmp_path, "a", incarnation=9)
        await start(original, b, copy)
        for site in (original, b, copy):
            site.events.run = ONE
        await copy.dial(b)
        known = b.transport._starts.newest(copy.id, copy.identity.chain)
        assert known.signature and known.named, "a former release reads the one without a run"
        copy.events.rules = STARTS_SINCE
        copy.transport.close_link(b.id, "the test")
        await until(lambda: not copy.neighbours and not b.neighbours)
        b.transport._starts._newest.clear()
        await copy.dial(b)
        assert not b.transport._starts.newest(copy.id, copy.identity.chain).signature, (
            "what names no run is not signed any more"
        )
        for rules in (0, STARTS_SINCE):
            original.events.rules = rules
            assert await cause_of(original, b) is Cause.KEY_ELSEWHERE, f"rules {rules}"
        await close(original, b, copy)

    run(loop_kind, main)


def test_nothing_listens_nothing_answers_and_another_site_answers_are_three_causes(tmp_path: Path) -> None:
    async def main() -> None:
        a, b, c = Site(tmp_path, "a"), Site(tmp_path, "b"), Site(tmp_path, "c")
        await start(a, b, c)
        with pytest.raises(DialError) as caught:
            await a.transport.dial(b.id, c.transport.address, timeout_s=60)
        assert caught.value.why.cause is Cause.ANOTHER_SITE
        with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel answers, and nobody takes it
            with pytest.raises(DialError) as caught:
                await a.transport.dial(b.id, f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.3)
        assert caught.value.why.cause is Cause.UNREACHABLE
        await b.transport.close()
        assert await cause_of(a, b) is Cause.NOT_RUNNING
        await close(a, b, c)

    run("uvloop", main)


def changed_key(tmp_path: Path, name: str, later: str) -> Identity:
    """The site of that name, with the key of another name as its next."""
    first, new = identity(tmp_path, name), identity(tmp_path, later)
    return Identity(new._key, new._key_path, with_change(first.chain, ONE, first, new))


def test_a_later_key_is_let_in_whatever_start_number_a_former_one_has_shown(loop_kind: str, tmp_path: Path) -> None:
    """While the thief's link stands, and when it does not; also where he has signed himself another next key."""

    async def main() -> None:
        b, true = Site(tmp_path, "b"), Site(tmp_path, "a", incarnation=5, known_as=changed_key(tmp_path, "a", "new"))
        thief = Site(tmp_path, "a", incarnation=1 << 52)
        forger = Site(tmp_path, "a", incarnation=(1 << 53) - 1, known_as=changed_key(tmp_path, "a", "forged"))
        await start(b, true, thief, forger)
        for other in (thief, forger):
            for first, second in ((other, b), (b, other)):
                for stands in (True, False):
                    await first.dial(second)
                    if not stands:
                        b.transport.close_link(other.id, "the test")
                        await until(lambda: not b.neighbours)
                    await true.dial(b)
                    assert b.events.ups[-1][:2] == (true.id, 5)
                    true.transport.close_link(b.id, "the test")
                    await until(lambda other=other: not b.neighbours and not true.neighbours and not other.neighbours)
        assert b.transport._starts.newest(true.id, true.identity.chain).incarnation == 5
        assert b.transport._starts.newest(true.id, thief.identity.chain).incarnation == 5
        await close(b, true, thief, forger)

    run(loop_kind, main)


def test_an_address_that_is_this_site_s_own_is_told_as_such(loop_kind: str, tmp_path: Path) -> None:
    """It said that the peer broke the protocol, and that another site answers: the one that reads it."""

    async def main() -> None:
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b)
        for address, found in (
            (a.transport.address, "it is this site itself, whose own address that is"),
            (b.transport.address, f"it is not site {STRANGER} that answers there, but {b.id}"),
        ):
            with pytest.raises(DialError) as caught:
                await a.transport.dial(STRANGER, address, timeout_s=60)
            assert caught.value.why.text == f"another site than {short(STRANGER)} answers at {address}: {found}"
        await close(a, b)

    run(loop_kind, main)


def test_an_address_of_a_name_that_says_nothing_leaves_time_for_the_next_and_comes_last_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a name has an IPv6 address, too, and the network between has no way for that."""

    async def main() -> None:
        a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
        await start(a, b)
        loop, tried = asyncio.get_running_loop(), list[str]()
        here, port = split_address(b.transport.address)
        connect = loop.create_connection

        async def addresses(_: Lookups, host: str) -> list[str]:
            return [SILENT, here]

        async def create_connection(protocol: Any, number: str, port: int) -> Any:
            tried.append(number)
            if number == SILENT:
                await asyncio.Event().wait()
            return await connect(protocol, number, port)

        monkeypatch.setattr(Lookups, "addresses", addresses)
        monkeypatch.setattr(loop, "create_connection", create_connection)
        await a.transport.dial(b.id, f"institution.example:{port}", timeout_s=2.0)
        assert tried[:2] == [SILENT, here] and SILENT not in tried[2:], "the streams know"
        await close(a, b)

    run("asyncio", main)
