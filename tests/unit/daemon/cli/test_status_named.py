"""Sites as `chaosd status` calls them: by name in every sentence, and nothing is cut off in a narrow terminal."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console
from tests.unit.daemon.api.local_api import HERE, THERE, sample_status

from chaosd.api.status import AveragingStatus, Status
from chaosd.cli.render import render_status

ONE_TREE = AveragingStatus(
    trees=1,
    rate_bytes_per_s=12.5e6,
    predicted_s=None,
    took_s=None,
    reason=f"one tree; its slowest link {HERE} - {THERE} carries 100.0 Mbit/s",
)


def shown(status: Status, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render_status(status))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_ids_in_the_planners_reason_become_names() -> None:
    text = shown(msgspec.structs.replace(sample_status(), averaging=ONE_TREE))
    assert "its slowest link alpha - beta carries 100.0 Mbit/s" in text and HERE not in text


def test_two_sites_of_one_name_are_told_apart() -> None:
    here, there = sample_status().sites
    twins = (here, msgspec.structs.replace(there, name=here.name))
    text = shown(msgspec.structs.replace(sample_status(), sites=twins, averaging=ONE_TREE))
    assert f"its slowest link alpha ({HERE[:8]}) - alpha ({THERE[:8]}) carries" in text


def test_who_is_blocked_is_named_with_the_way_back() -> None:
    text = shown(msgspec.structs.replace(sample_status(), blocked=(THERE, "c" * 32)))
    assert "blocked by this site's operator: beta, cccccccc (`chaosd unblock SITE`)" in text
    assert "blocked" not in shown(sample_status())


def of_releases(one: str, other: str) -> Status:
    here, there = sample_status().sites
    sites = (msgspec.structs.replace(here, software=one), msgspec.structs.replace(there, software=other))
    return msgspec.structs.replace(sample_status(), sites=sites)


def test_a_site_is_one_line_in_a_terminal_of_eighty_columns() -> None:
    text = shown(of_releases("0.3.0", "0.3.0"), width=80)
    assert "alpha (this)" in text and " 127.0.0.1:7400 " in text and "all of release 0.3.0" in text


def test_releases_stand_beside_the_sites_where_they_differ_and_nothing_is_cut_off() -> None:
    text = shown(of_releases("0.3.0.dev0", "0.2.0"), width=80)
    assert "0.3.0.dev0" in text and "0.2.0" in text and "all of release" not in text and "…" not in text
    assert "release" not in shown(of_releases("", "")) and "–" in shown(of_releases("0.3.0", ""))


def test_what_the_others_are_of_is_not_said_of_a_site_that_is_outside() -> None:
    status = of_releases("", "0.2.0")
    text = shown(msgspec.structs.replace(status, sites=status.sites[1:]), width=80)
    assert "all of release" not in text and "0.2.0" in text


def at_addresses(here: str, there: str, **said: object) -> Status:
    one, other = sample_status().sites
    sites = (msgspec.structs.replace(one, address=here), msgspec.structs.replace(other, address=there, **said))
    return msgspec.structs.replace(sample_status(), sites=sites)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:17400", "203.0.113.254:65535", "chaos.cleveland.example:7400", "[2001:db8::5678:9abc:def0]:17400"],
)
def test_an_address_is_never_broken_in_a_terminal_of_eighty_columns(address: str) -> None:
    text = shown(at_addresses("127.0.0.1:7400", address, phase="compute", age_s=75.0), width=80)
    assert address in text and "127.0.0.1:7400" in text and "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    (line,) = [line for line in text.splitlines() if "alpha (this)" in line]
    assert all(word in line for word in ("aaaaaaaa", "member"))


@pytest.mark.parametrize("characters", range(10, 24))
def test_no_other_word_is_broken_to_make_room_for_an_address(characters: int) -> None:
    text = shown(at_addresses("127.0.0.1:7400", f"{'h' * characters}:7401", phase="standby"), width=80)
    (line,) = [line for line in text.splitlines() if "beta" in line and "learner" in line]
    assert "standby" in line and "bbbbbbbb" in line and "alpha (this)" in text
    old = shown(at_addresses("127.0.0.1:7400", f"{'h' * characters}:7401", phase="standby", age_s=75.0), width=80)
    assert "0:01:15 ago" in old


def test_an_address_stands_beside_its_site_where_there_is_room() -> None:
    text = shown(at_addresses("127.0.0.1:7400", "chaos.cleveland.example:7400"), width=120)
    (line,) = [line for line in text.splitlines() if "chaos.cleveland.example:7400" in line]
    assert "beta" in line and "learner" in line
