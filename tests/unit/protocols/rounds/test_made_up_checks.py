"""What sites say of their states passes through other members: none of these can have a site that is as the others give
its state up (spec 11.19)."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec
from tests.rigs.keys import RigKeys, first_key
from tests.unit.protocols.one_site import record, roster_of

from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.names import SiteId
from chaos_protocols.rounds.check_words import check_words
from chaos_protocols.rounds.notices import StatesDiffer
from chaos_protocols.rounds.state_check import CHECK_EVERY_ROUNDS, StateCheck, encode_check
from chaos_protocols.wire.bulk import CHECK_BYTES, CHECK_SIGNATURE_BYTES
from chaos_protocols.wire.plans import Tag
from chaos_protocols.wire.versions import CHECKS_SINCE
from chaos_protocols.wire.worker import StateDigests

A, B, C, H = (SiteId(letter * 32) for letter in "abcf")
EVERYBODY = (A, B, C, H)
STATE_BYTES = 1 << 20
RUN = "ab" * 16
PIECE = (0, 64)


def run_of(*sites: SiteId, rules: int = CHECKS_SINCE) -> Roster:
    roster = roster_of(*sites, rules=rules, run_id=RUN)
    return msgspec.structs.replace(roster, sites=tuple(record(one, public_key=first_key(one)) for one in sorted(sites)))


ROSTER = run_of(*EVERYBODY)
TAG = Tag(epoch=3, round=CHECK_EVERY_ROUNDS + 1)


def digests(second: bytes, *, array: str = "fc.weight") -> StateDigests:
    return StateDigests(start=PIECE[0], stop=PIECE[1], first=b"f" * 8, second=second * 8, array=array)


def state_check(site: SiteId, own: StateDigests | None = None) -> StateCheck:
    check = StateCheck(site, KeyRing(RigKeys(site)))
    check.said(TAG.round - 1, own)
    return check


def word(site: SiteId, second: bytes, tag: Tag = TAG, run_id: str = RUN, by: SiteId | None = None) -> bytes:
    """As the site says it, or as `by` makes it up."""
    check = encode_check(digests(second))
    return check + RigKeys(by or site).sign(check_words(run_id, tag, site, check))


def nothing(site: SiteId) -> bytes:
    return RigKeys(site).sign(check_words(RUN, TAG, site, b""))


def judged(
    site: SiteId, own: bytes, words: Mapping[SiteId, bytes], weights: Mapping[SiteId, float] | None = None
) -> StatesDiffer | None:
    weights = weights if weights is not None else dict.fromkeys(EVERYBODY, 1.0)
    return state_check(site, digests(own)).judge(ROSTER, TAG, weights, words)


def test_what_a_site_says_is_signed_and_whoever_has_no_state_says_that() -> None:
    said = state_check(A, digests(b"s")).part(ROSTER, TAG)
    assert said == word(A, b"s") and len(said) == CHECK_BYTES + CHECK_SIGNATURE_BYTES
    assert state_check(A).part(ROSTER, TAG, idle=True) == nothing(A)
    assert state_check(A).part(ROSTER, TAG) == b"", "it trains, and has no digests: its state has just come"
    former = run_of(*EVERYBODY, rules=CHECKS_SINCE - 1)
    assert state_check(A, digests(b"s")).part(former, TAG) == encode_check(digests(b"s"))
    assert state_check(A).part(former, TAG, idle=True) == b""


def test_most_sites_count_by_what_they_have_signed() -> None:
    words = {A: word(A, b"s"), B: word(B, b"s"), C: word(C, b"o"), H: word(H, b"s")}
    for site, own in ((A, b"s"), (C, b"o")):
        found = judged(site, own, words)
        assert found is not None and (found.outvoted, found.majority) == ((C,), (A, B, H))


def test_a_root_that_makes_up_what_all_others_said_of_their_states_has_none_of_them_give_its_own_up() -> None:
    """The root says that each told other digests, and that it gave the greatest weight itself: all would take the state
    again, from the only site that has one then, which is the root."""
    words = {A: word(A, b"1", by=H), B: word(B, b"2", by=H), C: encode_check(digests(b"3")), H: word(H, b"h")}
    for site in (A, B, C):
        assert judged(site, b"s", words, {A: 1.0, B: 1.0, C: 1.0, H: 9.0}) is None


def test_a_word_that_a_site_has_not_signed_of_this_round_is_not_its_own() -> None:
    """With B's two sites would be against A, one of them hostile; so they are one against one, and B was not heard."""
    weights = {A: 1.0, B: 1.0, H: 5.0}
    others = {
        "of another round": word(B, b"o", Tag(epoch=3, round=1)),
        "of this round in a history that was given up": word(B, b"o", Tag(epoch=2, round=TAG.round)),
        "of another run of the same key": word(B, b"o", run_id="cd" * 16),
        "of another site": word(C, b"o"),
        "that of another site, which has no state": nothing(C),
        "not what was signed": word(B, b"o")[:-1] + b"\x00",
        "not signed": encode_check(digests(b"o")),
        "nothing": b"",
    }
    for why, said in others.items():
        assert judged(A, b"s", {A: word(A, b"s"), B: said, H: word(H, b"o")}, weights) is None, why
    found = judged(A, b"s", {A: word(A, b"s"), B: word(B, b"o"), H: word(H, b"o")}, weights)
    assert found is not None and found.outvoted == (A,), "the true one counts"


def test_nobody_is_judged_while_those_who_were_not_heard_could_turn_it_round() -> None:
    said = {A: word(A, b"s"), H: word(H, b"h")}
    assert judged(A, b"s", said, {A: 1.0, H: 5.0, B: 1.0}) is None
    of_b, weights = {**said, B: word(B, b"s")}, {A: 1.0, B: 1.0, C: 1.0, H: 9.0}
    assert judged(A, b"s", of_b, weights) is None, "two against one, and C"
    found = judged(A, b"s", {**of_b, C: nothing(C)}, weights)
    assert found is not None and found.outvoted == (H,), "C was heard: it has no state"


def test_between_equals_the_weight_counts_where_all_were_heard() -> None:
    words = {A: word(A, b"s"), B: word(B, b"o"), C: nothing(C)}
    found = judged(A, b"s", words, {A: 1.0, B: 2.0, C: 0.0})
    assert found is not None and found.outvoted == (A,)


def test_a_difference_that_nobody_has_signed_is_not_narrowed_down() -> None:
    check = state_check(A, digests(b"s", array=""))
    wide = (0, 1 << 18)
    made_up = StateDigests(start=wide[0], stop=wide[1], first=b"x" * 8, second=b"x" * 8)
    told = StateDigests(start=wide[0], stop=wide[1], first=b"f" * 8, second=b"s" * 8)
    check.said(TAG.round - 1, told)
    true = check.part(ROSTER, TAG)
    weights = dict.fromkeys(EVERYBODY, 1.0)
    assert check.judge(ROSTER, TAG, weights, {A: true, B: encode_check(made_up)}) is None
    assert check.due(TAG.round, state_bytes=STATE_BYTES, sites=4) is None
    words = encode_check(made_up)
    signed = words + RigKeys(B).sign(check_words(RUN, TAG, B, words))
    assert check.judge(ROSTER, TAG, weights, {A: true, B: signed}) is None
    assert check.due(TAG.round, state_bytes=STATE_BYTES, sites=4) == (0, 1 << 17)


def test_whatever_a_hostile_minority_says_and_lets_through_no_site_that_is_as_the_others_is_outvoted() -> None:
    """Random words, each site shown others: what its minority signs, old words, others' words, made up ones."""
    for seed in range(3000):
        rng = random.Random(seed)
        sites = [SiteId(letter * 32) for letter in "abcdefg"[: rng.randrange(3, 8)]]
        hostile = set(rng.sample(sites, rng.randrange(1, (len(sites) + 1) // 2)))
        honest = [site for site in sites if site not in hostile]
        roster, weights = run_of(*sites), {site: rng.choice((0.0, 1.0, 9.0)) for site in sites}
        for judge in honest:
            words = {}
            for site in sites:
                claimed, liar = rng.choice((b"s", b"o", b"p")), rng.choice(sorted(hostile))
                made_up = (word(site, claimed, by=liar), word(site, claimed, Tag(epoch=2, round=TAG.round)), b"")
                own = rng.choice((word(site, claimed), nothing(site))) if site in hostile else word(site, b"s")
                words[site] = rng.choice((own, own, own, nothing(liar), *made_up))
            found = state_check(judge, digests(b"s")).judge(roster, TAG, weights, words)
            assert found is None or set(found.outvoted) <= hostile, f"seed {seed}"
