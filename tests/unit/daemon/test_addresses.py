"""Addresses: who counts as one stranger (spec 2.10)."""

from __future__ import annotations

import pytest

from chaosd.addresses import lies_at, network_of


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
