"""Rates learned from what a link carries anyway: busy time alone counts, whatever the number of streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos_protocols.links.rates import FRESH_S, SAMPLE_S_MIN, PassiveRates
from chaos_protocols.names import SITES_MAX, SiteId

A = SiteId("a")
MIB = 1 << 20


def carry(
    rates: PassiveRates, frames: int, *, frame_s: float, gap_s: float, now_s: float = 0.0, stream: int = 1
) -> float:
    for _ in range(frames):
        rates.began(A, stream, MIB, now_s=now_s)
        now_s += frame_s
        rates.ended(A, stream, now_s=now_s)
        now_s += gap_s
    return now_s


def test_nothing_is_known_of_a_link_that_carried_nothing() -> None:
    rates = PassiveRates()
    rates.ended(A, 1, now_s=1.0)
    rates.link_lost(A)
    assert rates.rate(A, now_s=2.0) is None


@given(frame_s=st.floats(0.01, 2.0), gap_s=st.floats(0.0, 5.0))
def test_idle_time_between_frames_does_not_count(frame_s: float, gap_s: float) -> None:
    rates = PassiveRates()
    now_s = carry(rates, 30, frame_s=frame_s, gap_s=gap_s)
    known = rates.rate(A, now_s=now_s)
    assert known is not None
    assert known.rate_bytes_per_s == pytest.approx(MIB / frame_s, rel=1e-6)


def test_frames_that_arrive_side_by_side_share_the_time() -> None:
    rates = PassiveRates()
    for number in range(10):
        begun_s = number * 0.2
        for stream in (1, 2):
            rates.began(A, stream, MIB, now_s=begun_s)
        for stream in (1, 2):
            rates.ended(A, stream, now_s=begun_s + 0.2)
    known = rates.rate(A, now_s=2.0)
    assert known is not None
    assert known.rate_bytes_per_s == pytest.approx(2 * MIB / 0.2)


def test_a_burst_out_of_the_sockets_buffer_is_no_sample() -> None:
    rates = PassiveRates()
    carry(rates, 20, frame_s=SAMPLE_S_MIN / 100, gap_s=0.0)
    assert rates.rate(A, now_s=1.0) is None


def test_a_sender_that_pauses_within_a_frame_does_not_lower_the_rate() -> None:
    rates = PassiveRates()
    now_s = carry(rates, 4, frame_s=0.1, gap_s=0.0)
    now_s = carry(rates, 1, frame_s=3.0, gap_s=0.0, now_s=now_s)
    known = rates.rate(A, now_s=now_s)
    assert known is not None
    assert known.rate_bytes_per_s == pytest.approx(MIB / 0.1, rel=1e-6)


def test_a_rate_grows_stale_and_a_slower_link_is_seen_after_a_few_samples() -> None:
    rates = PassiveRates()
    now_s = carry(rates, 5, frame_s=0.1, gap_s=0.0)
    assert rates.rate(A, now_s=now_s + FRESH_S + 1) is None
    now_s = carry(rates, 5, frame_s=1.0, gap_s=0.0, now_s=now_s)
    known = rates.rate(A, now_s=now_s)
    assert known is not None
    assert known.rate_bytes_per_s == pytest.approx(MIB)
    assert known.age_s == pytest.approx(0.0)
    assert known.sampled_bytes == 5 * MIB


def test_a_frame_that_a_lost_link_cut_off_is_forgotten() -> None:
    rates = PassiveRates()
    rates.began(A, 1, MIB, now_s=0.0)
    rates.link_lost(A)
    rates.ended(A, 1, now_s=50.0)
    assert rates.rate(A, now_s=50.0) is None


def test_what_is_remembered_is_bounded() -> None:
    rates = PassiveRates()
    for number in range(SITES_MAX + 10):
        rates.began(SiteId(f"{number:032x}"), 1, MIB, now_s=0.0)
    assert len(rates._links) == SITES_MAX
