"""The bounds of a run with bytes (spec 19.1): no site owns a result, whatever its script gives or its daemon sends."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.rigs.reduce import SITES, SPEC, Driver, Rig

from chaos_protocols.names import SiteId
from chaos_protocols.rounds.reduce import cut
from chaos_protocols.wire.bounds import NORM_SLACK, UNBOUNDED, Bounds
from chaos_protocols.wire.plans import SyncPlan, Tag, Tree
from chaos_protocols.wire.state_spec import contribution_spec
from chaosd.bulk.reduce.bounds import NormLimit
from chaosd.bulk.reduce.coded import CodedVector
from chaosd.bulk.reduce.results import Findings

BOUNDS = Bounds(norm_max=10.0, weight_max=5.0)
ROOT, INNER, LEAF = SITES[0], SITES[1], SITES[2]
PLAN = SyncPlan(trees=(Tree(weight=1.0, root=ROOT, parent=((INNER, ROOT), (LEAF, INNER))),), reason="a chain of three")
TAG = Tag(epoch=1, round=1)
WIDE = 5_000
AT_THE_LIMIT = 10.0 * (1 - 1e-6)
"""To the digits that processors agree on: one that adds a vector of norm 10 in another order finds it longer."""


def rig_of(bounds: dict[SiteId, Bounds]) -> Rig:
    """Three sites in a chain; each has in its arena a vector of norm 3."""
    rig = Rig(SITES[:3])
    rig.connect(PLAN)
    for number, (site, driver) in enumerate(rig.drivers.items()):
        driver.configure()
        driver.engine.bounds = bounds.get(site, BOUNDS)
        put(driver, 3.0, number)
        driver.engine.open(TAG, PLAN, [], True)
    return rig


def put(driver: Driver, norm: float, seed: int) -> None:
    """A vector of this norm in its arena."""
    vector = driver.fill(seed)
    scaled = vector * (norm / float(np.linalg.norm(vector)))
    driver.arena[:] = scaled[:WIDE].tobytes() + scaled[WIDE:].astype(np.float32).tobytes()


async def closed(rig: Rig) -> None:
    """The rig closes no link of whoever breaks a rule, as the daemon does: what came after the first is no matter."""
    await rig.network.close()
    for driver in rig.drivers.values():
        driver.broken.clear()
    await rig.close()


async def finished(rig: Rig) -> None:
    await rig.until(*(lambda one=driver: TAG in one.finished for driver in rig.drivers.values()))


@pytest.mark.parametrize("norm", [11.0, 1e20, 1e30])
async def test_a_part_that_is_too_long_is_given_with_the_norm_that_is_agreed(norm: float) -> None:
    rig = rig_of({})
    put(rig.drivers[LEAF], norm, 7)
    for driver in rig.drivers.values():
        driver.engine.contribute(TAG, 1.0, True)
    await finished(rig)
    for site, driver in rig.drivers.items():
        assert np.linalg.norm(driver.result(1)) <= (10.0 + 3.0 + 3.0) / 3 * 1.001
        found = driver.engine.findings(1)
        assert found.bounded and found.clipped == pytest.approx(norm if site == LEAF else 0.0, rel=1e-3)
    given = np.frombuffer(rig.drivers[LEAF].arena[:8], dtype=np.float64)[0]
    assert abs(given) > 0, "the script's memory is not written"
    await rig.close()


async def test_a_part_within_the_bounds_counts_as_without_any() -> None:
    results = []
    for bounds in (BOUNDS, UNBOUNDED):
        rig = rig_of(dict.fromkeys(SITES[:3], bounds))
        for driver in rig.drivers.values():
            driver.engine.contribute(TAG, 2.0, True)
        await finished(rig)
        results.append(rig.drivers[ROOT].finished[TAG][0])
        await rig.close()
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("norm", "weight", "told"),
    [
        (1e20, 1.0, "longer than the run allows"),
        (float("nan"), 1.0, "longer than the run allows"),
        (3.0, 1e15, "a weight of 1e+15"),
    ],
)
@pytest.mark.parametrize("liar", [LEAF, INNER])
async def test_a_daemon_that_bounds_nothing_is_found_by_its_parent_before_its_sum_counts(
    norm: float, weight: float, told: str, liar: SiteId
) -> None:
    rig = rig_of({liar: UNBOUNDED})
    put(rig.drivers[liar], norm, 7)
    for site, driver in rig.drivers.items():
        driver.engine.contribute(TAG, weight if site == liar else 1.0, True)
    parent = rig.drivers[INNER if liar == LEAF else ROOT]
    await rig.until(lambda: parent.broken)
    assert {site for site, _ in parent.broken} == {liar} and told in parent.broken[0][1]
    assert not any(driver.finished for driver in rig.drivers.values())
    await closed(rig)


async def test_what_is_sent_again_after_the_link_was_closed_is_judged_again() -> None:
    rig = rig_of({LEAF: UNBOUNDED})
    put(rig.drivers[LEAF], 1e9, 7)
    for driver in rig.drivers.values():
        driver.engine.contribute(TAG, 1.0, True)
    parent = rig.drivers[INNER]
    await rig.until(lambda: parent.broken)
    seen = len(parent.broken)
    rig.network.cut(INNER, LEAF)
    rig.network.connect(INNER, LEAF)
    await rig.until(lambda: len(parent.broken) > seen)
    assert not parent.finished
    await closed(rig)


async def test_a_root_that_makes_up_a_result_is_found_by_whom_it_sends_it_to() -> None:
    rig = rig_of({ROOT: UNBOUNDED})
    put(rig.drivers[ROOT], 1e6, 7)
    for driver in rig.drivers.values():
        driver.engine.contribute(TAG, 1.0, True)
    child = rig.drivers[INNER]
    await rig.until(lambda: child.broken)
    assert child.broken[0][0] == ROOT and "sent a result" in child.broken[0][1]
    assert not child.finished and not rig.drivers[LEAF].finished
    await closed(rig)


async def test_a_result_that_is_hardly_too_long_is_left_out_by_all_others() -> None:
    """Nobody is blamed: processors differ in what they add up to. But all leave it out, or none does."""
    rig = rig_of({ROOT: UNBOUNDED})
    just_beyond = 1.01 * NORM_SLACK * BOUNDS.norm_max
    put(rig.drivers[ROOT], float(np.sqrt(9 * just_beyond**2 - 18)), 7)
    for driver in rig.drivers.values():
        driver.engine.contribute(TAG, 1.0, True)
    await finished(rig)
    assert [driver.engine.findings(1).bounded for driver in rig.drivers.values()] == [True, False, False]
    assert all(driver.engine.findings(1).finite for driver in rig.drivers.values())
    await rig.close()


async def test_a_part_that_is_not_finite_and_that_no_script_looked_at_is_not_given() -> None:
    rig = rig_of({})
    rig.drivers[LEAF].arena[:8] = np.array([np.nan]).tobytes()
    for driver in rig.drivers.values():
        driver.engine.contribute(TAG, 1.0, True)
    await finished(rig)
    assert rig.drivers[ROOT].finished[TAG][1] == ((ROOT, 1.0), (INNER, 1.0), (LEAF, 0.0))
    assert all(driver.engine.findings(1).finite for driver in rig.drivers.values())
    await rig.close()


async def test_only_what_the_script_names_is_bounded() -> None:
    """A counter among the buffers is larger than any gradient."""
    rig = Rig(SITES[:3])
    rig.connect(PLAN)
    spec = contribution_spec(WIDE, 60_001, bounded=[(0, 8 * 4_000), (8 * WIDE, SPEC.size_bytes)])
    for number, driver in enumerate(rig.drivers.values()):
        driver.configure(spec)
        driver.engine.bounds = BOUNDS
        put(driver, 3.0, number)
        driver.arena[8 * 4_500 : 8 * 4_501] = np.array([1e12]).tobytes()
        driver.engine.open(TAG, PLAN, [], True)
        driver.engine.contribute(TAG, 1.0, True)
    await finished(rig)
    for driver in rig.drivers.values():
        assert driver.engine.findings(1) == Findings() and driver.result(1)[4_500] == 1e12
    await rig.close()


@pytest.mark.parametrize("share", [0.98, 0.9999999, 1.0000001, 1.02])
async def test_a_result_at_the_very_edge_is_judged_by_whole_numbers(share: float) -> None:
    """In whatever order a processor adds, the verdict is the same: here forwards, backwards and in pieces."""
    rng = np.random.default_rng(3)
    vector = rng.standard_normal(40_000).astype(np.float32)
    limit = NORM_SLACK * BOUNDS.norm_max
    vector *= np.float32(share * limit / np.linalg.norm(vector.astype(np.float64)))
    verdicts = set()
    for order in (vector, vector[::-1].copy(), rng.permutation(vector)):
        spec = contribution_spec(0, len(order))
        kept = NormLimit(BOUNDS, spec)
        for size in (4096, 32 << 10, 512 << 10):
            verdicts.add(kept.is_kept(limit * limit, order.view(np.uint8), CodedVector(spec, cut(spec, size))))
    assert verdicts == {share < 1}


@pytest.mark.parametrize("encoding", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("liar", [None, LEAF, ROOT])
async def test_bounds_hold_for_what_travels_encoded(encoding: str, liar: SiteId | None) -> None:
    """Honest sites at the very limit are blamed for nothing, round after round, though each adds what it has lost."""
    rig = Rig(SITES[:3])
    rig.connect(PLAN)
    spec = msgspec.structs.replace(SPEC, encoding=encoding)
    for site, driver in rig.drivers.items():
        driver.configure(spec)
        driver.engine.bounds = UNBOUNDED if site == liar else BOUNDS
    for number in range(1, 4):
        tag = Tag(epoch=1, round=number)
        for site, driver in rig.drivers.items():
            put(driver, 1e9 if site == liar else AT_THE_LIMIT, 5)
            driver.engine.open(tag, PLAN, [], True)
            driver.engine.contribute(tag, 1.0, True)
        if liar is not None:
            break
        await rig.until(*(lambda one=driver, tag=tag: tag in one.finished for driver in rig.drivers.values()))
        for driver in rig.drivers.values():
            found = driver.engine.findings(number)
            assert found == Findings(encoding_error=found.encoding_error), "nothing else is found"
    if liar is None:
        await rig.close()
        return
    found_by = rig.drivers[INNER]
    await rig.until(lambda: found_by.broken)
    assert found_by.broken[0][0] == liar and "longer than the run allows" in found_by.broken[0][1]
    await closed(rig)
