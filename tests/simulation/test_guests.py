"""What the oracle of invariant 11 takes for the effect of a guest's word, and what not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.simulator import guests
from tests.simulator.faults import Trial, run_trial
from tests.simulator.lies import LIE, MADE_UP
from tests.simulator.oracles_boundary import NEGOTIATIONS, PENDING
from tests.simulator.violation import Violation
from tests.simulator.world import World

from chaos_protocols import events
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import Envelope, Goodbye, LinkStateAdvertisement
from chaos_protocols.wire.versions import NEWEST

WORD = SimpleNamespace(envelope=SimpleNamespace(event_id=LIE, source="00guest", message=object()))


class _Site:
    """Leads, and has `left` things to do, one an event, whatever the event is; a word of a guest does `harm` beside."""

    def __init__(self, left: int, harm: int) -> None:
        self.left, self.harm, self.harmed = left, harm, 0
        self.site, self.name, self.stopped, self._generation = "05e", "e", False, 0
        self.machine: Any = SimpleNamespace(scheduler=SimpleNamespace(leading=True))
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


@pytest.mark.parametrize("waits_for_its_turn", [False, True])
@pytest.mark.parametrize("way_is_left", [False, True])
def test_a_joiner_to_whom_the_only_way_was_a_guests_own_link_is_lost_with_that(
    monkeypatch: pytest.MonkeyPatch, way_is_left: bool, waits_for_its_turn: bool
) -> None:
    """Seed 930433, 3 sites: what was negotiated with it ended, as the guest said that its link to it is down; and in
    2100639, 5 sites, what of that waited for its turn in the agreement."""
    site: Any = _Site(0, harm=1)
    joiner, roster = SiteId("02b"), SimpleNamespace(record=lambda _: None)
    ways = lambda: {joiner} if way_is_left or not site.harmed else set()  # noqa: E731
    running = {"join": SimpleNamespace(joiner=joiner), "leave": SimpleNamespace()}
    site.machine = SimpleNamespace(
        reachable=ways, roster=roster, scheduler=SimpleNamespace(negotiations=running, leading=True)
    )

    def belief(*_: Any) -> tuple[Any, ...]:
        left = [one for one in running if one != "join" or not site.harmed]
        between = (None,) * (PENDING - NEGOTIATIONS - 1)
        waits = frozenset(left if waits_for_its_turn else ())
        return (*(None,) * NEGOTIATIONS, dict.fromkeys(left, ""), *between, (waits, True))

    monkeypatch.setattr(guests, "believed", belief)
    down = LinkStateAdvertisement(neighbour=joiner, incarnation=1, up=False, rtt_s=0.0, rate_bytes_per_s=0.0, reason="")
    word = SimpleNamespace(envelope=SimpleNamespace(event_id=LIE, source="00guest", message=down))
    if way_is_left:
        with pytest.raises(Violation, match="invariant 11"):
            guests.hear(site, word)
    else:
        guests.hear(site, word)


def test_a_word_that_comes_while_a_site_stands_still_is_judged_when_it_is_read() -> None:
    site: Any = _Site(0, harm=1)
    site.stopped, site.mailbox = True, []
    guests.hear(site, WORD)
    assert site.harmed == 0
    site.stopped = False
    (read,) = site.mailbox
    with pytest.raises(Violation, match="invariant 11"):
        read()


@pytest.mark.parametrize("lie", sorted(MADE_UP))
def test_what_a_daemon_says_because_of_a_lie_is_none_and_what_it_hands_on_still_is(lie: str) -> None:
    world, sent = World(1), []
    node = world.add("b", founder=True, peers=())
    node.connections["03c"] = object()
    world.network = SimpleNamespace(send=lambda *word: sent.append(word[-1].event_id))  # type: ignore[assignment]
    answer = envelope(lie, source=node.site)
    world.says(node, "03c", answer)
    world.says(node, "03c", msgspec.structs.replace(answer, source=SiteId("01a"), hops=1))
    assert sent[0] not in MADE_UP
    assert sent[1] == lie


def envelope(event_id: str, *, source: str) -> Envelope:
    return Envelope(
        version=NEWEST,
        source=SiteId(source),
        destination=SiteId("03c"),
        incarnation=1,
        sequence=1,
        epoch=1,
        event_id=event_id,
        hops=0,
        public_key=b"",
        signature=b"",
        message=Goodbye(reason="so it says"),
    )


def test_a_claim_that_was_lost_on_its_way_is_no_old_one_when_it_comes() -> None:
    """It was taken for one that had come before, and asking for its proof was an act on an old word."""
    run_trial(Trial(seed=9459973, sites=3))
