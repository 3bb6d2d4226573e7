"""What the oracle of invariant 11 takes for the effect of a guest's word, and what not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.simulator import guests
from tests.simulator.violation import Violation

from chaos_protocols import events

WORD = SimpleNamespace(envelope=SimpleNamespace(event_id=guests.LIE, source="00guest", message=object()))


class _Site:
    """Has `left` things to do, one an event, whatever the event is; a word of a guest does `harm` beside."""

    def __init__(self, left: int, harm: int) -> None:
        self.left, self.harm, self.harmed = left, harm, 0
        self.site, self.name, self.stopped, self._generation = "05e", "e", False, 0
        self.machine = object()
        self.world = SimpleNamespace(oracles=SimpleNamespace(fail=self._fail))

    def handle(self, event: Any) -> None:
        self.left = max(0, self.left - 1)
        self.harmed += 0 if isinstance(event, events.LinkProgressed) else self.harm

    def _fail(self, invariant: int, text: str) -> None:
        raise Violation(invariant, text, "here", [])


@pytest.fixture(autouse=True)
def _what_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "believed", lambda node, _: (node.left, node.harmed))
    monkeypatch.setattr(guests, "_is_bounded", lambda *_: None)


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_what_a_site_does_at_any_event_is_not_laid_at_the_door_of_a_guests_word(left: int) -> None:
    site: Any = _Site(left, harm=0)
    guests.hear(site, WORD)
    assert site.left == 0


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_a_word_that_changes_something_is_seen_beside_that(left: int) -> None:
    site: Any = _Site(left, harm=1)
    with pytest.raises(Violation, match="invariant 11"):
        guests.hear(site, WORD)
