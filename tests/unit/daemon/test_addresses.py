"""Addresses: who counts as one stranger (spec 2.10)."""

from __future__ import annotations

import socket

import pytest

from chaosd.addresses import (
    EVERY_ADDRESS,
    join_address,
    lies_at,
    listening_socket,
    network_of,
    plain_host,
    split_address,
)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("203.0.113.7", "203.0.113.7", True),
        ("203.0.113.7", "203.0.113.8", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:203.0.113.7", "203.0.113.7", True),
        ("::ffff:203.0.113.7", "::ffff:203.0.113.8", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("unknown", "unknown", True),
        ("unknown", "", False),
    ],
)
def test_whoever_has_an_ipv6_network_is_one_stranger(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same


@pytest.mark.parametrize(
    ("address", "host", "lies"),
    [
        ("203.0.113.7:7400", "203.0.113.7", True),
        ("203.0.113.7:7400", "::ffff:203.0.113.7", True),
        ("[2001:db8:1:2::9]:7400", "2001:db8:1:2::1", True),
        ("10.0.0.5:22", "203.0.113.7", False),
        ("127.0.0.1:6379", "203.0.113.7", False),
        ("hospital.example:7400", "203.0.113.7", False),
        ("localhost:7400", "127.0.0.1", False),
        ("nonsense", "nonsense", False),
        ("", "unknown", False),
    ],
)
def test_an_address_lies_at_the_host_that_it_names_and_a_name_lies_nowhere(address: str, host: str, lies: bool) -> None:
    assert lies_at(address, host) is lies


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6, or not both in one socket")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_who_listens_at_every_address_serves_both_families(host: str) -> None:
    with listening_socket(EVERY_ADDRESS, 0) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection((host, port), timeout=5.0):
            accepted, name = listening.accept()
            accepted.close()
    assert plain_host(name[0]) == host


def test_an_address_is_told_as_people_write_it() -> None:
    assert plain_host("::ffff:203.0.113.7") == "203.0.113.7"
    for host in ("203.0.113.7", "2001:db8::1", "fe80::1%eth0", "unknown", ""):
        assert plain_host(host) == host


@pytest.mark.parametrize("letter", ["\0", "\x1b", "\x7f", "\u202e", " "])
def test_no_address_has_what_a_terminal_would_obey_or_nobody_sees(letter: str) -> None:
    with pytest.raises(ValueError, match="without spaces"):
        split_address(f"a{letter}b:7400")


@pytest.mark.parametrize("host", ["a..b", ".a", "x" * 64 + ".example"])
def test_what_no_resolver_can_be_asked_for_is_no_address(host: str) -> None:
    """It ended the daemon, and `chaosd doctor`, as a defect of ours."""
    with pytest.raises(ValueError, match="1 to 63 letters between two dots"):
        split_address(f"{host}:7400")


@pytest.mark.parametrize("host", ["zürich.example", "host.example.", "a_b", "x" * 63, "fe80::1%eth0", "192.0.2.1"])
def test_what_a_resolver_takes_is_an_address(host: str) -> None:
    assert split_address(join_address(host, 7400)) == (host, 7400)
