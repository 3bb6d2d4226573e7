"""`admission = "open"`: whoever proves itself may connect, keys cost nothing, and nobody is believed for that
(spec 4.17, 4.18, 4.21)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.daemon.neighbours_kit import HOST, Rig
from tests.unit.protocols.one_site import B, C

from chaos_protocols.events import PeersChanged
from chaos_protocols.names import SiteId
from chaosd import conduct as limits
from chaosd.config.model import SiteConfig
from chaosd.trust import TrustList

ELSEWHERE = "198.51.100.9"


def key(number: int) -> SiteId:
    """One that somebody has just made."""
    return SiteId(f"{number:032x}")


class OpenRig(Rig):
    """Everybody may connect."""

    def comes_in(self, site: SiteId, host: str = HOST) -> bool:
        if self.kept_out(site, host) is not None:
            return False
        self.neighbours.let_in(site)
        self.linked.append(site)
        return True


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenRig:
    return OpenRig(tmp_path, monkeypatch, admission="open")


def test_many_keys_from_one_network_get_few_links(rig: OpenRig) -> None:
    assert [rig.comes_in(key(number)) for number in range(20)] == [True] * limits.GUESTS_OF_NETWORK_MAX + [False] * 12
    assert rig.comes_in(key(100), ELSEWHERE), "from elsewhere there is room"
    assert rig.comes_in(B) and rig.comes_in(C), "and for the run, and for whom the operator has named"


def test_keys_from_everywhere_take_no_room_of_those_that_are_named(rig: OpenRig) -> None:
    found = [rig.comes_in(key(number), f"2001:db8:0:{number:x}::1") for number in range(limits.GUESTS_LINKED_MAX + 5)]
    assert sum(found) == limits.GUESTS_LINKED_MAX
    assert rig.comes_in(C) and rig.comes_in(B)


def test_a_new_key_buys_no_new_measure_of_messages(rig: OpenRig) -> None:
    for number in range(4):
        assert rig.comes_in(key(number))
    each = limits.GUEST_MESSAGES_AT_ONCE // 4
    held = [rig.driver.conduct.heard(key(number)) for number in range(4) for _ in range(each)]
    assert not any(held) and rig.driver.conduct.heard(key(0)) > 0.0
    assert rig.comes_in(key(9)) and rig.driver.conduct.heard(key(9)) > 0.0, "of that network it is one more"
    assert rig.comes_in(C) and rig.driver.conduct.heard(C) == 0.0


def test_a_new_key_does_not_undo_a_broken_rule(rig: OpenRig) -> None:
    assert rig.comes_in(key(1)) and rig.comes_in(key(2))
    assert rig.driver.conduct.broke_a_rule(key(1)) == limits.BACK_OFF_FIRST_S
    assert rig.driver.conduct.was_sent_away(key(1)) and not rig.driver.conduct.was_sent_away(key(2))
    told = rig.kept_out(key(3))
    assert told is not None and "broke the rules" in told.reason
    assert rig.kept_out(key(4), ELSEWHERE) is None and rig.kept_out(C) is None
    rig.now_s += limits.BACK_OFF_FIRST_S
    assert rig.driver.conduct.broke_a_rule(key(2)) == 2 * limits.BACK_OFF_FIRST_S


def test_links_that_come_and_go_are_let_in_seldom(rig: OpenRig) -> None:
    """Each is an event in the history here, and told to all sites."""
    found = 0
    for number in range(10 * limits.GUEST_LINKS_AT_ONCE):
        found += rig.comes_in(key(number))
        rig.linked.clear()
    assert found == limits.GUEST_LINKS_AT_ONCE
    told = rig.kept_out(key(5000))
    assert told is not None and "come and go" in told.reason
    rig.now_s += 1.0 / limits.GUEST_LINKS_PER_S
    assert rig.comes_in(key(5000)) and not rig.comes_in(key(5001))


def test_a_guest_that_is_named_comes_and_goes_as_seldom_and_a_site_of_the_run_as_it_must(rig: OpenRig) -> None:
    for site in (C, B):
        found = 0
        for _ in range(2 * limits.GUEST_LINKS_AT_ONCE):
            found += rig.comes_in(site)
            rig.linked.clear()
        assert found == (limits.GUEST_LINKS_AT_ONCE if site == C else 2 * limits.GUEST_LINKS_AT_ONCE)


def test_what_is_remembered_of_networks_is_bounded_and_of_who_is_linked_kept(rig: OpenRig) -> None:
    assert rig.comes_in(key(1))
    for number in range(2, 2 * limits.REMEMBERED_MAX):
        rig.kept_out(key(number), f"2001:db8:1:{number:x}::1")
    networks = rig.driver.conduct._networks
    assert len(networks) <= limits.REMEMBERED_MAX and networks[key(1)] == HOST


def test_a_door_that_is_closed_by_a_reload_is_closed(rig: OpenRig) -> None:
    """The command said that it was taken over; the daemon let everybody in until its next start."""
    assert rig.kept_out(key(1)) is None
    rig.trust.config = rig.config.model_copy(update={"admission": "pinned"})
    told = rig.kept_out(key(2))
    assert told is not None and told.stranger
    assert rig.kept_out(B) is None and rig.kept_out(C) is None


def test_where_everybody_may_connect_only_who_is_named_is_believed_by_a_site_that_was_in_no_run(tmp_path: Path) -> None:
    driver: Any = SimpleNamespace(conduct=SimpleNamespace(block=lambda _: None))

    def told(**config: Any) -> PeersChanged:
        return TrustList(SiteConfig(name="a", data_dir=tmp_path, **config), driver).told()

    b = {"site": B, "address": "b.example:7400"}
    assert told(admission="pinned", trust=(C,)).sponsors is None
    assert told(admission="open").sponsors == ()
    assert told(admission="open", trust=(C,)).sponsors == (C,)
    assert told(admission="open", trust=(C,), peers=(b,)).sponsors == (B,)
