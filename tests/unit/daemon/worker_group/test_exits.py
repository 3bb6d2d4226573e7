"""What the last word of a training says of processes that ended by themselves."""

from __future__ import annotations

import pytest
from tests.unit.protocols.worker_group.group_bench import hello

from chaos_protocols.worker_group.messages import Done, EndsItself, Stepped
from chaosd.worker_group.exits import FAILED, LEFT, NO_STEP, Exits

WELL = "its process ended with exit code 0"
LANE = f"its process ended with exit code 75, after process 1 of its device group: {WELL}"


def of_one(how: str, *, greeted: bool, through: bool = False, lost: bool = True) -> str:
    exits = Exits()
    if greeted:
        exits.heard(3, hello(3))
    if through:
        exits.heard(3, Done(step=2))
    if lost:
        exits.lost(3)
    exits.ended(3, how)
    return exits.explained("layers are lost")


@pytest.mark.parametrize("how", [WELL, LANE])
def test_who_ends_well_in_the_middle_is_named_with_what_a_script_may_not_do(how: str) -> None:
    assert of_one(how, greeted=True) == f"layers are lost. Worker 3: {how}; {LEFT}"


@pytest.mark.parametrize(
    ("how", "hint"),
    [
        (WELL, NO_STEP),
        (LANE, NO_STEP),
        ("its process ended with exit code 10", FAILED),
        ("its process was ended by SIGKILL", ""),
    ],
)
def test_who_ends_before_its_first_step_has_made_none_or_has_said_why(how: str, hint: str) -> None:
    assert of_one(how, greeted=False) == "layers are lost" + f". {hint}" * bool(hint)


@pytest.mark.parametrize(
    ("how", "more"),
    [
        (WELL, {"through": True}),
        (WELL, {"lost": False}),
        ("its process ended with exit code 10", {}),
        ("its process was ended by SIGKILL", {}),
    ],
)
def test_of_others_nothing_is_said(how: str, more: dict[str, bool]) -> None:
    assert of_one(how, greeted=True, **more) == "layers are lost"


def test_what_could_not_be_mended_in_the_worker_that_was_lost_last_is_told_until_others_make_a_step() -> None:
    """That no worker is left names a remedy that does not help here."""
    exits = Exits()
    for worker, text in ((1, "no memory"), (2, "no files")):
        exits.heard(worker, hello(worker))
        exits.heard(worker, EndsItself(text=text, device=False))
        exits.lost(worker)
        exits.ended(worker, "its process ended with exit code 71")
    exits.lost(1)  # its process has ended, too
    assert exits.explained("layers are lost") == "layers are lost. Worker 2 was lost last: no files"
    exits.heard(3, Stepped(generation=2, step=5, digests=(), seconds={}))
    assert exits.explained("layers are lost") == "layers are lost"
