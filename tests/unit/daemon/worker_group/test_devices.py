"""Which device a worker gets: what a child process finds, a device a worker, and what is said of too few."""

from __future__ import annotations

import sys

import pytest

from chaosd.worker_group.devices import PROBE, NoDevice, Placement, Probed, place, probe


def four(kind: str) -> Probed:
    return Probed(names=("Card",) * 4) if kind == "cuda" else Probed(found="torch sees no npu device")


def nobody(kind: str) -> Probed:
    raise AssertionError("nobody is to be asked")


def test_a_machine_without_a_driver_is_asked_nothing_and_computes_on_its_cpu() -> None:
    placement, said = place("auto", 3, driver=lambda kind: False, ask=nobody)
    assert ([placement.take(worker) for worker in range(3)], said) == (["cpu"] * 3, "")


def test_each_worker_has_an_accelerator_of_its_own_where_there_are_enough() -> None:
    placement, said = place("auto", 4, driver=lambda kind: True, ask=four)
    assert [placement.take(worker) for worker in range(4)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert said == "workers compute on 4 cuda devices (Card): each worker has one of its own"


def test_too_few_accelerators_mean_the_cpu_and_one_line_that_says_why() -> None:
    placement, said = place("auto", 5, driver=lambda kind: True, ask=four)
    assert placement.take(0) == "cpu"
    assert said.startswith("workers compute on the CPU: 4 cuda devices (Card) for 5 processes (--share-devices")
    assert "torch sees no npu device" in said


def test_who_asks_for_more_than_there_is_gets_a_sentence_with_the_remedy() -> None:
    with pytest.raises(NoDevice, match=r"5 processes .* and 4 cuda devices .* --share-devices, or say --device cpu"):
        place("cuda", 5, ask=four)
    with pytest.raises(NoDevice, match="torch sees no npu device; say --device cpu"):
        place("npu", 1, ask=four)
    with pytest.raises(NoDevice, match="device groups compute on CPUs as yet"):
        place("cuda", 4, group_size=2, ask=four)
    with pytest.raises(NoDevice, match="allowed: auto, cpu, cuda, npu"):
        place("tpu", 1, ask=four)


def test_only_who_asks_for_it_shares_devices_evenly() -> None:
    placement, _ = place("cuda", 6, share=True, ask=four)
    taken = [placement.take(worker) for worker in range(6)]
    assert taken == ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:0", "cuda:1"]


def test_a_spare_waits_for_a_free_device_and_gets_a_failed_one_last() -> None:
    placement = Placement(["cuda:0", "cuda:1", "cuda:2"], shared=False)
    assert [placement.take(worker) for worker in range(4)] == ["cuda:0", "cuda:1", "cuda:2", None]
    placement.has_failed(0)
    placement.release(0)
    placement.release(2)
    assert placement.take(4) == "cuda:2", "cuda:0 has failed"
    assert placement.take(5) == "cuda:0", "the only one that is free"
    assert placement.environment(1)["CHAOS_DEVICE"] == "cuda:1"


def test_a_library_that_crashes_or_hangs_takes_only_the_child_along() -> None:
    crashes = (sys.executable, "-c", "import os; os.abort()")
    assert "ended by signal 6" in probe("npu", command=crashes).found
    hangs = (sys.executable, "-c", "import time; time.sleep(60)")
    assert probe("npu", command=hangs, limit_s=0.2).found == "asking for npu devices took longer than 0.2 s"
    raises = (sys.executable, "-c", "raise ImportError('libascendcl.so: cannot open')")
    assert probe("npu", command=raises).found.endswith("ImportError: libascendcl.so: cannot open")
    talks = (sys.executable, "-c", "print('hello')")
    assert probe("cuda", command=talks).found == "asking for cuda devices gave no answer"


def test_the_real_question_is_answered_on_this_machine() -> None:
    found = probe("cuda", command=(sys.executable, "-c", PROBE))
    assert bool(found.names) != bool(found.found)
