"""How much a neighbour may say, and how long it stays outside after it broke a rule (spec 4.17, 4.18)."""

from __future__ import annotations

import pytest

from chaos_protocols.names import SiteId
from chaosd import conduct as limits
from chaosd.conduct import Conduct

MEMBER, GUEST = SiteId("a" * 32), SiteId("b" * 32)


class Rig:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.conduct = Conduct(lambda site: site == MEMBER, lambda: self.now_s)

    def says(self, site: SiteId, count: int) -> float:
        """So many things at once; how long nothing more is read then."""
        return [self.conduct.heard(site) for _ in range(count)][-1]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_guest_says_at_once_what_it_knows_and_is_read_more_slowly_then(rig: Rig) -> None:
    assert rig.says(GUEST, limits.GUEST_MESSAGES_AT_ONCE) == 0.0
    heard, until_s = 0, rig.now_s + 60.0
    while rig.now_s < until_s:
        hold_s = rig.conduct.heard(GUEST)
        heard += 1
        rig.now_s += hold_s + 1e-4
    assert heard == pytest.approx(60.0 * limits.GUEST_MESSAGES_PER_S, rel=0.1)


def test_a_member_has_a_hundred_times_more(rig: Rig) -> None:
    assert rig.says(MEMBER, limits.MEMBER_MESSAGES_AT_ONCE) == 0.0 and rig.conduct.heard(MEMBER) > 0.0
    rig.now_s += 1.0
    assert rig.says(MEMBER, int(limits.MEMBER_MESSAGES_PER_S) - 1) == 0.0


def test_a_long_word_of_a_guest_counts_as_many(rig: Rig) -> None:
    """A thousand of 12 KB took a site that trains half of its rounds."""
    held = [rig.conduct.heard(GUEST, 12 * limits.GUEST_MESSAGE_BYTES) for _ in range(limits.GUEST_MESSAGES_AT_ONCE)]
    assert held.count(0.0) == limits.GUEST_MESSAGES_AT_ONCE // 13
    assert rig.conduct.heard(MEMBER, 1 << 20) == 0.0 and rig.says(MEMBER, limits.MEMBER_MESSAGES_AT_ONCE - 1) == 0.0


def test_a_guest_that_has_said_too_much_buys_no_more_words_with_a_new_link(rig: Rig) -> None:
    """One of 4 MiB takes 60 ms to decode, and is read before its length counts: each new link would bring another."""
    owed_s = rig.conduct.heard(GUEST, 4 << 20)
    assert owed_s > 60.0 and "not let in for 6" in rig.conduct.why_not(GUEST)
    rig.now_s += owed_s
    assert rig.conduct.why_not(GUEST) == "" and rig.conduct.heard(MEMBER, 4 << 20) == 0.0
    rig.now_s += limits.GUEST_MESSAGES_AT_ONCE / limits.GUEST_MESSAGES_PER_S
    rig.says(GUEST, limits.GUEST_MESSAGES_AT_ONCE)
    assert rig.conduct.heard(GUEST) > 0.0 and rig.conduct.why_not(GUEST) == "", "who merely says a little too much"


def test_who_is_kept_out_as_its_links_come_and_go_is_told_of_with_the_way_out(rig: Rig) -> None:
    for _ in range(limits.GUEST_LINKS_AT_ONCE):
        assert rig.conduct.why_not(GUEST) == ""
        rig.conduct.linked(GUEST)
    told = rig.conduct.why_not(GUEST)
    assert "gets 32 of them, then one in 5 s" in told and "for 5 s more" in told and "chaosd events" in told


def test_a_site_that_says_little_is_never_held(rig: Rig) -> None:
    for _ in range(10_000):
        assert rig.conduct.heard(GUEST) == 0.0
        rig.now_s += 1.1 / limits.GUEST_MESSAGES_PER_S


def test_a_lost_link_tells_once_whether_it_was_closed_for_a_broken_rule(rig: Rig) -> None:
    rig.conduct.broke_a_rule(MEMBER)
    assert not rig.conduct.was_sent_away(GUEST)
    assert rig.conduct.was_sent_away(MEMBER) and not rig.conduct.was_sent_away(MEMBER)


def test_a_guest_that_breaks_rules_stays_outside_twice_as_long_each_time(rig: Rig) -> None:
    waits = []
    for _ in range(12):
        waits.append(rig.conduct.broke_a_rule(GUEST))
        assert "broke the rules" in rig.conduct.why_not(GUEST)
        rig.now_s += waits[-1]
        assert rig.conduct.why_not(GUEST) == ""
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    rig.now_s += limits.FORGIVEN_S + 1.0
    assert rig.conduct.broke_a_rule(GUEST) == limits.BACK_OFF_FIRST_S


def test_a_site_of_the_run_may_break_a_few_rules_before_it_waits(rig: Rig) -> None:
    """Its memory may be bad; and each link that is closed costs the run a round already."""
    waits = [rig.conduct.broke_a_rule(MEMBER) for _ in range(limits.MEMBER_MAY_BREAK + 2)]
    assert waits == [0.0] * limits.MEMBER_MAY_BREAK + [1.0, 2.0]


def test_a_number_of_guests_is_linked_and_the_run_beside_them(rig: Rig) -> None:
    guests = tuple(SiteId(f"{number:032x}") for number in range(limits.GUESTS_LINKED_MAX))
    assert not rig.conduct.why_no_room(GUEST, guests[1:]) and rig.conduct.why_no_room(GUEST, guests)
    assert not rig.conduct.why_no_room(guests[0], guests), "it has its place already"
    assert not rig.conduct.why_no_room(MEMBER, guests)


def test_what_is_remembered_is_bounded(rig: Rig) -> None:
    for number in range(2 * limits.REMEMBERED_MAX):
        rig.conduct.heard(SiteId(f"{number:032x}"))
        rig.conduct.broke_a_rule(SiteId(f"{number:032x}"))
    assert len(rig.conduct._buckets) <= limits.REMEMBERED_MAX and len(rig.conduct._offences) <= limits.REMEMBERED_MAX


def test_who_is_blocked_is_kept_out_until_it_is_not(rig: Rig) -> None:
    rig.conduct.block([MEMBER])
    assert "operator" in rig.conduct.why_not(MEMBER) and rig.conduct.why_not(GUEST) == ""
    rig.conduct.block([])
    assert rig.conduct.why_not(MEMBER) == ""
