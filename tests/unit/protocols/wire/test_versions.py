"""Two ends agree on the newest version that both speak; where there is none, both are told what to install."""

from __future__ import annotations

import pytest
from tests.unit.protocols.one_site import A

from chaos_protocols.wire.handshake import Challenge, Hello, Session
from chaos_protocols.wire.probe import ModelHeader, ProbeHeader, encode
from chaos_protocols.wire.versions import NEWEST, OLDEST, SPOKEN, Versions, agreed, refusal


def speaks(oldest: int, newest: int) -> Versions:
    return Versions(oldest=oldest, newest=newest)


@pytest.mark.parametrize(
    ("here", "there", "version"),
    [
        ((2, 3), (2, 3), 3),
        ((2, 3), (3, 9), 3),
        ((2, 3), (1, 2), 2),
        ((2, 3), (4, 5), None),
        ((2, 3), (1, 1), None),
        ((2, 3), (3, 2), None),
    ],
)
def test_both_ends_find_the_newest_version_that_both_speak(
    here: tuple[int, int], there: tuple[int, int], version: int | None
) -> None:
    assert agreed(speaks(*here), speaks(*there)) == agreed(speaks(*there), speaks(*here)) == version


def test_a_refusal_names_both_ranges_both_releases_and_the_end_that_is_too_old() -> None:
    old, new = speaks(1, 1), speaks(2, 3)
    told = refusal(new, old, software_here="0.3.0", software_there="0.1.0")
    assert "this site (chaos-train 0.3.0) speaks protocol 2 to 3, the other (chaos-train 0.1.0) 1" in told
    assert "Install a chaos-train there that speaks what is spoken here" in told
    told = refusal(old, new, software_here="0.1.0", software_there="")
    assert "chaos-train of an unknown release" in told
    assert "Install a chaos-train here that speaks what is spoken there" in told


def test_a_range_that_is_none_is_called_so() -> None:
    told = refusal(SPOKEN, speaks(3, 2), software_here="0.3.0", software_there="9")
    assert "3 to 2, which is no range: install a release of chaos-train there again" in told


@pytest.mark.parametrize(("oldest", "range_"), [(OLDEST, SPOKEN), (0, speaks(NEWEST, NEWEST))])
def test_an_end_of_before_the_negotiation_speaks_one_version(oldest: int, range_: Versions) -> None:
    assert Challenge(version=NEWEST, nonce=bytes(32), oldest=oldest).versions == range_
    hello = Hello(
        version=NEWEST,
        run="hearts",
        site=A,
        public_key=bytes(32),
        incarnation=1,
        purpose="control",
        stream=0,
        streams=2,
        session=Session(dialer=A, attempt=1),
        known=None,
        address="",
        nonce=bytes(32),
        oldest=oldest,
    )
    assert hello.versions == range_


def test_headers_beside_the_bulk_path_are_maps_that_name_their_kind() -> None:
    for header in (ModelHeader(kind="model.ask"), ProbeHeader(kind="probe.data", id=3)):
        assert encode(header).find(b"\xa4kind") > 0
