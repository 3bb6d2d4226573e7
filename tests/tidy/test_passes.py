"""What `make passes` counts and what it does not; the processes that it measures are not started here."""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from tests.tidy.passes import earliest, files_in_order, mean_entries, until
from tests.tidy.passes_hook import Profiler
from tests.tidy.passes_watch import GradientWatch, RequestWatch, arguments, told_of, with_elements

from chaos_protocols.agreement.roster import ModelFacts
from chaos_protocols.wire.control import JoinRequest
from chaos_protocols.wire.plans import Tag

STATE, DRIVER, ELSEWHERE = 0.5, "chaosd/chaosd/driver.py", "chaosd/chaosd/metrics.py"
KEY, SITE = b"k" * 32, "5" * 32


def full_of(number: float) -> bytes:
    return struct.pack("<f", number) * 2048


def frame_of(given: Any = None, other: Any = None) -> FrameType:
    return sys._getframe()


@dataclass
class Held:
    """Stands for a class of the packages: below, it says that it is of one of their modules."""

    what: Any
    other: Any = None


@dataclass
class Reduced:
    tag: Tag


Held.__module__ = Reduced.__module__ = "chaosd.made_up"


def test_arguments_of_every_kind_are_looked_at_and_local_variables_are_not() -> None:
    def called(first: int, *rest: int, named: int, **more: int) -> FrameType:
        local = first + named
        assert local
        return sys._getframe()

    assert arguments(called(1, 2, named=3, further=4)) == [1, 3, (2,), {"further": 4}]


def test_a_buffer_says_what_it_holds() -> None:
    assert told_of(full_of(2.0), STATE) == "2"
    assert told_of(memoryview(bytearray(full_of(1.5))), STATE) == "1.5"
    assert told_of(full_of(1.0) + full_of(2.0), STATE) == "mixed"
    assert told_of(full_of(STATE), STATE) is None
    assert told_of(full_of(7.0) + full_of(STATE), STATE) is None
    assert told_of(full_of(0.0), STATE) is None
    assert told_of(full_of(2.0)[:4000], STATE) is None
    assert told_of("no buffer" * 1000, STATE) is None


def test_one_level_deep_is_seen_and_two_are_not() -> None:
    data = full_of(2.0)
    assert data in list(with_elements([Held(data)]))
    assert data in list(with_elements([[data]]))
    assert data in list(with_elements([{"layer": data}]))
    assert data not in list(with_elements([Held(Held(data))]))


def test_a_file_is_passed_by_what_a_function_is_called_with_or_returns() -> None:
    watch = GradientWatch(state=STATE, driver=DRIVER, files=True)
    watch.look("called.py", frame_of(Held(full_of(1.0))), "call", None, lambda code: "")
    assert [(file, told) for _, file, _, told in watch.found()["passed"]] == [("called.py", "1")]
    other = GradientWatch(state=STATE, driver=DRIVER, files=True)
    other.look("returned.py", frame_of(), "return", full_of(1.5), lambda code: "")
    other.look("untouched.py", frame_of(full_of(STATE)), "call", None, lambda code: "")
    assert [file for _, file, _, _ in other.found()["passed"]] == ["returned.py"]


def driven(event: Any, caller: str) -> GradientWatch:
    """The driver's `feed`, called with an event from a function of that file."""
    watch = GradientWatch(state=STATE, driver=DRIVER, files=False)

    def feed(self: object, event: object) -> None:
        frame = sys._getframe()
        files: dict[CodeType, str] = {frame.f_back.f_code if frame.f_back else frame.f_code: caller}
        watch.look(DRIVER, frame, "call", None, lambda code: files[code])
        watch.look(DRIVER, frame, "return", None, lambda code: files[code])

    feed(None, event)
    return watch


def test_an_entry_of_the_driver_is_a_call_from_elsewhere_with_an_event_of_a_round() -> None:
    event = Reduced(Tag(epoch=1, round=7))
    assert driven(event, ELSEWHERE).found()["entries"] == {7: {"feed Reduced": 1}}
    assert driven(event, DRIVER).found()["entries"] == {}
    timer = driven(Held("a timer"), ELSEWHERE).found()
    assert (timer["entries"], timer["others"]) == ({}, {"feed Held": 1})


def test_the_first_and_the_last_round_are_left_out_of_the_mean() -> None:
    entries = {"9": {"a": 9}, "10": {"a": 1, "b": 1}, "11": {"a": 2}, "12": {"b": 9}}
    assert mean_entries(entries) == {"a": 1.5, "b": 0.5}


def test_files_stand_in_the_order_in_which_they_are_passed_first() -> None:
    passed = [[2.0, "b.py", "late", "1"], [1.0, "a.py", "f", "2"], [0.5, "b.py", "g", "1"]]
    assert files_in_order(passed) == {"b.py": "g (1)", "a.py": "f (2)"}


def request() -> JoinRequest:
    model = ModelFacts(spec_digest="d", state_bytes=1, shard_bytes=1)
    return JoinRequest(
        name="second", address="a:1", public_key=KEY, incarnation=1, neighbours=(), model=model, worker_round=0
    )


def test_a_form_holds_the_request_and_was_not_there_before() -> None:
    watch, asked = RequestWatch(name="second", key=KEY, site=SITE), request()
    part = Held("a part of the daemon")
    watch.look("early.py", frame_of(part), "call", None, lambda code: "")
    watch.look("asked.py", frame_of(asked), "call", None, lambda code: "")
    part.what = Held(asked)
    watch.look("part.py", frame_of(part), "call", None, lambda code: "")
    watch.look("sent.py", frame_of(b"frame: second " + KEY), "call", None, lambda code: "")
    found = watch.found()
    assert [file for _, file, _, _ in found["passed"]] == ["asked.py", "part.py", "sent.py"]
    assert {kind: where[2] for kind, where in found["forms"].items()} == {
        "JoinRequest": "name and key",
        "Held": "JoinRequest",
    }


def test_who_only_names_the_newcomer_is_no_form() -> None:
    watch, asked = RequestWatch(name="second", key=KEY, site=SITE), request()
    watch.look("asked.py", frame_of(asked), "call", None, lambda code: "")
    watch.look("ordered.py", frame_of(Held(SITE), asked), "call", None, lambda code: "")
    found = watch.found()
    assert list(found["forms"]) == ["JoinRequest"]
    assert list(found["naming"]) == ["Held"]


def test_what_comes_after_the_arrival_does_not_count() -> None:
    found = {
        "passed": [[1.0, "a.py", "f", ""], [3.0, "b.py", "f", ""]],
        "forms": {"A": [1.0], "B": [3.0]},
        "naming": {},
    }
    assert until(found, 2.0) == {"passed": [[1.0, "a.py", "f", ""]], "forms": {"A": [1.0]}, "naming": {}}
    assert list(earliest([{"A": [3.0], "B": [2.0]}, {"A": [1.0]}])) == ["A", "B"]


def test_only_functions_of_the_packages_are_looked_at() -> None:
    profiler = Profiler("/checkout", ["chaosd/chaosd"])
    inside = compile("pass", "/checkout/chaosd/chaosd/driver.py", "exec")
    outside = compile("pass", "/checkout/chaosd/chaosd_further/driver.py", "exec")
    assert (profiler.file_of(inside), profiler.file_of(outside)) == (DRIVER, "")
