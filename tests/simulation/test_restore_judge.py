"""What the judge of invariant 10 makes of a state that the run goes back to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.simulator.oracles_restore import RestoreOracle
from tests.simulator.oracles_rounds import Era

from chaos_protocols.wire.plans import CheckpointFacts

FIRST = {number: f"s{number}" for number in range(1, 19)}
LATER = {17: "s17"} | {number: f"t{number}" for number in range(18, 31)}


def disk(number: int, state: str, writing: tuple[int, str] | None = None) -> Any:
    """A file of the first history, and one of the last that is being written."""
    files = {CheckpointFacts(lineage=3, round=number, spec_digest=""): (number, state)}
    made = None if writing is None else (CheckpointFacts(lineage=33, round=writing[0], spec_digest=""), writing)
    return SimpleNamespace(files=files, writing=made, offered=files if made is None else files | dict((made,)))


def judged(
    held: dict[str, tuple[int, str]],
    *,
    chosen: str,
    number: int,
    strangers: tuple[str, ...] = (),
    decided: str = "",
    by: str = "",
    of: int = 0,
    older: dict[int, str] | None = None,
    writing: tuple[int, str] | None = None,
) -> list[str]:
    """The run did 18 rounds, went on from round 17 up to 30, then back to round 2, where it stands; `held`: what each
    site has on its disk; `strangers`: those that are in no roster; `decided`: the operator's word by which the run went
    back, and `of` which history the state was that he chose; `by`: the one that the entry carries; `older`: more states
    of the second history; `writing`: what the chosen site writes just now."""
    first = Era(3, 0, False, None, states=dict(FIRST), newest=18)
    later = Era(15, 17, True, first, states=dict(LATER) | (older or {}), newest=30)
    last = Era(33, 2, True, later, states={2: "s2"})
    nodes: dict[str, Any] = {
        site: SimpleNamespace(
            name=site, site=site, machine=None, worker=None,
            keeper=disk(number, state, writing=writing if site == chosen else None),
        )
        for site, (number, state) in held.items()
    }  # fmt: skip
    broken: list[str] = []
    rounds: Any = SimpleNamespace(eras=[first, later, last])
    oracle = RestoreOracle(lambda _, told: broken.append(told), nodes, rounds)  # type: ignore[arg-type, return-value]
    oracle._decided = 33 if decided else 0
    command: Any = SimpleNamespace(operator=by, round=number, record=SimpleNamespace(site=chosen))
    roster: Any = SimpleNamespace(
        model="m",
        departed=(),
        restored_by=decided,
        restored_lineage=of,
        resolved_round=2,
        record=lambda site: None if site in strangers else site,
        knows=lambda site: site not in strangers,
    )
    oracle.committed(39, command, roster)
    return broken


@pytest.mark.parametrize(
    ("number", "state", "held", "right"),
    [
        (19, "t19", (2, "s2"), True),  # it was made of round 2 (seed 9190795)
        (1, "s1", (2, "s2"), True),  # one round is no loss
        (1, "strange", (3, "s3"), True),  # given up when the run went back to round 2
        (5, "strange", (2, "s2"), False),  # nobody knows what it is made of
    ],
)
def test_a_state_of_a_history_that_was_given_up_is_worth_what_it_shares_with_the_present_one(
    number: int, state: str, held: tuple[int, str], right: bool
) -> None:
    assert (judged({"b": (number, state), "a": held}, chosen="b", number=number) == []) is right


def test_a_state_that_is_being_written_is_offered_though_no_file_has_it_yet() -> None:
    """Beside a file of the same round, of a history that was given up (seed 2045, 7 sites, with operators)."""
    held = {"a": (2, "s2"), "b": (2, "strange")}
    assert judged(held, chosen="b", number=2)
    assert not judged(held, chosen="b", number=2, writing=(2, "s2"))


def test_a_state_of_a_site_that_never_was_in_the_run_is_none_that_it_goes_on_from() -> None:
    (told,) = judged({"a": (2, "s2"), "guest": (2, "s2")}, chosen="guest", number=2, strangers=("guest",))
    assert "the state of guest, which never was in the run" in told


def test_what_an_operator_has_given_up_is_taken_again_on_another_word_alone() -> None:
    held = {"a": (2, "s2"), "b": (19, "t19")}
    (told,) = judged(held, chosen="b", number=19, decided="user-1")
    assert "which the operator of user-1 has given up" in told
    assert judged(held, chosen="b", number=19, decided="user-1", by="user-1") == [told], "his word says the contrary"
    assert not judged(held, chosen="b", number=19, decided="user-1", by="user-2")
    assert not judged(held, chosen="a", number=2, decided="user-1")
    assert not judged({"b": (19, "unknown")}, chosen="b", number=19, decided="user-1"), "of that nobody has decided"


def test_so_is_a_history_that_began_since_the_state_was_made_that_an_operator_chose() -> None:
    """Also where its rounds have lower numbers; what is of the older history as well is none of it."""
    held = {"a": (2, "s2"), "b": (2, "u2")}
    (told,) = judged(held, chosen="b", number=2, decided="user-1", of=3, older={2: "u2"})
    assert "which the operator of user-1 has given up" in told
    assert not judged(held, chosen="b", number=2, decided="user-1", of=0, older={2: "u2"}), "he did not say of which"
    assert not judged(held, chosen="a", number=2, decided="user-1", of=3, older={2: "s2"})


def test_the_state_of_the_round_from_which_the_run_goes_on_is_the_one_that_was_taken() -> None:
    """Whether or not anybody has loaded it: what a site has of that round from before is none of the run's any more
    (seed 1099, 3 sites, with operators)."""
    former = Era(3, 0, True, None, states={5: "s5", 9: "s9"}, newest=9)
    nodes: dict[str, Any] = {
        site: SimpleNamespace(
            name=site, site=site, machine=None, worker=None,
            keeper=disk(number, state),
        )
        for site, number, state in (("a", 5, "t5"), ("b", 5, "s5"), ("c", 2, "t2"))
    }  # fmt: skip
    broken: list[str] = []
    rounds: Any = SimpleNamespace(eras=[former])
    oracle = RestoreOracle(lambda _, told: broken.append(told), nodes, rounds)  # type: ignore[arg-type, return-value]
    roster: Any = SimpleNamespace(
        model="m", departed=(), restored_by="", restored_lineage=0, resolved_round=9,
        record=lambda site: site, knows=lambda _: True,
    )  # fmt: skip

    def goes_on(index: int, site: str, number: int, by: str) -> list[str]:
        command: Any = SimpleNamespace(operator=by, round=number, record=SimpleNamespace(site=site))
        oracle.committed(index, command, roster)
        rounds.eras.append(Era(index, number, True, rounds.eras[-1]))
        roster.resolved_round, roster.restored_by = number, by
        return broken

    assert not goes_on(20, "a", 5, "user-1") and not goes_on(30, "a", 5, "user-1"), "b has another one of that round"
    assert "a has the state of round 5" in goes_on(40, "c", 2, "user-1")[0]
