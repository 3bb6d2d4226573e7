"""Replicas with local steps between rounds: real workers and daemons, and what dies in a phase or in its round."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration import local_training
from tests.integration.local_courses import Told, join_within_a_phase, lose_all_holders, told, train_together
from tests.integration.test_institutions import ended, sites
from tests.integration.test_local_stages import SCRIPT, training
from tests.rigs.site import Site
from tests.rigs.worker_group import Ran, launch, train

from chaos_protocols.worker_group.round_steps import RoundSteps
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened

pytestmark = pytest.mark.usefixtures("one_thread")

ROUNDS, EVERY = 3, 4
STEPS = RoundSteps(EVERY)
ROUND_STEP = EVERY
"""The step of the first round that computes nothing: its commit is the result."""


def given(folder: Path, **more: Any) -> dict[str, Any]:
    return training("replicas", folder, **{"every": EVERY, "rounds": ROUNDS, "statistics": True, **more})


@cache
def alone(folder: Path) -> tuple[Told, dict[int, str]]:
    """In one process, by itself: what it tells after each round, and the digest of all of its state, this site's own
    too, by the step in which workers have it."""
    folder.mkdir()
    whole: dict[int, str] = {}

    def after(coordinator: Any) -> None:
        updates = coordinator.steps
        whole[STEPS.begin(updates // EVERY) + updates % EVERY] = coordinator._replicated.digest()

    local_training.replicas(given(folder, standalone=True), after=after)
    return told(folder), whole


@pytest.fixture
def reference(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, dict[int, str]]:
    """Made once: with one thread, as workers have it."""
    return alone(tmp_path_factory.getbasetemp() / "replica-alone")


@pytest.mark.parametrize(
    ("faults", "more"),
    [
        ("", {}),
        ("1:1:backward", {}),
        ("0:2:update", {}),
        (f"1:{ROUND_STEP}:reduced", {}),
        ("0:1:round", {}),
        ("0:6:backward", {"dp": 3, "spares": 1}),
    ],
    ids=("undisturbed", "backward", "update", "round-step", "result", "spare"),
)
async def test_local_steps_of_replicas_by_themselves_have_the_bits_of_one_process(
    tmp_path: Path, reference: tuple[Told, dict[int, str]], faults: str, more: dict[str, Any]
) -> None:
    environment = {"TRAINING": json.dumps(given(tmp_path, standalone=True))}
    options = {"dp": 2, "pp": 1, **more}
    ran = await train(tmp_path, script=SCRIPT, faults=faults, environment=environment, **options)
    check(ran, told(tmp_path), reference, lost=bool(faults))
    plans = [int(str(each.fields["step"])) for each in ran.of("plan")]
    assert not faults or plans[1] >= _struck(faults), "the step under way is all that is done again"


def check(ran: Ran, rounds_told: Told, reference: tuple[Told, dict[int, str]], *, lost: bool) -> None:
    assert ran.failed == "" and len(ran.struck) == lost, ran.happened
    rounds, whole = reference
    assert len(rounds) == ROUNDS and rounds_told == rounds
    seen = {int(str(each.fields["step"])): each.fields["digests"] for each in ran.of("step")}
    assert STEPS.begin(ROUNDS) in seen and len(seen) >= STEPS.begin(ROUNDS) - len(ran.struck)
    assert {step: seen[step] for step in seen if step in whole} == {
        step: (digest,) for step, digest in whole.items() if step in seen
    }


def _struck(faults: str) -> int:
    """The step in which a worker was lost."""
    _, number, where = faults.split(":")
    if where == "round":
        return STEPS.begin(int(number) - 1) + EVERY
    updates = int(number)
    return updates if where == "reduced" else STEPS.begin(updates // EVERY) + updates % EVERY


async def group(site: Site, **more: Any) -> Ran:
    await asyncio.to_thread(site.start)
    said = given(site.folder, seed=11, **more.pop("training", {}))
    options: dict[str, Any] = {"dp": 2, "pp": 1, **more}
    environment = {"TRAINING": json.dumps(said)}
    return await train(site.folder, script=SCRIPT, daemon=site.worker_socket, environment=environment, **options)


def spawn(site: Site, **more: Any) -> Any:
    site.start()
    environment = {
        "CHAOS_SOCKET": str(site.worker_socket),
        "OMP_NUM_THREADS": "1",
        "TRAINING": json.dumps({**given(site.folder, **more), "kind": "ordinary"}),
    }
    return launch(["python", str(SCRIPT)], environment, {})


@pytest.mark.parametrize(
    ("mode", "faults", "more"),
    [
        ("DiLoCo", "", {}),
        pytest.param("LocalSGD", "", {}, marks=pytest.mark.long),
        ("DiLoCo", "1:5:backward", {}),
        ("DiLoCo", f"0:{ROUND_STEP}:reduced", {}),
        ("DiLoCo", "1:2:round", {}),
    ],
    ids=("diloco", "local-sgd", "backward", "round-step", "result"),
)
async def test_replicas_and_an_ordinary_script_average_after_local_steps_whoever_dies(
    tmp_path: Path, mode: str, faults: str, more: dict[str, Any]
) -> None:
    options = {"ordinary": {"mode": mode}, "training": {"mode": mode}, "faults": faults, **more}
    ran, found = await train_together(tmp_path, spawn, group, **options)
    assert len(ran.of("round")) == len(found) == ROUNDS and not ran.of("state-lost")


def paced(folder: Path) -> dict[str, Any]:
    return {"pace_s": 0.5, "fast": str(folder / "fast")}


def fast_with_all(folder: Path) -> Callable[[Controller, Happened], None]:
    """With the third plan: the first, that of a loss, and that with the worker that has come back."""
    plans: list[Happened] = []

    def watch(_: Controller, entry: Happened) -> None:
        if entry.kind == "plan":
            plans.append(entry)
        if entry.kind == "training" and len(plans) == 3:
            (folder / "fast").touch()

    return watch


async def test_a_replica_that_comes_back_gets_the_phase_from_its_peer(
    tmp_path: Path, reference: tuple[Told, dict[int, str]]
) -> None:
    said = given(tmp_path, standalone=True, **paced(tmp_path))
    ran = await train(
        tmp_path,
        dp=2,
        pp=1,
        restarts=1,
        script=SCRIPT,
        faults="1:1:backward",
        environment={"TRAINING": json.dumps(said)},
        watch=fast_with_all(tmp_path),
    )
    check(ran, told(tmp_path), reference, lost=True)
    assert len(ran.of("plan")) == 3 and int(str(ran.of("plan")[2].fields["moved_bytes"])) > 0


@pytest.mark.long
async def test_a_replica_comes_back_in_a_run_of_institutions(tmp_path: Path) -> None:
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(spawn, one)
        ran = await group(
            many, restarts=1, faults="0:2:backward", training=paced(tmp_path), watch=fast_with_all(tmp_path)
        )
        await ended(process)
    assert ran.failed == "" and len(ran.struck) == 1 and len(ran.of("plan")) == 3, ran.happened
    assert len(ran.of("round")) == ROUNDS and not ran.of("state-differed") and not ran.of("state-loaded")[1:]
    assert told(one.folder) == told(many.folder) and len(told(one.folder)) == ROUNDS


@pytest.mark.long
async def test_where_all_replicas_are_lost_the_phase_begins_anew_from_the_anchor(tmp_path: Path) -> None:
    await lose_all_holders(tmp_path, spawn, group, rounds=30, pace_s=1.0, dp=1, faults="0:6:backward")


@pytest.mark.long
async def test_replicas_join_within_a_phase_and_give_their_state_to_a_later_site(tmp_path: Path) -> None:
    await join_within_a_phase(tmp_path, spawn, group, rounds=30, pace_s=1.0)


@pytest.mark.long
async def test_replicas_join_between_two_parts_and_give_their_state_to_a_later_site(tmp_path: Path) -> None:
    parts = {"fragments": 2, "statistics": False}
    await join_within_a_phase(tmp_path, partial(spawn, **parts), partial(in_parts, parts), rounds=60, pace_s=0.5)


async def in_parts(parts: dict[str, Any], site: Site, **more: Any) -> Ran:
    """`rounds` of the loader are those of all parts."""
    rounds = more.pop("training")["rounds"] // parts["fragments"]
    return await group(site, training={**parts, "rounds": rounds}, **more)


async def test_a_script_that_fails_in_the_last_phase_ends_the_training_with_its_words(tmp_path: Path) -> None:
    """Steps of rounds were counted with its own, so it was taken for one that had trained to the end."""
    said = given(tmp_path, standalone=True, fails=ROUNDS * EVERY - 1)
    ran = await train(tmp_path, dp=2, pp=1, script=SCRIPT, environment={"TRAINING": json.dumps(said)})
    assert "RuntimeError: the label is wrong" in ran.failed and len(ran.of("plan")) == 1, ran.happened
