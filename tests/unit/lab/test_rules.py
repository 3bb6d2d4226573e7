"""What tc, iptables and nft are told, and ways over several links."""

from __future__ import annotations

import math

import pytest

from chaos_lab import rules
from chaos_lab.routes import next_hops
from chaos_lab.rules import Arriving


def arriving(device: str = "to2", *, cut: bool = False, loss: float = 0.0, queue: int | None = None) -> Arriving:
    return Arriving(device=device, cut=cut, loss=loss, queue=queue)


def test_a_cut_comes_before_loss_and_latency() -> None:
    text = rules.iptables([arriving(cut=True, loss=0.1, queue=2), arriving("to3", loss=0.25, queue=3)])
    assert text.splitlines() == [
        "*mangle",
        "-F PREROUTING",
        "-A PREROUTING -i to2 -j DROP",
        "-A PREROUTING -i to3 -m statistic --mode random --probability 0.250000000 -j DROP",
        "-A PREROUTING -i to3 -j NFQUEUE --queue-num 3",
        "COMMIT",
    ]


def test_nft_is_told_of_cuts_alone() -> None:
    text = rules.nft([arriving(cut=True), arriving("to3", loss=0.25, queue=3)])
    assert 'iifname "to2" drop' in text and "to3" not in text


def test_a_link_without_a_limit_has_no_bucket() -> None:
    assert "tbf" not in rules.limit("to1", math.inf) and "tbf" not in rules.netem("to1", math.inf, 5, 0)


@pytest.mark.parametrize(("rate_mbit", "burst_bytes"), [(1, 32768), (100, 32768), (500, 156_250), (1000, 312_500)])
def test_the_bucket_holds_the_lateness_of_a_timer(rate_mbit: float, burst_bytes: int) -> None:
    text = rules.limit("to1", rate_mbit)
    assert f"tbf rate {rate_mbit * 1_000_000}bit burst {burst_bytes} " in text


@pytest.mark.parametrize(
    ("before_mbit", "rate_mbit", "blocks"),
    [(100, 25, False), (200, 25, True), (math.inf, 10, True), (1000, 300, False), (25, 200, False), (0, 1, False)],
)
def test_what_waits_is_dropped_where_a_packet_may_be_too_large_for_the_new_bucket(
    before_mbit: float, rate_mbit: float, blocks: bool
) -> None:
    assert rules.blocks(before_mbit, rate_mbit) is blocks


def test_what_waits_is_dropped_and_not_what_is_on_its_way() -> None:
    assert [line.split()[:6] for line in rules.limit("to1", 10, emptied=True).splitlines()] == [
        ["qdisc", "replace", "dev", "to1", "root", "handle"]
    ] * 2
    _, free, bucket = rules.netem("to1", 10, 50, 0, emptied=True).splitlines()
    assert "parent 1:1" in free and "pfifo" in free and "tbf" in bucket


def test_netem_holds_what_is_on_its_way_and_comes_before_the_rate() -> None:
    first, second = rules.netem("to1", 1000, 50, 0.01).splitlines()
    assert "netem limit 5166 delay 50ms loss 1%" in first and "root" in first
    assert "parent 1:1" in second and "tbf rate 1000000000bit" in second


def test_a_way_takes_the_fewest_links() -> None:
    ways = {(a, b) for pair in ("ab", "bc", "cd", "de", "ea") for a, b in (pair, pair[::-1])}
    assert next_hops("a", "abcde", ways) == {"b": "b", "e": "e", "c": "b", "d": "e"}


def test_a_site_behind_no_link_is_not_reached() -> None:
    assert next_hops("a", "abc", {("a", "b"), ("b", "a")}) == {"b": "b"}
