"""Whether a joiner follows the run, is waited for, or is refused: by the figures; what is unknown speaks for it."""

from __future__ import annotations

import pytest

from chaos_protocols.scheduler.join_figures import FETCH_SHARE, FOLLOWS, UNKNOWN, RunFigures, judge

MB = 1_000_000
RUN = RunFigures(round_bytes=50 * MB, round_s=1.0, hold_s=60.0)
"""50 MB in every second: 400 Mbit/s."""


def test_a_joiner_on_a_fast_link_follows_and_nothing_is_told() -> None:
    assert judge(RUN, 150 * MB, [125 * MB]) == FOLLOWS


@pytest.mark.parametrize(
    ("figures", "rates"),
    [
        (UNKNOWN, [1e5]),
        (RunFigures(round_bytes=0, round_s=1.0, hold_s=60.0), [1e5]),
        (RunFigures(round_bytes=50 * MB, round_s=None, hold_s=60.0), [1e5]),
        (RUN, [0.0, 0.0]),
        (RUN, []),
    ],
)
def test_what_is_not_known_speaks_for_the_joiner(figures: RunFigures, rates: list[float]) -> None:
    assert judge(figures, 150 * MB, rates) == FOLLOWS


def test_rounds_wait_where_a_round_takes_its_link_for_longer_than_it_lasts() -> None:
    judged = judge(RUN, 150 * MB, [6.25 * MB])
    assert judged.hold_s == 60.0 and not judged.refusal
    assert "a round moves 50 MB every 1 s, its widest link carries 6.25 MB/s (8 s a round)" in judged.reason
    assert "the state of 150 MB takes about 34 s" in judged.reason


def test_several_links_bring_the_state_together_and_the_widest_carries_the_rounds() -> None:
    alone, together = judge(RUN, 400 * MB, [6.25 * MB]), judge(RUN, 400 * MB, [6.25 * MB, 6.25 * MB])
    assert alone.refusal and together.hold_s == 60.0


def test_a_joiner_whose_state_takes_longer_than_the_run_waits_is_refused_with_the_remedy() -> None:
    judged = judge(RUN, 504 * MB, [6.25 * MB])
    assert not judged.hold_s
    for words in ("504 MB takes about 1.2e+02 s", "for at most 60 s", "accumulate gradients", "join_hold_s"):
        assert words in judged.refusal
    limit = 60.0 * FETCH_SHARE * 6.25 * MB
    assert judge(RUN, int(limit) - MB, [6.25 * MB]).hold_s and judge(RUN, int(limit) + MB, [6.25 * MB]).refusal


def test_rounds_wait_where_each_can_be_followed_but_too_many_would_be_due_before_the_state_is_there() -> None:
    """The link carries each round in half its time; but a state of 4 GB takes so long that more results are due than a
    worker can collect."""
    follows = RunFigures(round_bytes=10 * MB, round_s=0.2, hold_s=1000.0)
    assert judge(follows, 200 * MB, [100 * MB]) == FOLLOWS
    assert judge(follows, 4000 * MB, [100 * MB]).hold_s == 1000.0
