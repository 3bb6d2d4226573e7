"""A site of several workers that has nothing finite to give to a round, and is alone in its run, or asked again."""

from __future__ import annotations

import asyncio
import json
from itertools import groupby
from pathlib import Path

import pytest
from tests.integration import site_training
from tests.integration.test_institutions import arguments, sites
from tests.integration.test_worker_group import SPOILT
from tests.rigs.worker_group import Ran, train

from chaos.worker_group.compute.data import Loader

pytestmark = pytest.mark.usefixtures("one_thread")

ROUNDS, SPOILT_STEP = 4, 1


def script(folder: Path) -> Path:
    """In the second step a sample is no number."""
    batch = {"global_batch": site_training.GLOBAL_BATCH, "micro_batch": site_training.MICRO_BATCH}
    loader = Loader(site_training.Points(), **batch, seed=7, steps=ROUNDS)
    path = folder / "train.py"
    path.write_text(SPOILT.format(sample=loader.samples(SPOILT_STEP, 5)[1]))
    return path


async def by_themselves(folder: Path, steps: int) -> Ran:
    """Workers without a daemon, for which such a step counts."""
    folder.mkdir()
    environment = {"TRAINING": json.dumps({"steps": steps})}
    return await train(folder, dp=2, pp=1, script=script(folder), environment=environment, skip_not_finite=True)


def states(ran: Ran) -> list[object]:
    """After the steps. One that is left out has that of the step before, and is not told where a worker died in it."""
    return [state for state, _ in groupby(ran.digests)]


def seldom(faults: str) -> object:
    return pytest.param(faults, marks=pytest.mark.long)


@pytest.mark.parametrize("faults", [f"1:{SPOILT_STEP}:reduced", seldom(""), seldom(f"0:{SPOILT_STEP + 1}:backward")])
async def test_a_round_that_nobody_else_makes_is_computed_with_the_samples_that_follow(
    tmp_path: Path, faults: str
) -> None:
    """And has the bits of workers by themselves, who leave that step out. The site ended with it."""
    async with sites(tmp_path, ["many"], min_sites=1) as cluster:
        (many,) = cluster.sites
        await asyncio.to_thread(many.start)
        ran = await train(
            many.folder,
            dp=2,
            pp=2,
            script=script(many.folder),
            faults=faults,
            daemon=many.worker_socket,
            environment={"TRAINING": arguments(0, rounds=ROUNDS, pace_s=0.0)},
            skip_not_finite=True,
        )
    assert ran.failed == "" and len(ran.struck) == bool(faults), ran.happened
    (empty,) = ran.of("round-empty")
    assert empty.fields["round"] == SPOILT_STEP + 1 and "it is tried with other samples" in empty.reason
    assert len(ran.of("step-skipped")) == 1
    assert [each.fields["round"] for each in ran.of("round")] == list(range(1, ROUNDS + 1))
    reference = await by_themselves(tmp_path / "alone", ROUNDS + 1)
    assert reference.failed == "" and states(ran) == states(reference) and len(states(ran)) == ROUNDS


async def test_without_the_option_that_ends_the_training_with_a_sentence_that_names_it(tmp_path: Path) -> None:
    async with sites(tmp_path, ["many"], min_sites=1) as cluster:
        (many,) = cluster.sites
        await asyncio.to_thread(many.start)
        given = {"TRAINING": arguments(0, rounds=ROUNDS, pace_s=0.0)}
        path = script(many.folder)
        ran = await train(many.folder, dp=2, pp=1, script=path, daemon=many.worker_socket, environment=given)
    assert "the gradient of step 2 is not finite" in ran.failed and "chaosd run --skip-not-finite" in ran.failed
