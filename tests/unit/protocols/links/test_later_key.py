"""Of two keys of one site the later one wins, whatever start numbers were shown with the former (spec 20.9)."""

from __future__ import annotations

import msgspec
from tests.rigs.keys import RigKeys
from tests.unit.protocols.agreement.test_keys import RUN, chain_of, of_run
from tests.unit.protocols.membership.test_own_keys import spoken
from tests.unit.protocols.one_site import A, B, Bench, C, D, heartbeat, records

from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.effects import CloseLink
from chaos_protocols.events import DialFailed, EnvelopeReceived, LinkLost, LinkUp
from chaos_protocols.links.keys import FORMER_KEY
from chaos_protocols.wire.control import KeysTold, LinkStateAdvertisement
from chaos_protocols.wire.keys import KeyChain, with_change

FAR = 1 << 52
"""A start number that no clock shows."""
FORMER, LATER = chain_of(A, changes=0), chain_of(A)
FORGED = with_change(FORMER, RUN, RigKeys(A), RigKeys(D, 7))
"""Who has the former key can sign a change to a key of his own."""


def sleeper() -> Bench:
    """It has heard of no change of a key."""
    return Bench(C, spoken(of_run()), ring=KeyRing(RigKeys(C)))


def link(bench: Bench, chain: KeyChain, incarnation: int) -> list[object]:
    return bench.handle(LinkUp(site=A, incarnation=incarnation, address="", chain=chain))


def says(bench: Bench, incarnation: int, far: str, *, key: bytes = b"", by: str = A) -> None:
    """Who speaks as A reports a link to `far`."""
    report = LinkStateAdvertisement(
        neighbour=far, incarnation=1, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="connected"
    )
    envelope = msgspec.structs.replace(bench.envelope(A, report, incarnation), public_key=key, sequence=1)
    bench.handle(EnvelopeReceived(neighbour=by, envelope=envelope))


def reported(bench: Bench, far: str) -> bool:
    return bench.machine.network.router.overlay.report(A, far) is not None


def started(bench: Bench, far: str) -> int:
    """The start of A whose word on its link to `far` counts."""
    known = bench.machine.network.router.overlay.envelopes()
    return next(one.incarnation for one in known if one.source == A and getattr(one.message, "neighbour", "") == far)


def test_a_chain_says_which_key_came_later() -> None:
    both = chain_of(A, changes=2)
    first, second, third = both.keys
    assert both.replaces(first) and both.replaces(second)
    assert not both.replaces(third) and not FORMER.replaces(first)
    assert not LATER.replaces(FORGED.key) and not FORGED.replaces(LATER.key), "where two chains part neither is later"
    assert both.until(first) == msgspec.structs.replace(FORMER, run_id=RUN)
    assert (both.until(second), both.until(third)) == (LATER, both)


def test_the_true_site_is_heard_though_a_thief_has_shown_a_later_start() -> None:
    for before in (FORMER, FORGED):
        bench = sleeper()
        link(bench, before, FAR)
        says(bench, FAR, B)
        bench.handle(LinkLost(site=A, incarnation=FAR, reason="closed"))
        assert bench.machine.network.incarnations[A] == FAR and reported(bench, B)
        link(bench, LATER, 5)
        assert bench.machine.network.incarnations[A] == 5
        assert not reported(bench, B), "the thief's word"
        says(bench, 5, D)
        assert reported(bench, D) and bench.machine.links.is_up(A, 5)


def test_a_former_key_gets_no_link_once_the_later_one_was_shown() -> None:
    bench = sleeper()
    link(bench, LATER, 5)
    keys = bench.machine.link_keys
    assert keys.accepts(A, LATER) and not keys.accepts(A, FORMER)
    assert keys.accepts(A, FORGED), "which of the two the site has agreed on is not known here"
    bench.handle(LinkLost(site=A, incarnation=5, reason="closed"))
    assert not keys.accepts(A, FORMER), "also when there is no link"
    out = link(bench, FORMER, FAR)
    assert [one.site for one in out if isinstance(one, CloseLink)] == [A]
    assert [one.cause for one in records(out, "refused")] == [FORMER_KEY]
    assert bench.machine.network.incarnations[A] == 5 and not bench.machine.links.is_up(A)
    says(bench, FAR, B)
    assert not reported(bench, B)
    link(bench, LATER, 5)
    assert bench.machine.links.is_up(A, 5)


def test_a_thief_whose_dial_was_answered_leaves_the_link_to_be_dialled_again() -> None:
    bench = Bench(C, spoken(of_run()), ring=KeyRing(RigKeys(C)), peers=(A,)).up(B)
    bench.hear(B, KeysTold(chains=(LATER,)))
    says(bench, 5, B, key=LATER.key, by=B)
    link(bench, FORMER, FAR)
    assert not bench.machine.links.is_up(A)
    bench.taken()
    bench.wait(30.0)
    assert [one.site for one in bench.taken() if type(one).__name__ == "Dial"], "it is not given up"


def test_what_a_neighbour_says_as_another_start_than_the_one_that_has_its_link_is_dropped() -> None:
    """Two daemons, a site's and a thief's, took the link from each other; an old word of one came over that of the
    other, and counted by its number (seed 9090911, 7 sites)."""
    bench = sleeper()
    link(bench, LATER, 5)
    says(bench, FAR, D)
    says(bench, 4, D)
    assert bench.machine.network.incarnations[A] == 5 and not reported(bench, D)
    says(bench, 5, D)
    assert reported(bench, D)


def test_what_a_thief_has_forged_keeps_words_that_are_handed_on_out_only_as_long_as_he_is_linked() -> None:
    """A newcomer that had met him for a moment was never let in: the scheduler had no link with it (seed 9083680, 6
    sites)."""
    bench = sleeper().up(B)
    bench.hear(B, KeysTold(chains=(LATER,)))
    link(bench, FORGED, FAR)
    says(bench, FAR, D)
    says(bench, 5, B, key=LATER.key, by=B)
    assert bench.machine.network.incarnations[A] == FAR, "which of the two the site has agreed on is not known here"
    bench.handle(LinkLost(site=A, incarnation=FAR, reason="closed"))
    bench.handle(DialFailed(site=A, reason="connection refused"))
    says(bench, 5, B, key=LATER.key, by=B)
    assert bench.machine.network.incarnations[A] == 5 and reported(bench, B) and not reported(bench, D)


def test_a_word_with_the_later_key_ends_the_thiefs_link_and_what_it_has_said() -> None:
    """The site has no link here: others hand its words on, and its chain."""
    bench = sleeper().up(B)
    link(bench, FORMER, FAR)
    says(bench, FAR, D)
    bench.taken()
    says(bench, 5, D, key=LATER.key, by=B)
    assert started(bench, D) == FAR, "nobody has shown yet how that key came to be its own"
    bench.hear(B, KeysTold(chains=(LATER,)))
    says(bench, 5, B, key=LATER.key, by=B)
    assert reported(bench, B) and not reported(bench, D)
    assert bench.machine.network.incarnations[A] == 5
    assert [one.site for one in bench.taken() if isinstance(one, CloseLink)] == [A]
    says(bench, FAR, D, key=FORMER.key, by=B)
    assert not reported(bench, D), "handed on by somebody"


def test_a_word_with_a_key_of_which_neither_came_later_goes_by_its_number() -> None:
    """It may be an old one, or the thief's: only a link is shown afresh."""
    bench = sleeper().up(B)
    bench.hear(B, KeysTold(chains=(FORGED,)))
    link(bench, LATER, 5)
    says(bench, 5, D)
    says(bench, 4, D, key=FORGED.key, by=B)
    assert started(bench, D) == 5 and bench.machine.links.is_up(A, 5)


def test_a_site_that_changes_its_key_in_good_order_loses_nothing_that_was_known() -> None:
    """Its start with the new key has a later number than all before, as any start."""
    bench = sleeper()
    link(bench, FORMER, 5)
    bench.hear(A, heartbeat(), incarnation=5)
    seen = bench.machine.network.restarts_seen
    link(bench, LATER, 6)
    assert bench.machine.network.incarnations[A] == 6 and bench.machine.network.restarts_seen == seen + 1
    assert not bench.machine.network.versions.lacks(A, 1)
