"""Who stands still: a worker that computes too long, or one that waits and whose process does not run."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from chaos_protocols.worker_group.suspicion import (
    FIRST_LIMIT_S,
    IN_VAIN_S,
    READ_INTERVAL_MAX_S,
    READ_INTERVAL_S,
    TELL_AGAIN_S,
    Reading,
    Suspicion,
    Work,
    next_interval_s,
)
from chaos_protocols.worker_group.words import SLOT_BYTES, read_slot, write_beat, write_doing

TIMEOUT_S = 1.0


def progress(count: int, work: Work, beat: int = 0, peer: int = -1) -> Reading:
    return Reading(count=count, work=work, peer=peer, beat=beat)


def watch(suspicion: Suspicion, seconds: float, at_s: float, make: object, tick_s: float = 0.05) -> list[str]:
    found = []
    for index in range(round(seconds / tick_s)):
        now_s = at_s + (index + 1) * tick_s
        found += [f"{s.worker}: {s.reason}" for s in suspicion.observe(now_s, make(index))]  # type: ignore[operator]
    return found


def test_work_may_take_four_times_as_long_as_the_longest_of_its_kind() -> None:
    suspicion = Suspicion(TIMEOUT_S)
    watch(suspicion, 2.0, 0.0, lambda i: {0: progress(i // 10, Work.FORWARD)})  # half a second each
    assert suspicion.limit_s(Work.FORWARD) == pytest.approx(2.0, abs=0.3)
    assert watch(suspicion, 1.5, 2.0, lambda i: {0: progress(9, Work.FORWARD)}) == []
    found = watch(suspicion, 2.0, 3.5, lambda i: {0: progress(9, Work.FORWARD)})
    assert len(found) == 1 and "no progress in forward" in found[0], "told once"


def test_who_goes_on_standing_still_is_named_again_with_the_time_and_who_has_moved_is_named_anew() -> None:
    suspicion, found, now_s = Suspicion(TIMEOUT_S), [], 0.0
    for index in range(500):
        now_s += READ_INTERVAL_S
        beat = 1 if index < 350 else index if index < 400 else 400
        found += [(now_s, s.over_s) for s in suspicion.observe(now_s, {0: progress(1, Work.WAITING, beat=beat)})]
    first_s = TIMEOUT_S + 2 * READ_INTERVAL_S
    again_s = [first_s, first_s + TELL_AGAIN_S, first_s + 2 * TELL_AGAIN_S, first_s + 3 * TELL_AGAIN_S]
    assert [at_s for at_s, _ in found[:4]] == pytest.approx(again_s, abs=2 * READ_INTERVAL_S)
    assert [over_s for _, over_s in found[:4]] == pytest.approx([0.05, 5.05, 10.05, 15.05], abs=2 * READ_INTERVAL_S)
    assert [at_s for at_s, _ in found[4:]] == pytest.approx([400 * READ_INTERVAL_S + TIMEOUT_S], abs=0.2)


def test_before_a_first_measurement_and_in_the_scripts_own_code_there_is_time() -> None:
    suspicion = Suspicion(TIMEOUT_S)
    assert suspicion.limit_s(Work.BACKWARD) == FIRST_LIMIT_S
    watch(suspicion, 1.0, 0.0, lambda i: {0: progress(i, Work.OUTSIDE)})
    assert suspicion.limit_s(Work.OUTSIDE) == FIRST_LIMIT_S


def test_a_worker_may_wait_for_ever_as_long_as_its_process_runs() -> None:
    suspicion = Suspicion(TIMEOUT_S)
    assert watch(suspicion, 30.0, 0.0, lambda i: {0: progress(1, Work.WAITING, beat=i // 2, peer=1)}) == []


def test_a_stopped_process_is_found_also_while_it_waits() -> None:
    suspicion = Suspicion(TIMEOUT_S)
    watch(suspicion, 1.0, 0.0, lambda i: {0: progress(1, Work.WAITING, beat=i), 1: progress(1, Work.WAITING, beat=i)})
    found = watch(
        suspicion,
        1.6,
        1.0,
        lambda i: {0: progress(1, Work.WAITING, beat=20), 1: progress(1, Work.WAITING, beat=20 + i)},
    )
    assert len(found) == 1 and found[0].startswith("0: it waits, but its process has not run")


@pytest.mark.parametrize("work", [Work.OUTSIDE, Work.FORWARD, Work.BUILDING, Work.STARTING])
def test_a_process_that_the_system_calls_stopped_has_the_failure_timeout_whatever_it_was_at(work: Work) -> None:
    suspicion = Suspicion(TIMEOUT_S)
    found, now_s = [], 0.0
    while not found and now_s < 3.0:
        now_s += READ_INTERVAL_S
        readings = {0: progress(7, work), 1: progress(7, work)}
        stopped = {0} & set(suspicion.still(now_s))
        found = suspicion.observe(now_s, readings, stopped=stopped)
    assert [each.worker for each in found] == [0] and "is stopped" in found[0].reason
    assert TIMEOUT_S <= now_s <= TIMEOUT_S + 0.5


def test_a_stopped_process_that_is_over_its_limit_is_called_stopped() -> None:
    """Both limits may end between two readings; the cause is the same."""
    suspicion = Suspicion(TIMEOUT_S)
    watch(suspicion, 1.0, 0.0, lambda i: {0: progress(i, Work.BACKWARD)})
    assert watch(suspicion, 0.8, 1.0, lambda i: {0: progress(100, Work.BACKWARD)}) == []
    found: list[str] = []
    for now_s in (1.9, 2.0, 2.1):
        suspects = suspicion.observe(now_s, {0: progress(100, Work.BACKWARD)}, stopped={0})
        found += [suspect.reason for suspect in suspects]
    assert len(found) == 1 and found[0].startswith("its process is stopped, and has done nothing for 1.1 s")


def test_a_process_that_was_stopped_for_a_moment_is_left_alone() -> None:
    suspicion = Suspicion(TIMEOUT_S)
    for turn in range(200):
        now_s = (turn + 1) * READ_INTERVAL_S
        stopped = {0} if turn % 10 < 8 else set[int]()
        assert suspicion.observe(now_s, {0: progress(7, Work.OUTSIDE)}, stopped=stopped) == []


def test_reading_takes_a_tenth_of_the_time_and_never_comes_too_rarely() -> None:
    assert next_interval_s(0.001) == READ_INTERVAL_S
    assert next_interval_s(0.03) == pytest.approx(0.3)
    assert next_interval_s(1.0) == READ_INTERVAL_MAX_S


@pytest.mark.parametrize("interval_s", [READ_INTERVAL_S, READ_INTERVAL_MAX_S])
def test_a_worker_that_stands_still_is_found_one_reading_after_its_limit(interval_s: float) -> None:
    suspicion = Suspicion(TIMEOUT_S)
    found: list[float] = []
    for index in range(round(8.0 / interval_s)):
        now_s = (index + 1) * interval_s
        beat = min(index, round(4.0 / interval_s))
        readings = {0: progress(1, Work.WAITING, beat=beat)}
        found += [now_s for _ in suspicion.observe(now_s, readings, interval_s=interval_s)]
    assert len(found) == 1 and 4.0 + TIMEOUT_S < found[0] <= 4.0 + TIMEOUT_S + 2 * interval_s + 1e-9


def test_the_time_before_its_hello_is_not_held_against_a_worker() -> None:
    suspicion = Suspicion(TIMEOUT_S)
    watch(suspicion, 20.0, 0.0, lambda i: {0: progress(0, Work.STARTING)})
    assert watch(suspicion, 0.5, 20.0, lambda i: {0: progress(1, Work.WAITING, beat=1)}) == []


def test_who_has_ended_is_named_when_another_waits_for_it() -> None:
    suspicion = Suspicion(TIMEOUT_S)

    def ended(peer: int) -> Callable[[int], dict[int, Reading]]:
        return lambda i: {0: progress(9, Work.ENDED), 1: progress(5 + peer, Work.WAITING, beat=i // 2, peer=peer)}

    assert watch(suspicion, 20.0, 0.0, ended(peer=-1)) == []
    assert watch(suspicion, IN_VAIN_S - 0.1, 20.0, ended(peer=0)) == []
    found = watch(suspicion, 0.3, 20.0 + IN_VAIN_S - 0.1, ended(peer=0))
    assert len(found) == 1 and found[0].startswith("0: it has ended, and worker 1 has waited for it for 5.")


def test_the_scripts_own_code_that_takes_too_long_is_told_with_the_remedy() -> None:
    (found,) = watch(Suspicion(TIMEOUT_S), FIRST_LIMIT_S + 0.2, 0.0, lambda i: {0: progress(3, Work.OUTSIDE)})
    assert found.startswith("0: its script has begun no further step for 60.") and "--failure-timeout-s" in found


def test_a_reader_that_slept_suspects_nobody() -> None:
    suspicion = Suspicion(TIMEOUT_S)
    watch(suspicion, 1.0, 0.0, lambda i: {0: progress(1, Work.WAITING, beat=i)})
    assert suspicion.observe(60.0, {0: progress(1, Work.WAITING, beat=20)}) == []


@pytest.mark.parametrize("seed", range(20))
def test_on_random_graphs_of_waiting_only_the_stopped_one_is_suspected(seed: int) -> None:
    """Whoever waits for whom, in chains and circles: the one whose words and beat stand is named, and no other."""
    draw = random.Random(seed)
    workers, stopped = 6, draw.randrange(6)
    suspicion = Suspicion(TIMEOUT_S)
    frozen: dict[int, Reading] = {}

    def reading(index: int) -> dict[int, Reading]:
        found = {}
        for worker in range(workers):
            waits = draw.random() < 0.7
            work = Work.WAITING if waits else Work.FORWARD
            peer = draw.randrange(workers) if waits else -1
            if index >= 40 and worker == stopped:
                found[worker] = frozen.setdefault(worker, progress(99, work, beat=20, peer=peer))
            else:
                found[worker] = progress(index, work, beat=index // 2, peer=peer)
        return found

    found = watch(suspicion, 8.0, 0.0, reading)
    assert [text.split(":")[0] for text in found] == [str(stopped)]


def test_words_are_read_as_they_were_written_and_nonsense_is_no_progress() -> None:
    memory = memoryview(bytearray(2 * SLOT_BYTES))
    slot = memory[SLOT_BYTES:]
    write_doing(slot, 1 << 40, Work.SUMMING, 3)
    write_beat(slot, 17)
    assert read_slot(memory, 1) == Reading(count=1 << 40, work=Work.SUMMING, peer=3, beat=17)
    assert read_slot(memory, 0).work is Work.STARTING
    slot[8:12] = b"\xff\xff\xff\xff"
    assert read_slot(memory, 1).work is Work.OUTSIDE
