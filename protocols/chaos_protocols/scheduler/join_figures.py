"""Whether a site can follow the run while it fetches the state, and what is done where it cannot (spec 8.13).

A joiner behind a link that is slower than a round's bytes over a round's time never catches up: what it is sent of the
rounds takes the link, and the state that it fetches grows old. So the figures are compared before anything moves: it
follows by itself; or the rounds wait for it, for a bounded time that is agreed with its transfer; or it is refused,
with the figures and what to do. Pure; used when the command is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chaos_protocols.state.result_log import results_max

FOLLOW_SHARE = 0.75
"""Of a link the rounds may take so much while a state comes over it: averaging gives the rest way."""
FETCH_SHARE = 0.7
"""Of its measured rate a link delivers so much of a state: probes are short, and headers and repeats cost."""
BACKLOG_SHARE = 0.5
"""Of the results that a joiner can collect so many may be due before it has the state; more would be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """What a run asks of a link. `round_bytes`: of one result, 0: not known; `round_s`: from one round to the next,
    None: not known; `hold_s`: so long the run waits for a joiner at most."""

    round_bytes: int = 0
    round_s: float | None = None
    hold_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """`hold_s`: the rounds wait for it so long at most, 0: they need not; `refusal`: why it is not let in, "": it is;
    `reason`: the figures, "" where there is nothing to tell."""

    hold_s: float = 0.0
    refusal: str = ""
    reason: str = ""


FOLLOWS = Judgement()
UNKNOWN = RunFigures()
"""Nothing is known: everybody follows."""


def judge(figures: RunFigures, state_bytes: int, rates_bytes_per_s: Iterable[float]) -> Judgement:
    """`rates_bytes_per_s`: of the links over which the site gets the state; those that are 0 were not measured."""
    rates = [rate for rate in rates_bytes_per_s if rate > 0.0]
    round_s = figures.round_s
    if not rates or not figures.round_bytes or not round_s or _follows(figures, round_s, state_bytes, rates):
        return FOLLOWS
    on_link_s = figures.round_bytes / max(rates)
    fetch_s = state_bytes / (FETCH_SHARE * sum(rates))
    told = (
        f"a round moves {_size(figures.round_bytes)} every {round_s:.2g} s, its widest link carries "
        f"{_size(max(rates))}/s ({on_link_s:.2g} s a round); the state of {_size(state_bytes)} takes about "
        f"{fetch_s:.2g} s"
    )
    if fetch_s > figures.hold_s:
        return Judgement(
            refusal=f"its links are too slow to follow this run: {told}, and the run waits for a joiner for at most "
            f"{figures.hold_s:g} s. Give it a faster link, call step() less often at all sites (accumulate gradients), "
            "or raise join_hold_s at all sites"
        )
    return Judgement(hold_s=figures.hold_s, reason=told)


def _follows(figures: RunFigures, round_s: float, state_bytes: int, rates: list[float]) -> bool:
    """The rounds leave enough of its links for the state, and not too many of them are done before it is there."""
    if figures.round_bytes / max(rates) > FOLLOW_SHARE * round_s:
        return False
    left = sum(rates) - figures.round_bytes / round_s
    return state_bytes / (FETCH_SHARE * left) / round_s <= BACKLOG_SHARE * results_max(figures.round_bytes)


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.3g} MB"
