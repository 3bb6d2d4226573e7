"""Local steps whose gradient is not finite, with `--skip-not-finite`: real workers, a spoilt sample, deaths."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.integration.local_courses import Told, told
from tests.integration.local_training import loading, one_process, points
from tests.integration.site_training import GLOBAL_BATCH, MICRO_BATCH
from tests.integration.test_institutions import ended, sites
from tests.integration.test_local_stages import SCRIPT, spawn, training
from tests.rigs.worker_group import Ran, train

from chaos.worker_group.compute.data import Loader
from chaos_planner.pipelines.plans.layout import Policy

pytestmark = pytest.mark.usefixtures("one_thread")

ROUNDS, EVERY = 3, 4
SPOILT_STEP = 5
"""The second one of the second phase."""


WHOLE_PHASE = (4, 5, 6, 7)


def of(kind: str, folder: Path, steps: tuple[int, ...] = (SPOILT_STEP,), **more: Any) -> dict[str, Any]:
    """In each of these steps a sample is no number. Replicas have two micro-batches a step: an ordinary script has the
    bits of their sum, too."""
    given = training(kind, folder, **{"every": EVERY, "rounds": ROUNDS, "micro_batch": GLOBAL_BATCH // 2, **more})
    loader = Loader(points(given), **loading(given))
    return {**given, "spoilt": [loader.samples(step, 0)[1] for step in steps]}


def left_out(given: dict[str, Any]) -> list[int]:
    """Steps with a spoilt sample."""
    loader = Loader(points(given), **loading(given))
    read = {step: [loader.samples(step, each) for each in range(loader.micro_batches)] for step in range(loader.steps)}
    return [step for step, found in read.items() if set(given["spoilt"]) & {each for some in found for each in some}]


@cache
def alone(folder: Path, steps: tuple[int, ...]) -> Told:
    """An ordinary script of one process, which leaves such steps out by itself."""
    folder.mkdir()
    given = of("replicas", folder, steps)
    one_process(given)
    return told(folder)


def seldom(*of: Any) -> Any:
    return pytest.param(*of, marks=pytest.mark.long)


def skipped(ran: Ran) -> list[int]:
    """Local steps that were left out, counted from 0."""
    steps = [int(str(each.fields["step"])) - 1 for each in ran.of("step-skipped")]
    return [step - step // (EVERY + 1) for step in steps]


@pytest.mark.parametrize(
    ("steps", "faults", "more"),
    [
        ((SPOILT_STEP,), "", {}),
        ((SPOILT_STEP,), f"0:{SPOILT_STEP}:backward", {}),
        ((SPOILT_STEP,), f"1:{SPOILT_STEP + 1}:reduced", {}),
        ((SPOILT_STEP,), "0:2:round", {}),
        (WHOLE_PHASE, "0:7:backward", {"spares": 1}),
    ],
    ids=("undisturbed", "in-it", "with-its-sums", "result", "a-spare-in-a-phase-of-them"),
)
async def test_a_local_step_of_replicas_is_left_out_as_an_ordinary_script_does(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    steps: tuple[int, ...],
    faults: str,
    more: dict[str, Any],
) -> None:
    reference = alone(tmp_path_factory.getbasetemp() / f"spoilt-alone-{len(steps)}", steps)
    given = of("replicas", tmp_path, steps, standalone=True)
    environment = {"TRAINING": json.dumps(given)}
    options = {"dp": 2, "pp": 1, **more}
    ran = await train(tmp_path, script=SCRIPT, faults=faults, environment=environment, skip_not_finite=True, **options)
    assert ran.failed == "" and len(ran.struck) == bool(faults), ran.happened
    assert sorted(set(skipped(ran))) == left_out(given) and set(steps) <= set(left_out(given))
    assert len(reference) == ROUNDS and told(tmp_path) == reference


@pytest.mark.parametrize("policy", [Policy.REROUTE, Policy.DYNAMIC])
async def test_a_local_step_of_stages_is_left_out_whoever_has_the_layers(tmp_path: Path, policy: Policy) -> None:
    found: list[Told] = []
    for dp, pp, faults in ((1, 1, ""), (2, 2, f"2:{SPOILT_STEP + 2}:backward")):
        folder = tmp_path / f"{dp}"
        folder.mkdir()
        given = of("stages", folder, standalone=True, micro_batch=MICRO_BATCH)
        environment = {"TRAINING": json.dumps(given)}
        ran = await train(
            folder,
            dp=dp,
            pp=pp,
            script=SCRIPT,
            faults=faults,
            policies=[policy],
            environment=environment,
            skip_not_finite=True,
        )
        assert ran.failed == "" and len(ran.struck) == bool(faults), ran.happened
        assert sorted(set(skipped(ran))) == left_out(given)
        found.append(told(folder))
    one, many = found
    assert one == many and len(one) == ROUNDS


@pytest.mark.parametrize("kind", ["replicas", "stages"])
async def test_a_site_that_has_left_a_local_step_out_weighs_less_in_the_round(tmp_path: Path, kind: str) -> None:
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(spawn, one, every=EVERY, rounds=ROUNDS)
        await asyncio.to_thread(many.start)
        given = of(kind, many.folder, WHOLE_PHASE, seed=11)
        ran = await train(
            many.folder,
            dp=2,
            pp=1,
            script=SCRIPT,
            faults="1:6:backward",
            daemon=many.worker_socket,
            environment={"TRAINING": json.dumps(given)},
            skip_not_finite=True,
        )
        await ended(process)
    assert ran.failed == "" and len(ran.struck) == 1 and not ran.of("state-differed"), ran.happened
    missing = [sum(step // EVERY == phase for step in left_out(given)) for phase in range(ROUNDS)]
    assert missing[1] == EVERY
    assert [each.fields["weight"] for each in ran.of("round")] == [
        GLOBAL_BATCH * (2 * EVERY - steps) for steps in missing
    ]
    assert told(one.folder) == told(many.folder) and len(told(one.folder)) == ROUNDS


def phases_of(given: dict[str, Any], rounds: int) -> list[bool]:
    """Of the phases until so many rounds are done, by nobody else, whether each led to one."""
    found: list[bool] = []
    while sum(found) < rounds:
        steps = {**given, "rounds": len(found) + 1}
        found.append(sum(step // EVERY == len(found) for step in left_out(steps)) < EVERY)
    return found


@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        ("replicas", "1:7:backward"),
        seldom("replicas", ""),
        seldom("replicas", "1:4:backward"),
        seldom("replicas", "0:8:backward"),
        seldom("replicas", "0:1:round"),
        seldom("stages", "1:6:reduced"),
        seldom("stages", ""),
        seldom("stages", "0:9:backward"),
        seldom("stages", "0:9:reduced"),
    ],
)
async def test_a_site_that_is_alone_in_its_run_tries_a_phase_of_which_nothing_is_left_with_other_samples(
    tmp_path: Path, kind: str, faults: str
) -> None:
    """As an ordinary script does. Nobody else has given anything either, so the round is still to come."""
    async with sites(tmp_path, ["many"], min_sites=1) as cluster:
        (many,) = cluster.sites
        await asyncio.to_thread(many.start)
        given = of(kind, many.folder, WHOLE_PHASE)
        ran = await train(
            many.folder,
            dp=2,
            pp=1,
            script=SCRIPT,
            faults=faults,
            daemon=many.worker_socket,
            environment={"TRAINING": json.dumps(given)},
            skip_not_finite=True,
        )
    assert ran.failed == "" and len(ran.struck) == bool(faults), ran.happened
    led = phases_of(given, ROUNDS)
    assert led[:2] == [True, False]
    assert len(ran.of("round-empty")) == led.count(False) and len(ran.of("round")) == ROUNDS
    here = told(many.folder)
    assert sorted(here) == [1, 2, 3]
    if kind == "replicas":
        other = await ordinary_alone(tmp_path / "ordinary", len(led))
        assert list(here.values()) == [other[at + 1] for at, leads in enumerate(led) if leads]


async def ordinary_alone(folder: Path, phases: int) -> Told:
    """What an ordinary script that is alone in its run has after each phase."""
    async with sites(folder, ["one"], min_sites=1) as cluster:
        (one,) = cluster.sites
        given = {**of("one", one.folder, WHOLE_PHASE), "rounds": phases}
        process = await asyncio.to_thread(spawn, one, standalone=False, **given)
        await ended(process)
        return told(one.folder)
