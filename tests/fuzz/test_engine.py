"""The fuzzer itself: it is led by what is new, finds a crash behind three doors, and is the same run for one seed."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from tests.fuzz.engine import Crash, Search, Target, Watch, play, shape
from tests.fuzz.mutate import Form, mutate

HERE = Path(__file__).parent


def doors(data: bytes) -> str:
    """Three doors, one behind the other; each alone is opened by one change in a few hundred."""
    if data[:1] != b"\xff":
        return "outside"
    if data[1:2] != b"\x80":
        return "in the hall"
    if data[2:3] != b"\x7f":
        return "on the stairs"
    if data[3:4] == b"\xc0":
        raise KeyError("behind the last door")
    return "upstairs"


TARGET = Target(name="doors", run=doors, refusals=(ValueError,), seeds=lambda: [b"...."])


def search(seed: int, tries: int) -> Search:
    found = Search(target=TARGET, watch=Watch((HERE,)), rng=random.Random(seed))
    found.begin(TARGET.seeds())
    for _ in range(tries):
        found.step()
    return found


def test_what_is_new_leads_the_search_to_the_crash() -> None:
    found = search(1, 20_000)
    (crash,) = found.crashes.values()
    assert crash.data[:4] == b"\xff\x80\x7f\xc0" and isinstance(crash.error, KeyError)
    assert len(found.kept) >= 4


def test_without_a_guide_the_crash_is_not_found() -> None:
    rng = random.Random(1)
    for _ in range(20_000):
        play(TARGET, mutate(TARGET, b"....", rng, b"...."))


def test_one_seed_is_one_search() -> None:
    one, again, other = search(3, 3000), search(3, 3000), search(4, 3000)
    assert (one.kept, one.tries) == (again.kept, again.tries)
    assert one.tries != other.tries  # shortening what is new takes as many tries as it takes


def test_a_declared_refusal_is_no_crash_and_any_other_error_is() -> None:
    def refuse(data: bytes) -> str:
        raise ValueError("no") if data else OSError("disk")

    target = Target(name="x", run=refuse, refusals=(ValueError,), seeds=lambda: [b""])
    assert play(target, b"1") == "refuses: ValueError: no"
    with pytest.raises(Crash, match="disk"):
        play(target, b"")


def test_answers_that_differ_in_numbers_and_names_have_one_shape() -> None:
    assert shape("site 'a' sent 17 bytes") == shape("site 'bc' sent 4 bytes")
    assert shape("not an int - at `$.round`") == shape("not an int - at `$.sites[3]`") != shape("not a text")


def test_a_change_of_msgpack_is_mostly_msgpack_again() -> None:
    target = Target(name="x", run=doors, refusals=(), seeds=list, form=Form.MSGPACK, prefix=1)
    rng = random.Random(5)
    data = b"\x07" + msgspec.msgpack.encode({"round": 3, "sites": ["a", "b"], "weight": 1.5})
    readable = 0
    for _ in range(500):
        changed = mutate(target, data, rng, data)
        assert changed[:1]
        try:
            msgspec.msgpack.decode(changed[1:])
            readable += 1
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    assert readable > 150
