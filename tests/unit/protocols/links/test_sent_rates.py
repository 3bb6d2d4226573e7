"""Rates of links from the rounds' own traffic: a link that halves is seen, one that has little to carry is not slow."""

from __future__ import annotations

import pytest

from chaos_protocols.links.sent_rates import SentRates
from chaos_protocols.names import SiteId

A, B = SiteId("a" * 32), SiteId("b" * 32)
LOOK_S = 0.125


class Shaped:
    """A link of a rate, looked at eight times a second."""

    def __init__(self, rates: SentRates) -> None:
        self.rates, self.now_s, self.acknowledged = rates, 100.0, 0.0

    def carries(self, rate: float, seconds: float, *, queued: bool = True, path: float | None = None) -> None:
        """`path`: what the system says that it takes."""
        for _ in range(round(seconds / LOOK_S)):
            self.now_s += LOOK_S
            self.acknowledged += rate * LOOK_S
            acknowledged = int(self.acknowledged)
            self.rates.looked(
                A, acknowledged_bytes=acknowledged, queued=queued, path_bytes_per_s=path, now_s=self.now_s
            )

    @property
    def told(self) -> float | None:
        return dict(self.rates.rates(now_s=self.now_s)).get(A)


def test_a_full_link_has_the_rate_that_it_carries_and_follows_when_it_halves() -> None:
    link = Shaped(SentRates())
    link.carries(10e6, 3.0)
    assert link.told == 10e6
    link.carries(5e6, 2.0)
    assert link.told == 5e6
    link.carries(20e6, 2.0)
    assert link.told == 20e6


def test_a_link_with_little_to_carry_says_nothing_and_forgets_nothing() -> None:
    link = Shaped(SentRates())
    link.carries(1e6, 10.0, queued=False)
    assert link.told is None
    link.carries(10e6, 3.0)
    link.carries(1e6, 10.0, queued=False)
    assert link.told == 10e6


def test_a_link_that_rests_between_chunks_is_as_fast_as_its_path_and_not_as_it_is_used() -> None:
    link = Shaped(SentRates())
    link.carries(3e6, 5.0, path=10e6)
    assert link.told == 10e6
    link.carries(3e6, 5.0, path=5e6)
    assert link.told == 5e6, "slower than before, and still not full"


def test_what_was_measured_while_there_was_too_little_to_send_is_no_rate() -> None:
    link = Shaped(SentRates())
    link.carries(3e6, 10.0, path=0.0)
    assert link.told is None
    link.carries(10e6, 3.0, path=11e6)
    link.carries(3e6, 10.0, path=0.0)
    assert link.told == 11e6


def test_a_measurement_of_a_link_that_carries_nothing_does_not_count_again_and_again() -> None:
    link = Shaped(SentRates())
    link.carries(10e6, 3.0, path=10e6)
    link.carries(0.0, 10.0, path=1e6)
    assert link.told == 10e6


def test_single_stalls_and_single_bursts_are_ignored() -> None:
    link = Shaped(SentRates())
    link.carries(10e6, 3.0)
    link.carries(0.5e6, 2.5)  # one sample: it takes 2 s to have its bytes
    assert link.told == 10e6
    link.carries(10e6, 1.0)
    link.carries(100e6, LOOK_S)
    assert link.told == 10e6


def test_rates_age_and_end_with_their_links_and_a_new_connection_begins_at_zero() -> None:
    link = Shaped(SentRates())
    link.carries(10e6, 3.0)
    link.acknowledged = 0.0
    link.carries(10e6, 1.0)
    assert link.told == 10e6
    link.now_s += 121.0
    assert link.told is None
    link.carries(10e6, 3.0)
    link.rates.keep([B])
    assert link.rates.rates(now_s=link.now_s) == ()


@pytest.mark.parametrize(("rate", "told"), [(12_345_678.0, 12.3e6), (12_670_000.0, 12.7e6), (999_999.0, 1e6)])
def test_a_rate_is_told_to_three_digits_so_that_noise_is_no_news(rate: float, told: float) -> None:
    link = Shaped(SentRates())
    link.carries(rate, 5.0)
    assert link.told == told
