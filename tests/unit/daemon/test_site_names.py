"""What a machine tells of a site by its id is told people by its name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chaos_protocols.names import SiteId
from chaos_protocols.wire.user_words import RunPaused
from chaos_protocols.wire.worker import ApplyResult, DaemonMessage, Dismissed, LeaveOrdered
from chaosd.site_names import REASON_MAX, SiteNames

ZURICH, GIVEN = SiteId("8d074be9" * 4), SiteId("44444444" * 4)
SITES = {ZURICH: "Zurich", "11111111" * 4: "Twin", "22222222" * 4: "Twin", "33333333" * 4: ""}
GONE = {"77777777" * 4: "Basel", "88888888" * 4: "Twin", ZURICH: "Zurich"}


def machine(sites: dict[Any, str], departed: dict[Any, str]) -> Any:
    rows = [[SimpleNamespace(site=site, name=name) for site, name in one.items()] for one in (sites, departed)]
    nobody = SimpleNamespace(refusals=SimpleNamespace(sites={}))
    roster = SimpleNamespace(sites=tuple(rows[0]), departed=tuple(rows[1]))
    journal = SimpleNamespace(last_known=SimpleNamespace(sites=(), departed=()))
    return SimpleNamespace(roster=roster, replica=journal, network=nobody, links=SimpleNamespace(up_sites=set))


@pytest.mark.parametrize(
    ("told", "read"),
    [
        ("cannot reach 8d074be9, 77777777", "cannot reach Zurich, Basel"),
        ("8d074be9 - 33333333", "Zurich - 33333333"),  # has none
        ("11111111", "11111111"),  # two sites have this name
        ("88888888", "88888888"),  # had one that another has now
        ("a8d074be9", "a8d074be9"),
        (f"its slowest link {ZURICH} - {GIVEN}", "its slowest link Zurich - St. Mary"),
        (f"let it in with `chaosd accept {ZURICH}`: 8d074be9", f"let it in with `chaosd accept {ZURICH}`: Zurich"),
        ("Zurich (8d074be9) is blocked", "Zurich (8d074be9) is blocked"),
        ("round-1-8d074be9.safetensors of 8d074be9.", "round-1-8d074be9.safetensors of Zurich."),
    ],
)
def test_a_site_is_called_by_its_name_and_a_command_keeps_its_id(told: str, read: str) -> None:
    assert SiteNames(machine(SITES, GONE), lambda: {GIVEN: "St. Mary"}).in_text(told) == read


def test_what_the_operator_calls_a_site_goes_before_what_it_calls_itself() -> None:
    assert SiteNames(machine(SITES, {}), lambda: {ZURICH: "Kantonsspital"}).in_text("8d074be9") == "Kantonsspital"


def test_a_site_that_has_left_keeps_its_name() -> None:
    one = machine(SITES, {})
    names = SiteNames(one)
    assert names.in_text("8d074be9") == "Zurich"
    one.roster = machine({}, {}).roster
    assert names.in_text("8d074be9 left") == "Zurich left"


def test_a_daemon_that_is_started_outside_the_run_has_names_from_its_journal() -> None:
    one = machine({"11111111" * 4: "Bern"}, {})
    journal = machine({ZURICH: "Zurich", "22222222" * 4: "Bern"}, {GIVEN: "Basel"}).roster
    one.replica = SimpleNamespace(last_known=journal)
    names = SiteNames(one)
    assert names.in_text("8d074be9, 44444444, 22222222") == "Zurich, Basel, 22222222"
    assert names.known() == {"11111111" * 4: "Bern", ZURICH: "Zurich", GIVEN: "Basel"}


@pytest.mark.parametrize("how", ["it knocks", "it has a link", "it is named, too"])
def test_a_stranger_whose_id_begins_like_a_members_has_not_its_name(how: str) -> None:
    one, like = machine(SITES, {}), SiteId("8d074be9" + "5" * 24)
    names = SiteNames(one, lambda: {like: "Copy"} if how == "it is named, too" else {})
    if how == "it knocks":
        one.network.refusals.sites[like] = "untrusted"
    elif how == "it has a link":
        one.links.up_sites = lambda: {like}
    assert names.in_text(f"8d074be9 is not {ZURICH}") == "8d074be9 is not Zurich"


def test_a_script_hears_names_within_the_length_of_a_message() -> None:
    names = SiteNames(machine({ZURICH: "Z" * 64}, {}))
    told = names.in_message(RunPaused(reason="8d074be9, " * 400))
    assert isinstance(told, RunPaused) and len(told.reason) == REASON_MAX and "8d074be9" not in told.reason
    other = Dismissed(last_round=3, graceful=True, reason="8d074be9")
    assert names.in_message(other) is other
    result = ApplyResult(round=3, sites=2, weight=1.0)
    assert names.in_message(result) is result


@pytest.mark.parametrize(
    "message",
    [
        RunPaused(reason="waits for \x1b]0;x\x07 (8d074be9)\nchaos: all is well"),
        Dismissed(last_round=3, graceful=False, reason="\x1b[2J"),
        LeaveOrdered(reason="\u202e"),
    ],
)
def test_a_script_hears_nothing_of_others_that_its_terminal_would_obey(message: DaemonMessage) -> None:
    """Names and reasons in it are what other sites have written."""
    told = SiteNames(machine(SITES, GONE)).in_message(message)
    assert isinstance(told, RunPaused | Dismissed | LeaveOrdered) and told.reason.isprintable() and told.reason


def test_who_calls_itself_as_the_id_of_another_site_begins_is_not_told_by_that_ones_name() -> None:
    """A sentence that blames it would name the other: a name in it looks like an id."""
    for name in (ZURICH[:8], ZURICH):
        names = SiteNames(machine({**SITES, "55555555" * 4: name}, {}))
        assert names.in_text(f"waiting for {name} (it has not reported)") == f"waiting for {name} (it has not reported)"
        assert (
            names.in_text("44444444 and 8d074be9") == f"44444444 and {'8d074be9' if name == ZURICH[:8] else 'Zurich'}"
        )
        assert names.in_text("77777777") == "77777777"


@pytest.mark.parametrize("stray", ["`", "`chaosd "])
def test_no_site_puts_its_name_into_a_command_by_a_mark_in_another_ones(stray: str) -> None:
    """What an operator is to type was put together anew: with what a member calls itself, as words of the shell."""
    evil = SiteId("99999999" * 4)
    names = SiteNames(machine({**SITES, evil: "x; wipe #"}, {}))
    command = "`chaosd recover --from 99999999:7`"
    assert command in names.in_text(f"waiting for {stray} (it has not reported): {command} goes on from there")
    assert names.in_text("waiting for 99999999") == "waiting for x; wipe #"
