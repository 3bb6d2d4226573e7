"""The buttons of the page in a real browser: each says its consequence first, and asks for what the command does."""

from __future__ import annotations

import msgspec
import pytest
from tests.integration.browser import Browser, missing
from tests.integration.served_page import FakeLists, many_sites, quiet_console, served, shown, window
from tests.rigs.site import wait_for
from tests.unit.daemon.api.local_api import FakeControl, sample_status

from chaos_protocols.fingerprint import words_of
from chaos_protocols.names import SiteId
from chaosd.api.status import RefusedSite

__all__ = ["quiet_console", "window"]

pytestmark = pytest.mark.skipif(missing() != "", reason=missing() or "there is a browser")


def test_who_waits_is_let_in_by_a_button_that_shows_the_words_first(window: Browser) -> None:
    control = FakeControl()
    stranger = RefusedSite(
        site="c" * 32, cause="untrusted", reason=f"let it in: {words_of(SiteId('c' * 32))}", count=2, ago_s=1.0
    )
    other = RefusedSite(site="d" * 32, cause="refused-other-version", reason="2 and 3", count=1, ago_s=1.0)
    control.current = msgspec.structs.replace(sample_status(), refused=(stranger, other))
    lists = FakeLists()
    with served(control, lists) as page:
        window.open(page.client.page().url)
        read_list = "return [...document.querySelectorAll('#strangers li')].map((one) => one.textContent)"
        (row,) = wait_for(lambda: window.run(read_list), "who waits")
        assert row.startswith("c" * 32) and "tried 2 times" in row
        window.run("document.querySelector('#strangers button').focus()")
        window.press("Enter")
        asked = shown(window, "the question", lambda now: now["dialog"])
        assert words_of(SiteId("c" * 32)) in asked["dialog"] and lists.let_in == []
        window.press("Tab", "Enter")
        shown(window, "the outcome", lambda now: "it may connect" in now["outcome"])
        assert lists.let_in == ["c" * 32]
        control.current = sample_status()
        wait_for(lambda: not window.run(read_list), "nobody waits")
        assert window.complaints() == []


def test_who_waits_is_turned_away_by_a_button_and_what_is_blocked_can_be_unblocked(window: Browser) -> None:
    control, lists = FakeControl(), FakeLists()
    stranger = RefusedSite(site="c" * 32, cause="untrusted", reason="let it in", count=2, ago_s=1.0)
    control.current = msgspec.structs.replace(sample_status(), refused=(stranger,))
    with served(control, lists) as page:
        window.open(page.client.page().url)
        rows = "return [...document.querySelectorAll('#strangers li, #blocked li')].map((one) => one.textContent)"
        wait_for(lambda: len(window.run(rows)) == 1, "who waits")
        window.run("document.querySelectorAll('#strangers button')[1].focus()")
        window.press("Enter")
        asked = shown(window, "the question", lambda now: now["dialog"])
        assert "Block cccccccc | It is turned away from now on, also after a restart" in asked["dialog"]
        window.press("Tab", "Enter")
        shown(window, "the outcome", lambda now: "change 1" in now["outcome"])
        control.current = msgspec.structs.replace(control.current, blocked=("c" * 32,))
        wait_for(lambda: window.run(rows) == ["c" * 32 + " Unblock ..."], "it is blocked, and waits no more")
        window.run("document.querySelector('#blocked button').focus()")
        window.press("Enter")
        asked = shown(window, "the question", lambda now: now["dialog"])
        assert "It may connect again, if it is trusted" in asked["dialog"]
        window.press("Tab", "Enter")
        shown(window, "the outcome", lambda now: "change 2" in now["outcome"])
        first, second = lists.blocks
        assert (first.site, first.add, first.ban, first.reason) == ("c" * 32, True, False, "asked for on the page")
        assert (second.site, second.add) == ("c" * 32, False)
        assert window.complaints() == []


def test_a_site_is_blocked_or_dropped_by_buttons_that_say_who_has_to_agree(window: Browser) -> None:
    control, lists = FakeControl(), FakeLists()
    control.current = many_sites(4)
    buttons = "[...document.querySelectorAll('#sites tr')].map((row) => [...row.querySelectorAll('button')]"
    with served(control, lists) as page:
        window.open(page.client.page().url)
        shown(window, "four sites", lambda now: len(now["sites"]) == 4)
        offered = window.run(f"return {buttons}.filter((one) => !one.hidden).map((one) => one.textContent))")
        assert offered == [[], ["Block ...", "Drop ..."], ["Add link ...", "Block ...", "Drop ..."], offered[1]]
        window.run(f"{buttons})[3][1].focus()")
        window.press("Enter")
        asked = shown(window, "the question", lambda now: now["dialog"])["dialog"]
        assert "The link to site 3 ends at once" in asked and "as long as another site has a link with it" in asked
        assert "holds the overlay together" not in asked
        window.press("Escape")
        shown(window, "no question", lambda now: not now["dialog"])
        window.run(f"{buttons})[3][2].focus()")
        window.press("Enter")
        asked = shown(window, "the question", lambda now: now["dialog"])["dialog"]
        assert "the operators of 2 of the 3 other members" in asked and "for good" in asked and lists.blocks == []
        window.press("Tab", "Enter")
        shown(window, "the outcome", lambda now: "change 1" in now["outcome"])
        (asked_for,) = lists.blocks
        assert (asked_for.site, asked_for.add, asked_for.ban) == (f"{3:032x}", True, True)
        present = many_sites(3)
        third = msgspec.structs.replace(present.sites[2], state="learner")
        control.current = msgspec.structs.replace(present, sites=(*present.sites[:2], third))
        shown(window, "three sites", lambda now: len(now["sites"]) == 3)
        window.run(f"{buttons})[1][2].focus()")
        window.press("Enter")
        asked = shown(window, "the question", lambda now: now["dialog"])["dialog"]
        assert "this word alone removes it from the run, for good" in asked and "unblock" not in asked
        assert window.complaints() == []


def test_a_change_says_its_consequence_first_and_is_made_by_keyboard_alone(window: Browser) -> None:
    control = FakeControl()
    control.current = many_sites(3)
    with served(control) as page:
        window.open(page.client.page().url)
        shown(window, "three sites", lambda now: len(now["links"]) == 3)
        window.run("document.querySelector('#links tr button').focus()")
        window.press("Enter")
        asked = shown(window, "the question", lambda now: now["dialog"])
        assert "Remove the link to" in asked["dialog"] and "stays connected" in asked["dialog"]
        window.press("Enter")  # on Cancel, where the focus is
        shown(window, "no question any more", lambda now: not now["dialog"])
        assert control.asked == []
        window.press("Enter")
        shown(window, "the question again", lambda now: now["dialog"])
        window.press("Tab", "Enter")
        shown(window, "the outcome", lambda now: "as asked" in now["outcome"])
        assert control.asked == [("link", f"{1:032x}", False)]
        window.run("document.getElementById('leave').focus()")
        window.press("Enter")
        leaving = shown(window, "the other question", lambda now: now["dialog"])
        assert "2 other sites go on without it" in leaving["dialog"] and "its training script end" in leaving["dialog"]
        window.press("Escape")
        shown(window, "no question", lambda now: not now["dialog"])
        assert len(control.asked) == 1
        assert window.complaints() == []


def test_a_removal_that_splits_the_overlay_is_announced_as_such(window: Browser) -> None:
    control = FakeControl()  # two sites, one link
    with served(control) as page:
        window.open(page.client.page().url)
        shown(window, "the link", lambda now: len(now["links"]) == 1)
        window.run("document.querySelector('#links tr button').click()")
        asked = shown(window, "the question", lambda now: now["dialog"])
        assert "would split it, and will be refused" in asked["dialog"]
