"""What repeats itself is told a few times, then once a minute with how often: a history of 100,000 rows must not be
filled by one story, nor may that story hide the others on a page.

Two entries tell the same story if they differ in nothing but numbers, times and durations. What changed who takes part
in the run is always told: each is an answer to "who was in it then?". Where anybody can begin as many stories as he
likes, with made-up names, what is more than some is one story. Asked by `recorder.py`; keeps no time of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from chaosd.storage.history import HistoryRecord

TOLD_EACH = 5
"""So many of one story in a window are told one by one: a site that fails and comes back twice is no repetition."""
WINDOW_S = 60.0
ALWAYS_TOLD = frozenset({"scale-in", "scale-out", "connect-link", "disconnect-link", "restore-point", "rules"})
"""Kinds of which every entry that is `done` is told."""
BEGUN_BY_ANYBODY = frozenset({"scale-out"})
"""Kinds of which whoever may connect, or hands words on, brings any number: requests to join, each in another name."""
BEGUN_MAX = 60
"""Stories of one such kind and outcome that begin in a window; further ones are counted together."""
STORIES_KEPT = 256
"""The one that was heard of longest ago is forgotten first."""
_NUMBERS = re.compile(r"\b\d{1,7}(?:\.\d+)?\b")
"""Rounds, counts, seconds, processes; an id of digits alone is longer, and names a site."""

Key = tuple[str, str, str, str, str]


@dataclass(slots=True)
class _Story:
    """`since_s`: when its window began; `told`: of it in this window; `untold`: left out since the last entry, the
    newest of them in `last`."""

    since_s: float
    told: int = 0
    untold: int = 0
    last: HistoryRecord | None = None


class Repeats:
    """See the module. Times in seconds, of one clock, never going back."""

    def __init__(self) -> None:
        self._stories: dict[Key, _Story] = {}
        self._forgotten: list[_Story] = []
        """Of which some were left out, until the next `due`."""
        self._begun: dict[tuple[str, str], tuple[float, int]] = {}
        """By kind and outcome: since when their present window runs, and how many stories have begun in it."""

    @property
    def counted(self) -> bool:
        """Some were left out that no entry stands for yet."""
        return bool(self._forgotten) or any(story.untold for story in self._stories.values())

    def is_told(self, record: HistoryRecord, now_s: float) -> bool:
        """Whether this one is to be written; if not, it is counted."""
        if record.kind in ALWAYS_TOLD and record.outcome == "done":
            return True
        key = _key(record)
        story = self._stories.pop(key, None)
        if _is_over(story, now_s) and not self._may_begin(record, now_s):
            key = (record.kind, record.outcome, "", "", "")
            story = self._stories.pop(key, None)
        if story is None or _is_over(story, now_s):
            story = _Story(since_s=now_s)
        self._stories[key] = story
        if len(self._stories) > STORIES_KEPT:
            self._forgotten.append(self._stories.pop(next(iter(self._stories))))
        if story.told < TOLD_EACH:
            story.told += 1
            return True
        story.untold += 1
        story.last = record
        return False

    def _may_begin(self, record: HistoryRecord, now_s: float) -> bool:
        """Whether one more story is told by itself."""
        if record.kind not in BEGUN_BY_ANYBODY:
            return True
        which = (record.kind, record.outcome)
        since_s, begun = self._begun.get(which, (now_s, 0))
        if now_s >= since_s + WINDOW_S:
            since_s, begun = now_s, 0
        self._begun[which] = (since_s, begun + 1)
        return begun < BEGUN_MAX

    def due(self, now_s: float, *, everything: bool = False) -> list[HistoryRecord]:
        """One entry for each story of which some were left out, at the end of its window. `everything`: now, since
        nobody asks again."""
        stories = [story for story in self._stories.values() if everything or now_s >= story.since_s + WINDOW_S]
        forgotten, self._forgotten = self._forgotten, []
        return [record for story in (*forgotten, *stories) for record in _summary(story, now_s)]


def _is_over(story: _Story | None, now_s: float) -> bool:
    """Nothing of it was told lately, nor is to be."""
    return story is None or (now_s >= story.since_s + WINDOW_S and not story.untold)


def _summary(story: _Story, now_s: float) -> list[HistoryRecord]:
    """For what was left out; as long as the story goes on, only such entries follow."""
    if story.last is None:
        return []
    times = "once more" if story.untold == 1 else f"{story.untold} times more"
    told = f"{times} in {now_s - story.since_s:.0f} s"
    reason = f"{story.last.reason} ({told})" if story.last.reason else told
    summary = replace(story.last, reason=reason, detail=f'{{"times": {story.untold}}}')
    story.since_s, story.told, story.untold, story.last = now_s, TOLD_EACH, 0, None
    return [summary]


def _key(record: HistoryRecord) -> Key:
    told = (record.kind, record.outcome, record.subject, record.cause, record.reason)
    kind, outcome, *words = told
    subject, cause, reason = (_NUMBERS.sub("#", word) for word in words)
    return kind, outcome, subject, cause, reason
