"""What rows `chaosd workers` shows: each worker while they fit, and at a large site all that are alike in one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.unit.daemon.cli.test_workers import site_of

from chaosd.cli.worker_rows import EACH_MAX, RANGES_MAX, STILL_MAX, counted, lost, ranges, rows_of, still
from chaosd.worker_group.board import DRAINED, STANDS_STILL, STARTING, WAITS, GroupView

NOW = 60.0


def changed(view: GroupView, fields: Mapping[int, Mapping[str, Any]]) -> GroupView:
    """Some workers of it are otherwise."""
    workers = [msgspec.structs.replace(one, **fields.get(one.worker, {})) for one in view.workers]
    return msgspec.structs.replace(view, workers=tuple(workers))


def test_workers_that_fit_have_a_row_each_in_their_order() -> None:
    rows = rows_of(site_of(EACH_MAX), NOW)
    assert [row.worker for row in rows] == [str(n) for n in range(EACH_MAX)]
    assert rows[3].process == "5003" and rows[3].lasts == "60 s"
    assert len(rows_of(site_of(EACH_MAX + 1), NOW)) == 4
    assert len(rows_of(site_of(1000), NOW, each=True)) == 1000


def test_workers_that_are_alike_are_one_row_with_their_numbers_and_how_many() -> None:
    doing = {n: {"doing": "waiting", "since": 40.0} for n in range(0, 1000, 8)}
    first, *others = rows_of(changed(site_of(1000), doing), NOW)
    assert (first.worker, first.process, first.layers, first.state) == ("0-996:4", "(250)", "0", "trains")
    assert first.doing == "forward 125, waiting 125" or first.doing == "waiting 125, forward 125"
    assert first.lasts == "20-60 s"
    assert [row.worker for row in others] == ["1-997:4", "2-998:4", "3-999:4"]


def test_stages_stand_in_the_order_of_their_layers() -> None:
    renamed = {n: {"stage": {0: "10 to 12", 1: "9", 2: "0 to 3", 3: "4 to 8"}[n % 4]} for n in range(1000)}
    assert [row.layers for row in rows_of(changed(site_of(1000), renamed), NOW)] == [
        "0 to 3",
        "4 to 8",
        "9",
        "10 to 12",
    ]


def test_those_that_are_not_well_have_rows_of_their_own_before_the_others() -> None:
    ill: dict[int, dict[str, Any]] = {
        17: {"state": STANDS_STILL},
        400: {"state": STARTING, "stage": ""},
        401: {"state": STARTING, "stage": ""},
        44: {"state": DRAINED, "stage": ""},
        999: {"state": WAITS, "stage": ""},
    }
    rows = rows_of(changed(site_of(1000), ill), NOW)
    assert [(row.worker, row.process) for row in rows[:4]] == [
        ("17", "5017"), ("44", "5044"), ("400", "5400"), ("401", "5401"),
    ]  # fmt: skip
    assert [row.worker for row in rows[4:]] == [
        "0-40:4, 48-396:4, 404-996:4", "1-13:4, 21-397:4, 405-997:4", "2-998:4", "3-995:4", "999",
    ]  # fmt: skip


def test_so_many_that_are_not_well_are_put_together_and_all_of_them_are_named() -> None:
    numbers = [n * n for n in range(EACH_MAX) if n * n < 1000] + [997]
    ill = {n: {"state": STARTING, "stage": ""} for n in numbers}
    assert len(numbers) == EACH_MAX + 1
    first = rows_of(changed(site_of(1000), ill), NOW)[0]
    assert first.process == f"({len(numbers)})" and set(named(first.worker)) == set(numbers)


def test_numbers_of_those_that_are_well_end_where_they_would_fill_the_screen() -> None:
    gone = {n: {"state": STARTING, "stage": ""} for n in range(0, 1000, 28)}
    for row in rows_of(changed(site_of(1000), gone), NOW)[1:]:
        assert len(row.worker.split(", ")) <= RANGES_MAX
    assert any(row.worker.endswith("...") for row in rows_of(changed(site_of(1000), gone), NOW))


def test_devices_of_one_kind_are_put_together() -> None:
    devices = {n: {"device": f"cuda:{n // 4 % 8}"} for n in range(1000) if n % 4 == 0}
    devices |= {n: {"device": "npu:1"} for n in range(1000) if n % 4 == 1}
    assert [row.device for row in rows_of(changed(site_of(1000), devices), NOW)] == ["cuda:0-7", "npu:1", "cpu", "cpu"]


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ((), []), ((5,), ["5"]), ((0, 1), ["0-1"]), ((0, 1, 2, 3, 7), ["0-3", "7"]), ((0, 4, 8), ["0-8:4"]),
        ((0, 4), ["0", "4"]), ((0, 4, 5, 6, 7), ["0", "4-7"]), ((3, 1, 2), ["1-3"]),
        ((0, 4, 8, 9, 10), ["0-8:4", "9-10"]),
    ],
)  # fmt: skip
def test_ranges(numbers: tuple[int, ...], shown: list[str]) -> None:
    assert ranges(numbers) == shown
    assert named(", ".join(shown)) == sorted(numbers)


def named(text: str) -> list[int]:
    """The numbers of ranges, read as the help describes them."""
    found = []
    for part in filter(None, text.split(", ")):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


def test_the_counts_the_last_loss_and_who_stands_still_are_said() -> None:
    view = changed(
        site_of(40), {n: {"state": STANDS_STILL, "said": f"no progress of {n}"} for n in range(STILL_MAX + 2)}
    )
    assert counted(view) == "40 workers: trains 33, stands still 7"
    assert counted(site_of(0)) == "0 workers: none has been started yet" and counted(site_of(1)) == "1 worker: trains 1"
    assert lost(view, NOW) == ""
    assert still(view)[0] == "worker 0 stands still: no progress of 0" and still(view)[-1] == "and 2 more stand still"
    assert len(still(view)) == STILL_MAX + 1
