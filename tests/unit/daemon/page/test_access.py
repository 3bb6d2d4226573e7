"""Who is let in: tickets once and for a while, sessions bounded, and nothing for whom another site sends."""

from __future__ import annotations

import pytest

from chaosd.page.access import (
    SESSION_LIFE_S,
    SESSIONS_MAX,
    TICKET_LIFE_S,
    TICKETS_MAX,
    Doorkeeper,
    why_foreign,
)

HOST = "127.0.0.1:7480"


def test_a_ticket_lets_in_once() -> None:
    door = Doorkeeper()
    ticket = door.ticket(0.0)
    cookie = door.redeem(ticket, 1.0)
    assert cookie is not None and door.session(cookie, 2.0) is not None
    assert door.redeem(ticket, 1.0) is None


def test_a_ticket_is_good_for_two_minutes_and_a_wrong_one_never() -> None:
    door = Doorkeeper()
    ticket = door.ticket(0.0)
    assert door.redeem("x" * 43, 0.0) is None
    assert door.redeem("", 0.0) is None
    assert door.redeem(ticket, TICKET_LIFE_S + 1) is None


def test_a_session_lasts_while_it_is_used_and_no_longer() -> None:
    door = Doorkeeper()
    cookie = door.redeem(door.ticket(0.0), 0.0)
    now_s = 0.0
    for _ in range(3):
        now_s += SESSION_LIFE_S - 1
        assert door.session(cookie, now_s) is not None
    assert door.session(cookie, now_s + SESSION_LIFE_S + 1) is None
    assert door.session(cookie, now_s) is None
    assert door.session(None, 0.0) is None


def test_the_secret_of_a_form_is_not_the_cookie_and_differs_between_sessions() -> None:
    door = Doorkeeper()
    cookies = [door.redeem(door.ticket(0.0), 0.0) for _ in range(2)]
    secrets = [door.session(cookie, 0.0).form_secret for cookie in cookies]  # type: ignore[union-attr]
    assert len({*cookies, *secrets}) == 4


def test_tickets_and_sessions_are_bounded_and_the_oldest_goes_first() -> None:
    door = Doorkeeper()
    tickets = [door.ticket(0.0) for _ in range(TICKETS_MAX + 1)]
    assert door.redeem(tickets[0], 0.0) is None
    assert door.redeem(tickets[-1], 0.0) is not None
    door = Doorkeeper()
    cookies = [door.redeem(door.ticket(0.0), 0.0) for _ in range(SESSIONS_MAX)]
    assert door.session(cookies[0], 1.0) is not None  # used: now the second one is the oldest
    door.redeem(door.ticket(1.0), 1.0)
    assert door.session(cookies[0], 2.0) is not None
    assert door.session(cookies[1], 2.0) is None


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7480", "localhost:7480", "LOCALHOST:9000", "[::1]:7480", "127.0.0.1", "[::1]"]
)
def test_a_browser_of_this_machine_is_answered_under_every_name_of_loopback(host: str) -> None:
    assert why_foreign({"Host": host}) == ""
    assert why_foreign({"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}) == ""


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": ""},
        {"Host": "evil.example:7480"},  # a name of theirs that they made to point here
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "localhost.evil.example:7480"},
        {"Host": "192.168.1.5:7480"},
        {"Host": "::1"},
        {"Host": HOST, "Origin": "http://evil.example"},
        {"Host": HOST, "Origin": "null"},
        {"Host": HOST, "Origin": "http://localhost:7480"},
        {"Host": HOST, "Origin": "http://127.0.0.1:3000"},  # another service of this machine
        {"Host": HOST, "Origin": f"https://{HOST}"},
        {"Host": HOST, "Sec-Fetch-Site": "cross-site"},
        {"Host": HOST, "Sec-Fetch-Site": "same-site"},
        {"Host": HOST, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    ],
)
def test_foreign_requests_are_told_apart(headers: dict[str, str]) -> None:
    assert why_foreign(headers)


def test_a_link_elsewhere_may_lead_here_but_no_frame_and_no_script() -> None:
    asked = {"Host": HOST, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert why_foreign({**asked, "Sec-Fetch-Dest": "document"}, navigation=True) == ""
    assert why_foreign({**asked, "Sec-Fetch-Dest": "iframe"}, navigation=True)
    assert why_foreign({"Host": HOST, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, navigation=True)
