"""What a site knows of where others stand: the newest word, never younger than it is, handed on in bounded portions."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.one_site import Bench, heartbeat, roster_of

from chaos_protocols.links.steps import FORGOTTEN_AFTER_S, TOLD_AFTER_S, Steps
from chaos_protocols.names import SITES_MAX, SiteId
from chaos_protocols.wire.control import Heartbeat
from chaos_protocols.wire.steps import STEPS_TOLD_MAX, SiteStep

A, B, C, D = (SiteId(letter * 32) for letter in "abcd")


def beat(sequence: int, round: int, *others: SiteStep) -> Heartbeat:
    return msgspec.structs.replace(heartbeat(round=round), sequence=sequence, others=others)


def word(site: SiteId, sequence: int, round: int, *, age_s: float = 0.0, incarnation: int = 1) -> SiteStep:
    return SiteStep(
        site=site, incarnation=incarnation, sequence=sequence, round=round, phase="compute", age_s=age_s
    )  # fmt: skip


def round_of(steps: Steps, site: SiteId) -> int | None:
    known = steps.of(site)
    return known.round if known is not None else None


def test_a_neighbour_is_known_by_its_own_beats_and_others_by_what_it_hands_on() -> None:
    steps = Steps(A)
    assert steps.of(B) is None
    steps.heard(B, 1, beat(5, 7, word(C, 3, 6, age_s=0.5), word(A, 1, 99)), now_s=10.0)
    assert (round_of(steps, B), round_of(steps, C), steps.of(A)) == (7, 6, None)
    known = steps.of(C)
    assert known is not None and known.at_s == 9.5 and not known.direct


def test_what_an_encoding_lost_at_a_site_is_handed_on_with_its_step() -> None:
    steps = Steps(A)
    lossy = msgspec.structs.replace(beat(5, 7), encoding_error=0.25)
    steps.heard(B, 1, msgspec.structs.replace(lossy, others=(word(C, 3, 6),)), now_s=10.0)
    assert [(one.site, one.encoding_error) for one in steps.told((B, C), now_s=10.0)] == [(B, 0.25), (C, None)]
    other = Steps(D)
    handed_on = steps.told((B, C), now_s=11.0)
    other.heard(A, 1, beat(1, 7, *handed_on), now_s=11.0)
    known = other.of(B)
    assert known is not None and known.encoding_error == 0.25 and not known.direct


def test_an_old_word_that_comes_round_is_no_news_and_makes_nothing_younger() -> None:
    steps = Steps(A)
    steps.heard(B, 1, beat(5, 7, word(C, 3, 6, age_s=2.0)), now_s=10.0)
    steps.heard(D, 1, beat(5, 7, word(C, 3, 6, age_s=0.0), word(B, 4, 1)), now_s=11.0)
    known = steps.of(C)
    assert known is not None and known.at_s == 8.0 and round_of(steps, B) == 7
    steps.heard(D, 1, beat(6, 7, word(C, 1, 2, incarnation=2)), now_s=11.5)
    assert round_of(steps, C) == 2, "another start of its daemon counts its beats anew"


def test_what_a_site_says_itself_overrules_what_others_say_of_it() -> None:
    steps = Steps(A)
    steps.heard(B, 1, beat(5, 7, word(C, 1 << 40, 999, incarnation=9)), now_s=10.0)
    steps.heard(C, 1, beat(3, 6), now_s=10.1)
    assert round_of(steps, C) == 6


def test_others_are_told_the_newest_first_with_their_age_and_not_at_every_beat() -> None:
    steps = Steps(A)
    steps.heard(B, 1, beat(5, 7), now_s=10.0)
    steps.heard(C, 1, beat(8, 6), now_s=10.25)
    told = steps.told((A, B, C, D), now_s=10.5)
    assert [(one.site, one.round, one.age_s) for one in told] == [(C, 6, 0.25), (B, 7, 0.5)]
    assert steps.told((B, C), now_s=10.5 + TOLD_AFTER_S / 2) == ()
    assert [one.site for one in steps.told((B,), now_s=10.5 + TOLD_AFTER_S)] == [B], "of the roster's sites only"
    assert [one.site for one in steps.told((B, C), now_s=10.1 + FORGOTTEN_AFTER_S)] == [C], "B was silent for too long"


def test_what_is_told_and_what_is_remembered_is_bounded() -> None:
    steps = Steps(A)
    sites = tuple(SiteId(f"{number:032d}") for number in range(SITES_MAX + 10))
    for number in range(0, len(sites), 100):
        steps.heard(B, 1, beat(number, 0, *(word(site, 1, 1) for site in sites[number : number + 100])), now_s=1.0)
    assert len(steps.told(sites, now_s=2.0)) == STEPS_TOLD_MAX
    assert steps.of(sites[-1]) is None


@pytest.mark.parametrize("was_in_run", [True, False])
def test_sites_that_a_member_makes_up_leave_room_for_true_ones(was_in_run: bool) -> None:
    """An operator would have been let recover the run at a site that is behind: where others stand was not heard."""
    bench = Bench(B, roster_of(A, B, C, D) if was_in_run else None, peers=() if was_in_run else (C,)).up(C)
    made_up = [SiteId(f"{number:032d}") for number in range(SITES_MAX + STEPS_TOLD_MAX)]
    for number in range(0, len(made_up), STEPS_TOLD_MAX):
        others = tuple(word(site, 1, 1) for site in made_up[number : number + STEPS_TOLD_MAX])
        bench.hear(C, beat(number + 1, 1, *others))
    bench.up(A)
    bench.hear(A, beat(1, 7, word(D, 1, 6)))
    steps = bench.machine.network.steps
    assert round_of(steps, A) == 7, "its own word"
    assert round_of(steps, D) == (6 if was_in_run else None), "a newcomer does not know who is of the run"
