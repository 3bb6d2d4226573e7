"""How fast entries are agreed on and rounds are done here, and so how far ahead a planned change has to begin."""

from __future__ import annotations

from collections import deque

from chaos_protocols.agreement.roster import View
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.smoothing import smoothed

COMMIT_GUESS_S = 0.005
"""Until the first entry has been measured: a round trip in one country, and an fsync."""

COMMITS_TIMED = 5
"""Entries of which the median counts as usual. One that waited for a majority of the voters, an hour say, is not."""

MARGIN_COMMITS = 2.0
"""A planned change is agreed on in so many times the usual time, or the rounds wait for it a little."""

MARGIN_ROUNDS_MAX = 1000

VIEWS_AHEAD_MAX = 32
"""Views that wait for their rounds: the next change begins with the last of them, and takes its place. Half of those
that a roster has room for."""

VIEWS_AHEAD_BYTES_MAX = 512 << 10
"""Nor may they be longer than this together: the next command names them all, and one more."""

SITE_BYTES = 36
"""What a site takes in a view."""

ROUNDS_TIMED_MIN, ROUNDS_TIMED_MAX = 5, 31
"""For the usual round: the first ones load and compile."""


def _size_bytes(view: View) -> int:
    """About: of what grows with the sites."""
    sites = len(view.members) + len(view.listeners) + 2 * sum(len(tree.parent) for tree in view.plan.trees)
    return SITE_BYTES * sites + len(view.plan.reason)


class Pace:
    """Measured by this site over all its terms as scheduler, its rounds also between them: neither depends on who
    leads."""

    def __init__(self) -> None:
        self.commit_s = COMMIT_GUESS_S
        """From the proposal of an entry to its commit, usually: the median of the last ones."""
        self.round_s: float | None = None
        """From one completed round to the next, smoothed; None before the second one."""
        self.round_bytes = 0
        """Of the result of a round; 0: no worker has said it here yet."""
        self._commits_s = deque([COMMIT_GUESS_S], maxlen=COMMITS_TIMED)
        self._done_s: float | None = None
        """When the last one was completed."""
        self._rounds_s: deque[float] = deque(maxlen=ROUNDS_TIMED_MAX)

    @property
    def usual_s(self) -> float | None:
        """The median of the last rounds: one that waited for somebody is none of the usual. None: too few were done."""
        known = sorted(self._rounds_s)
        return known[len(known) // 2] if len(known) >= ROUNDS_TIMED_MIN else None

    def entry_took(self, took_s: float) -> None:
        self._commits_s.append(took_s)
        self.commit_s = sorted(self._commits_s)[(len(self._commits_s) - 1) // 2]

    def round_done(self, now_s: float, round_bytes: int, *, waited: bool) -> None:
        """A round is completed here. `waited`: it waited for a joiner, so that the time says nothing of the pace."""
        if self._done_s is not None and not waited:
            self.round_took(now_s - self._done_s)
        self._done_s, self.round_bytes = now_s, round_bytes

    def round_took(self, took_s: float) -> None:
        self._rounds_s.append(took_s)
        self.round_s = smoothed(self.round_s, took_s)

    def first_round(self, facts: Facts) -> int:
        """From which round on a planned change may begin: not yet contributed to here, not before the views already
        agreed, and far enough ahead that the entry is committed first (spec 6.6)."""
        roster = facts.roster
        runs = roster.started and not any(roster.is_short(view) for view in roster.views[-1:])
        begun = max(facts.done_round, facts.contributed_round) if runs else facts.done_round
        margin = 0
        held = roster.replication is not None and roster.replication.hold_s > 0.0  # rounds wait for that very change
        # Commits that take ever longer, while no round is done.
        crowded = len(roster.views) > VIEWS_AHEAD_MAX or sum(map(_size_bytes, roster.views)) > VIEWS_AHEAD_BYTES_MAX
        if not held and not crowded and runs and self.round_s is not None and self.round_s > 0:
            margin = min(MARGIN_ROUNDS_MAX, int(MARGIN_COMMITS * self.commit_s / self.round_s))
        known = roster.views[-1].first_round if roster.views else 1
        return max(begun + 1 + margin, known, 1)
