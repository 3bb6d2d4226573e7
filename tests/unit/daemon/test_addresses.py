"""Addresses: who counts as one stranger (spec 2.10)."""

from __future__ import annotations

import pytest

from chaosd.addresses import network_of


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
