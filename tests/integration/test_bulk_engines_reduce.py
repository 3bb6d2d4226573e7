"""The reduce engine with bytes: rounds against plain numpy, links that break, workers that come and go."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest
from tests.rigs.reduce import CHAIN, SITES, Rig

from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.wire.plans import SyncPlan, Tag, Tree
from chaosd.bulk.reduce.results import Findings


async def test_rounds_over_two_trees_give_the_weighted_average_in_both_types() -> None:
    rig = Rig(SITES[:4])
    rig.connect(CHAIN)
    for driver in rig.drivers.values():
        driver.configure()
    for number in range(1, 6):
        weights = {site: float((index + number) % 4) for index, site in enumerate(SITES[:4])}
        await rig.round(Tag(epoch=1, round=number), CHAIN, weights, [])
    await rig.close()


async def test_a_listener_gets_every_result_and_gives_nothing() -> None:
    rig = Rig(SITES[:3])
    plan = SyncPlan(
        trees=(Tree(weight=1.0, root=SITES[0], parent=((SITES[1], SITES[0]), (SITES[2], SITES[1]))),), reason="a chain"
    )
    rig.connect(plan)
    for driver in rig.drivers.values():
        driver.configure()
    for number in range(1, 4):
        await rig.round(Tag(epoch=1, round=number), plan, {SITES[0]: 2.0, SITES[1]: 3.0}, [SITES[2]])
    await rig.close()


async def test_links_that_break_again_and_again_change_no_result() -> None:
    rig = Rig(SITES[:4])
    rig.connect(CHAIN)
    rng = random.Random(5)
    for driver in rig.drivers.values():
        driver.configure()

    breaking = asyncio.create_task(rig.network.break_links(rng))
    for number in range(1, 6):
        await rig.round(Tag(epoch=1, round=number), CHAIN, dict.fromkeys(SITES[:4], 1.0), [])
    breaking.cancel()
    await rig.close()


async def test_a_round_opened_before_the_worker_said_hello_begins_when_it_does() -> None:
    rig = Rig(SITES[:2])
    plan = SyncPlan(trees=(Tree(weight=1.0, root=SITES[0], parent=((SITES[1], SITES[0]),)),), reason="a pair")
    rig.connect(plan)
    first, second = rig.drivers.values()
    tag = Tag(epoch=1, round=1)
    first.configure()
    part = first.fill(1)
    first.engine.open(tag, plan, [], True)
    first.engine.contribute(tag, 2.0, True)
    second.engine.open(tag, plan, [], True)
    second.engine.contribute(tag, 0.0, False)
    await asyncio.sleep(0.01)
    assert not first.finished
    second.configure()
    await rig.until(lambda: tag in first.finished, lambda: tag in second.finished)
    np.testing.assert_allclose(second.result(1), part, rtol=1e-6)
    await rig.close()


async def test_a_contribution_counts_after_its_worker_died_and_under_a_newer_tag() -> None:
    rig = Rig(SITES[:2])
    plan = SyncPlan(trees=(Tree(weight=1.0, root=SITES[0], parent=((SITES[1], SITES[0]),)),), reason="a pair")
    first, second = rig.drivers.values()
    for driver in (first, second):
        driver.configure()
    parts = [driver.fill(number) for number, driver in enumerate((first, second))]
    old, new = Tag(epoch=1, round=4), Tag(epoch=2, round=4)
    for driver in (first, second):
        driver.engine.open(old, plan, [], True)
        driver.engine.contribute(old, 1.0, True)
    second.engine.detach_contribution()
    second.arena[:] = bytes(len(second.arena))
    rig.connect(plan)
    for driver in (first, second):
        driver.engine.stop(old)
        driver.engine.open(new, plan, [], True)
        driver.engine.contribute(new, 1.0, True)
    await rig.until(lambda: new in first.finished, lambda: new in second.finished)
    np.testing.assert_allclose(first.result(4), (parts[0] + parts[1]) / 2, rtol=1e-4, atol=1e-6)
    assert old not in first.finished
    third = Tag(epoch=2, round=5)
    second.engine.open(third, plan, [], True)
    with pytest.raises(LocalProtocolError, match="no worker's contribution"):
        second.engine.contribute(third, 1.0, True)
    await rig.close()


async def test_a_round_without_any_weight_stalls_and_says_so_once() -> None:
    rig = Rig(SITES[:4])
    rig.connect(CHAIN)
    tag = Tag(epoch=1, round=1)
    for driver in rig.drivers.values():
        driver.configure()
        driver.engine.open(tag, CHAIN, [], True)
        driver.engine.contribute(tag, 0.0, False)
    roots = [rig.drivers[SITES[1]], rig.drivers[SITES[3]]]
    await rig.until(*(lambda one=root: one.stalled for root in roots))
    assert all(root.stalled == [tag] for root in roots)
    await rig.close()


@pytest.mark.parametrize("culprit", [0, 2])
async def test_a_result_that_is_not_finite_is_known_as_such_everywhere_and_its_giver_is_named(culprit: int) -> None:
    """Whoever gave it: all sites, a listener too, find the same of the same bytes; who added it up names where it came
    from."""
    rig = Rig(SITES[:4])
    plan = SyncPlan(
        trees=(
            Tree(
                weight=1.0,
                root=SITES[1],
                parent=((SITES[0], SITES[1]), (SITES[2], SITES[1]), (SITES[3], SITES[2])),
            ),
        ),
        reason="a chain, its end listens",
    )
    rig.connect(plan)
    tag = Tag(epoch=1, round=1)
    for number, driver in enumerate(rig.drivers.values()):
        driver.configure()
        driver.engine.open(tag, plan, [SITES[3]], number != 3)
        driver.fill(number)
        if number == culprit:
            driver.arena[-4:] = np.array([np.nan], dtype=np.float32).tobytes()
        if number != 3:
            driver.engine.contribute(tag, 1.0, True)
    await rig.until(*(lambda one=driver: tag in one.finished for driver in rig.drivers.values()))
    found = [driver.engine.findings(1) for driver in rig.drivers.values()]
    assert found[1].culprits == (SITES[culprit],) and found[culprit].culprits == (SITES[culprit],)
    assert not any(one.finite for one in found) and found[3].culprits == ()
    assert len({driver.finished[tag][0] for driver in rig.drivers.values()}) == 1
    await rig.round(Tag(epoch=1, round=2), plan, dict.fromkeys(SITES[:3], 1.0), [SITES[3]])
    assert all(driver.engine.findings(2).finite for driver in rig.drivers.values())
    assert all(driver.engine.findings(3) == Findings() for driver in rig.drivers.values()), "it is not here"
    await rig.close()


async def test_a_sum_of_finite_parts_that_is_too_large_is_the_affair_of_the_site_that_made_it() -> None:
    rig = Rig(SITES[:2])
    plan = SyncPlan(trees=(Tree(weight=1.0, root=SITES[0], parent=((SITES[1], SITES[0]),)),), reason="two")
    rig.connect(plan)
    tag = Tag(epoch=1, round=1)
    for driver in rig.drivers.values():
        driver.configure()
        driver.engine.open(tag, plan, [], True)
        driver.fill(1)
        driver.arena[-4:] = np.array([3e38], dtype=np.float32).tobytes()
        driver.engine.contribute(tag, 1.0, True)
    await rig.until(*(lambda one=driver: tag in one.finished for driver in rig.drivers.values()))
    found = [driver.engine.findings(1) for driver in rig.drivers.values()]
    assert not any(one.finite for one in found)
    assert [one.culprits for one in found] == [(SITES[0],), ()]
    await rig.close()
