"""What workers with local steps tell all sites with a round, and when they end: the same at all, whoever dies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.integration import noted_training
from tests.integration.test_institutions import ended, sites
from tests.integration.test_worker_notes import SHAPES, Heard, group, heard, noted, ordinary
from tests.rigs.worker_group import Ran

from chaos_planner.pipelines.plans.layout import Policy

pytestmark = pytest.mark.usefixtures("one_thread")

EVERY, WANTS = 3, 2
"""The round from which on a script wants to end; all hear that with the next one."""
LAST = (WANTS + 1) * EVERY
GIVEN = {"every": EVERY, "wants": WANTS, "steps": 12 * EVERY}


def losses(ran: Ran) -> dict[int, float]:
    """By local steps."""
    steps = {int(str(each.fields["step"])): float(str(each.fields["loss"])) for each in ran.of("step")}
    return {step - step // (EVERY + 1): loss for step, loss in steps.items() if step % (EVERY + 1)}


def check(told: Heard, own: dict[int, float], kind: str, *, other: float | None = None) -> None:
    """After each local step all heard the same: of the last round its site's last figure before it, and the end with
    it. `other`: what another site of the same weight has reported."""
    first: dict[int, Any] = {}
    for process, steps in told.items():
        for step, (stops, metrics, epoch, *_) in steps.items():
            round = step // EVERY
            assert (stops, epoch) == (step == LAST, round // 3), (process, step)
            assert first.setdefault(step, metrics) == metrics, (process, step)
            wanted = own.get(round * EVERY if kind == "replicas" else round * EVERY - 1)
            if not round:
                assert metrics == {}, (process, step)
            elif wanted is not None:
                mean = wanted if other is None else (wanted + other) / 2
                assert metrics == {"loss": pytest.approx(mean, rel=1e-12)}, (process, step)


def seldom(kind: str, faults: str, **more: Any) -> object:
    return pytest.param(kind, faults, more, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("kind", "faults", "more"),
    [
        ("stages", "1:4:backward", {"spares": 1}),
        ("replicas", "1:4:backward", {"spares": 1}),
        *(seldom(kind, "") for kind in SHAPES),
        *(seldom(kind, "0:5:reduced") for kind in SHAPES),
        *(seldom(kind, "1:8:reduced") for kind in SHAPES),
        seldom("stages", "2:4:update", policies=[Policy.DYNAMIC]),
        seldom("replicas", "0:2:round"),
        seldom("replicas", "1:2:round"),
    ],
)
async def test_workers_by_themselves_hear_with_each_round_what_they_said_last_before_it(
    tmp_path: Path, kind: str, faults: str, more: dict[str, Any]
) -> None:
    """Also one that comes within a phase."""
    ran, told = await noted(tmp_path, kind, given=GIVEN, faults=faults, **more)
    assert len(ran.struck) == bool(faults), ran.happened
    check(told, losses(ran), kind)
    shape, killed = SHAPES[kind], len(ran.struck) - more.get("spares", 0)
    assert sum(LAST in steps for steps in told.values()) == shape["dp"] * shape["pp"] - killed, "all heard the end"


@pytest.mark.parametrize("kind", ["stages", "replicas"])
def test_a_process_by_itself_hears_the_same_as_one_of_several(tmp_path: Path, kind: str) -> None:
    noted_training.train(kind, told=str(tmp_path / "told"), **GIVEN)
    told = heard(tmp_path / "told")
    (steps,) = told.values()
    check(told, {}, kind)
    assert max(steps) == LAST and all(steps[step][1] for step in range(EVERY, LAST + 1))


@pytest.mark.parametrize(
    ("kind", "faults", "more"),
    [
        ("stages", "1:4:reduced", {}),
        seldom("replicas", "1:4:reduced"),
        *(seldom(kind, "") for kind in SHAPES),
        *(seldom(kind, "0:4:update") for kind in SHAPES),
        seldom("replicas", "0:2:round"),
    ],
)
async def test_all_sites_hear_the_same_after_local_steps_and_end_in_the_same_round(
    tmp_path: Path, kind: str, faults: str, more: dict[str, Any]
) -> None:
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(ordinary, one, seed=11, **GIVEN)
        ran, told = await group(many, kind, given=GIVEN, faults=faults, **more)
        await ended(process)
    assert len(ran.struck) == bool(faults) and not ran.of("state-differed"), ran.happened
    check(told, losses(ran), kind, other=11.0)
    (other,) = heard(one.folder / "told").values()
    assert max(other) == LAST and other[LAST][0]
    for steps in told.values():
        assert all(entry[:3] == other[step][:3] for step, entry in steps.items()), "a script of one process, too"
    assert any(LAST in steps for steps in told.values())
