"""The reduce engine over random rounds, in each encoding: other trees in each, cut finely or not, links that break,
rounds that begin again under another plan, sites without weight, parts in turn, given at once or in pieces, some of
which break off. All sites hold the same bytes, near the mean.

CHAOS_RANDOM_ROUNDS=0:200 plays so many for each encoding (`make soak`); a failure names its seed.
"""

from __future__ import annotations

import asyncio
import os
import random

import msgspec
import numpy as np
import pytest
from tests.rigs.reduce import SITES, SPEC, Driver, Rig

from chaos_protocols.names import SiteId
from chaos_protocols.rounds.reduce import chunk_bytes_for, layout
from chaos_protocols.wire.encodings import FORMS, FP32
from chaos_protocols.wire.plans import SyncPlan, Tag, Tree

FIRST, STOP = (int(part) for part in os.environ.get("CHAOS_RANDOM_ROUNDS", "0:5").split(":"))
FOUR = SITES[:4]
WIDE = 5_000
PARTS = 3
TIMEOUT_S = 120.0
ERROR = {FP32: 1e-5, "bf16": 0.02, "fp16": 0.004, "int8": 0.12, "int4": 1.6}
"""Of one round, over the mean (norms): what was owed before comes on top of what three hops lose."""


def random_plan(rng: random.Random) -> SyncPlan:
    """One to three random trees over all sites, for a vector that is cut finely or not."""
    count = rng.randint(1, 3)
    trees = []
    for _ in range(count):
        order: list[SiteId] = rng.sample(FOUR, len(FOUR))
        parent = tuple(sorted((site, rng.choice(order[:at])) for at, site in enumerate(order) if at))
        trees.append(Tree(weight=1 / count, root=order[0], parent=parent))
    return SyncPlan(trees=tuple(trees), reason="random", fine=rng.random() < 0.3)


async def finished(rig: Rig, tag: Tag) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not all(tag in driver.finished for driver in rig.drivers.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def give(driver: Driver, rng: random.Random, tag: Tag, weight: float, *, pieces_only: bool = False) -> None:
    """At once, or in pieces: what was not said to be ready is no number yet. `pieces_only`: the end never comes."""
    if not weight:
        driver.engine.contribute(tag, 0.0, False)
        return
    if pieces_only or rng.random() < 0.6:
        whole = bytes(driver.arena)
        driver.arena[:] = b"\xff" * len(whole)
        for ready in sorted(rng.randrange(len(whole) + 1) for _ in range(rng.randint(1, 4))):
            driver.arena[:ready] = whole[:ready]
            driver.engine.contribute(tag, weight, True, b"", ready)
            await asyncio.sleep(rng.random() * 0.003)
        driver.arena[:] = whole
    if not pieces_only:
        driver.engine.contribute(tag, weight, True)


async def begun_in_vain(rig: Rig, rng: random.Random, tag: Tag, weights: dict[SiteId, float]) -> None:
    """A round under a plan that is given up before anybody has applied its result."""
    plan = random_plan(rng)
    late = rng.choice(FOUR)  # has not given its part: so no site can have the result
    for site, driver in rig.drivers.items():
        driver.engine.open(tag, plan, [], True)
        if site != late:
            await give(driver, rng, tag, weights[site], pieces_only=rng.random() < 0.3)
    await asyncio.sleep(rng.random() * 0.01)
    for driver in rig.drivers.values():
        driver.engine.stop(tag)


async def play_one_that_breaks_off(rig: Rig, rng: random.Random, number: int) -> None:
    """One site begins its part, and never ends it: the result is no number at any site, and the same everywhere."""
    tag, plan = Tag(epoch=10 * number, round=number), random_plan(rng)
    breaks = rng.choice(FOUR)
    for index, site in enumerate(rng.sample(FOUR, len(FOUR))):
        driver = rig.drivers[site]
        driver.fill(1_000 * number + index)
        driver.engine.open(tag, plan, [], True)
        await give(driver, rng, tag, 2.0, pieces_only=site == breaks)
        if site == breaks:
            driver.engine.contribute(tag, 0.0, False)
    await finished(rig, tag)
    assert len({driver.finished[tag] for driver in rig.drivers.values()}) == 1, f"round {number}: one digest"
    for driver in rig.drivers.values():
        assert not driver.engine.findings(number).finite


async def play(name: str, rig: Rig, rng: random.Random, number: int) -> None:
    weights = {site: float(rng.randint(0, 3)) for site in FOUR}
    weights[rng.choice(FOUR)] = 2.0
    wanted = np.zeros(WIDE + 60_001)
    for index, (site, driver) in enumerate(rig.drivers.items()):
        wanted += weights[site] * driver.fill(1_000 * number + index)
    wanted /= sum(weights.values())
    epoch = 10 * number
    while rng.random() < 0.4 and epoch < 10 * number + 9:
        await begun_in_vain(rig, rng, Tag(epoch=epoch, round=number), weights)
        epoch += 1
    tag, plan = Tag(epoch=epoch, round=number), random_plan(rng)
    for site in rng.sample(FOUR, len(FOUR)):
        rig.drivers[site].engine.open(tag, plan, [], True)
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 0.005)
        await give(rig.drivers[site], rng, tag, weights[site])
    await finished(rig, tag)
    assert len({driver.finished[tag] for driver in rig.drivers.values()}) == 1, f"round {number}: one digest"
    assert len({bytes(driver.engine.result(number) or b"") for driver in rig.drivers.values()}) == 1
    found = rig.drivers[FOUR[0]].result(number)
    np.testing.assert_allclose(found[:WIDE], wanted[:WIDE], rtol=1e-10, atol=1e-13)
    distance = np.linalg.norm(found[WIDE:] - wanted[WIDE:]) / np.linalg.norm(wanted[WIDE:])
    assert distance < ERROR[name], f"round {number}: {distance}"


@pytest.mark.timeout(0 if STOP - FIRST > 20 else 300)
@pytest.mark.parametrize("name", FORMS)
async def test_in_random_rounds_all_sites_hold_the_same_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "CHUNK_BYTES_MIN", 4 << 10)  # so that the two cuts differ
    assert chunk_bytes_for(SPEC.size_bytes, fine=True) < chunk_bytes_for(SPEC.size_bytes)
    rng = random.Random(f"{name}/{FIRST}")
    rig = Rig(FOUR)
    for at, one in enumerate(FOUR):
        for other in FOUR[:at]:
            rig.network.connect(other, one)
    for driver in rig.drivers.values():
        driver.configure(msgspec.structs.replace(SPEC, encoding=name, parts=PARTS))
    breaking = asyncio.create_task(rig.network.break_links(random.Random(FIRST)))
    try:
        for number in range(FIRST + 1, STOP + 1):
            if rng.random() < 0.2:
                await play_one_that_breaks_off(rig, rng, number)
            else:
                await play(name, rig, rng, number)
    finally:
        breaking.cancel()
        await rig.close()
